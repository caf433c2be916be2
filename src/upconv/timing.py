"""Interleaved timing of calls, in the process that runs them.

In each round, every call gives one sample: the fastest of its runs in `_SAMPLE_SECONDS`, or less if
time is short. Before each sample there is a rest: the threads of the previous call, which spin for
a while after their work, fall asleep. The first run finds other data in the caches and is seldom
the fastest. Disturbances make calls slower, never faster. Drift affects all calls alike,
since each has a sample in every round. The first call, the baseline, has a sample both at the
beginning and at the end of each round: their difference is noise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Call = Callable[[], object]

_SAMPLE_SECONDS = 0.02
_FEWEST_CALLS, _MAX_CALLS = 3, 200
_LONG = 0.15  # seconds; a longer call needs no warm-up, and one run is a sample
_MAX_ROUNDS = 200
_ENOUGH_ROUNDS = 15
FEWEST_ROUNDS = 5
PATIENCE = 3.0
"""`_ENOUGH_ROUNDS` may take this multiple of the requested time, `FEWEST_ROUNDS` any time."""

_LONGEST_REST = 0.25  # OpenBLAS spins for 0.1 s; a pool may be configured to spin forever
_LOOK = 0.004
_ASLEEP = 0.1  # of a processor, so that threads with occasional work count as asleep

_TRIED = 3
_HOPELESS = 3.0
"""Early stopping: after `_TRIED` rounds, calls slower than this multiple of the best drop out."""


_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))


def format_seconds(seconds: float) -> str:
    """Return a time with three significant digits, in the unit that people would use.

    >>> format_seconds(1.0123), format_seconds(0.9996), format_seconds(0.0421), format_seconds(7e-6)
    ('1.01 s', '1.00 s', '42.1 ms', '7.00 us')
    """
    rounded = float(f"{seconds:.2e}")  # before choosing the unit, or 0.9996 s would be 1000 ms
    unit, factor = next((row for row in _UNITS if rounded * row[1] >= 1), _UNITS[-1])
    value = rounded * factor
    if value < 1:
        return f"{value:.3g} {unit}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def rest() -> None:
    """Wait until no thread of this process computes, but at most `_LONGEST_REST` seconds.

    Library threads spin after their work, and would compete with the next call.
    """
    deadline = time.perf_counter() + _LONGEST_REST
    while time.perf_counter() < deadline:
        start, busy = time.perf_counter(), time.process_time()
        time.sleep(_LOOK)
        if time.process_time() - busy < _ASLEEP * (time.perf_counter() - start):
            return


class Others:
    """The work of other processes on this process's processors, from now on.

    Interleaving does not remove the effect of a lasting load. A library whose threads spin while
    they wait for each other may become ten times as slow, and another library hardly slower.
    """

    def __init__(self) -> None:
        self._begin = _clocks()

    def words(self) -> str:
        """Return a sentence on their processor use; "" if it is below a tenth or unknown."""
        wall, busy, own = (b - a for a, b in zip(self._begin, _clocks(), strict=True))
        used = (busy - own) / max(wall, _SHORTEST)
        count = len(os.sched_getaffinity(0)) if busy else 0
        if not count or used < _NOTABLE * count:
            return ""
        return f"other processes used {min(used, count):.1f} of {count} processors"


_SHORTEST, _NOTABLE = 0.2, 0.1  # seconds, since Linux counts in steps of 0.01; of all processors


def _clocks() -> tuple[float, float, float]:
    """Return seconds: wall time, work on this process's processors (0 if unknown), its own work."""
    ticks = 0
    try:
        names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *counts = line.split()
            if name in names:  # user, nice, system, idle, waiting, interrupts, stolen
                ticks += sum(map(int, (*counts[:3], *counts[5:8])))
    except (AttributeError, OSError, ValueError):  # not Linux, or a sandbox
        ticks = 0
    return time.perf_counter(), ticks and ticks / os.sysconf("SC_CLK_TCK"), time.process_time()


@dataclass(frozen=True, slots=True)
class Rounds:
    """The samples of every call in seconds; `again` has the baseline's samples that end the rounds.

    A call that was stopped early has samples of the first rounds only.
    """

    samples: tuple[list[float], ...]
    again: list[float]

    @property
    def first(self) -> list[float]:
        """All samples of the first call."""
        return [*self.samples[0], *self.again]


def interleaved(
    calls: Sequence[Call], seconds: float, begins: Callable[[int], object] | None = None
) -> Rounds:
    """Return samples of each call, one per round, in about `seconds` altogether.

    begins: called before each round with its number, from 1.
    """
    for call in calls:
        call()
    bounds = Bounds(seconds, patience=PATIENCE, fewest_rounds=FEWEST_ROUNDS)
    return sampled(calls, bounds, begins)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The time that sampling may take.

    seconds: no sample begins after these, but `_ENOUGH_ROUNDS` may take `patience` times as long
    and `fewest_rounds` any time. calls: the most calls in total; each sample is then the faster of
    two calls, or a single call if few are left. decided: called after `_TRIED` rounds and after
    each later one; True ends the sampling.
    """

    seconds: float
    calls: int | None = None
    patience: float = 1.0
    fewest_rounds: int = 0
    decided: Callable[[Rounds], bool] | None = None

    def over(self, rounds: int, calls: int, begin: float) -> bool:
        """Return whether no further call may begin after these numbers of rounds and calls."""
        if self.calls is not None and calls >= self.calls:
            return True
        enough = self.seconds * (1 if rounds >= _ENOUGH_ROUNDS else self.patience)
        return rounds >= self.fewest_rounds and time.perf_counter() - begin >= enough


def sampled(
    calls: Sequence[Call],
    bounds: Bounds,
    begins: Callable[[int], object] | None = None,
    prepare: Callable[[int], object] = lambda _: None,
) -> Rounds:
    """Return samples of calls that have already run at least once.

    The bound on calls may cut only the first round short. prepare: called, untimed, before each
    sample with the index of the call.
    """
    samples: tuple[list[float], ...] = tuple([] for _ in calls)
    again: list[float] = []
    staying = list(range(len(calls)))
    length = min(_SAMPLE_SECONDS, bounds.seconds / FEWEST_ROUNDS)
    begin, executed, round_calls = time.perf_counter(), 0, 1
    pair = 2 if (bounds.calls or 0) >= 2 * _TRIED * (len(calls) + 1) else 1
    for done in range(_MAX_ROUNDS if calls else 0):
        if bounds.over(done, executed + round_calls - 1, begin):
            break
        round_calls = -executed
        if begins is not None:
            begins(done + 1)
        for i, series in [*((i, samples[i]) for i in staying), (0, again)]:
            if bounds.over(done, executed, begin):
                return Rounds(samples, again)
            prepare(i)
            most = _MAX_CALLS if bounds.calls is None else min(pair, bounds.calls - executed)
            rest()
            seconds, count = sample(calls[i], length, most)
            series.append(seconds)
            executed += count
        round_calls += executed
        if done + 1 == _TRIED:
            bound = _HOPELESS * min(map(min, samples))
            staying = [i for i, series in enumerate(samples) if i == 0 or min(series) <= bound]
        rounds = Rounds(samples, again)
        if bounds.decided and done + 1 >= _TRIED and bounds.decided(rounds):
            break
    return Rounds(samples, again)


def sample(
    call: Call, length: float, most: int = _MAX_CALLS, fewest: int = _FEWEST_CALLS
) -> tuple[float, int]:
    """Return the time of the fastest call within `length` seconds, and the number of calls.

    most, fewest: bounds on the calls after the first; a long call runs only once.
    """
    best, count, deadline = _seconds(call), 1, time.perf_counter() + length
    while best < _LONG and count < most and (count <= fewest or time.perf_counter() < deadline):
        best, count = min(best, _seconds(call)), count + 1
    return best, count


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)
