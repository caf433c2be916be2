"""Timing calls against each other, in turns.

A turn is a rest, in which the threads of the one before fall asleep (they spin for a while after
their work), a call that is not counted, and calls for `_TURN_SECONDS`, the fastest of which is the
turn's sample: whatever disturbs a machine makes calls slower, never faster. Drift falls on all
alike, since every call has a turn in every round.

The first call, with which the others are compared, has a turn at the begin of each round and one at
its end. What differs between the two is noise, and no ratio is believed further than that.

What lives here: the clock. What never does: what the times mean (`results`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...threads import rest

Call = Callable[[], None]

_TURN_SECONDS = 0.02
_FEWEST_CALLS, _MOST_CALLS = 3, 200
_LONG = 0.15
"""Calls that take so many seconds have nothing to settle, and are made once per turn."""

_MOST_ROUNDS = 200
_ENOUGH_ROUNDS = 15
_FEWEST_ROUNDS = 5
_PATIENCE = 3.0
"""`_ENOUGH_ROUNDS` may take so many times what was asked for, `_FEWEST_ROUNDS` any time."""

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
        """The first call's samples of both turns."""
        return [*self.samples[0], *self.again]


def timed(calls: Sequence[Call], seconds: float) -> Rounds:
    """The samples of each call, one per round, in about `seconds` altogether.

    A call that is hopeless against the best after `_TRIED` rounds sits out the others.
    """
    for call in calls:
        call()
    samples: tuple[list[float], ...] = tuple([] for _ in calls)
    again: list[float] = []
    staying = list(range(len(calls)))
    begin = time.perf_counter()
    for done in range(_MOST_ROUNDS):
        if _enough(done, (time.perf_counter() - begin) / seconds if seconds else 1.0):
            break
        for i in staying:
            samples[i].append(_turn(calls[i]))
        again.append(_turn(calls[0]))
        if done + 1 == _TRIED:
            staying = _hopeful(samples)
    return Rounds(samples, again)


def _enough(rounds: int, spent: float) -> bool:
    """spent: of the time asked for."""
    if rounds < _FEWEST_ROUNDS:
        return False
    return spent > (1.0 if rounds >= _ENOUGH_ROUNDS else _PATIENCE)


def _hopeful(samples: Sequence[Sequence[float]]) -> list[int]:
    """The first, and all that are near enough to the best."""
    bound = _HOPELESS * min(map(min, samples))
    return [i for i, series in enumerate(samples) if i == 0 or min(series) <= bound]


def _turn(call: Call) -> float:
    """The fastest call of one turn."""
    rest()
    best = _seconds(call)
    if best >= _LONG:
        return best
    best, end = float("inf"), time.perf_counter() + _TURN_SECONDS
    for done in range(1, _MOST_CALLS):
        best = min(best, _seconds(call))
        if done >= _FEWEST_CALLS and time.perf_counter() > end:
            break
    return best


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)
