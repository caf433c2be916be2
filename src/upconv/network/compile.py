"""Compiling: from a graph of known sizes to a program, one pass after another.

fuse, fold, split   know no sizes: done once for a network (`simplified`)
choose_layouts      layout and element type of every value
place               concatenations and slices without copies
program             memory, and the native steps
"""

from __future__ import annotations

from ..choices import Algorithm
from ..problem import DataLayout, DType
from .convolutions import Weights, candidate, problem_of
from .fold import fold
from .fuse import fuse, split
from .graph import Convolution, Form, Graph, Shape
from .layout import choose_layouts
from .place import place


def simplified(graph: Graph) -> Graph:
    """The graph with everything fused and folded that kernels can do."""
    return split(fold(fuse(graph)))


def laid_out(graph: Graph, dtype: DType, threads: int, algorithm: Algorithm) -> Graph:
    """A simplified graph with a form and a place for every value."""

    def cost(operation: Convolution, shape: Shape, layout: DataLayout) -> float:
        problem = problem_of(operation, shape, Form(layout, dtype))
        return candidate(problem, threads, algorithm).cycles

    return place(choose_layouts(graph, dtype, threads, cost))


__all__ = ["Weights", "laid_out", "simplified"]
