"""What interleaved times mean, and what was measured before: `Timing`, `Ratio`, the tuning cache.

A record of the cache is one candidate of one layer at one set of shapes, in one runtime. It is used
only where every candidate that would be measured now has one, so that ratios come from one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import quantiles

import numpy as np

from ..._version import __version__
from ...arrays import Array
from ...dialects.onnx import Rule
from ...tuning import processor_model, shared_tuner
from ..runtimes import Runtime
from ..runtimes.timing import Rounds

_RESAMPLES = 1000
_TABLE = "rewritings"


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds of one call over interleaved samples: median, quartiles, best, how many."""

    median: float
    low: float
    high: float
    best: float
    samples: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        """The timing that these samples, at least two, amount to.

        >>> Timing.of([1.0, 2.0, 3.0])
        Timing(median=2.0, low=1.5, high=2.5, best=1.0, samples=3)
        """
        low, middle, high = quantiles(samples, n=4, method="inclusive")
        return cls(middle, low, high, min(samples), len(samples))


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one call is than another, with its 95 % interval.

    Whatever disturbs a machine makes calls slower, never faster; so calls are compared by the mean
    of the fastest third of their samples. Samples are drawn anew from those there were, many times
    (the bootstrap; Efron 1979): the median of the ratios and the interval that holds 95 % of them,
    which is then widened by what two series of one call differ.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Rounds, call: int) -> Ratio:
        """The ratio of the first call of some rounds to another.

        >>> Ratio.of(Rounds(([2.0] * 3, [1.0] * 3), [2.0] * 3), 1)
        Ratio(median=2.0, low=2.0, high=2.0)
        """
        rng = np.random.default_rng(0)
        drawn = [
            _fastest(np.array(series)[rng.integers(0, len(series), (_RESAMPLES, len(series)))])
            for series in (rounds.first, rounds.samples[call])
        ]
        low, middle, high = np.percentile(drawn[0] / drawn[1], [2.5, 50, 97.5])
        same = _fastest(np.array(rounds.samples[0])) / _fastest(np.array(rounds.again))
        noise = max(float(same), float(1 / same))
        return cls(float(middle), float(low) / noise, float(high) * noise)


def _fastest(samples: Array) -> Array:
    """The mean of the fastest third, along the last axis."""
    third = -(-samples.shape[-1] // 3)
    mean: Array = np.sort(samples)[..., :third].mean(axis=-1)
    return mean


@dataclass(frozen=True, slots=True)
class Measured:
    """One candidate at one set of shapes; the original's ratio is 1."""

    timing: Timing
    ratio: Ratio
    error: float

    @classmethod
    def of(cls, rounds: Rounds, errors: Sequence[float]) -> list[Measured]:
        """Every call of some rounds, the first against itself."""
        first, *others = errors
        return [
            cls(Timing.of(rounds.first), Ratio(1.0, 1.0, 1.0), first),
            *(
                cls(Timing.of(rounds.samples[i]), Ratio.of(rounds, i), error)
                for i, error in enumerate(others, 1)
            ),
        ]


@dataclass(frozen=True, slots=True)
class Cache:
    """What was measured of layers before; `fresh` forgets that, and remembers anew."""

    runtime: Runtime
    fresh: bool = False

    def recall(self, layer: str, names: Iterable[str]) -> list[Measured] | None:
        """All these candidates of a layer, or None if one is missing."""
        found = [None if self.fresh else self._find(layer, name) for name in names]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else None

    def remember(self, layer: str, name: str, measured: Measured) -> None:
        """Keep one candidate of a layer."""
        ratio = {f"ratio_{key}": entry for key, entry in asdict(measured.ratio).items()}
        record = {**asdict(measured.timing), **ratio, "error": measured.error}
        shared_tuner().store.remember(_TABLE, self._key(layer, name), record)

    def _find(self, layer: str, name: str) -> Measured | None:
        record = shared_tuner().store.find(_TABLE, self._key(layer, name))
        try:
            told = {key: float(entry) for key, entry in (record or {}).items()}
            timing = {field.name: told[field.name] for field in fields(Timing)}
            ratio = Ratio(*(told[f"ratio_{field.name}"] for field in fields(Ratio)))
            timing["samples"] = int(timing["samples"])
            return Measured(Timing(**timing), ratio, told["error"])  # type: ignore[arg-type]
        except (KeyError, ValueError):  # there is none, or another version of upconv wrote it
            return None

    def _key(self, layer: str, name: str) -> str:
        versions = f"upconv {__version__} | {self.runtime} {self.runtime.version}"
        threads = f"threads {self.runtime.threads}"
        return " | ".join((processor_model(), versions, threads, layer, name))


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What all steps of one optimisation share.

    inputs: arrays by name, per set of input shapes. seconds: for each different layer; the whole
    model has `WHOLE` times as many. limit: seconds that one run may take. float64: whether results
    are held against it. say: called with what begins, its number from 1, and of how many.
    """

    runtime: Runtime
    rule: Rule
    inputs: tuple[Mapping[str, Array], ...]
    seconds: float
    limit: float
    float64: bool
    cache: Cache
    say: Callable[[str, int, int], None]
