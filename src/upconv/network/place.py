"""Placing: values that lie in a part of another value's array, so that nobody copies them.

1.  The inputs of a channels-first concatenation are written into their channels of its result.
2.  A channels-first slice of channels is a part of the value that it reads.
3.  A convolution that adds two values has the second one in its result's array beforehand.

A value lies in one place. Where it lies elsewhere already, or the caller gives or gets it, or
others read what case 3 overwrites, a `Convert` copies it. Channels-last data keeps its nodes: parts
would have gaps between positions, which the kernels of convolutions do not step over.
"""

from __future__ import annotations

from dataclasses import replace

from ..problem import DataLayout
from .fuse import sums
from .graph import Concat, Convert, Convolution, Graph, Node, Slice


def place(graph: Graph) -> Graph:
    """Turn concatenations and slices into views."""
    placing = _Placing(graph)
    for node in graph.nodes:
        operation, output = node.operation, node.outputs[0]
        first = graph.form(output).layout is DataLayout.NCX
        free = output not in placing.fixed and not placing.is_residual(output)
        if first and isinstance(operation, Slice) and free:
            placing.views[output] = (node.inputs[0], operation.start)
        elif first and isinstance(operation, Concat) and operation.axis == 1:
            channel = 0
            for value in node.inputs:
                placing.put(value, output, channel, node.line)
                channel += graph.shapes[value][1]
        elif isinstance(operation, Convolution) and sums(operation.end) == 2:
            placing.add_into(node)
        else:
            placing.nodes.append(node)
    return replace(
        graph,
        nodes=tuple(placing.nodes),
        shapes=placing.shapes,
        forms=placing.forms,
        views=placing.views,
    )


class _Placing:
    """Nodes and views so far."""

    def __init__(self, graph: Graph) -> None:
        self.shapes, self.forms = dict(graph.shapes), dict(graph.forms)
        self.views = dict(graph.views)
        self.fixed = {*graph.inputs.values(), *graph.outputs}
        self.nodes: list[Node] = []
        self._graph, self._readers, self._writers = graph, graph.readers(), graph.writers()

    def put(self, value: int, array: int, channel: int, line: str, *, alone: bool = False) -> int:
        """Let a value, or a copy of it, lie in an array from a channel on; which of them does.

        alone: whether the value must have no other reader.
        """
        shared = alone and len(self._readers[value]) > 1
        if value in self.views or value in self.fixed or shared or self._lies_like_others(value):
            copy = max(self.shapes) + 1
            self.shapes[copy], self.forms[copy] = self.shapes[value], self._graph.form(value)
            self.nodes.append(Node(Convert(), (value,), (copy,), line))
            value = copy
        self.views[value] = (array, channel)
        return value

    def _lies_like_others(self, value: int) -> bool:
        """Whether a kernel steps along it and other arrays alike: a residual, a second result."""
        writer = self._writers.get(value)
        if writer is None or not isinstance(writer.operation, Convolution):
            return self.is_residual(value)
        several = len(writer.outputs) > 1 or sums(writer.operation.end) > 0
        return (several and self.shapes[value][0] > 1) or self.is_residual(value)

    def is_residual(self, value: int) -> bool:
        """Whether a convolution of several images adds the value to its result."""
        return self.shapes[value][0] > 1 and any(
            isinstance(node.operation, Convolution)
            and sums(node.operation.end) > 0
            and value == node.inputs[node.operation.end[0].operand.number]  # type: ignore[union-attr]
            for node in self._readers[value]
        )

    def add_into(self, node: Node) -> None:
        """The node, the second value that it adds being in its first result's array."""
        number = node.operation.end[1].operand.number  # type: ignore[attr-defined]  # an Input
        inputs = list(node.inputs)
        inputs[number] = self.put(inputs[number], node.outputs[0], 0, node.line, alone=True)
        self.nodes.append(replace(node, inputs=tuple(inputs)))


def root(graph: Graph, value: int) -> tuple[int, int]:
    """The value whose array holds this one, and its first channel there."""
    first = 0
    while value in graph.views:
        value, offset = graph.views[value]
        first += offset
    return value, first
