"""All rewritings of a transposed convolution, checked and timed in the runtime that will run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ...arrays import Array
from ...dialects.onnx import Rule
from ...errors import EngineError, MemoryLimitError
from ...measuring import Ratio, undisturbed
from ..passes import PASSES
from ..passes.base import run
from ..runtimes import OpenModel, Runtime, Worker, borrowed, timed
from ..verifying.differences import Tolerances, difference
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
"""Names of passes; + joins passes that are applied one after another."""


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """The values that all steps share; `inputs`: arrays by name, for each set of shapes."""

    runtime: Runtime
    inputs: tuple[Mapping[str, Array], ...]
    seconds: float
    limit: float
    float64: bool
    say: Callable[[str, int, int], None]


def apply(
    model: ir.Model, passes: str, rule: Rule, only: Callable[[ir.Node], bool] | None = None
) -> str | None:
    """Apply a candidate's passes to a model; return why the first that does not fire refuses."""
    for name in passes.split("+"):
        steps = run(model, [PASSES[name]], rule=rule, only=only)
        if not any(step.fired for step in steps):
            return steps[-1].refusal if steps else "there is nothing left to rewrite"
    return None


def measured(layer: Layer, setup: Setup) -> tuple[Candidate, ...]:
    """Measure the original and every candidate; raise if the runtime cannot run the original."""
    trial = _Trial(layer, setup)
    models = {}
    for name in (ORIGINAL, *CANDIDATES):
        model = layer.model.clone()
        refusal = None if name == ORIGINAL else apply(model, name, setup.runtime.reading)
        if refusal is None:
            models[name] = model
        else:
            trial.refused[name] = refusal
    results = trial.run(models)
    return (*results, *(Candidate(name, why) for name, why in trial.refused.items()))


class _Trial:
    """The trial of one layer's candidates; `refused` holds the reasons for rejecting some."""

    def __init__(self, layer: Layer, setup: Setup) -> None:
        self.layer, self.setup = layer, setup
        self.refused: dict[str, str] = {}
        self.feeds = [layer.feeds(which) for which in range(len(layer.shapes))]
        self.exact: list[Any] = [None] * len(self.feeds)
        reference = Runtime("reference", precision="f64", rule=setup.runtime.reading.value)
        try:
            with reference.session(layer.model, limit=setup.limit) as session:
                self.exact = self._values(session)
        except (EngineError, MemoryLimitError):
            pass  # then candidates are compared with the original

    def run(self, models: Mapping[str, ir.Model]) -> list[Candidate]:
        """Time the candidates that are not refused; start again if one ends the worker."""
        while True:
            with borrowed(self.setup.limit) as worker, ExitStack() as stack:
                accepted = self._checked(models, worker, stack)
                if worker.usable:
                    return self._timed(accepted)

    def _values(self, session: OpenModel) -> list[Any]:
        return [next(iter(session.run(feeds).values())) for feeds in self.feeds]

    def _checked(
        self, models: Mapping[str, ir.Model], worker: Worker, stack: ExitStack
    ) -> list[tuple[Candidate, OpenModel]]:
        """Return the candidates whose values are correct; stop if one ends the worker."""
        accepted: list[tuple[Candidate, OpenModel]] = []
        wanted: list[Any] = []
        for name, model in models.items():
            if name in self.refused:
                continue
            try:
                opened = self.setup.runtime.session(model, worker=worker)
                session = stack.enter_context(opened)
                values = self._values(session)
            except (EngineError, MemoryLimitError) as failure:
                if name == ORIGINAL:
                    raise
                self.refused[name] = str(failure)
                if not worker.usable:
                    break
                continue
            wanted = wanted or values
            refusal, error = self._judged(wanted, values)
            if refusal is None or name == ORIGINAL:
                accepted.append((Candidate(name, error=error), session))
            else:
                self.refused[name] = refusal
        return accepted

    def _judged(self, wanted: Sequence[Any], values: Sequence[Any]) -> tuple[str | None, float]:
        """Return why a candidate's values are wrong, if they are, and its largest error."""
        [y] = self.layer.model.graph.outputs
        tolerances = Tolerances(precision=self.setup.runtime.working_precision())
        refusal, largest = None, 0.0
        for a, b, exact in zip(wanted, values, self.exact, strict=True):
            result = difference(y, a, b, tolerances, exact)
            if not result.equal:
                error = f"{result.error:.1e} of the output's scale, {result.allowed:.1e} allowed"
                refusal = f"its values are off: {result.words or error}"
            largest = max(largest, result.error)
        return refusal, largest

    def _timed(self, accepted: Sequence[tuple[Candidate, OpenModel]]) -> list[Candidate]:
        """Time the accepted candidates, interleaved, for each set of shapes."""
        candidates = [candidate for candidate, _ in accepted]
        sessions = [session for _, session in accepted]
        for feeds in self.feeds:
            for session in sessions:
                session.bind(feeds)
            rounds = timed(sessions, self.setup.seconds)
            for i, one in enumerate(candidates):
                seconds = (*one.seconds, undisturbed(rounds.samples[i] if i else rounds.first))
                ratios = (*one.ratios, Ratio.of(rounds, i)) if i else ()
                candidates[i] = replace(one, seconds=seconds, ratios=ratios)
        return candidates
