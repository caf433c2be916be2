"""A part of a model and its computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...arrays import Array

Shapes = tuple[tuple[int, ...], ...]
Run = Callable[[Sequence[Array], Sequence[Array]], object]
Prepare = Callable[[Shapes], tuple[Shapes, Run]]
"""Maps input shapes to the result shapes, and to a function that computes the results."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a model. nodes, inputs, outputs: the names of the nodes' results, and of values.

    dtype: the type of its inputs and results. ends: adjacent nodes that no network computes, each
    with the reason.
    """

    name: str
    kind: str
    layers: int
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    prepared: Prepare
    dtype: str = "float32"
    ends: tuple[str, ...] = ()
