"""A part of a model, and its computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...arrays import Array

Shapes = tuple[tuple[int, ...], ...]
Run = Callable[[Sequence[Array], Sequence[Array]], object]
Prepare = Callable[[Shapes], tuple[Shapes, Run]]
"""The result shapes for inputs of some shapes, and the function for the results."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part: the names of its nodes' results, of its inputs and outputs, and its computation.

    dtype: of its inputs and results. ends: the nodes beside it that no network has, each with the
    reason.
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
