"""Select a model's candidates: chosen layer by layer, verified and measured as a whole.

1. `measuring.decide` chooses each layer's candidate.
2. If the model with all of them is equal to the original, and faster beyond the noise, they stay.
3. Otherwise, greedy add-back adds one layer after another, the largest saving first. A layer stays
   if the model is equal and faster with it. At most `_MAX_ADDED` layers are tried and measured.
4. A result that is not both equal to the original and faster is discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import onnx_ir as ir

from ...errors import EngineError, ModelError
from ...front_end_reports import Report
from ...measuring import GAIN, Ratio, decide, undisturbed
from ..runtimes import OpenModel, borrowed, timed
from ..verifying import Run, Side, compared
from ..verifying.differences import Tolerances
from .candidates import Setup, apply
from .extract import marked
from .results import ORIGINAL, Candidate, LayerResult, WholeResult

_MAX_ADDED = 12
_WHOLE = 5.0  # times the time spent on measuring one layer
_RETRY = 3.0  # times that, if the first measurement is undecided

Kept = dict[int, str]
"""A layer's number -> its candidate."""


def choose(candidates: Sequence[Candidate]) -> tuple[str, str]:
    """Choose a layer's candidate, and say why (rule 1)."""
    ratios = {one.passes: one.ratio for one in candidates if one.ratio is not None}
    if not ratios:
        return ORIGINAL, "none of its rewritings could be measured"
    name, _ = decide(ORIGINAL, {one.passes: one.ratios for one in candidates})
    if name != ORIGINAL:
        return name, f"{ratios[name]} as the original"
    best = max(ratios, key=lambda name: ratios[name].median)
    return ORIGINAL, f"no rewriting is faster by more than the noise; {best} is {ratios[best]}"


def faster(results: Sequence[WholeResult]) -> bool:
    """Return whether a model is faster beyond the noise for some inputs, and slower for none."""
    ratios = [result.ratio for result in results]
    return any(ratio.low > GAIN for ratio in ratios) and all(ratio.high >= 1 for ratio in ratios)


class Selecting:
    """One selection, which assembles, verifies and measures the whole model.

    prepared: the original with folded neighbours and marked layers. After `select`, `model` is
    None if the model is unchanged; `checks` and `whole` describe the last trial.
    """

    def __init__(self, original: ir.Model, prepared: ir.Model, setup: Setup) -> None:
        self.original, self.prepared, self.setup = original, prepared, setup
        self.model: ir.Model | None = None
        self.verdict = ""
        self.layers: tuple[LayerResult, ...] = ()
        self.whole: tuple[WholeResult, ...] = ()
        self.checks: tuple[Run, ...] = ()
        self.remarks: list[str] = []
        self._sides = [Side(original, feeds, setup.limit) for feeds in setup.inputs]

    def repeat(self, layers: Sequence[LayerResult], saved: Report) -> None:
        """Apply the decisions of an earlier run and verify the model, without measuring.

        Raises `EngineError` if the model is then not equal to the original.
        """
        self.layers = tuple(layers)
        if saved.why:
            self.verdict = f"{saved.why}; as decided earlier."
            return
        kept = {i: layer.chosen for i, layer in enumerate(layers) if layer.rewritten}
        self.model = self._equal(kept)
        if self.model is None:
            raise EngineError(f"{self.remarks[-1]} Measure again: remeasure=True.")
        if saved.before and saved.after and saved.ratio:
            self.whole = (WholeResult(saved.before, saved.after, saved.ratio),)
        done = f"{len(kept)} of {len(layers)} transposed convolutions rewritten"
        self.verdict = f"{done} as decided earlier, and verified."

    def select(self, layers: Sequence[LayerResult], folded: Sequence[str]) -> None:
        """Keep the layers' candidates that pass rules 2 to 4."""
        self.layers = tuple(layers)
        kept = {i: layer.chosen for i, layer in enumerate(layers) if layer.rewritten}
        if not kept and not folded:
            why = "Nothing was faster" if layers else "The model has no ConvTranspose"
            self.verdict = f"{why}; the model is unchanged."
            return
        self.model = self._tried(self.original, kept)
        if self.model is None and len(kept) + bool(folded) > 1:
            kept = self._added_back(kept)
            if kept or folded:
                self.model = self._tried(self.original, kept)
        if self.model is None:
            kept, why = {}, "Nothing was both equal and faster in the whole model"
            self.verdict = f"{why}; the model is unchanged."
        else:
            ratio = min((one.ratio for one in self.whole), key=lambda ratio: ratio.low)
            bound = " at least" if len(self.whole) > 1 else ""
            done = f"{len(kept)} of {len(layers)} transposed convolutions rewritten"
            self.verdict = f"{done}: the model is{bound} {ratio}, and verified."
        self.layers = tuple(
            replace(layer, chosen=ORIGINAL, why=f"not kept in the whole model, though {layer.why}")
            if layer.rewritten and i not in kept
            else layer
            for i, layer in enumerate(layers)
        )

    def assembled(self, kept: Mapping[int, str]) -> ir.Model:
        """Assemble a copy of the prepared model with these candidates, by layer number."""
        copy = self.prepared.clone()
        for index, passes in kept.items():
            refusal = apply(copy, passes, self.setup.runtime.reading, marked(index))
            if refusal is not None:  # although the passes fired on the separate layer
                raise ModelError(f"ConvTranspose number {index} cannot be rewritten: {refusal}.")
        return copy

    def check(self, model: ir.Model) -> tuple[Run, ...]:
        """Compare a model's outputs with the original's for every set of input shapes.

        If the runtime computes in 16 bits, where rounding hides small faults, compare in f32 too.
        """
        runtime, float64 = self.setup.runtime, self.setup.float64
        lowered = runtime.working_precision() not in ("", "f32")
        checks = []
        for shapes, side in enumerate(self._sides, 1):
            self.setup.say("verifying the whole model", shapes, len(self._sides))
            for mode in (runtime, replace(runtime, precision="f32"))[: 1 + lowered]:
                other = Side(model, side.feeds, side.limit)
                run = compared(mode, side, other, Tolerances(), float64=float64, layers=False)
                checks.append(run)
        return tuple(checks)

    def compare(self, before: ir.Model, after: ir.Model) -> tuple[WholeResult, ...]:
        """Time two models for every set of input shapes."""
        results = []
        for shapes, feeds in enumerate(self.setup.inputs):
            self.setup.say("measuring the whole model", shapes + 1, len(self.setup.inputs))
            with borrowed(self.setup.limit) as worker, ExitStack() as stack:
                sessions = [
                    stack.enter_context(self.setup.runtime.session(model, worker=worker))
                    for model in (before, after)
                ]
                for session in sessions:
                    session.bind(feeds)
                results.append(self._timed(sessions))
        return tuple(results)

    def _timed(self, sessions: Sequence[OpenModel]) -> WholeResult:
        """Time two models, and once more for longer if the first times are undecided."""
        seconds = _WHOLE * self.setup.seconds
        rounds = timed(sessions, seconds)
        ratio = Ratio.of(rounds, 1)
        if ratio.low <= 1 < ratio.median:
            rounds = timed(sessions, _RETRY * seconds)
            ratio = Ratio.of(rounds, 1)
        return WholeResult(undisturbed(rounds.first), undisturbed(rounds.samples[1]), ratio)

    def _tried(self, before: ir.Model, kept: Kept) -> ir.Model | None:
        """Return the model with these candidates if it is equal to the original and faster."""
        model = self._equal(kept)
        if model is None:
            return None
        self.whole = self.compare(before, model)
        return model if faster(self.whole) else None

    def _equal(self, kept: Kept) -> ir.Model | None:
        """Return the model with these candidates if it is equal to the original."""
        model = self.assembled(kept)
        self.checks = self.check(model)
        self.remarks += [run.remark for run in self.checks if run.remark]
        for run in self.checks:
            if not run.equal:
                what = "; ".join([*run.findings, *(str(o) for o in run.outputs if not o.equal)])
                names = ", ".join(self.layers[i].node for i in kept) or "the folded nodes"
                reason = what or "nothing was compared"
                self.remarks.append(f"Not equal in {run.runtime} with {names}: {reason}.")
                return None
        return model

    def _added_back(self, chosen: Kept) -> Kept:
        """Return the candidates that greedy add-back keeps (rule 3)."""
        kept: Kept = {}
        current = self.original
        order = sorted(chosen, key=lambda i: _saved(self.layers[i]), reverse=True)
        for index in order[:_MAX_ADDED]:
            more = {**kept, index: chosen[index]}
            model = self._tried(current, more)
            if model is not None:
                kept, current = more, model
        return kept


def _saved(layer: LayerResult) -> float:
    """Return the seconds that the layer's choice saves in the layer itself."""
    pairs = zip(layer.candidate(ORIGINAL).seconds, layer.best.ratios, strict=False)
    return sum(seconds * (1 - 1 / max(ratio.median, 1e-9)) for seconds, ratio in pairs)
