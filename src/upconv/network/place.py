"""Placing: values that are views of a part of another value's array, so that no node copies them.

1.  The inputs of a concatenation are written into their part of its result.
2.  A slice of channels, and a value without some of its ends, are parts of their source.
3.  If a convolution adds two values, the second one lies in its result's array beforehand.

A part is a run of an array's second axis: channels if these come first, or positions of the first
spatial axis of a single channels-last image. Other parts would have gaps, which the kernels of
convolutions cannot skip; they keep their nodes.

A value lies in one array. A `Convert` copies a view of another array, an input or an output. It
also copies a value that case 3 would overwrite before other nodes read it.
"""

from __future__ import annotations

from dataclasses import replace

from .fuse import sums
from .graph import Concat, Convert, Convolution, Graph, Node, Pad, Slice


def place(graph: Graph) -> Graph:
    """Turn concatenations, slices and crops into views."""
    placing = _Placing(graph)
    for node in graph.nodes:
        operation, output = node.operation, node.outputs[0]
        start = placing.start_of_part(node)
        free = output not in placing.fixed and not placing.is_residual(output)
        if start is not None and free:
            placing.views[output] = (node.inputs[0], start)
        elif isinstance(operation, Concat) and placing.has_parts(output, operation.axis):
            first = 0
            for value in node.inputs:
                if placing.views.get(value) != (output, first):
                    placing.put(value, output, first, node.line)
                first += graph.shapes[value][operation.axis]
        elif isinstance(operation, Convolution) and sums(operation.epilogue) == 2:
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
    """Builder of the nodes and views of a placed graph."""

    def __init__(self, graph: Graph) -> None:
        self.shapes, self.forms = dict(graph.shapes), dict(graph.forms)
        self.views = dict(graph.views)
        self.fixed = {*graph.inputs.values(), *graph.outputs, *graph.held}
        self.nodes: list[Node] = []
        self._graph, self._readers, self._writers = graph, graph.readers(), graph.writers()

    def has_parts(self, value: int, axis: int) -> bool:
        """Whether runs along this axis of (N, C, *size) are parts of a value's array."""
        single = axis == 1 or self.shapes[value][0] == 1
        return single and axis == self._graph.part_axis(value)

    def start_of_part(self, node: Node) -> int | None:
        """The first position of a node's result in its input if it is a part of it, else None."""
        operation, value = node.operation, node.inputs[0]
        if isinstance(operation, Slice) and self.has_parts(value, 1):
            return operation.start
        if isinstance(operation, Pad) and self.has_parts(value, 2):
            first, *others = operation.amounts
            if max(first) <= 0 and not any(map(any, others)):
                return -first[0]
        return None

    def put(self, value: int, array: int, first: int, line: str, *, alone: bool = False) -> int:
        """Make a value, or a copy of it, a view of an array from a position on; return which.

        alone: whether the value must have no other reader.
        """
        shared = alone and len(self._readers[value]) > 1
        if value in self.views or value in self.fixed or shared or self._lies_like_others(value):
            copy = max(self.shapes) + 1
            self.shapes[copy], self.forms[copy] = self.shapes[value], self._graph.form(value)
            self.nodes.append(Node(Convert(), (value,), (copy,), line))
            value = copy
        self.views[value] = (array, first)
        return value

    def _lies_like_others(self, value: int) -> bool:
        """Whether a kernel uses one stride for it and other arrays: a residual, a second result."""
        writer = self._writers.get(value)
        if writer is None or not isinstance(writer.operation, Convolution):
            return self.is_residual(value)
        several = len(writer.outputs) > 1 or sums(writer.operation.epilogue) > 0
        return (several and self.shapes[value][0] > 1) or self.is_residual(value)

    def is_residual(self, value: int) -> bool:
        """Whether a convolution of several images adds the value to its result."""
        return self.shapes[value][0] > 1 and any(
            isinstance(node.operation, Convolution)
            and sums(node.operation.epilogue) > 0
            and value == node.inputs[node.operation.epilogue[0].operand.number]  # type: ignore[union-attr]
            for node in self._readers[value]
        )

    def add_into(self, node: Node) -> None:
        """Add a node whose second residual lies in the array of its first result."""
        number = node.operation.epilogue[1].operand.number  # type: ignore[attr-defined]  # an Input
        inputs = list(node.inputs)
        inputs[number] = self.put(inputs[number], node.outputs[0], 0, node.line, alone=True)
        self.nodes.append(replace(node, inputs=tuple(inputs)))


def root(graph: Graph, value: int) -> tuple[int, int]:
    """The value whose array holds this one, and where it begins there."""
    first = 0
    while value in graph.views:
        value, offset = graph.views[value]
        first += offset
    return value, first
