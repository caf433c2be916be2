"""Parts of a network: the graph of a box or of a push, with its own numbering of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from . import graph as ir
from .kinds import output_shapes
from .reach import Ends


@dataclass(frozen=True, eq=False)
class Part:
    """A part's graph, and `values`: for each node, the network value that it computes a part of."""

    graph: ir.Graph
    values: tuple[int, ...]

    def variants(
        self, network: ir.Graph, variants: Mapping[ir.Convolution, str]
    ) -> dict[ir.Convolution, str]:
        """Return the kernels of the part's convolutions, which are the network's."""
        writers = network.writers()
        return {
            node.operation: variants[writers[value].operation]  # type: ignore[index]
            for node, value in zip(self.graph.nodes, self.values, strict=True)
            if isinstance(node.operation, ir.Convolution)
        }


class PartBuilder:
    """The builder of a part's graph; arguments named `value` are numbers of network values."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.values: list[int] = []
        self.shapes: dict[int, ir.Shape] = {}
        self.inputs: dict[str, int] = {}

    def graph(self, *outputs: int) -> ir.Graph:
        """Return the graph of all nodes added so far."""
        return ir.Graph(tuple(self.nodes), self.inputs, outputs, self.shapes)

    def input(self, name: str, shape: ir.Shape) -> int:
        """Add an input of the part."""
        self.inputs[name] = self._value(shape)
        return self.inputs[name]

    def node(
        self, operation: ir.Operation, inputs: tuple[int, ...], value: int, line: str = ""
    ) -> list[int]:
        """Add a node; return the values that it writes."""
        shapes = output_shapes(operation, tuple(self.shapes[number] for number in inputs))
        outputs = [self._value(cast(ir.Shape, shape)) for shape in shapes]
        self.nodes.append(ir.Node(operation, inputs, tuple(outputs), line))
        self.values.append(value)
        return outputs

    def cropped(self, number: int, ends: Mapping[int, Ends], value: int) -> int:
        """Crop a value by `ends`, given per spatial axis; return the cropped value."""
        if not any(map(any, ends.values())):
            return number
        rank = len(self.shapes[number]) - 2
        pairs = (ends.get(axis, (0, 0)) for axis in range(rank))
        amounts = tuple((-begin, -end) for begin, end in pairs)
        return self.node(ir.Pad(amounts), (number,), value)[0]

    def _value(self, shape: ir.Shape) -> int:
        self.shapes[len(self.shapes)] = shape
        return len(self.shapes) - 1
