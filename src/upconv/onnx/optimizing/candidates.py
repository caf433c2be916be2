"""Every form of one transposed convolution, checked and timed in the runtime that will run it.

A candidate is a sequence of passes (`CANDIDATES`). It is timed if each of its passes fires, the
runtime takes the result and does not die of it, and its values are as near to the layer in float64
as the rules of `verifying.differences` ask. The original is timed interleaved with all of them.

A record of the tuning cache is all candidates of one layer at given shapes, in one runtime. Where
the runtime refused one, nothing is remembered: a process may have ended for want of memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ..._version import __version__
from ...arrays import Array
from ...dialects.onnx import Rule
from ...errors import EngineError, MemoryLimitError
from ...tuning import processor_model, shared_store
from ..documents import document
from ..passes import PASSES
from ..passes.base import run
from ..runtimes import Runtime, Session, Worker, timed
from ..runtimes.worker import borrowed
from ..verifying import in_float64, place_of
from ..verifying.differences import Tolerances, differences
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


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What all steps of one optimisation share.

    inputs: arrays by name, per set of input shapes. seconds: for each different layer; the whole
    model has `WHOLE` times as many. limit: seconds that one run may take. float64: whether results
    are held against it. fresh: whether the tuning cache is not asked. say: called with what begins,
    its number from 1, and of how many.
    """

    runtime: Runtime
    rule: Rule
    inputs: tuple[Mapping[str, Array], ...]
    seconds: float
    limit: float
    float64: bool
    fresh: bool
    say: Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """A candidate as a model of its own, and in the runtime once it was found right."""

    told: Candidate
    model: ir.Model
    session: Session | None = None


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
    versions = f"upconv {__version__} | {setup.runtime} {setup.runtime.version}"
    how = f"threads {setup.runtime.threads} | {layer.signature} {layer.shapes}"
    key = " | ".join((processor_model(), versions, how))
    known = None if setup.fresh else _recalled(key)
    if known is not None:
        return known
    forms, unfit = _forms(layer, setup.rule)
    trial = _Trial(layer, setup)
    found = (*trial.run(forms), *unfit)
    if not trial.refused:
        shared_store().remember(_TABLE, key, {"candidates": json.dumps(document(found))})
    return (*found, *trial.refused.values())


def _recalled(key: str) -> tuple[Candidate, ...] | None:
    try:
        told = json.loads(str((shared_store().find(_TABLE, key) or {})["candidates"]))
        found = tuple(
            Candidate(
                one["passes"],
                one["refusal"],
                tuple(Timing(**timing) for timing in one["timings"]),
                tuple(Ratio(**ratio) for ratio in one["ratios"]),
                one["error"],
                one["weight_bytes"],
                one["work"],
                remembered=True,
            )
            for one in told
        )
    except (KeyError, TypeError, ValueError):  # there is none, or not one of ours
        return None
    return found if {one.passes for one in found} == {ORIGINAL, *CANDIDATES} else None


def _forms(layer: Layer, rule: Rule) -> tuple[list[_Form], list[Candidate]]:
    """The forms of a layer, and those whose passes do not fire."""
    forms, unfit = [], []
    for name in (ORIGINAL, *CANDIDATES):
        model = layer.model.clone()
        refusal = None if name == ORIGINAL else apply(model, name, rule)
        if refusal is not None:
            unfit.append(Candidate(name, refusal=refusal))
            continue
        tensors = [value.const_value for value in model.graph.initializers.values()]
        weights = [tensor for tensor in tensors if tensor is not None and len(tensor.shape) > 1]
        nbytes = sum(tensor.nbytes for tensor in weights)
        # Each element of a weight is one multiplication per input position.
        work = sum(tensor.size for tensor in weights) / layer.conv.array.size
        forms.append(_Form(Candidate(name, weight_bytes=nbytes, work=work), model))
    return forms, unfit


class _Trial:
    """The candidates of one layer against each other; `refused` are those that are out."""

    def __init__(self, layer: Layer, setup: Setup) -> None:
        self.layer, self.setup = layer, setup
        self.refused: dict[str, Candidate] = {}
        self.feeds = [layer.feeds(which) for which in range(len(layer.shapes))]
        self.exact: list[Any] = [None] * len(self.feeds)
        try:
            with (
                borrowed(setup.limit) as worker,
                in_float64(setup.runtime).session(layer.model, worker=worker) as wide,
            ):
                self.exact = self._values(wide)
        except (EngineError, MemoryLimitError):
            pass  # the original is held against instead

    def run(self, forms: Sequence[_Form]) -> list[Candidate]:
        """The times of those that stay; a worker that one of them ended is replaced."""
        while True:
            left = [form for form in forms if form.told.passes not in self.refused]
            with borrowed(self.setup.limit) as worker:
                found = self._checked(left, worker)
                if worker.usable:
                    return self._timed(found)

    def _values(self, session: Session) -> list[Any]:
        return [next(iter(session.run(given).values())) for given in self.feeds]

    def _checked(self, forms: Sequence[_Form], worker: Worker) -> list[_Form]:
        """Those that the runtime takes and whose values are right, up to one that ended it."""
        found: list[_Form] = []
        wanted: list[Any] = []
        for form in forms:
            told = form.told
            try:
                session = self.setup.runtime.session(form.model, worker=worker)
                values = self._values(session)
            except (EngineError, MemoryLimitError) as failure:
                if told.passes == ORIGINAL:
                    raise
                self.refused[told.passes] = replace(told, refusal=str(failure))
                if not worker.usable:
                    break
                continue
            wanted = wanted or values
            refusal, error = self._judged(told.passes, wanted, values)
            if refusal is None:
                found.append(_Form(replace(told, error=error), form.model, session))
            else:
                self.refused[told.passes] = replace(told, refusal=refusal)
                session.close()
        return found

    def _judged(
        self, name: str, wanted: Sequence[Any], values: Sequence[Any]
    ) -> tuple[str | None, float]:
        """Why a candidate's values are wrong, and its largest error."""
        [y] = self.layer.model.graph.outputs
        tolerances = Tolerances(precision=self.setup.runtime.working_precision())
        largest = 0.0
        for a, b, exact in zip(wanted, values, self.exact, strict=True):
            [one] = differences(place_of(y), a, b, tolerances, exact)
            if not one.equal and name != ORIGINAL:
                by = f"{one.error:.1e} of the output's scale, {one.allowed:.1e} allowed"
                return f"its values are off: {one.words or by}", one.error
            largest = max(largest, one.error)
        return None, largest

    def _timed(self, forms: Sequence[_Form]) -> list[Candidate]:
        """All of them, interleaved, for each set of shapes."""
        found = [form.told for form in forms]
        sessions = [form.session for form in forms if form.session]
        for given in self.feeds:
            for session in sessions:
                session.bind(given)
            rounds = timed(sessions, self.setup.seconds)
            for i, one in enumerate(found):
                series = rounds.samples[i] if i else rounds.first
                ratios = (*one.ratios, Ratio.of(rounds, i)) if i else ()
                found[i] = replace(one, timings=(*one.timings, Timing.of(series)), ratios=ratios)
        for session in sessions:
            session.close()
        return found
