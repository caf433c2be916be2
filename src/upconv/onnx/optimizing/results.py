"""What an optimisation found: plain frozen values, from which text, JSON and the report are made.

Times are in seconds, sizes in bytes, ratios are "before over after": above 1 is faster. Names come
out of models and are not to be trusted: whoever shows them escapes them.

What lives here: the values. What never does: measuring, deciding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import Array
from .rounds import Rounds

if TYPE_CHECKING:
    import onnx

ORIGINAL = "original"
"""The name of the node as it was, among its rewritings."""

SCHEMA = 1
"""Raised when a field of the JSON form changes its meaning."""

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds of one call over interleaved rounds: median, quartiles, best, how many."""

    median: float
    low: float
    high: float
    best: float
    rounds: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        """The timing that these samples, at least two, amount to.

        >>> Timing.of([1.0, 2.0, 3.0])
        Timing(median=2.0, low=1.5, high=2.5, best=1.0, rounds=3)
        """
        low, middle, high = quantiles(samples, n=4, method="inclusive")
        return cls(middle, low, high, min(samples), len(samples))


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one call is than another, with its 95 % interval.

    Whatever disturbs a machine makes calls slower, never faster; so calls are compared by the mean
    of the fastest third of their samples. Rounds are drawn anew from those there were, many times
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
        first = np.array(rounds.first)
        low, middle, high = _resampled(first, rounds.samples[call])
        same = _fastest(np.array(rounds.samples[0])) / _fastest(np.array(rounds.again))
        noise = max(float(same), float(1 / same))
        return cls(middle, low / noise, high * noise)


def _fastest(samples: Array) -> Array:
    """The mean of the fastest third, along the last axis."""
    third = -(-samples.shape[-1] // 3)
    mean: Array = np.sort(samples)[..., :third].mean(axis=-1)
    return mean


def _resampled(
    before: Sequence[float] | Array, after: Sequence[float]
) -> tuple[float, float, float]:
    """The 2.5th, 50th and 97.5th percentile of the ratio over resampled rounds."""
    rng = np.random.default_rng(0)
    drawn = [
        _fastest(np.array(series)[rng.integers(0, len(series), (_RESAMPLES, len(series)))])
        for series in (before, after)
    ]
    low, middle, high = np.percentile(drawn[0] / drawn[1], [2.5, 50, 97.5])
    return float(low), float(middle), float(high)


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """One spatial axis as it was run: `size` positions in, `out` out; crops are signed."""

    size: int
    kernel: int
    stride: int
    dilation: int
    crop_begin: int
    crop_end: int
    out: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One form of one layer: `rewriting` names the passes, joined by +, or is `ORIGINAL`.

    Either `refusal` says why it was not tried, or there are a `timing`, the `ratio` to the original
    (None for itself), the largest `error` against float64 relative to the output's scale, the
    bytes of its weights, `waste`, the multiplications done for one needed, and the most bytes of
    weights and data that it holds at once (None where shapes are unknown).
    """

    rewriting: str
    refusal: str | None = None
    timing: Timing | None = None
    ratio: Ratio | None = None
    error: float | None = None
    weight_bytes: int = 0
    waste: float = 1.0
    peak_bytes: int | None = None
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One ConvTranspose node: what it is, what was tried, what was chosen and why.

    `place` says in which graph it stands ("" for the main one). A node that could not be read or
    measured has no trials, and `why` says so.
    """

    node: str
    place: str
    axes: tuple[AxisFacts, ...]
    batch: int
    in_channels: int
    out_channels: int
    groups: int
    dtype: str
    trials: tuple[Trial, ...]
    chosen: str
    why: str

    @property
    def rewritten(self) -> bool:
        """Whether the node is another one now."""
        return self.chosen != ORIGINAL

    def trial(self, rewriting: str) -> Trial | None:
        """The trial of this name."""
        return next((trial for trial in self.trials if trial.rewriting == rewriting), None)


@dataclass(frozen=True, slots=True)
class OutputProof:
    """One output of the model before and after, on the same inputs.

    `error` is the largest difference over the output's scale; `tolerance` is what is allowed.
    """

    output: str
    evaluated_by: str
    dtype: str
    error: float
    tolerance: float
    equal: bool


@dataclass(frozen=True, slots=True)
class WholeResult:
    """The whole model in its runtime, before and after, in turns."""

    before: Timing
    after: Timing
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Optimization:
    """All that `optimize` did: per layer, for the whole model, and the proof.

    `prepared` are the steps taken before anything was measured ("fold_batch_norm at /up1").
    `whole` is None where nothing was measured (target "none"). `written` is the output's path, or
    None. `machine` and `versions` say where and with what; `remarks` are sentences about what could
    not be done, `broken` those about nodes that still break the profile asked for. `proto` is the
    model itself, which is in no other form of this.
    """

    model: str
    target: str
    threads: int
    opset: int
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    prepared: tuple[str, ...]
    layers: tuple[LayerResult, ...]
    whole: WholeResult | None
    proofs: tuple[OutputProof, ...]
    verdict: str
    bytes_before: int
    bytes_after: int
    machine: str
    versions: tuple[tuple[str, str], ...]
    seconds: float
    remarks: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    written: str | None = None
    proto: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    @property
    def rewritten(self) -> tuple[LayerResult, ...]:
        """The layers that are others now."""
        return tuple(layer for layer in self.layers if layer.rewritten)

    @property
    def proven(self) -> bool:
        """Whether every output was found equal by everyone who evaluated it."""
        return all(proof.equal for proof in self.proofs)

    def share(self) -> tuple[float, float] | None:
        """Seconds of all measured deconvolutions, each alone: before and as chosen."""
        before = after = 0.0
        for layer in self.layers:
            original, chosen = layer.trial(ORIGINAL), layer.trial(layer.chosen)
            if original and chosen and original.timing and chosen.timing:
                ratio = chosen.ratio.median if chosen.ratio else 1.0
                before += original.timing.median
                after += original.timing.median / ratio
        return (before, after) if before else None

    def as_json(self) -> dict[str, Any]:
        """The same as plain lists and dictionaries; null stands for what is infinite or no number.

        `schema` says which form this is.
        """
        share, fields = self.share(), _finite(asdict(replace(self, proto=None)))
        del fields["proto"]
        return {
            "schema": SCHEMA,
            **fields,
            "deconvolutions": None if share is None else {"before": share[0], "after": share[1]},
        }


def _finite(value: Any) -> Any:
    """A value of JSON, which has no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value
