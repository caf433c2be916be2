"""The choice of channels first or last for every value, by the cost of kernels and conversions.

Every node is given one of two labels. The engine's candidates state what a convolution costs under
each label. A value must be converted if a reader's label differs from its writer's. The total cost
is minimal at a minimum cut of a graph that separates channels first from channels last (Greig,
Porteous and Seheult 1989), so the choice is optimal under the cost model.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from ..problem import DataLayout, DType
from . import graph as ir

_BYTE = 0.25
"""Cycles that a thread needs per byte that a copy reads from or writes to main memory."""
_FIRST, _LAST = "first", "last"
_NONE: Mapping[int, ir.Form] = {}

Cost = Callable[[ir.Convolution, ir.Shape, DataLayout], float]
"""Function that returns the cycles of a convolution for an input shape and a layout."""


def laid_out(
    graph: ir.Graph, layouts: Sequence[DataLayout], dtype: DType,
    inner: Mapping[int, ir.Form] = _NONE,
) -> ir.Graph:  # fmt: skip
    """Give each value a form, and insert conversions where layouts or dtypes differ.

    layouts: the nodes' layouts, in order. inner: the forms of inputs and outputs that callers never
    see; all other inputs and outputs are channels first and float32.
    """
    forms = {value: inner.get(value, ir.Form()) for value in graph.inputs.values()}
    shapes, nodes = dict(graph.shapes), []
    converted: dict[tuple[int, ir.Form], int] = {}

    def read(value: int, form: ir.Form, line: str) -> int:
        if forms[value] == form:
            return value
        if (value, form) not in converted:
            number = max(shapes) + 1
            shapes[number], forms[number] = shapes[value], form
            nodes.append(ir.Node(ir.Convert(), (value,), (number,), line))
            converted[value, form] = number
        return converted[value, form]

    for node, layout in zip(graph.nodes, layouts, strict=True):
        form = ir.Form(layout, dtype)
        inputs = tuple(read(value, form, node.line) for value in node.inputs)
        nodes.append(replace(node, inputs=inputs))
        forms |= dict.fromkeys(node.outputs, form)
    outputs = tuple(read(value, inner.get(value, ir.Form()), "") for value in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs, shapes=shapes, forms=forms)


def labels(graph: ir.Graph, dtype: DType, threads: int, cost: Cost) -> tuple[DataLayout, ...]:
    """Return the layout of each node, at minimal total cost."""
    flow = _Flow()

    def copy(value: int) -> float:
        return 2 * prod(graph.shapes[value]) * dtype.itemsize * _BYTE / threads

    writers = dict.fromkeys(graph.inputs.values(), _FIRST) | {
        value: str(number) for number, node in enumerate(graph.nodes) for value in node.outputs
    }
    readers: dict[int, list[str]] = defaultdict(list)
    for number, node in enumerate(graph.nodes):
        name = str(number)
        for value in node.inputs:
            readers[value].append(name)
        operation = node.operation
        if isinstance(operation, ir.Convolution):
            shape = graph.shapes[node.inputs[0]]
            flow.add(_FIRST, name, cost(operation, shape, DataLayout.NXC))
            flow.add(name, _LAST, cost(operation, shape, DataLayout.NCX))
        elif isinstance(operation, ir.Lstm):
            flow.add(name, _LAST, inf)
        elif isinstance(operation, ir.Concat | ir.Slice):
            flow.add(_FIRST, name, copy(node.outputs[0]))
        elif isinstance(operation, ir.Permute | ir.PixelUnshuffle):  # channels last: one by one
            flow.add(_FIRST, name, 8 * copy(node.outputs[0]))
        elif isinstance(operation, ir.Resample) and operation.by_position:  # positions one by one
            flow.add(name, _LAST, 8 * copy(node.outputs[0]))
    for value in graph.outputs:
        readers[value].append(_FIRST)
    for value, names in readers.items():
        writer, cycles = writers[value], copy(value)
        for reader in names:
            flow.add(f"to {value}", reader, inf)
            flow.add(reader, f"from {value}", inf)
        flow.add(writer, f"to {value}", cycles)
        flow.add(f"from {value}", writer, cycles)
    last = flow.cut_off(_FIRST, _LAST)
    return tuple(
        DataLayout.NXC if str(number) in last else DataLayout.NCX
        for number in range(len(graph.nodes))
    )


class _Flow:
    """A flow network, whose minimum cut is found by shortest augmenting paths."""

    def __init__(self) -> None:
        self._residual: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, tail: str, head: str, capacity: float) -> None:
        """Add capacity to the edge from `tail` to `head`."""
        self._residual[tail][head] += capacity
        self._residual[head][tail] += 0.0

    def cut_off(self, source: str, sink: str) -> set[str]:
        """Return the vertices on the sink's side of the minimum cut."""
        while True:
            before = {source: source}
            queue = deque([source])
            while queue and sink not in before:
                vertex = queue.popleft()
                for other, residual in self._residual[vertex].items():
                    if residual > 0 and other not in before:
                        before[other] = vertex
                        queue.append(other)
            if sink not in before:
                return set(self._residual) - set(before)
            path = [sink]
            while path[-1] != source:
                path.append(before[path[-1]])
            steps = list(zip(path[1:], path, strict=False))
            flow = min(self._residual[tail][head] for tail, head in steps)
            for tail, head in steps:
                self._residual[tail][head] -= flow
                self._residual[head][tail] += flow
