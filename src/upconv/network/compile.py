"""The compiler: a sequence of passes from a graph of known sizes to a program.

fuse, fold, upsampled, split    independent of sizes: once per network
choose              layouts and kernels, chosen from the engine's candidates once per size class
laid_out, place     a form for every value, and views
program             memory and native steps
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from .. import memory
from ..engines.base import Candidate
from ..errors import EngineError, ShapeError
from ..problem import DataLayout, DType, Problem
from .convolutions import Layer, Weights, candidate, fitting, priced, problem_of
from .fold import fold, reordered
from .fuse import fuse, split
from .graph import Convolution, Form, Graph, Node, Options, Shape
from .kinds import output_shapes
from .layout_choice import labels, laid_out
from .memory import Arena, arena
from .place import place
from .upsampled import upsampled

_EXACT = 64  # each size up to this one is its own class


def simplified(graph: Graph) -> Graph:
    """Fuse and fold a graph as far as the kernels allow."""
    return split(upsampled(fold(fuse(reordered(graph)))))


@dataclass(frozen=True)
class Choice:
    """The layout of each node, and the kernel of each convolution in that layout."""

    layouts: tuple[DataLayout, ...]
    variants: dict[Convolution, str]


@dataclass(frozen=True, eq=False)
class Compiled:
    """A graph with a form and a memory offset for each value, and its convolutions ready to run."""

    graph: Graph
    arena: Arena
    layers: dict[Node, Layer]
    dtype: DType
    threads: int


class Compiler:
    """A network's graph without sizes, its packed weights, and the choices made for its sizes.

    fused: whether to fuse operations; values between fused operations are not rounded.
    """

    def __init__(self, graph: Graph, *, fused: bool = True) -> None:
        self.graph = simplified(graph) if fused else graph
        self._weights = Weights()
        self._choices: dict[object, Choice] = {}

    def compiled(self, shapes: Mapping[str, Shape], options: Options) -> Compiled:
        """Compile the network for inputs of these shapes."""
        choice = self.choice(shapes, options)
        graph = laid_out(resized(self.graph, shapes), choice.layouts, options.dtype)
        return self.assembled(graph, choice.variants, options)

    def choice(self, shapes: Mapping[str, Shape], options: Options) -> Choice:
        """Return the layouts and kernels for the size class of these input shapes."""
        rounded = {name: _size_class(shape) for name, shape in shapes.items()}
        key = (*rounded.values(), options)
        if key not in self._choices:
            try:
                graph = resized(self.graph, rounded)
            except ShapeError:  # the class's shape does not fit, though the actual shape may
                graph = resized(self.graph, shapes)
            self._choices[key] = choose(graph, options)
        return self._choices[key]

    def assembled(
        self, graph: Graph, variants: Mapping[Convolution, str], options: Options, *,
        part: bool = False,
    ) -> Compiled:  # fmt: skip
        """Compile a laid-out graph: assign memory offsets, kernels and packed weights.

        part: the graph is a part of the network, and may be too small for the chosen kernels.
        """
        threads = options.threads
        graph = place(graph)
        places = arena(graph)
        memory.require(places.nbytes, "the arena of the program")  # before large tables
        layers = {}
        for node in graph.nodes:
            if isinstance(node.operation, Convolution):
                form, sums = graph.form(node.outputs[0]), node.operation.sums
                problem = problem_of(node.operation, graph.shapes[node.inputs[0]], form)
                variant = variants[node.operation]
                if part:
                    variant = fitting(problem, threads, variant, options.algorithm, sums)
                layers[node] = self._weights.layer(node.operation, problem, threads, variant)
        return Compiled(graph, places, layers, options.dtype, threads)


def choose(graph: Graph, options: Options) -> Choice:
    """Choose the layouts and kernels that are fastest by the engine's cost model."""
    dtype, threads, algorithm = options
    variants: dict[tuple[Convolution, DataLayout], str] = {}
    known: dict[tuple[Problem, str | None], Candidate] = {}

    def cost(operation: Convolution, shape: Shape, layout: DataLayout) -> float:
        problem = priced(problem_of(operation, shape, Form(layout, dtype)))
        key = problem, operation.sums
        if key not in known:
            try:
                known[key] = candidate(problem, threads, algorithm, operation.sums)
            except EngineError as error:
                line = next(node.line for node in graph.nodes if node.operation is operation)
                kind = "conv_transpose" if operation.transposed else "conv"
                message = f"{kind} at {line}, weight {operation.weight.shape}: {error}"
                raise EngineError(message) from None
        variants[operation, layout] = known[key].variant
        return known[key].cycles

    layouts = labels(graph, dtype, threads, cost)
    chosen = {
        node.operation: variants[node.operation, layout]
        for node, layout in zip(graph.nodes, layouts, strict=True)
        if isinstance(node.operation, Convolution)
    }
    return Choice(layouts, chosen)


def resized(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """Return the same graph for inputs of other shapes."""
    known = {number: shapes[name] for name, number in graph.inputs.items()}
    for node in graph.nodes:
        results = output_shapes(node.operation, tuple(known[value] for value in node.inputs))
        known.update(zip(node.outputs, cast(tuple[Shape, ...], results), strict=True))
    return replace(graph, shapes=known)


def _size_class(shape: Shape) -> Shape:
    """Return the shape that represents a size class: above 64, sizes become 96, 128, 192, 256, ...

    Choosing takes three times as long as the rest of compilation. Few kernels differ between
    classes, and whenever a kernel does change, its weight is packed again.
    """
    return (*shape[:2], *(_rounded(size) for size in shape[2:]))


def _rounded(size: int) -> int:
    step = 1 << max(0, (size - 1).bit_length() - 2)
    return size if size <= _EXACT else -(-size // step) * step
