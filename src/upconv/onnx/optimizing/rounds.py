"""Timing calls against each other: one sample of each per round, in turns.

Drift of the machine falls on all alike, and because the samples of a round belong together their
ratios say more than their times. A turn begins with calls that are not counted: threads of the one
before spin for a while after their work, and a runtime's own have to wake up.

The first call, with which the others are compared, has a turn at the begin of each round and one at
its end. What differs between the two is noise, and no ratio is believed further than that.

What lives here: the clock. What never does: what the times mean (`results`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Call = Callable[[], None]

_SETTLE_SECONDS = 0.01
_SAMPLE_SECONDS = 3e-3
_FEWEST_ROUNDS = 7
_MOST_ROUNDS = 200
_TRIED = 3
_HOPELESS = 3.0
"""Who takes so many times the best after the first rounds does not go on."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The samples of every call, in seconds, and those of the first call's second turns.

    A call that sat rounds out has fewer samples: those of the first rounds.
    """

    samples: tuple[list[float], ...]
    again: list[float]

    @property
    def first(self) -> list[float]:
        """The first call's samples, the mean of its two turns."""
        return [(a + b) / 2 for a, b in zip(self.samples[0], self.again, strict=True)]


def timed(calls: Sequence[Call], seconds: float) -> Rounds:
    """The samples of each call, one per round, in about `seconds` altogether.

    A call that is hopeless against the best after `_TRIED` rounds sits out the others. There are at
    least `_FEWEST_ROUNDS` rounds.
    """
    repeats = [_repeats(call) for call in calls]
    samples: tuple[list[float], ...] = tuple([] for _ in calls)
    again: list[float] = []
    staying = list(range(len(calls)))
    end = time.perf_counter() + seconds
    for done in range(_MOST_ROUNDS):
        if done >= _FEWEST_ROUNDS and time.perf_counter() > end:
            break
        for i in staying:
            samples[i].append(_turn(calls[i], repeats[i]))
        again.append(_turn(calls[0], repeats[0]))
        if done + 1 == _TRIED:
            staying = _hopeful(samples)
    return Rounds(samples, again)


def _hopeful(samples: Sequence[Sequence[float]]) -> list[int]:
    """The first, and all that are near enough to the best."""
    bound = _HOPELESS * min(map(min, samples))
    return [i for i, series in enumerate(samples) if i == 0 or min(series) <= bound]


def _repeats(call: Call) -> int:
    call()
    return max(1, min(1000, int(_SAMPLE_SECONDS / max(_seconds(call, 1), 1e-9))))


def _turn(call: Call, repeats: int) -> float:
    end = time.perf_counter() + _SETTLE_SECONDS
    call()
    while time.perf_counter() < end:
        call()
    return _seconds(call, repeats)


def _seconds(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return max((time.perf_counter() - start) / repeats, 1e-9)
