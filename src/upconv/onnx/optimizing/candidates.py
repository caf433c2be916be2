"""Every form of one transposed convolution, checked and timed in the runtime that will run it.

A candidate is a sequence of passes (`CANDIDATES`). It is timed if each of its passes fires, the
runtime takes the result and does not die of it, and its values are as near to the layer in float64
as the rules of `verifying.differences` ask. The original is timed interleaved with all of them.

A record of the tuning cache is one candidate of one layer at one set of shapes, in one runtime. It
is used only where every candidate that would be measured now has one, so that ratios come from one
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import onnx_ir as ir

from ..._version import __version__
from ...arrays import Array
from ...dialects.onnx import Rule
from ...errors import EngineError, MemoryLimitError
from ...tuning import processor_model, shared_store
from ...tuning.store import Record
from ..passes import PASSES
from ..passes.base import run
from ..runtimes import Runtime, Session, Worker, timed
from ..runtimes.timing import Rounds
from ..runtimes.worker import borrowed
from ..verifying.differences import Tolerances, differences
from ..verifying.layers import in_float64, place_of
from .extract import Layer
from .results import ORIGINAL, Candidate, Ratio, Timing

CANDIDATES: tuple[str, ...] = (
    "replace_deconv",
    "sub_pixel:unfolded",
    "sub_pixel:folded",
    "sub_pixel:polyphase",
    "to_rank",
    "to_rank+sub_pixel:unfolded",
    "to_rank+sub_pixel:polyphase",
    "split_groups",
)
"""Names of passes, joined by + where one follows the other."""

_TABLE = "rewritings"


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
        fields_ = {**asdict(measured.timing), **ratio, "error": measured.error}
        record: Record = {key: float(entry) for key, entry in fields_.items()}
        shared_store().remember(_TABLE, self._key(layer, name), record)

    def _find(self, layer: str, name: str) -> Measured | None:
        record = shared_store().find(_TABLE, self._key(layer, name))
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


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """A candidate as a model of its own, and what can be said of it without a clock."""

    model: ir.Model
    told: Candidate

    @property
    def name(self) -> str:
        return self.told.passes


def apply(
    model: ir.Model, passes: str, rule: Rule, only: Callable[[ir.Node], bool] | None = None
) -> str | None:
    """Rewrite a model's nodes by a candidate; the refusal of the first pass that does not fire."""
    for name in passes.split("+"):
        steps = run(model, [PASSES[name]], rule=rule, only=only)
        if not any(step.fired for step in steps):
            return steps[-1].refusal if steps else "there is nothing left to rewrite"
    return None


def measured(layer: Layer, setup: Setup) -> tuple[Candidate, ...]:
    """The original and every candidate of a layer: measured, remembered or refused.

    Raises `EngineError` where the runtime does not run the original itself.
    """
    forms, refused = _forms(layer, setup.rule)
    names = [form.name for form in forms]
    keys = [f"{layer.signature} {shape}" for shape in layer.shapes]
    known = [setup.cache.recall(key, names) for key in keys]
    if None not in known:
        times = zip(*filter(None, known), strict=True)
        told = [_timed(f.told, one, True) for f, one in zip(forms, times, strict=True)]
        return (*told, *refused)
    contest = _Contest(layer, setup)
    found = contest.run(forms)
    if not contest.refused:  # else what is missing would be tried again anyway
        for name, per_shapes in found.items():
            for key, one in zip(keys, per_shapes, strict=True):
                setup.cache.remember(key, name, one)
    out = contest.refused
    return (
        *(_timed(form.told, found[form.name], False) for form in forms if form.name in found),
        *(replace(form.told, refusal=out[form.name]) for form in forms if form.name in out),
        *refused,
    )


def _forms(layer: Layer, rule: Rule) -> tuple[list[_Form], list[Candidate]]:
    forms, refused = [], []
    for name in (ORIGINAL, *CANDIDATES):
        model = layer.model.clone()
        refusal = None if name == ORIGINAL else apply(model, name, rule)
        if refusal is not None:
            refused.append(Candidate(name, refusal=refusal))
            continue
        tensors = [value.const_value for value in model.graph.initializers.values()]
        weights = [tensor for tensor in tensors if tensor is not None and len(tensor.shape) > 1]
        nbytes = sum(tensor.nbytes for tensor in weights)
        # Each element of a weight is one multiplication per input position.
        work = sum(tensor.size for tensor in weights) / layer.conv.array.size
        forms.append(_Form(model, Candidate(name, weight_bytes=nbytes, work=work)))
    return forms, refused


def _timed(told: Candidate, times: Sequence[Measured], remembered: bool) -> Candidate:
    return replace(
        told,
        timings=tuple(one.timing for one in times),
        ratios=() if told.passes == ORIGINAL else tuple(one.ratio for one in times),
        error=max(one.error for one in times),
        remembered=remembered,
    )


class _Contest:
    """The candidates of one layer against each other; `refused` says who is out, and why."""

    def __init__(self, layer: Layer, setup: Setup) -> None:
        self.layer, self.setup = layer, setup
        self.refused: dict[str, str] = {}
        self.feeds = [layer.feeds(which) for which in range(len(layer.shapes))]
        self.tolerances = Tolerances(precision=setup.runtime.working_precision())
        self.exact: list[Any] = [None] * len(self.feeds)
        try:
            with borrowed(setup.limit) as worker:
                wide = in_float64(setup.runtime).session(layer.model, worker=worker)
                with wide:
                    self.exact = self._values(wide)
        except (EngineError, MemoryLimitError):
            pass  # the original is held against instead

    def run(self, forms: Sequence[_Form]) -> dict[str, list[Measured]]:
        """The times of those that stay, per set of shapes; a worker that dies is replaced."""
        while True:
            left = [form for form in forms if form.name not in self.refused]
            with borrowed(self.setup.limit) as worker:
                try:
                    found = self._checked(left, worker)
                except EngineError:
                    if ORIGINAL in self.refused:
                        raise
                    continue
                try:
                    return self._timed(found)
                except EngineError:
                    if len(left) <= 2:
                        raise
            # Who ended it is not known: one after the other, each against the original alone.
            times: dict[str, list[Measured]] = {}
            for form in left[1:]:
                try:
                    times |= self.run([left[0], form])
                except EngineError as error:
                    self.refused[form.name] = str(error)
            return times

    def _values(self, session: Session) -> list[Any]:
        return [next(iter(session.run(given).values())) for given in self.feeds]

    def _checked(
        self, forms: Sequence[_Form], worker: Worker
    ) -> list[tuple[_Form, Session, list[float]]]:
        """Those that the runtime takes and whose values are right; `EngineError` if it died."""
        found: list[tuple[_Form, Session, list[float]]] = []
        wanted: list[Any] = []
        for form in forms:
            try:
                session = self.setup.runtime.session(form.model, worker=worker)
                values = self._values(session)
            except (EngineError, MemoryLimitError) as failure:
                self.refused[form.name] = str(failure)
                if form.name == ORIGINAL or not worker.usable:
                    raise EngineError(str(failure)) from None
                continue
            wanted = wanted or values
            refusal, errors = self._judged(form, wanted, values)
            if refusal is None:
                found.append((form, session, errors))
            else:
                self.refused[form.name] = refusal
                session.close()
        return found

    def _judged(
        self, form: _Form, wanted: Sequence[Any], values: Sequence[Any]
    ) -> tuple[str | None, list[float]]:
        """Why a candidate's values are wrong, and its errors per set of shapes."""
        [y] = self.layer.model.graph.outputs
        errors = []
        for a, b, exact in zip(wanted, values, self.exact, strict=True):
            [one] = differences(place_of(y), a, b, self.tolerances, exact)
            if not one.equal and form.name != ORIGINAL:
                by = f"{one.error:.1e} of the output's scale, {one.allowed:.1e} allowed"
                return f"its values are off: {one.words or by}", []
            errors.append(one.error)
        return None, errors

    def _timed(
        self, found: Sequence[tuple[_Form, Session, list[float]]]
    ) -> dict[str, list[Measured]]:
        times: dict[str, list[Measured]] = {form.name: [] for form, _, _ in found}
        sessions = [session for _, session, _ in found]
        for which, given in enumerate(self.feeds):
            for session in sessions:
                session.bind(given)
            rounds = timed(sessions, self.setup.seconds)
            errors = [errors[which] for _, _, errors in found]
            for name, one in zip(times, Measured.of(rounds, errors), strict=True):
                times[name].append(one)
        for session in sessions:
            session.close()
        return times
