"""Results of an optimization: plain frozen values, from which text, JSON and reports are made.

Times are in seconds, from undisturbed calls; sizes are in bytes. Ratios are before / after: above 1
is faster. Values for several sets of input shapes are tuples, in the order of the sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from ...documents import document
from ...front_end_reports import Condition, Report, Row
from ...geometry import Axis
from ...measuring import Ratio

if TYPE_CHECKING:
    import onnx

    from ..verifying import Run

ORIGINAL = "original"
SCHEMA = 4  # increased when a field of the JSON form changes its meaning


@dataclass(frozen=True, slots=True)
class Candidate:
    """One form of one layer: the names of `passes`, joined by +, or `ORIGINAL`.

    `refusal` says why it was not measured. Otherwise, `seconds` is the time of a call, and `ratios`
    compare it with the original (which has none itself). `error` is the largest error against
    float64, relative to the output's scale.
    """

    passes: str
    refusal: str | None = None
    seconds: tuple[float, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    error: float | None = None

    @property
    def ratio(self) -> Ratio | None:
        """The ratio for the input shapes at which the candidate gains least."""
        return min(self.ratios, key=lambda ratio: ratio.low, default=None)


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One ConvTranspose node: its geometry, its candidates, the choice and the reason.

    `axes` are its axes at the first set of input shapes, `shapes` the shapes of its input. A node
    that could not be read or measured has no candidates, and `why` gives the reason.
    """

    node: str
    chosen: str
    why: str
    axes: tuple[Axis, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    out_channels: int = 0
    groups: int = 0
    dtype: str = ""
    candidates: tuple[Candidate, ...] = ()

    @property
    def rewritten(self) -> bool:
        """Whether the node was rewritten."""
        return self.chosen != ORIGINAL

    def candidate(self, passes: str) -> Candidate:
        """Return the candidate with this name; an empty candidate if it was not tried."""
        return next((o for o in self.candidates if o.passes == passes), Candidate(passes))

    @property
    def best(self) -> Candidate:
        """The candidate that was chosen."""
        return self.candidate(self.chosen)

    @property
    def row(self) -> Row:
        """The layer's row of a report, for the first set of input shapes."""
        before, after = self.candidate(ORIGINAL).seconds, self.best.seconds
        times = before[0] if before else None, after[0] if after and self.rewritten else None
        return Row(self.node, "ConvTranspose", self.chosen, 1, *times, self.why)

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the layer that a saved report describes."""
        times = {ORIGINAL: row.before, row.by: row.after or row.before}
        measured = tuple(Candidate(n, seconds=(t,)) for n, t in times.items() if t is not None)
        return cls(row.name, row.by, row.why, candidates=measured)


@dataclass(frozen=True, slots=True)
class WholeResult:
    """The seconds of the whole model before and after, interleaved, for one set of input shapes."""

    before: float
    after: float
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Optimization:
    """Everything that `optimize` did: for each layer, for the whole model, and to verify it.

    `inputs` are the input shapes by name, for each set. `folded` are the steps taken before
    anything was measured ("fold_batch_norm at /up1"). `whole` is empty if the model was not
    measured again. `verified` is None if the model is unchanged, because there was nothing to
    verify; `checks` and `whole` then describe the last model that was tried. `session` is the
    report of `upconv.onnx.Session`, if requested. `written` is the output's path. The decisions
    hold under the `conditions`. `proto` is the model itself; text and JSON omit it.
    """

    model: str
    runtime: str
    threads: int
    opset: int
    inputs: tuple[Mapping[str, tuple[int, ...]], ...]
    folded: tuple[str, ...]
    layers: tuple[LayerResult, ...]
    whole: tuple[WholeResult, ...]
    verified: bool | None
    checks: tuple[Run, ...]
    verdict: str
    bytes_before: int
    bytes_after: int
    machine: str
    versions: Mapping[str, str]
    seconds: float
    remarks: tuple[str, ...] = ()
    session: Report | None = None
    written: str | None = None
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    proto: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    @property
    def rewritten(self) -> tuple[LayerResult, ...]:
        """The layers that were rewritten."""
        return tuple(layer for layer in self.layers if layer.rewritten)

    @property
    def report(self) -> Report:
        """The decisions, to print, or to save and apply with `optimize(model, decisions=path)`.

        The whole model's times are sums over the sets of input shapes; its ratio is the smallest.
        """
        rows, models = tuple(layer.row for layer in self.layers), self.whole
        ratio = min((one.ratio for one in models), key=lambda one: one.low, default=None)
        why = "" if self.verified else "nothing is both equal and faster"
        before = sum(one.before for one in models) if models else None
        after = sum(one.after for one in models) if models else None
        return Report(self.runtime, rows, why, before, after, ratio, self.conditions)

    def as_json(self) -> dict[str, Any]:
        """Return the result as data, by docs/schemas/optimize.json; null means infinity or NaN."""
        return {"schema": SCHEMA, **document(self), "report": self.report.as_json()}
