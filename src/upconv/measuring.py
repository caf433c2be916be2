"""The choice, by measurement, among several ways to compute the same arrays, for all front ends.

1. Each way runs once. The first way is the baseline: the model without upconv. A way is excluded if
   it fails, or if its results differ from the baseline's by more than rounding (`TOLERANCES`).
2. The remaining ways are timed in interleaved rounds (`timing`).
3. A `Ratio` compares a way with the baseline; its interval includes the measured noise. A way
   qualifies if its whole interval lies above `required_gain`. The qualifying way with the highest
   lower bound wins; without one, the baseline stays.
4. Rounds end early if the choice is clear (`is_clear`).

The result says why each other way was not chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Self

import numpy as np

from .arrays import Array
from .errors import ArgumentError, UpconvError
from .terminal import Progress
from .timing import FEWEST_ROUNDS, PATIENCE, Bounds, Rounds, sampled

TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""Largest accepted difference, relative to the largest value. Deep models add rounding errors."""

OTHER_INTEGERS = 0.01
"""Fraction of integers and booleans that may differ, since rounding decides some comparisons."""

GAIN, _FEW = 1.01, 0.1
"""A way must be both `GAIN` times and, after n rounds, 1 + `_FEW` / n times as fast.

Identical ways should not win, and few samples show little of the noise. docs/choices.md states how
often identical ways win.
"""

_ALIKE, _NARROW = 1.03, 1.25
_RESAMPLES = 1000


MIN_ROUNDS = 3
"""With fewer rounds, a single stall of a busy machine could decide."""

NO_TIME = "no time was left"


def required_gain(rounds: int) -> float:
    """Return the speed-up that the whole interval of a way must exceed after these rounds.

    >>> [round(required_gain(n), 3) for n in (3, 5, 10, 100)]
    [1.033, 1.02, 1.01, 1.01]
    """
    return max(GAIN, 1 + _FEW / max(rounds, 1))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The speed of one call relative to another, with an uncertainty interval.

    Disturbances make calls slower, never faster. Calls are therefore compared by the mean of the
    fastest third of their samples. The interval runs from the 10th to the 90th percentile of the
    bootstrap (Efron 1979). It is widened by half of the relative difference between the baseline's
    two series, since both are merged. Under bursts of load, quartiles contained the true ratio in
    half of the cases, these percentiles in 55 to 70 %. A 95 % interval from few samples would hide
    most gains. Choosing between two equal ways costs nothing; missing a faster one does.
    """

    median: float
    low: float
    high: float

    @classmethod
    def between(
        cls, before: Sequence[float], after: Sequence[float], again: Sequence[float] = ()
    ) -> Self:
        """Return the ratio of two calls from samples in seconds; again: more samples of `before`.

        >>> print(Ratio.between([2.0, 2.0], [1.0, 1.0], [2.0, 2.0]))
        2.00 times as fast (2.00 to 2.00)
        """
        rng = np.random.default_rng(0)
        drawn = [
            _fastest(np.array(series)[rng.integers(0, len(series), (_RESAMPLES, len(series)))])
            for series in ([*before, *again], after)
        ]
        low, middle, high = np.percentile(drawn[0] / drawn[1], [10, 50, 90])
        same = _fastest(np.array(before)) / _fastest(np.array(again)) if again else 1.0
        noise = max(float(same), float(1 / same)) ** 0.5
        return cls(float(middle), float(low) / noise, float(high) * noise)

    @classmethod
    def of(cls, rounds: Rounds, call: int) -> Self:
        """Return the ratio of the first call in `rounds` to another."""
        return cls.between(rounds.samples[0], rounds.samples[call], rounds.again)

    def times(self, other: Ratio) -> Ratio:
        """Return the ratio of a to c, if this one is of a to b and `other` of b to c."""
        return Ratio(self.median * other.median, self.low * other.low, self.high * other.high)

    def __str__(self) -> str:
        return f"{self.median:.2f} times as fast ({self.low:.2f} to {self.high:.2f})"


def is_clear(rounds: Rounds) -> bool:
    """Return whether further rounds would hardly change the choice.

    The choice is clear if all ways are slower than the baseline by a margin. It is also clear if
    one is faster by the margin, its interval spans less than a factor of `_NARROW`, and no other
    way may be `_ALIKE` times as fast. The margin is five times that of `required_gain`, since the
    check runs after every round.

    >>> is_clear(Rounds(([2.0] * 5, [1.0] * 5, [1.5] * 5), [2.0] * 5))
    True
    >>> is_clear(Rounds(([2.0] * 5, [1.9] * 5), [2.0] * 5))
    False
    """
    margin = 1 + 5 * _FEW / len(rounds.again)
    ratios = [Ratio.of(rounds, call) for call in range(1, len(rounds.samples))]
    best = max(ratios, key=lambda ratio: ratio.low)
    if best.low > margin:
        return best.high < _NARROW * best.low and all(
            ratio.high < _ALIKE * best.median for ratio in ratios if ratio is not best
        )
    return all(ratio.high < 1 / margin for ratio in ratios)


def undisturbed(samples: Sequence[float]) -> float:
    """Return the mean of the fastest third of the samples, which is the time in reports."""
    return float(_fastest(np.array(samples)))


def _fastest(samples: Array) -> Array:
    """Return the mean of the fastest third along the last axis."""
    third = -(-samples.shape[-1] // 3)
    mean: Array = np.sort(samples)[..., :third].mean(axis=-1)
    return mean


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way to compute some arrays.

    run: computes the arrays and is timed. prepare: called, untimed, before `run` if another way ran
    last.
    """

    name: str
    run: Callable[[], Any]
    prepare: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one way.

    seconds: time of a run, None if it was not timed. ratio: how many times as fast as the baseline.
    why: why the way was not chosen, "" for the chosen one.
    """

    name: str
    seconds: float | None = None
    ratio: Ratio | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen way and the outcomes of all ways, the baseline first.

    runs: the number of calls of all ways together. undecided: why the ways could not be compared.
    """

    name: str
    outcomes: tuple[Outcome, ...]
    runs: int
    undecided: str = ""

    @property
    def baseline(self) -> Outcome:
        """The outcome of the first way."""
        return self.outcomes[0]

    @property
    def best(self) -> Outcome:
        """The outcome of the chosen way."""
        return self[self.name]

    def __getitem__(self, name: str) -> Outcome:
        """Return the outcome of the way called `name`."""
        return next(outcome for outcome in self.outcomes if outcome.name == name)


def disagreement(results: Sequence[Array], expected: Sequence[Array], precision: str = "") -> str:
    """Describe the first result that differs by more than rounding; "" if all agree.

    precision: the dtype used to compute the results, if less precise than their own.

    >>> disagreement([np.ones(3)], [np.ones(3)])
    ''
    >>> disagreement([np.ones(3)], [np.full(3, 1.01)])
    'its result 1 differs by 9.9e-03 of the largest value; 1.0e-09 is allowed'
    """
    if len(results) != len(expected):
        return f"it returns {len(results)} results instead of {len(expected)}"
    for number, (y, z) in enumerate(zip(results, expected, strict=True), 1):
        if y.shape != z.shape or y.dtype != z.dtype:
            kinds = f"{z.dtype} {z.shape} became {y.dtype} {y.shape}"
            return f"its result {number} has changed: {kinds}"
        error, allowed = _error(y, z, precision)
        if not error <= allowed:
            how_much = "of the largest value" if z.dtype.kind in "fcV" else "of the elements"
            off = f"{error:.1e} {how_much}; {allowed:.1e} is allowed"
            return f"its result {number} differs by {off}"
    return ""


def _error(y: Array, z: Array, precision: str) -> tuple[float, float]:
    """Return the difference of two arrays of one shape and dtype, and the largest accepted one."""
    if z.dtype.kind not in "fcV":
        return float(np.mean(y != z)) if z.size else 0.0, OTHER_INTEGERS
    name = {"complex64": "float32", "complex128": "float64"}.get(z.dtype.name, z.dtype.name)
    allowed = max(TOLERANCES[dtype] for dtype in (name, precision or name))
    wide = np.complex128 if z.dtype.kind == "c" else np.float64
    y, z = y.astype(wide), z.astype(wide)
    finite = np.isfinite(z)
    if not np.array_equal(y[~finite], z[~finite], equal_nan=True):
        return inf, allowed
    scale = float(np.abs(z[finite]).max(initial=0.0))
    error = float(np.abs(y[finite] - z[finite]).max(initial=0.0))
    if not np.isfinite(error):
        return inf, allowed
    return error / (scale or 1.0), allowed


def is_as_close(
    results: Sequence[Array], baseline: Sequence[Array], truth: Sequence[Array]
) -> bool:
    """Return whether the results are at least as close to the `truth` as the baseline's results.

    >>> is_as_close([np.float32([1.01])], [np.float32([1.1])], [np.float64([1.0])])
    True
    """
    if [y.shape for y in results] != [y.shape for y in truth]:
        return False
    for y, z, t in zip(results, baseline, truth, strict=True):
        wide = np.complex128 if t.dtype.kind == "c" else np.float64
        mine, others = (np.abs(values.astype(wide) - t.astype(wide)) for values in (y, z))
        if not mine.max(initial=0.0) <= others.max(initial=0.0):  # NaN is never close
            return False
    return True


def choose(
    ways: Sequence[Way],
    *,
    seconds: float = 10.0,
    most_runs: int | None = None,
    arrays: Callable[[Any], Iterable[Array]] = list,
    precision: str = "",
    truth: Callable[[], Sequence[Array]] | None = None,
    progress: Progress = lambda *_: None,
    what: str = "timing the model",
) -> Choice:
    """Choose the fastest way with correct results; the first way is the baseline.

    seconds: approximate time for all samples; slow ways take longer. most_runs: a bound on the
    runs of all ways; with it, no run but the baseline's first begins after `seconds`.
    arrays: converts the return value of a way to arrays. precision: see `disagreement`. truth:
    computes the results in a more precise dtype. If a way differs from the baseline by more than
    rounding, it still passes if it is at least as close to the truth as the baseline.
    progress: called with `what`, the number of the round and the number of rounds.

    A way that raises an `UpconvError` is excluded. Other errors, and the baseline's, propagate.

    >>> x = np.ones(1000)
    >>> slow = Way("added up", lambda: [np.array(sum(x.tolist() * 9) / 9)])
    >>> choice = choose([slow, Way("by NumPy", lambda: [x.sum()])], seconds=0.05)
    >>> choice.name, choice["added up"].why
    ('by NumPy', 'by NumPy is faster')
    """
    if not ways or len({way.name for way in ways}) != len(ways):
        raise ArgumentError("ways", f"{len(ways)} ways", "one or more, with different names")
    trial = _Trial(ways, time.perf_counter() + seconds, most_runs)
    whys = trial.checked(lambda result: list(arrays(result)), precision, truth)
    timed = [i for i, way in enumerate(ways) if way.name not in whys]
    rounds = trial.rounds(timed, seconds, lambda number: progress(what, number, max(number, 15)))
    ratios, times = dict[str, list[Ratio]](), dict[str, float]()
    for i, samples in zip(timed, rounds.samples, strict=True):
        if samples:
            times[ways[i].name] = undisturbed(samples if i else rounds.first)
            ratios[ways[i].name] = [Ratio.between(rounds.samples[0], samples, rounds.again)]
    ratios.pop(ways[0].name, None)
    count, short = len(rounds.again), ""
    if count < MIN_ROUNDS:
        short = f"there was time for {count} rounds; {MIN_ROUNDS} are needed"
        name, others = ways[0].name, {ways[i].name: short for i in timed if i}
    else:
        name, others = decide(ways[0].name, ratios, required_gain(count))
    whys |= others
    outcomes = (
        Outcome(n, times.get(n), next(iter(ratios.get(n, ())), None), whys.get(n, ""))
        for n in (way.name for way in ways)
    )
    return Choice(name, tuple(outcomes), trial.runs, short)


def decide(
    baseline: str, ratios: Mapping[str, Sequence[Ratio]], required: float = GAIN
) -> tuple[str, dict[str, str]]:
    """Return the way to choose, and why each other way was not chosen.

    ratios: for each way but the baseline, one ratio per set of inputs. A way must be faster on all.

    >>> decide("PyTorch", {"parts": [Ratio(2.0, 1.8, 2.2)], "layers": [Ratio(1.01, 0.9, 1.2)]})
    ('parts', {'layers': 'it is not faster: 1.01 times as fast (0.90 to 1.20)', \
'PyTorch': 'parts is faster'})
    """
    worst = {
        name: min(samples, key=lambda one: one.low) for name, samples in ratios.items() if samples
    }
    qualified = {name: ratio for name, ratio in worst.items() if ratio.low > required}
    best = max(qualified, key=lambda name: qualified[name].low, default=baseline)
    words = "it is not faster", "its times vary too much (measure again on a quiet machine)"
    whys = {name: f"{words[one.median > required]}: {one}" for name, one in worst.items()}
    if not qualified:
        return baseline, whys
    whys |= dict.fromkeys((*qualified, baseline), f"{best} is faster")
    del whys[best]
    return best, whys


class _Trial:
    """Runs of the ways, with preparation after a change of way, and with bounds.

    deadline: in terms of `time.perf_counter`; if runs are bounded, no run begins after it.
    """

    def __init__(self, ways: Sequence[Way], deadline: float, most_runs: int | None) -> None:
        self._ways, self._deadline, self._most, self._last = ways, deadline, most_runs, -1
        self.runs = 0

    @property
    def over(self) -> bool:
        """Whether no further run may begin."""
        most = self._most
        return most is not None and (self.runs >= most or time.perf_counter() >= self._deadline)

    def checked(
        self,
        arrays: Callable[[Any], list[Array]],
        precision: str,
        truth: Callable[[], Sequence[Array]] | None,
    ) -> dict[str, str]:
        """Run each way once; return by name why some ways cannot be chosen.

        These runs do not count against the time for samples: first runs compile and pack weights.
        """
        begin = time.perf_counter()
        whys, expected = dict[str, str](), arrays(self._run(0))
        for i, way in enumerate(self._ways[1:], 1):
            why = NO_TIME
            if not self.over:
                try:
                    results = arrays(self._run(i))
                    why = disagreement(results, expected, precision)
                    if why and truth is not None:
                        self._last = -1  # `truth` may change the model's state like another way
                        why = "" if is_as_close(results, expected, truth()) else why
                except UpconvError as error:
                    why = str(error)
            whys |= {way.name: why} if why else {}
        self._deadline += time.perf_counter() - begin
        return whys

    def rounds(
        self, timed: Sequence[int], seconds: float, begins: Callable[[int], object]
    ) -> Rounds:
        """Return interleaved samples of the ways with these indices."""
        bounds = Bounds(seconds, None, PATIENCE, FEWEST_ROUNDS, is_clear)
        if self._most is not None:
            bounds = Bounds(self._deadline - time.perf_counter(), self._most - self.runs)
        calls = [partial(self._run, i) for i in timed] if len(timed) > 1 else []
        rounds = sampled(calls, bounds, begins, lambda at: self._prepare(timed[at]))
        return rounds if calls else Rounds(tuple([] for _ in timed), [])

    def _prepare(self, i: int) -> None:
        prepare = self._ways[i].prepare
        if prepare is not None and self._last != i:
            prepare()
        self._last = i

    def _run(self, i: int) -> Any:
        self._prepare(i)
        self.runs += 1
        return self._ways[i].run()
