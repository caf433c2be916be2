"""The whole model: which of the chosen layers stay, once it is proven and faster.

1. While the whole is not proven equal, the layer with the largest error goes back.
2. If all that are left make the whole faster beyond the noise, they stay.
3. Else they are taken up one by one, the one that saves most first, each staying if the model is
   faster with it; at most `_MOST_TAKEN_UP`, since each costs a measurement of the whole.
4. What then is not faster beyond the noise is not kept at all.

What lives here: these four rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ..models import to_proto
from .assembling import assembled
from .measuring import Prepared
from .proving import NOTHING, Proof
from .results import ORIGINAL, LayerResult, WholeResult
from .work import Work

_MOST_TAKEN_UP = 12

Kept = dict[int, str]
"""Number of a site -> its form."""


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """What became of a model."""

    model: ir.Model
    verdict: str
    layers: tuple[LayerResult, ...] = ()
    prepared: tuple[str, ...] = ()
    proof: Proof = NOTHING
    whole: WholeResult | None = None
    remarks: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


def settled(work: Work, given: Prepared, layers: Sequence[LayerResult]) -> Done:
    """The model with what of the layers' choices holds up; see the module's rules."""
    chosen = {i: layer.chosen for i, layer in enumerate(layers) if layer.rewritten}
    if not chosen and not given.folded:
        return Done(work.original, _unchanged(layers), tuple(layers))
    kept, proof, remarks = _provable(work, given, chosen, layers)
    if not proof.holds:
        return Done(work.original, _UNPROVEN, _given_back(layers, {}), remarks=remarks)
    model = assembled(given.model, kept, work.settings.rule)
    whole = work.compare(work.before, model)
    if not faster(whole) and kept:
        kept = _taken_up(work, given, kept, layers)
        model = assembled(given.model, kept, work.settings.rule)
        whole, proof = work.compare(work.before, model), work.prove(model)
    back = _given_back(layers, kept)
    if not (faster(whole) and proof.holds and (kept or given.folded)):
        text = "As a whole the model is not faster with any of them: it stays as it is."
        return Done(work.original, text, _given_back(layers, {}), whole=whole, remarks=remarks)
    verdict = _verdict(len(kept), len(layers), whole)
    return Done(model, verdict, back, given.folded, proof, whole, remarks + proof.remarks)


def faster(whole: WholeResult) -> bool:
    """Whether the whole interval of the ratio lies above 1."""
    return whole.ratio.low > 1


_UNPROVEN = "What would be faster was not proven equal: the model stays as it is."


def _unchanged(layers: Sequence[LayerResult]) -> str:
    if not layers:
        return "The model has no ConvTranspose: it stays as it is."
    return "No rewriting of any layer is faster beyond the noise: the model stays as it is."


def _verdict(kept: int, layers: int, whole: WholeResult) -> str:
    ratio = whole.ratio
    return (
        f"{kept} of {layers} deconvolutions rewritten: the model is {ratio.median:.2f} times faster"
        f" ({ratio.low:.2f} to {ratio.high:.2f}), and proven equal."
    )


def _provable(
    work: Work, given: Prepared, chosen: Kept, layers: Sequence[LayerResult]
) -> tuple[Kept, Proof, tuple[str, ...]]:
    """Rule 1: the forms with which the whole is equal, and what had to go back."""
    kept = dict(chosen)
    remarks: tuple[str, ...] = ()
    while True:
        proof = work.prove(assembled(given.model, kept, work.settings.rule))
        if proof.holds:
            return kept, proof, remarks
        if not kept:  # what is folded alone does not hold
            return kept, proof, (*remarks, f"The model is not proven equal: {proof.objection}.")
        worst = max(kept, key=lambda i: _error(layers[i]))
        back = f"{layers[worst].node} goes back: with it the model is not proven equal"
        remarks += (f"{back}: {proof.objection}.",)
        del kept[worst]


def _taken_up(work: Work, given: Prepared, chosen: Kept, layers: Sequence[LayerResult]) -> Kept:
    """Rule 3."""
    kept: Kept = {}
    current = work.before
    order = sorted(chosen, key=lambda i: _saved(layers[i]), reverse=True)
    for index in order[:_MOST_TAKEN_UP]:
        more = {**kept, index: chosen[index]}
        model = assembled(given.model, more, work.settings.rule)
        if faster(work.compare(current, model)):
            kept, current = more, to_proto(model)
    return kept


def _saved(layer: LayerResult) -> float:
    """The seconds that the layer's choice saves when it is alone."""
    original, trial = layer.trial(ORIGINAL), layer.trial(layer.chosen)
    if not (original and original.timing and trial and trial.ratio):
        return 0.0
    return original.timing.median * (1 - 1 / max(trial.ratio.median, 1e-9))


def _error(layer: LayerResult) -> float:
    trial = layer.trial(layer.chosen)
    return (trial.error or 0.0) if trial else 0.0


def _given_back(layers: Sequence[LayerResult], kept: Kept) -> tuple[LayerResult, ...]:
    """The layers, those that did not stay with the original as their choice."""
    return tuple(
        replace(layer, chosen=ORIGINAL, why=f"not kept in the whole model, though {layer.why}")
        if layer.rewritten and i not in kept
        else layer
        for i, layer in enumerate(layers)
    )
