"""The positions kernel's limits."""

from __future__ import annotations

from math import prod

from ....problem import DataLayout
from ..correlation import Correlation
from .schedule import padded_size

_MAX_ROWS = 1 << 20
_MAX_SHIFTS = 48  # along the last axis: each adds code to the tile


def refusal(correlation: Correlation) -> str | None:
    """Return why the positions kernel refuses a correlation, or None."""
    if correlation.layout is not DataLayout.NCX:
        return "it needs channels-first data"
    if any(line.step > 1 for line in correlation.lines):
        return "it reads every position, but this convolution has a stride"
    shifts = len({tap.shift for phase in correlation.lines[-1].phases for tap in phase.taps})
    if shifts > _MAX_SHIFTS:
        return f"it handles at most {_MAX_SHIFTS} shifts along the last axis, not {shifts}"
    rows = correlation.batch * prod(padded_size(line) for line in correlation.lines[:-1])
    if rows > _MAX_ROWS:
        return f"it handles at most {_MAX_ROWS} rows in all images, not {rows}"
    return None
