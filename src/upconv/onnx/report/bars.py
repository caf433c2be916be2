"""Times as bars on a common scale: how long a bar is, and where its middle half lies, in percent.

A bar ends at the median; the mark across its end goes from the lower to the upper quartile. A
scale leaves room for the longest.

What lives here: lengths. What never does: colours, numbers in words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from ..optimizing.results import Timing

_FULL = 98.0
"""Percent of the room that the longest takes."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Percent of the room: the bar's length, where its mark begins, and how long that is."""

    length: float
    low: float
    spread: float


@dataclass(frozen=True, slots=True)
class Scale:
    """The seconds that fill the room.

    >>> Scale(2.0).bar(Timing(1.0, 0.5, 1.5, 0.4, 9))
    Bar(length=49.0, low=24.5, spread=49.0)
    """

    seconds: float

    @classmethod
    def of(cls, timings: Iterable[Timing | None]) -> Scale:
        """The scale on which all of these find room."""
        tops = [top for each in timings if each for top in (each.median, each.high)]
        return cls(max((top for top in tops if isfinite(top)), default=0.0))

    def bar(self, timing: Timing) -> Bar:
        """A timing on this scale."""
        low, high = self.percent(timing.low), self.percent(timing.high)
        return Bar(self.percent(timing.median), low, round(max(high - low, 0.0), 2))

    def percent(self, seconds: float) -> float:
        """A length on this scale, never outside the room."""
        if not isfinite(seconds) or self.seconds <= 0:
            return 0.0
        return round(min(max(_FULL * seconds / self.seconds, 0.0), _FULL), 2)
