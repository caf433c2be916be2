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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import geometric_mean, median

from ..errors import EngineError, EngineRefusal, MemoryLimitError
from ..threads import rest
from . import candidates
from .candidates import Candidate
from .cases import Case

_SETTLE_SECONDS = 5e-3
_SAMPLE_SECONDS = 2e-3
_ROUND_SECONDS = 20e-3
_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 1000


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
        known = self.roofline is not None and result.best and result.own
        return self.roofline / result.best if known else None  # type: ignore[operator]  # see known


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What is measured and how: see `upconv bench`. `step` is told what is about to begin."""

    engines: tuple[str, ...]
    peers: tuple[str, ...]
    threads: int
    seconds: float
    step: Callable[[str], None]
    roofline: Callable[[Case], float | None] = lambda _: None

    def measure(self, case: Case) -> Measured:
        """Every candidate's result on a case."""
        name = case.layer.name
        self.step(f"{name}: preparing and verifying")
        entries = [self._engine(engine, case) for engine in self.engines]
        entries += [entry for peer in self.peers for entry in self._peer(peer, case)]
        self.step(f"{name}: timing")
        times = iter(interleaved([c.run for c, _ in entries if c is not None], self.seconds))
        results = tuple(
            result if made is None else replace(result, samples=next(times))
            for made, result in entries
        )
        bare = Case(case.layer, case.direction, case.dtype)  # without the arrays, which may go now
        return Measured(bare, case.tolerance, results, self.roofline(case))

    def _engine(self, name: str, case: Case) -> _Entry:
        try:
            return _verified(candidates.engine(name, case, self.threads), case, own=True)
        except (EngineRefusal, MemoryLimitError) as error:
            return _left_out(name, str(error))
        except EngineError as error:
            return _left_out(name, str(error), fault=True)

    def _peer(self, name: str, case: Case) -> list[_Entry]:
        try:
            return [_verified(made, case) for made in candidates.PEERS[name](case, self.threads)]
        except ImportError as error:
            return [_left_out(name, f"not installed ({error})")]
        except EngineRefusal as error:
            return [_left_out(name, str(error))]
        # A foreign library may raise anything, and its troubles are no reason to lose a bench.
        except Exception as error:
            return [_left_out(name, f"{type(error).__name__}: {error}".replace("\n", " ")[:300])]


_Entry = tuple[Candidate | None, Result]
"""What may be timed, if anything, and its result so far."""


def _left_out(name: str, reason: str, *, fault: bool = False) -> _Entry:
    return None, Result(name, name, reason=reason, fault=fault)


def _verified(made: Candidate, case: Case, *, own: bool = False) -> _Entry:
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
    repeats = [_repeats(call) for call in calls]
    rounds: list[list[tuple[float, ...]]] = [[] for _ in calls]
    spent = [0.0] * len(calls)
    for done in range(_MOST_ROUNDS):
        waiting = [i for i, used in enumerate(spent) if used < seconds or done < _FEWEST_ROUNDS]
        if not waiting:
            break
        for i in waiting:
            rest()
            start = time.perf_counter()
            _settle(calls[i])
            rounds[i].append(_round(calls[i], repeats[i]))
            spent[i] += time.perf_counter() - start
    return [tuple(series) for series in rounds]


def _repeats(call: Callable[[], object]) -> int:
    call()
    return max(1, min(1000, int(_SAMPLE_SECONDS / max(_sample(call, 1), 1e-9))))


def _settle(call: Callable[[], object]) -> None:
    end = time.perf_counter() + _SETTLE_SECONDS
    call()
    while time.perf_counter() < end:
        call()


def _round(call: Callable[[], object], repeats: int) -> tuple[float, ...]:
    samples = [_sample(call, repeats)]
    while sum(samples) * repeats < _ROUND_SECONDS:
        samples.append(_sample(call, repeats))
    return tuple(samples)


def _sample(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def summary(
    measured: Sequence[Measured], groups: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Of each candidate, the geometric means of its speed against each group, and efficiency."""
    means: dict[str, dict[str, float | None]] = {}
    for name in dict.fromkeys(r.candidate for m in measured for r in m.results if r.samples):
        pairs = [(m, r) for m in measured for r in m.results if r.candidate == name]
        means[name] = {
            **{group: _mean([m.speed(r, group) for m, r in pairs]) for group in groups},
            "efficiency": _mean([m.efficiency(r) for m, r in pairs]),
        }
    return means


def _mean(values: Sequence[float | None]) -> float | None:
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
