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
from dataclasses import dataclass
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


@dataclass(slots=True)
class Result:
    """One candidate on one layer; the fields are those of the JSON document.

    `rounds_seconds` are seconds per call, a series for every round; none where it was not measured,
    and `reason` then says why. `fault` marks a reason that is a finding: a wrong result, or an
    engine that failed. `efficiency`, of upconv's engines, is the roofline time over the best time.
    """

    candidate: str
    group: str
    error: float | None = None
    reason: str = ""
    fault: bool = False
    best_seconds: float | None = None
    median_seconds: float | None = None
    gflops: float | None = None
    efficiency: float | None = None
    workspace_bytes: int | None = None
    rounds_seconds: Sequence[Sequence[float]] = ()

    def timed(self, rounds: Sequence[Sequence[float]], flop: int, roofline: float | None) -> None:
        """Note the samples; `roofline` is the time that the machine allows, if that is wanted."""
        samples = list(chain.from_iterable(rounds))
        self.rounds_seconds, self.best_seconds = rounds, min(samples)
        self.median_seconds, self.gflops = median(samples), flop / min(samples) / 1e9
        self.efficiency = roofline and roofline / min(samples)


@dataclass(frozen=True, slots=True)
class Measured:
    """One layer: its case, and every candidate's result.

    `roofline` is the time in seconds that the machine allows, None where that is not known.
    """

    case: Case
    results: tuple[Result, ...]
    roofline: float | None = None

    def speed(self, result: Result, group: str) -> float | None:
        """How many times as fast as the best of a group."""
        times = [r.best_seconds for r in self.results if r.group == group and r.best_seconds]
        return min(times) / result.best_seconds if times and result.best_seconds else None


def measure(
    case: Case,
    engines: Sequence[str],
    peers: Sequence[str],
    threads: int,
    seconds: float,
    roofline: float | None,
    step: Callable[[str], None],
) -> Measured:
    """Every candidate's result on a case; `step` is told what is about to begin."""
    step(f"{case.layer.name}: preparing and verifying")
    entries = [entry for name in (*engines, *peers) for entry in _entries(name, case, threads)]
    step(f"{case.layer.name}: timing")
    ready = [(made, result) for made, result in entries if made is not None]
    times = interleaved([made.run for made, _ in ready], seconds)
    for (_, result), rounds in zip(ready, times, strict=True):
        result.timed(rounds, case.flop, roofline if result.group in engines else None)
    bare = Case(case.layer, case.direction, case.dtype)  # without the arrays, which may go now
    return Measured(bare, tuple(result for _, result in entries), roofline)


_Entry = tuple[Candidate | None, Result]
"""What may be timed, if anything, and its result so far."""


def _entries(name: str, case: Case, threads: int) -> list[_Entry]:
    """The settings of an engine or a peer, each verified, or one entry that says why not."""
    peer = candidates.PEERS.get(name)
    fault = False
    try:
        made = [candidates.engine(name, case, threads)] if peer is None else peer(case, threads)
        return [_verified(each, case) for each in made]
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


def _verified(made: Candidate, case: Case) -> _Entry:
    """The candidate after one call whose result was looked at, element by element."""
    made.run()
    error = case.error(made.result())
    result = Result(made.name, made.group, error, workspace_bytes=made.workspace_bytes)
    if error <= case.tolerance:
        return made, result
    result.reason = f"wrong: the error is {error:.2g}, rounding explains {case.tolerance:.2g}"
    result.fault = True
    return None, result


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
            if r.best_seconds:
                pairs.setdefault(r.candidate, []).append((m, r))
    return {
        name: {
            **{group: _mean(m.speed(r, group) for m, r in those) for group in groups},
            "efficiency": _mean(r.efficiency for _, r in those),
        }
        for name, those in pairs.items()
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
