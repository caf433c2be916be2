"""A part of a model, and its computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...arrays import Array

Shapes = tuple[tuple[int, ...], ...]
Run = Callable[[Sequence[Array], Sequence[Array]], object]


class Computation(Protocol):
    """The computation of a part."""

    dtype: str

    def prepared(self, shapes: Shapes) -> tuple[Shapes, Run]:
        """The result shapes for inputs of these shapes, and the function for the results."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part: the names of its nodes' results, of its inputs and outputs, and its computation.

    ends: the nodes beside it that no network has, each with the reason.
    """

    name: str
    kind: str
    layers: int
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    computation: Computation
    ends: tuple[str, ...] = ()
