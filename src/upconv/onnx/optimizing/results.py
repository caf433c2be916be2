"""What an optimisation found: plain frozen values, from which text, JSON and the report are made.

Times are in seconds (medians), sizes in bytes, ratios are "before over after": above 1 is faster.
Where something was measured for several sets of input shapes, it is a tuple in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...geometry import Axis
from ...measuring import Ratio
from ...reports import Report
from ..documents import document

if TYPE_CHECKING:
    import onnx

    from ..verifying import Run

ORIGINAL = "original"
SCHEMA = 3  # raised when a field of the JSON form changes its meaning


@dataclass(frozen=True, slots=True)
class Candidate:
    """One form of one layer: the names of `passes`, joined by +, or `ORIGINAL`.

    Either `refusal` says why it was not measured, or there are the `seconds` of a call, the
    `ratios` to the original (none for itself), and the largest `error` against float64 relative to
    the output's scale.
    """

    passes: str
    refusal: str | None = None
    seconds: tuple[float, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    error: float | None = None

    @property
    def ratio(self) -> Ratio | None:
        """The ratio at the input shapes where it gains least."""
        return min(self.ratios, key=lambda ratio: ratio.low, default=None)


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One ConvTranspose node: what it is, what was tried, what was chosen and why.

    `axes` are how it was run at the first set of input shapes, `shapes` the shapes of its input. A
    node that could not be read or measured has no candidates, and `why` says so.
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
        """Whether the node is another one now."""
        return self.chosen != ORIGINAL

    def candidate(self, passes: str) -> Candidate:
        """The candidate of this name; one that says nothing where none was tried."""
        return next((o for o in self.candidates if o.passes == passes), Candidate(passes))

    @property
    def best(self) -> Candidate:
        """The candidate that was chosen."""
        return self.candidate(self.chosen)


@dataclass(frozen=True, slots=True)
class WholeResult:
    """The seconds of a whole model, before and after, interleaved, at one set of input shapes."""

    before: float
    after: float
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Optimization:
    """All that `optimize` did: per layer, for the whole model, and how it was verified.

    `inputs` are the shapes of the inputs by name, per set. `folded` are the steps taken before
    anything was measured ("fold_batch_norm at /up1"). `whole` is empty where the model was not
    measured again. `verified` is None where the model is unchanged, for then there was nothing to
    verify; `checks` and `whole` then are those of the last model that was tried.
    `session` is the report of `upconv.onnx.Session` if it was asked for. `written` is the output's
    path. `proto` is the model itself, which is in no other form of this.
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
    proto: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    @property
    def rewritten(self) -> tuple[LayerResult, ...]:
        """The layers that are others now."""
        return tuple(layer for layer in self.layers if layer.rewritten)

    def share(self) -> tuple[float, float] | None:
        """The seconds of all layers alone, before and after, at the first set of input shapes."""
        alone = [(o.candidate(ORIGINAL).seconds, o.best.ratios) for o in self.layers]
        pairs = [(s[0], s[0] / ratios[0].median if ratios else s[0]) for s, ratios in alone if s]
        return (sum(b for b, _ in pairs), sum(a for _, a in pairs)) if pairs else None

    def as_json(self) -> dict[str, Any]:
        """The same as data, by docs/schemas/optimize.json; null is what is infinite or NaN."""
        share = self.share()
        alone = None if share is None else {"before": share[0], "after": share[1]}
        return {"schema": SCHEMA, **document(self), "layers_alone": alone}
