"""Every form of one transposed convolution, checked and timed in the runtime that will run it.

A candidate is a sequence of passes (`CANDIDATES`). It is timed if each of its passes fires, the
runtime takes the result and does not die of it, and its values are as near to the layer in float64
as the rules of `verifying.differences` ask. The original is timed interleaved with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...dialects.onnx import Rule
from ...errors import EngineError, MemoryLimitError
from ..passes import PASSES
from ..passes.base import run
from ..runtimes import Session, Worker, timed
from ..runtimes.worker import borrowed
from ..verifying.differences import Tolerances, Values, differences
from ..verifying.layers import in_float64, place_of
from .benchmark import Measured, Setup
from .extract import Layer
from .results import ORIGINAL, Candidate

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


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """A candidate as a model of its own, and what can be said of it without a clock."""

    name: str
    model: ir.Model
    weight_bytes: int
    work: float

    @classmethod
    def of(cls, name: str, layer: Layer, model: ir.Model) -> _Form:
        """Each element of a weight is one multiplication per input position, so their number over
        that of the node's is what is multiplied for one product needed.
        """
        found = (value.const_value for value in model.graph.initializers.values())
        weights = [tensor for tensor in found if tensor is not None and len(tensor.shape) > 1]
        size = sum(tensor.size for tensor in weights)
        nbytes = sum(tensor.nbytes for tensor in weights)
        return cls(name, model, nbytes, size / layer.conv.array.size)

    def candidate(self, **facts: Any) -> Candidate:
        """The result of this name, with these facts."""
        return Candidate(self.name, weight_bytes=self.weight_bytes, work=self.work, **facts)


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
        recalled = dict(zip(names, zip(*filter(None, known), strict=True), strict=True))
        return (*(_told(form, recalled[form.name], True) for form in forms), *refused)
    contest = _Contest(layer, setup)
    times = contest.run(forms)
    for name, per_shapes in times.items():
        for key, one in zip(keys, per_shapes, strict=True):
            if not contest.refused:  # else what is missing would be tried again anyway
                setup.cache.remember(key, name, one)
    return (
        *(_told(form, times[form.name], False) for form in forms if form.name in times),
        *(f.candidate(refusal=contest.refused[f.name]) for f in forms if f.name in contest.refused),
        *refused,
    )


def _forms(layer: Layer, rule: Rule) -> tuple[list[_Form], list[Candidate]]:
    forms, refused = [_Form.of(ORIGINAL, layer, layer.model)], []
    for name in CANDIDATES:
        model = layer.model.clone()
        refusal = apply(model, name, rule)
        if refusal is None:
            forms.append(_Form.of(name, layer, model))
        else:
            refused.append(Candidate(name, refusal=refusal))
    return forms, refused


def _told(form: _Form, times: Sequence[Measured], remembered: bool) -> Candidate:
    return form.candidate(
        timings=tuple(one.timing for one in times),
        ratios=() if form.name == ORIGINAL else tuple(one.ratio for one in times),
        error=max(one.error for one in times),
        remembered=remembered,
    )


class _Contest:
    """The candidates of one layer against each other; `refused` says who is out, and why."""

    def __init__(self, layer: Layer, setup: Setup) -> None:
        self.layer, self.setup = layer, setup
        self.refused: dict[str, str] = {}
        self.feeds = [layer.feeds(which) for which in range(len(layer.shapes))]
        self.exact = self._in_float64()
        self.tolerances = Tolerances(precision=setup.runtime.working_precision())

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
            return self._paired(left)

    def _paired(self, left: Sequence[_Form]) -> dict[str, list[Measured]]:
        original, *others = left
        found: dict[str, list[Measured]] = {}
        for form in others:
            try:
                found |= self.run([original, form])
            except EngineError as error:
                self.refused[form.name] = str(error)
        return found

    def _checked(
        self, forms: Sequence[_Form], worker: Worker
    ) -> list[tuple[_Form, Session, list[float]]]:
        """Those that the runtime takes and whose values are right; `EngineError` if it died."""
        found: list[tuple[_Form, Session, list[float]]] = []
        wanted: list[Any] = []
        for form in forms:
            try:
                session = self.setup.runtime.session(form.model, worker=worker)
                values = [next(iter(session.run(given).values())) for given in self.feeds]
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
        place, errors = place_of(y), []
        for a, b, exact in zip(wanted, values, self.exact, strict=True):
            [one] = differences(place, Values(a, b, exact), self.tolerances)
            if not one.equal and form.name != ORIGINAL:
                by = f"{one.error:.1e} of the output's scale, {one.allowed:.1e} allowed"
                return f"its values are off: {one.words or by}", []
            errors.append(one.error)
        return None, errors

    def _in_float64(self) -> list[Any]:
        wide = in_float64(self.setup.runtime)
        try:
            with borrowed(self.setup.limit) as worker:
                session = wide.session(self.layer.model, worker=worker)
                with session:
                    return [next(iter(session.run(given).values())) for given in self.feeds]
        except (EngineError, MemoryLimitError):
            return [None] * len(self.feeds)  # the original is held against instead

    def _timed(
        self, found: Sequence[tuple[_Form, Session, list[float]]]
    ) -> dict[str, list[Measured]]:
        times: dict[str, list[Measured]] = {form.name: [] for form, _, _ in found}
        for which, given in enumerate(self.feeds):
            for _, session, _ in found:
                session.bind(given)
            rounds = timed([session for _, session, _ in found], self.setup.seconds)
            errors = [errors[which] for _, _, errors in found]
            for (form, _, _), one in zip(found, Measured.of(rounds, errors), strict=True):
                times[form.name].append(one)
        for _, session, _ in found:
            session.close()
        return times
