"""Every form of one deconvolution, checked and timed in the runtime that will run it.

A form is a sequence of passes (`FORMS`). It is tried if each of its passes fires, the runtime takes
the result, and its values are right: against the same layer in float64, relative to the output's
scale, within a bound that follows from the type and the length of the sums. The original runs in
the same rounds as all of its forms.

What was measured is remembered in the tuning store, by processor, runtime and version, threads,
layer and form; a layer all of whose forms are remembered is not measured again.

What lives here: the contest of one layer. What never does: choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod, sqrt

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...dialects.onnx import Rule
from ...errors import EngineError, MemoryLimitError
from ..models import to_proto
from ..passes import PASSES
from ..passes.base import Step, run
from ..runtimes import Reference, Runtime, Session
from ..runtimes.feeds import feeds
from .footprint import peak_bytes
from .layers import Alone
from .memories import Memories
from .results import ORIGINAL, Ratio, Timing, Trial
from .rounds import Call, Rounds, timed

FORMS: tuple[str, ...] = tuple(
    form
    for form in (
        "replace_deconv",
        "sub_pixel:unfolded",
        "sub_pixel:folded",
        "sub_pixel:polyphase",
        "to_rank",
        "to_rank+sub_pixel:unfolded",
        "to_rank+sub_pixel:polyphase",
        "split_groups",
    )
    if all(name in PASSES for name in form.split("+"))
)
"""Names of passes, joined by + where one follows the other."""

_MARGIN = 16.0  # fast algorithms for convolutions round more than the plain sum does


_EPSILONS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
"""The distance from 1 to a type's next number."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A form of a layer, as a model of its own; what can be said of it without a clock."""

    name: str
    model: ir.Model
    weight_bytes: int
    waste: float
    peak_bytes: int | None

    @classmethod
    def of(cls, name: str, layer: Alone, model: ir.Model) -> Form:
        """The form with its bytes, and the number of its weights per one of the node's.

        Each element of a weight is one multiplication per input position, so that number is what
        is multiplied for one product needed.
        """
        found = (value.const_value for value in model.graph.initializers.values())
        tensors = [t for t in found if t is not None and t.dtype.is_floating_point()]
        weights = [tensor.size for tensor in tensors if len(tensor.shape) > 1]
        return cls(
            name,
            model,
            sum(tensor.nbytes for tensor in tensors),
            sum(weights) / layer.site.array.size,
            peak_bytes(to_proto(model), layer.sizes),
        )

    def described(self, trial: Trial) -> Trial:
        """The trial with these figures."""
        return replace(
            trial, weight_bytes=self.weight_bytes, waste=self.waste, peak_bytes=self.peak_bytes
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Entrant:
    """A form that takes part: its call, and how wrong it is."""

    form: Form
    call: Call
    error: float


def apply(
    model: ir.Model, form: str, rule: Rule, only: Callable[[ir.Node], bool] | None = None
) -> str | None:
    """Rewrite a model's nodes by a form; the refusal of the first pass that does not fire."""
    for name in form.split("+"):
        steps: Sequence[Step] = run(model, [PASSES[name]], rule=rule, only=only)
        if not any(step.fired for step in steps):
            return steps[-1].refusal if steps else "there is nothing left to rewrite"
    return None


def trials(
    layer: Alone,
    runtime: Runtime,
    rule: Rule,
    *,
    threads: int,
    seconds: float,
    memories: Memories,
) -> tuple[Trial, ...]:
    """The original and every form of a layer; measured, remembered or refused.

    Raises `EngineError` where the runtime does not take the original itself.
    """
    forms, refused = _forms(layer, rule)
    known = memories.recall(layer, [form.name for form in forms])
    if known is not None:
        return (*(form.described(known[form.name]) for form in forms), *refused)
    with ExitStack() as open_sessions:
        entrants, failed = _entrants(layer, forms, runtime, rule, threads, open_sessions)
        rounds = timed([entrant.call for entrant in entrants], seconds)
    measured = [_trial(entrant, rounds, i) for i, entrant in enumerate(entrants)]
    if not failed:
        memories.remember(layer, measured)
    return (*measured, *failed, *refused)


def _forms(layer: Alone, rule: Rule) -> tuple[list[Form], list[Trial]]:
    forms, refused = [Form.of(ORIGINAL, layer, layer.model())], []
    for name in FORMS:
        model = layer.model()
        refusal = apply(model, name, rule)
        if refusal is None:
            forms.append(Form.of(name, layer, model))
        else:
            refused.append(Trial(name, refusal=refusal))
    return forms, refused


def _entrants(
    layer: Alone,
    forms: Sequence[Form],
    runtime: Runtime,
    rule: Rule,
    threads: int,
    open_sessions: ExitStack,
) -> tuple[list[_Entrant], list[Trial]]:
    """Who runs in the contest, the original first, and who failed to enter."""
    entrants: list[_Entrant] = []
    failed: list[Trial] = []
    given, expected = _operands(layer, forms[0].model, rule)
    for form in forms:
        try:
            proto = to_proto(form.model)
            session = open_sessions.enter_context(runtime.session(proto, threads=threads))
            error = _error(session, given, expected)
            call = session.bind(given)
        except (EngineError, MemoryLimitError) as failure:
            if form.name == ORIGINAL:
                raise
            failed.append(form.described(Trial(form.name, refusal=str(failure))))
            continue
        allowed = max(_allowed(layer), 2 * entrants[0].error if entrants else 0.0)
        if form.name != ORIGINAL and not error <= allowed:
            text = f"its values are off by {error:.1e} of the output's scale, {allowed:.1e} allowed"
            failed.append(form.described(Trial(form.name, refusal=text, error=error)))
            continue
        entrants.append(_Entrant(form, call, error))
    return entrants, failed


def _operands(layer: Alone, model: ir.Model, rule: Rule) -> tuple[dict[str, Array], Array]:
    """An input, and the output in float64."""
    proto = to_proto(model)
    given = feeds(proto, layer.sizes)
    with Reference(rule=rule.value, in_float64=True).session(proto, threads=1) as session:
        [expected] = session.run(given).values()
    return given, expected


def _error(session: Session, given: Mapping[str, Array], expected: Array) -> float:
    """The largest difference over the output's scale; infinite where shapes or NaNs differ."""
    [y] = session.run(given).values()
    if y.shape != expected.shape:
        return float("inf")
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    difference = np.abs(np.asarray(y).astype(np.float64) - expected).max(initial=0.0)
    return float(difference) / scale if np.isfinite(difference) else float("inf")


def _allowed(layer: Alone) -> float:
    array = layer.site.array
    terms = array.shape[0] // layer.site.groups * prod(array.shape[2:])
    return _MARGIN * _EPSILONS.get(str(array.dtype), 2.0**-23) * (4 + 2 * sqrt(terms))


def _trial(entrant: _Entrant, rounds: Rounds, turn: int) -> Trial:
    name = entrant.form.name
    timing = Timing.of(rounds.samples[turn] if turn else rounds.first)
    ratio = Ratio.of(rounds, turn) if turn else None
    return entrant.form.described(Trial(name, timing=timing, ratio=ratio, error=entrant.error))
