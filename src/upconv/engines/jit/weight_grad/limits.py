"""The limits of weight gradients on tile registers; other registers have none."""

from __future__ import annotations

from math import ceil, prod

from ....problem import Problem
from ..tiles.operations import PAIRS
from .tile_geometry import flat_of

_MAX_TAPS = 1024
_MAX_FLATTENED = 32  # flattened positions per position of x, to bound products with zeros


def refusal(problem: Problem) -> str | None:
    """Return why tile registers cannot compute a weight gradient, or None."""
    if prod(problem.kernel) > _MAX_TAPS:
        return f"tiles handle at most {_MAX_TAPS} taps"
    positions = problem.batch * prod(problem.size)
    if flat_of(problem).chunks > _MAX_FLATTENED * ceil(positions / PAIRS):
        return "zeros between its rows would make the input many times as long"
    return None
