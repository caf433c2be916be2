"""The programs of boxes: one for all boxes of one form, with the kernels of the whole network."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..choices import Algorithm
from ..geometry import same_padding
from ..keywords import Same, paddings
from ..problem import DType
from ..threads import resolved
from . import graph as ir
from .boxes import Boxes, Part, ends_of
from .compile import Choice, Compiled, Compiler, resized
from .convolutions import fitting, problem_of
from .digests import digest
from .layout import laid_out
from .program import Program

_MOST_PROGRAMS = 32


class BoxPrograms:
    """A network of known sizes that is computed box by box; it can be pickled."""

    def __init__(self, graph: ir.Graph, choice: Choice, dtype: DType, algorithm: Algorithm) -> None:
        self.boxes, self._choice = Boxes(graph), choice
        self._dtype, self._algorithm = dtype, algorithm
        self._compiler = Compiler(graph, fused=False)  # `graph` is fused already
        self._programs: dict[object, Program] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls, compiler: Compiler, shapes: Mapping[str, ir.Shape], dtype: DType, threads: int,
        algorithm: Algorithm,
    ) -> BoxPrograms:  # fmt: skip
        """The boxes of a network for inputs of these shapes, with its kernels on the whole."""
        sized = resized(compiler.graph, shapes)
        graph = sized.with_nodes([_explicit(node, sized) for node in sized.nodes])
        choice = compiler.choice(shapes, dtype, threads, algorithm)
        variants = {
            node.operation: choice.variants[before.operation]  # type: ignore[index]
            for before, node in zip(sized.nodes, graph.nodes, strict=True)
            if isinstance(node.operation, ir.Convolution)
        }
        return cls(graph, Choice(choice.layouts, variants), dtype, algorithm)

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.boxes.graph, self._choice, self._dtype, self._algorithm
        return BoxPrograms, state

    @property
    def digest(self) -> str:
        """A digest of everything that results depend on."""
        variants = tuple(self._choice.variants.values())
        settings = self._dtype, self._algorithm, self._choice.layouts, variants
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
        network, threads = self.boxes.graph, resolved(None)
        writers = network.writers()
        layouts = {
            value: layout
            for node, layout in zip(network.nodes, self._choice.layouts, strict=True)
            for value in node.outputs
        }
        first = ir.Form().layout
        graph = laid_out(part.graph, [layouts.get(v, first) for v in part.values], self._dtype)
        operations = {
            node.operation: writers[value].operation
            for node, value in zip(part.graph.nodes, part.values, strict=True)
            if isinstance(node.operation, ir.Convolution)
        }

        def compiled(algorithm: Algorithm) -> Compiled:
            variants = {}
            for node in graph.nodes:
                if isinstance(node.operation, ir.Convolution):
                    shape, form = graph.shapes[node.inputs[0]], graph.form(node.outputs[0])
                    wanted = self._choice.variants[operations[node.operation]]  # type: ignore[index]
                    problem = problem_of(node.operation, shape, form)
                    variants[node.operation] = fitting(problem, threads, wanted, algorithm)
            return self._compiler.assembled(graph, variants, self._dtype, threads)

        return Program(compiled(self._algorithm), lambda: compiled(Algorithm.DIRECT))


def _explicit(node: ir.Node, graph: ir.Graph) -> ir.Node:
    """A node whose padding and factors do not depend on the size."""
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
