"""A model rewritten for a profile, proven, and what became of each of its deconvolutions.

What lives here: profiles on whole models. What never does: their tables (`profiles`), and choosing:
nothing is measured to decide, only the whole is where there is a runtime.
"""

from __future__ import annotations

import onnx_ir as ir

from ...errors import ModelError
from ..models import from_model
from ..passes.profiles import apply_profile as obey
from .choosing import Choice
from .layers import Alone, alone, mark
from .measuring import layer_result
from .results import ORIGINAL, LayerResult, Trial
from .settling import Done
from .trials import Form
from .work import Work


def obeying(work: Work, profile: str) -> Done:
    """The model rewritten for the profile; `ModelError` where that is not proven equal."""
    model = from_model(work.original)
    work.say(f"rewriting for {profile}", 0, 1)
    layers = _layers(work, model, profile)
    obeyed = obey(model, profile, work.settings.rule)
    proof = work.prove(model)
    if not proof.holds:
        raise ModelError(
            f"Rewritten for {profile}, the model was not proven equal, and is not written:"
            f" {proof.objection}."
        )
    whole = None if work.settings.target == "none" else work.compare(work.before, model)
    steps = tuple(f"{step.by} at {step.node}" for step in obeyed.steps if step.fired)
    verdict = f"{len(steps)} rewritings for {profile}, and proven equal."
    if obeyed.left:
        verdict += f" {len(obeyed.left)} nodes still break it."
    return Done(model, verdict, layers, steps, proof, whole, proof.remarks, obeyed.left)


def _layers(work: Work, model: ir.Model, profile: str) -> tuple[LayerResult, ...]:
    """Every deconvolution of the model, and what the profile makes of it alone."""
    mark(model)
    found = alone(model, work.runtime, work.feeds, work.settings.rule)
    results = []
    for one in found:
        if isinstance(one, Alone):
            results.append(layer_result(one, model, *_obeyed(one, work, profile)))
        else:
            results.append(layer_result(one, model, (), Choice(ORIGINAL, one.reason)))
    return tuple(results)


def _obeyed(layer: Alone, work: Work, profile: str) -> tuple[tuple[Trial, ...], Choice]:
    """The layer as it was and as the profile makes it."""
    original, model = Form.of(ORIGINAL, layer, layer.model()), layer.model()
    obeyed = obey(model, profile, work.settings.rule)
    names = dict.fromkeys(step.by for step in obeyed.steps if step.fired)
    reasons = [step.refusal for step in obeyed.steps if step.refusal and obeyed.left]
    if not names:
        why = "; ".join(reasons) or f"nothing in it breaks {profile}"
        return (original.described(Trial(ORIGINAL)),), Choice(ORIGINAL, why)
    made = Form.of("+".join(names), layer, model)
    why = f"the profile {profile} asks for it" + (
        f", and for more: {'; '.join(reasons)}" if reasons else ""
    )
    trials = original.described(Trial(ORIGINAL)), made.described(Trial(made.name))
    return trials, Choice(made.name, why)
