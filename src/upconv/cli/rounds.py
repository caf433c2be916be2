"""Timing contenders against each other.

Rounds are interleaved, so drift of the machine falls on all alike, and every sample is kept. A
sample is the time of one call, averaged over as many calls as make it longer than the clock's
noise. A contender's turn begins with a rest until the threads of the one before it are asleep
(OpenBLAS's spin for a tenth of a second after their work), and with calls that are not counted, in
which its own wake up and find a core each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from ..threads import rest
from .cases import Contender

_SETTLE_SECONDS = 5e-3
_SAMPLE_SECONDS = 2e-3
_ROUND_SECONDS = 20e-3
_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: the samples of every round, in order."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def best(self) -> float:
        """The fastest sample: what the code can do when the machine lets it."""
        return min(chain.from_iterable(self.rounds))

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(chain.from_iterable(self.rounds))


def timed(contenders: Sequence[Contender], seconds: float) -> list[Timing]:
    """The timing of each, after a warm-up, in rounds for about `seconds` per contender.

    Rests come on top. A contender that is much slower than the others does at least three rounds
    and then sits out.
    """
    calls = [_calls_per_sample(contender) for contender in contenders]
    rounds: list[list[tuple[float, ...]]] = [[] for _ in contenders]
    spent = [0.0] * len(contenders)
    for done in range(_MOST_ROUNDS):
        waiting = [i for i, used in enumerate(spent) if used < seconds or done < _FEWEST_ROUNDS]
        if not waiting:
            break
        for i in waiting:
            rest()
            start = time.perf_counter()
            _settle(contenders[i])
            rounds[i].append(_round(contenders[i], calls[i]))
            spent[i] += time.perf_counter() - start
    return [Timing(tuple(series)) for series in rounds]


def _calls_per_sample(contender: Contender) -> int:
    contender.run()
    return max(1, min(1000, int(_SAMPLE_SECONDS / max(_sample(contender, 1), 1e-9))))


def _settle(contender: Contender) -> None:
    """Run without counting for a while."""
    end = time.perf_counter() + _SETTLE_SECONDS
    contender.run()
    while time.perf_counter() < end:
        contender.run()


def _round(contender: Contender, calls: int) -> tuple[float, ...]:
    """The samples of one turn."""
    samples = [_sample(contender, calls)]
    while sum(samples) * calls < _ROUND_SECONDS:
        samples.append(_sample(contender, calls))
    return tuple(samples)


def _sample(contender: Contender, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        contender.run()
    return (time.perf_counter() - start) / calls
