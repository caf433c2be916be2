"""Placement: values become views of a part of another value's array, so that no node copies them.

1.  The inputs of a concatenation are written directly into the result.
2.  A slice of channels, and a value cropped at its ends, are parts of their source.
3.  If a convolution adds two values, the second one is placed in the result's array.

A part is a range along an array's second axis: channels for channels first, or positions along the
first spatial axis of a single channels-last image. Any other part would have gaps, which
convolution kernels cannot skip, so its node remains.

A value can be in only one array. If it is already a view of another array, an input or an output,
a `Convert` copies it. A `Convert` also copies a value that case 3 would overwrite too early.
"""

from __future__ import annotations

from dataclasses import replace

from .fuse import sums
from .graph import Concat, Convert, Convolution, Graph, Node, Pad, Slice


def place(graph: Graph) -> Graph:
    """Replace concatenations, slices and crops by views."""
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
    """The builder of a placed graph's nodes and views."""

    def __init__(self, graph: Graph) -> None:
        self.shapes, self.forms = dict(graph.shapes), dict(graph.forms)
        self.views = dict(graph.views)
        self.fixed = {*graph.inputs.values(), *graph.outputs, *graph.held}
        self.nodes: list[Node] = []
        self._graph, self._readers, self._writers = graph, graph.readers(), graph.writers()

    def has_parts(self, value: int, axis: int) -> bool:
        """Return whether ranges along an axis of (N, C, *size) are parts of a value's array."""
        single = axis == 1 or self.shapes[value][0] == 1
        return single and axis == self._graph.part_axis(value)

    def start_of_part(self, node: Node) -> int | None:
        """Return where a node's result starts in its input; None if it is not a part of it."""
        operation, value = node.operation, node.inputs[0]
        if isinstance(operation, Slice) and self.has_parts(value, 1):
            return operation.start
        if isinstance(operation, Pad) and self.has_parts(value, 2):
            first, *others = operation.amounts
            if max(first) <= 0 and not any(map(any, others)):
                return -first[0]
        return None

    def put(self, value: int, array: int, first: int, line: str, *, alone: bool = False) -> int:
        """Make a value, or a copy of it, a view of an array that starts at `first`; return it.

        alone: whether to copy a value that has other readers.
        """
        shared = alone and len(self._readers[value]) > 1
        if value in self.views or value in self.fixed or shared or self._has_shared_stride(value):
            copy = max(self.shapes) + 1
            self.shapes[copy], self.forms[copy] = self.shapes[value], self._graph.form(value)
            self.nodes.append(Node(Convert(), (value,), (copy,), line))
            value = copy
        self.views[value] = (array, first)
        return value

    def _has_shared_stride(self, value: int) -> bool:
        """Return whether a kernel needs the same stride for this value and another one."""
        writer = self._writers.get(value)
        if writer is None or not isinstance(writer.operation, Convolution):
            return self.is_residual(value)
        several = len(writer.outputs) > 1 or sums(writer.operation.epilogue) > 0
        return (several and self.shapes[value][0] > 1) or self.is_residual(value)

    def is_residual(self, value: int) -> bool:
        """Return whether a convolution of several images adds this value to its result."""
        return self.shapes[value][0] > 1 and any(
            isinstance(node.operation, Convolution)
            and sums(node.operation.epilogue) > 0
            and value == node.inputs[node.operation.epilogue[0].operand.number]  # type: ignore[union-attr]
            for node in self._readers[value]
        )

    def add_into(self, node: Node) -> None:
        """Add a node whose second residual is placed in the array of its first result."""
        number = node.operation.epilogue[1].operand.number  # type: ignore[attr-defined]  # an Input
        inputs = list(node.inputs)
        inputs[number] = self.put(inputs[number], node.outputs[0], 0, node.line, alone=True)
        self.nodes.append(replace(node, inputs=tuple(inputs)))


def root(graph: Graph, value: int) -> tuple[int, int]:
    """Return the value whose array contains this one, and where this one starts in it."""
    first = 0
    while value in graph.views:
        value, offset = graph.views[value]
        first += offset
    return value, first
