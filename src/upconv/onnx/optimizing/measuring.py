"""Every deconvolution of a model tried alone: what it is, what was tried, what would be chosen.

Before that, what stands next to deconvolutions (batch norm, Pad, Slice) is folded into them, which
only takes nodes away.

What lives here: from a model to the results of its layers. What never does: the whole model, which
may show that a choice was none (`settling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ...errors import EngineError, MemoryLimitError
from ..models import from_model
from ..nodes import Unreadable, named
from ..passes import PASSES
from ..passes.base import run
from .choosing import Choice, choose
from .layers import Alone, alone, mark
from .results import ORIGINAL, LayerResult, Trial
from .trials import trials
from .work import Work

PREPARING = tuple(name for name in ("fold_batch_norm", "fold_pad", "fold_slice") if name in PASSES)
"""Passes that only take nodes away: they run before anything is measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A copy of the model, its deconvolutions numbered, and what was folded into them."""

    model: ir.Model
    folded: tuple[str, ...]


def prepared(work: Work) -> Prepared:
    """The model with what stands next to its deconvolutions folded into them."""
    model = from_model(work.original)
    steps = run(model, [PASSES[name] for name in PREPARING], rule=work.settings.rule)
    mark(model)
    return Prepared(model, tuple(f"{step.by} at {step.node}" for step in steps if step.fired))


def tried(work: Work, model: ir.Model) -> list[LayerResult]:
    """Every layer with its trials and its choice; layers that are alike are measured once."""
    found = alone(model, work.runtime, work.feeds, work.settings.rule)
    known: dict[str, tuple[Trial, ...]] = {}
    results = []
    for done, one in enumerate(found):
        work.say(_naming(one), done, len(found))
        if isinstance(one, Alone) and one.signature not in known:
            known[one.signature] = _trials(work, one)
        results.append(_result(one, model, known))
    work.say("choosing", len(found), len(found))
    return results


def _naming(one: Alone | Unreadable) -> str:
    return f"measuring {one.site.name}" if isinstance(one, Alone) else "measuring"


def _trials(work: Work, layer: Alone) -> tuple[Trial, ...]:
    try:
        return trials(
            layer,
            work.runtime,
            work.settings.rule,
            threads=work.settings.threads,
            seconds=work.settings.seconds,
            memories=work.memories,
        )
    except (EngineError, MemoryLimitError) as error:
        return (Trial(ORIGINAL, refusal=f"{work.runtime.name} does not run it alone: {error}"),)


def _result(
    one: Alone | Unreadable, model: ir.Model, known: Mapping[str, tuple[Trial, ...]]
) -> LayerResult:
    if isinstance(one, Unreadable):
        return layer_result(one, model, (), Choice(ORIGINAL, one.reason))
    tried = known[one.signature]
    choice = choose(tried) if len(tried) > 1 else Choice(ORIGINAL, tried[0].refusal or "")
    return layer_result(one, model, tried, choice)


def layer_result(
    one: Alone | Unreadable, model: ir.Model, tried: tuple[Trial, ...], choice: Choice
) -> LayerResult:
    """A deconvolution of the model with what was tried and chosen; the reason of an unreadable."""
    node = one.node if isinstance(one, Unreadable) else one.site.node
    name = named(node)
    place = "" if node.graph is None or node.graph is model.graph else str(node.graph.name)
    if isinstance(one, Unreadable):
        return LayerResult(name, place, (), 0, 0, 0, 0, "", (), ORIGINAL, one.reason)
    array, groups = one.site.array, one.site.groups
    channels = array.shape[0], array.shape[1] * groups
    return LayerResult(
        name,
        place,
        one.facts(),
        one.shape[0],
        *channels,
        groups,
        str(array.dtype),
        tried,
        choice.form,
        choice.why,
    )
