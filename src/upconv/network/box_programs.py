"""The programs of boxes: one per form of box, with the kernels of the whole network."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..geometry import same_padding
from ..keywords import Same, paddings
from ..threads import resolved
from . import graph as ir
from .boxes import Boxes
from .compile import Choice, Compiler, resized
from .convolutions import problem_of
from .digests import digest
from .layout_choice import laid_out
from .parts import Part
from .program import Program
from .reach import ends_of

_MOST_PROGRAMS = 32


class BoxPrograms:
    """A network of known sizes to be computed box by box; it can be pickled."""

    def __init__(self, graph: ir.Graph, choice: Choice, options: ir.Options) -> None:
        self.boxes, self._choice, self._options = Boxes(graph), choice, options
        self._compiler = Compiler(graph, fused=False)  # `graph` is fused already
        self._programs: dict[object, Program] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls, compiler: Compiler, shapes: Mapping[str, ir.Shape], options: ir.Options
    ) -> BoxPrograms:
        """The boxes of a network for inputs of these shapes, with the whole network's kernels."""
        sized = resized(compiler.graph, shapes)
        graph = sized.with_nodes([_explicit(node, sized) for node in sized.nodes])
        choice = compiler.choice(shapes, options)
        variants = {
            node.operation: choice.variants[before.operation]  # type: ignore[index]
            for before, node in zip(sized.nodes, graph.nodes, strict=True)
            if isinstance(node.operation, ir.Convolution)
        }
        return cls(graph, Choice(choice.layouts, variants), options)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoxPrograms, (self.boxes.graph, self._choice, self._options)

    @property
    def digest(self) -> str:
        """A digest of everything that results depend on."""
        variants = tuple(self._choice.variants.values())
        dtype, _, algorithm = self._options
        settings = dtype, algorithm, self._choice.layouts, variants
        return digest(self.boxes.graph, settings).hex()

    def program(self, part: Part) -> Program:
        """The program of a part; all parts of the same form share it."""
        ends = tuple(ends_of(node.operation) for node in part.graph.nodes)
        key = part.values, part.graph.outputs, *part.graph.shapes.values(), ends
        with self._lock:
            if key not in self._programs:
                while len(self._programs) >= _MOST_PROGRAMS:
                    del self._programs[next(iter(self._programs))]
                self._programs[key] = self._compiled(part)
            return self._programs[key]

    def _compiled(self, part: Part) -> Program:
        network, options = self.boxes.graph, self._options._replace(threads=resolved(None))
        layouts = {
            value: layout
            for node, layout in zip(network.nodes, self._choice.layouts, strict=True)
            for value in node.outputs
        }
        first = ir.Form().layout
        graph = laid_out(part.graph, [layouts.get(v, first) for v in part.values], options.dtype)
        variants = part.variants(network, self._choice.variants)
        make = partial(self._compiler.assembled, graph, variants, part=True)
        return Program(make, options)


def _explicit(node: ir.Node, graph: ir.Graph) -> ir.Node:
    """The node with padding and factors that do not depend on the size."""
    operation, size = node.operation, graph.shapes[node.inputs[0]][2:]
    if isinstance(operation, ir.Resample):
        return replace(node, operation=operation.at(size))
    if not isinstance(operation, ir.Convolution) or operation.transposed:
        return node
    padding = paddings(operation.keywords.padding, len(size))
    if not isinstance(padding, Same):
        return node
    axes, upper = problem_of(operation, graph.shapes[node.inputs[0]], ir.Form()).axes, padding
    pairs = tuple(
        same_padding(n, a.kernel, a.stride, a.dilation, upper=upper is Same.UPPER)
        for n, a in zip(size, axes, strict=True)
    )
    keywords = operation.keywords._replace(padding=pairs)
    return replace(node, operation=replace(operation, keywords=keywords))
