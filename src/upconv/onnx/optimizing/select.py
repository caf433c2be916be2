"""Which candidates the model keeps: chosen layer by layer, verified and measured as a whole.

1. A candidate is chosen if at every set of input shapes the whole interval of its ratio lies above
   `LEAST_GAIN`; of those the one whose least interval begins highest.
2. While the whole is not verified, the layer with the largest error is reverted.
3. If all that are left make the whole faster beyond the noise, they stay.
4. Else greedy add-back: layer by layer, the one that saves most first, each staying if the model is
   faster with it; at most `_MOST_ADDED`, since each costs a measurement of the whole.
5. What then is not faster beyond the noise is not kept at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from ...errors import ModelError
from ..runtimes import Runtime, Session, timed
from ..runtimes.worker import borrowed
from ..verifying import Compare, Side
from .candidates import Setup, apply
from .extract import marked
from .results import ORIGINAL, Candidate, LayerResult, OutputCheck, Ratio, Timing, WholeResult

LEAST_GAIN = 1.03
"""A rewritten layer costs bytes and names: less than three per cent is not worth them."""

_MOST_ADDED = 12
_WHOLE = 5.0
"""How much longer than one layer the whole model is measured."""

_LOOK_AGAIN = 3.0
"""How much longer again, where it seems to be faster but might not be."""

Kept = dict[int, str]
"""Number of a layer -> its candidate."""


def choose(candidates: Sequence[Candidate]) -> tuple[str, str]:
    """Rule 1: the candidate of a layer, and why.

    >>> second = Timing(1.0, 1.0, 1.0, 1.0, 9)
    >>> faster = Candidate("sub_pixel", timings=(second,), ratios=(Ratio(1.5, 1.4, 1.6),))
    >>> choose([Candidate(ORIGINAL, timings=(second,)), faster])
    ('sub_pixel', '1.50 times as fast (1.40 to 1.60) as the original')
    """
    found = [(one, ratio) for one in candidates if (ratio := one.ratio) is not None]
    if not found:
        return ORIGINAL, "no rewriting of it could be measured"
    best, ratio = max(found, key=lambda pair: pair[1].low)
    if ratio.low <= LEAST_GAIN:
        best, ratio = max(found, key=lambda pair: pair[1].median)
        words = f"{best.passes} has {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        return ORIGINAL, f"no rewriting is faster beyond the noise; {words}"
    words = f"{ratio.median:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f})"
    where = " where it gains least" if len(best.ratios) > 1 else ""
    return best.passes, f"{words} as the original{where}"


def faster(whole: Sequence[WholeResult]) -> bool:
    """Whether a model is faster beyond the noise at some input shapes, and slower at none."""
    ratios = [one.ratio for one in whole]
    return any(ratio.low > 1 for ratio in ratios) and all(ratio.high >= 1 for ratio in ratios)


def holds(checks: Sequence[OutputCheck]) -> bool:
    """Whether something was compared and all of it was equal."""
    return bool(checks) and all(one.equal for one in checks)


class Selecting:
    """The whole model of one optimisation: assembled, verified, measured.

    original: the model as it came. prepared: with neighbours folded, its layers marked.

    What became of it, after `select`: `model`, whether that is `changed`, its `layers`, the times
    of the `whole`, the `checks` that held or the last that did not, and the `verdict`.
    """

    def __init__(self, original: ir.Model, prepared: ir.Model, setup: Setup) -> None:
        self.original, self.prepared, self.setup = original, prepared, setup
        self.model, self.changed, self.verdict = original, False, ""
        self.layers: tuple[LayerResult, ...] = ()
        self.whole: tuple[WholeResult, ...] = ()
        self.checks: tuple[OutputCheck, ...] = ()
        self.remarks: list[str] = []
        sides = [Side.of(original, given, setup.limit) for given in setup.inputs]
        self._compares = [Compare(side, setup.float64) for side in sides]

    @property
    def verified(self) -> bool | None:
        """Whether the model was found equal to the original; None where it is the original."""
        return holds(self.checks) if self.changed else None

    def select(self, layers: Sequence[LayerResult], folded: Sequence[str]) -> None:
        """Keep those of the layers' candidates that hold up: rules 2 to 5."""
        self.layers = tuple(layers)
        chosen = {i: layer.chosen for i, layer in enumerate(layers) if layer.rewritten}
        if not chosen and not folded:
            what = "No rewriting of any layer is faster beyond the noise: the model stays as it is."
            self.verdict = what if layers else "The model has no ConvTranspose: it stays as it is."
            return
        model, kept = self._verifiable(chosen)
        why = "What would be faster was not equal"
        if holds(self.checks):
            why = "As a whole it is not faster with any of them"
            self.whole = self.compare(self.original, model)
            if not faster(self.whole) and kept:
                kept = self._added_back(kept)
                model = self.assembled(kept)
                self.whole, self.checks = self.compare(self.original, model), self.check(model)
            if faster(self.whole) and holds(self.checks) and (kept or folded):
                self.model, self.changed = model, True
                self.verdict = _verdict(len(kept), len(layers), self.whole)
            else:
                self.checks = ()
        if not self.changed:
            kept, self.verdict = {}, f"{why}: the model stays as it is."
        self.layers = tuple(
            replace(layer, chosen=ORIGINAL, why=f"not kept in the whole model, though {layer.why}")
            if layer.rewritten and i not in kept
            else layer
            for i, layer in enumerate(layers)
        )

    def assembled(self, kept: Mapping[int, str]) -> ir.Model:
        """A copy of the prepared model whose layers, by number, are these candidates."""
        copy = self.prepared.clone()
        for index, passes in kept.items():
            refusal = apply(copy, passes, self.setup.rule, marked(index))
            if refusal is not None:  # it fired on the layer alone
                raise ModelError(f"ConvTranspose number {index} cannot be rewritten: {refusal}.")
        return copy

    def check(self, model: ir.Model) -> tuple[OutputCheck, ...]:
        """The outputs of a model against the original's, at every set of input shapes.

        Where the runtime computes in 16 bits, whose roundings hide small faults, in f32 too.
        """
        checks: list[OutputCheck] = []
        runtime = self.setup.runtime
        lowered = runtime.working_precision() not in ("", "f32")
        for shapes, compare in enumerate(self._compares):
            for how in (runtime, replace(runtime, precision="f32"))[: 1 + lowered]:
                self.setup.say("verifying the whole model", shapes + 1, len(self._compares))
                side = Side.of(model, self.setup.inputs[shapes], self.setup.limit)
                run = compare.run(how, side, layers=False)
                if run.remark and run.remark not in self.remarks:
                    self.remarks.append(run.remark)
                checks += OutputCheck.all_of(run, shapes)
        return tuple(checks)

    def compare(
        self,
        before: ir.Model,
        after: ir.Model,
        other: Runtime | None = None,
        reports: list[Mapping[str, Any]] | None = None,
    ) -> tuple[WholeResult, ...]:
        """The times of two models, at every set of input shapes.

        other: the runtime of the second, the same without one. reports: where "upconv" reports.
        """
        found = []
        for shapes, given in enumerate(self.setup.inputs):
            self.setup.say("measuring the whole model", shapes + 1, len(self.setup.inputs))
            with borrowed(self.setup.limit) as worker:
                first = self.setup.runtime.session(before, worker=worker)
                second = (other or self.setup.runtime).session(after, worker=worker)
                with first, second:
                    for session in (first, second):
                        session.bind(given)
                    found.append(self._timed([first, second]))
                    if reports is not None:
                        reports.append(second.report())
        return tuple(found)

    def _timed(self, sessions: Sequence[Session]) -> WholeResult:
        """Longer where the first look does not decide."""
        seconds = _WHOLE * self.setup.seconds
        rounds = timed(sessions, seconds)
        ratio = Ratio.of(rounds, 1)
        if ratio.low <= 1 < ratio.median:
            rounds = timed(sessions, _LOOK_AGAIN * seconds)
            ratio = Ratio.of(rounds, 1)
        return WholeResult(Timing.of(rounds.first), Timing.of(rounds.samples[1]), ratio)

    def _verifiable(self, chosen: Kept) -> tuple[ir.Model, Kept]:
        """Rule 2: the candidates with which the whole is equal."""
        kept = dict(chosen)
        while True:
            model = self.assembled(kept)
            self.checks = self.check(model)
            if holds(self.checks):
                return model, kept
            objection = _objection(self.checks)
            if not kept:  # what is folded alone does not hold
                self.remarks.append(f"The model is not equal: {objection}.")
                return model, kept
            worst = max(kept, key=lambda i: self.layers[i].best.error or 0.0)
            reverted = f"{self.layers[worst].node} is reverted, for with it the model is not equal"
            self.remarks.append(f"{reverted}: {objection}.")
            del kept[worst]

    def _added_back(self, chosen: Kept) -> Kept:
        """Rule 4."""
        kept: Kept = {}
        current = self.original
        order = sorted(chosen, key=lambda i: _saved(self.layers[i]), reverse=True)
        for index in order[:_MOST_ADDED]:
            more = {**kept, index: chosen[index]}
            model = self.assembled(more)
            if faster(self.compare(current, model)):
                kept, current = more, model
        return kept


def _verdict(kept: int, layers: int, whole: Sequence[WholeResult]) -> str:
    ratio = min((one.ratio for one in whole), key=lambda ratio: ratio.low)
    least = " at least" if len(whole) > 1 else ""
    return (
        f"{kept} of {layers} transposed convolutions rewritten: the model is{least}"
        f" {ratio.median:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f}), and verified."
    )


def _objection(checks: Sequence[OutputCheck]) -> str:
    """Why a model is not verified, without a full stop."""
    apart = [one for one in checks if not one.equal]
    if not apart:
        return "nothing was compared"
    worst = max(apart, key=lambda one: one.error)
    others = f", and {len(apart) - 1} more differ" if apart[1:] else ""
    said = worst.words.rstrip(".") or (
        f"{worst.output!r} is off by {worst.error:.2g} of its largest value,"
        f" {worst.allowed:.2g} allowed"
    )
    return f"in {worst.runtime} {said}{others}"


def _saved(layer: LayerResult) -> float:
    """The seconds that the layer's choice saves when it is alone."""
    original = layer.candidate(ORIGINAL)
    pairs = zip(original.timings, layer.best.ratios, strict=False) if original else ()
    return sum(time.median * (1 - 1 / max(ratio.median, 1e-9)) for time, ratio in pairs)
