"""One layer by every candidate: prepared, verified, and only then timed.

1. An engine that refuses the layer, or a peer that cannot do it or is not there, is left out with
   its reason.
2. An engine that fails, and anything whose numbers are wrong, is a fault: shown, and never timed.
3. Rounds are interleaved, so drift of the machine falls on all alike. A sample is the time of one
   call, averaged over as many calls as make it longer than the clock's noise. A turn begins when
   the threads of the candidate before it are asleep (OpenBLAS's spin for a tenth of a second), with
   calls that are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import geometric_mean, median
from timeit import Timer

from ..errors import EngineError, EngineRefusal, MemoryLimitError
from ..threads import rest
from . import candidates
from .candidates import Candidate, Case

_SETTLE_SECONDS = 5e-3
_SAMPLE_SECONDS = 2e-3
_ROUND_SECONDS = 20e-3
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 1000


@dataclass(frozen=True, slots=True)
class Result:
    """One candidate on one layer.

    `samples` are seconds per call, a series for every round; none where it was not measured, and
    `reason` then says why. `fault` marks a reason that is a finding: a wrong result, or an engine
    that failed. `own` marks upconv's engines.
    """

    candidate: str
    group: str
    samples: tuple[tuple[float, ...], ...] = ()
    error: float | None = None
    workspace_bytes: int | None = None
    reason: str = ""
    fault: bool = False
    own: bool = False

    @property
    def best(self) -> float | None:
        """The fastest sample: what the code can do when the machine lets it."""
        return min(chain.from_iterable(self.samples), default=None)

    @property
    def median(self) -> float | None:
        """The middle sample."""
        return median(chain.from_iterable(self.samples)) if self.samples else None


@dataclass(frozen=True, slots=True)
class Measured:
    """One layer: its case, and every candidate's result.

    `roofline` is the time in seconds that the machine allows, None where that is not known.
    """

    case: Case
    tolerance: float
    results: tuple[Result, ...]
    roofline: float | None = None

    def speed(self, result: Result, group: str) -> float | None:
        """How many times as fast as the best of a group."""
        times = [r.best for r in self.results if r.group == group and r.best]
        return min(times) / result.best if times and result.best else None

    def efficiency(self, result: Result) -> float | None:
        """The roofline time over the best time, for upconv's own engines."""
        if self.roofline is None or not result.best or not result.own:
            return None
        return self.roofline / result.best


def measure(
    case: Case,
    engines: Sequence[str],
    peers: Sequence[str],
    threads: int,
    seconds: float,
    step: Callable[[str], None],
) -> Measured:
    """Every candidate's result on a case; `step` is told what is about to begin."""
    step(f"{case.layer.name}: preparing and verifying")
    entries = [entry for name in (*engines, *peers) for entry in _entries(name, case, threads)]
    step(f"{case.layer.name}: timing")
    times = iter(interleaved([made.run for made, _ in entries if made is not None], seconds))
    results = tuple(
        result if made is None else replace(result, samples=next(times)) for made, result in entries
    )
    bare = Case(case.layer, case.direction, case.dtype)  # without the arrays, which may go now
    return Measured(bare, case.tolerance, results)


_Entry = tuple[Candidate | None, Result]
"""What may be timed, if anything, and its result so far."""


def _entries(name: str, case: Case, threads: int) -> list[_Entry]:
    """The settings of an engine or a peer, each verified, or one entry that says why not."""
    peer = candidates.PEERS.get(name)
    fault = False
    try:
        if peer is None:
            return [_verified(candidates.engine(name, case, threads), case, own=True)]
        return [_verified(made, case, own=False) for made in peer(case, threads)]
    except (EngineRefusal, MemoryLimitError) as error:
        reason = str(error)
    except ImportError as error:
        reason = f"not installed ({error})"
    # A foreign library may raise anything, and its troubles are no reason to lose a bench.
    except Exception as error:
        fault = peer is None
        if fault and not isinstance(error, EngineError):
            raise
        reason = str(error) if fault else f"{type(error).__name__}: {error}"[:300]
    return [(None, Result(name, name, reason=reason, fault=fault))]


def _verified(made: Candidate, case: Case, *, own: bool) -> _Entry:
    """The candidate after one call whose result was looked at, element by element."""
    made.run()
    error = case.error(made.result())
    result = Result(made.name, made.group, (), error, made.workspace_bytes, own=own)
    if error <= case.tolerance:
        return made, result
    reason = f"wrong: the error is {error:.2g}, rounding explains {case.tolerance:.2g}"
    return None, replace(result, reason=reason, fault=True)


def interleaved(
    calls: Sequence[Callable[[], object]], seconds: float
) -> list[tuple[tuple[float, ...], ...]]:
    """Samples of each call in seconds, a series per round, for about `seconds` each.

    A call that is much slower than the others does three rounds and then sits out.
    """
    timers = [Timer(call) for call in calls]
    numbers = [max(1, min(1000, int(_SAMPLE_SECONDS / max(t.timeit(1), 1e-9)))) for t in timers]
    rounds: list[list[tuple[float, ...]]] = [[] for _ in calls]
    spent = [0.0] * len(calls)
    for done in range(_MOST_ROUNDS):
        waiting = [i for i, used in enumerate(spent) if used < seconds or done < _FEWEST_ROUNDS]
        if not waiting:
            break
        for i in waiting:
            rest()
            start = time.perf_counter()
            list(_samples(timers[i], 1, _SETTLE_SECONDS))
            rounds[i].append(tuple(_samples(timers[i], numbers[i], _ROUND_SECONDS)))
            spent[i] += time.perf_counter() - start
    return [tuple(series) for series in rounds]


def _samples(timer: Timer, number: int, seconds: float) -> Iterator[float]:
    """Seconds per call, each the mean of `number` calls, until so many seconds have passed."""
    end = time.perf_counter() + seconds
    while True:
        yield timer.timeit(number) / number
        if time.perf_counter() >= end:
            return


def summary(
    measured: Sequence[Measured], groups: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Of each candidate, the geometric means of its speed against each group, and efficiency."""
    pairs: dict[str, list[tuple[Measured, Result]]] = {}
    for m in measured:
        for r in m.results:
            pairs.setdefault(r.candidate, []).append((m, r))
    return {
        name: {
            **{group: _mean(m.speed(r, group) for m, r in those) for group in groups},
            "efficiency": _mean(m.efficiency(r) for m, r in those),
        }
        for name, those in pairs.items()
        if any(r.samples for _, r in those)
    }


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value]
    return geometric_mean(known) if known else None


def reasons(measured: Sequence[Measured]) -> list[str]:
    """One line for everything that was left out or is wrong, with the layers it holds for."""
    places: dict[tuple[str, str], list[str]] = {}
    for layer in measured:
        for result in layer.results:
            if result.reason:
                said = (result.candidate, " ".join(result.reason.split()))
                places.setdefault(said, []).append(layer.case.layer.name)
    every = len(measured)
    return [
        f"{who}: {why} ({'every layer' if len(at) == every > 1 else ', '.join(at)})"
        for (who, why), at in places.items()
    ]
