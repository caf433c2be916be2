"""A part of a model, and what computes it."""

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
        """The shapes of the results for inputs of these shapes, and what computes them."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part: its nodes' results by name, what it reads and makes, and what computes it.

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
