"""The limits of Winograd's algorithm; candidates.py has those of the model."""

from __future__ import annotations

from ..correlation import Correlation
from .window import windows_of

_MAX_TAPS = 64  # of a phase, along an axis


def refusal(correlation: Correlation) -> str | None:
    """Return why Winograd's algorithm cannot compute a correlation, or None."""
    if correlation.rank > 3:
        return "there are transforms for at most three axes"
    windows = windows_of(correlation)
    taps = "x".join(str(window.r) for window in windows)
    if max(window.r for window in windows) > _MAX_TAPS or all(w.r == 1 for w in windows):
        return f"phases have {taps} taps, and there are transforms for 2 to {_MAX_TAPS}"
    pairs = zip(windows, correlation.lines, strict=True)
    if all(window.r == 1 or window.steps(line) <= window.apart for window, line in pairs):
        return f"phases have {taps} taps, and no two positions of a phase read the same operand"
    return None
