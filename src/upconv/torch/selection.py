"""`Selection`: the parts and layers of a model that upconv computes, chosen by measurement.

1. The model's forward is captured as a graph, in which networks compute the largest parts. If
   there are several, each is measured separately; those that are not faster stay with PyTorch.
2. If that fails or is not faster, single layers are measured inside the model.
3. PyTorch alternates with the parts, or the layers. The faster is kept if the results agree.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..front_end_reports import Report, Row
from ..measuring import Choice, Outcome, Way, choose
from . import swaps, trials
from .captures import Capture, PartKey, keys_of
from .forwards import Forward, Watch, difference
from .parts import Part
from .snapshots import Unwatchable
from .swaps import Candidate
from .tensors import arrays_of
from .trials import Budget, Example, Verdict

PYTORCH, PARTS, LAYERS = "PyTorch", "parts", "layers"

MAX_RUNS = 30
"""Maximum number of inference runs of the model, and of training steps."""

_LONG, _RUNS_OF_CHOICE = 0.15, (20, 11)
"""Seconds from which a run is long; runs per comparison, for short and for long models."""

_MAX_ROUNDS = 4
_MAX_REASONS = 8


class Selection:
    """The choice of the fastest way to run a model: in PyTorch, in parts or by layers."""

    def __init__(
        self,
        model: Any,
        layers: list[Candidate],
        refused: frozenset[str],
        examples: list[Example],
        budget: Budget,
    ) -> None:
        self.model, self.layers, self.examples, self.budget = model, layers, examples, budget
        self.rows = {layer: _row(layer) for layer in layers}
        self.parts: list[Row] = []
        self.left: Counter[str] = Counter()
        self.why = self.parts_why = ""
        self.timed = max(examples, key=_elements)
        self._runs = _RUNS_OF_CHOICE[0]
        self._forward = Forward(model, refused)
        self._selected: list[Candidate] = []

    def result(self, training: bool) -> Report:
        """Return the decisions; afterwards no layer or part is installed."""
        if self.model.training:  # otherwise the modules keep their modes, which may differ
            self.model.eval()
        with torch.no_grad():
            choice = Choice(PYTORCH, (Outcome(PYTORCH),), 0)
            if self._capture():
                choice = self._choose(PARTS)
                self._check_others()
            if choice.name != PARTS or self.parts_why:
                choice = replace(choice, name=PYTORCH)
                self._measure_layers()
                choice = self._choose(LAYERS) if self._selected else choice
        for layer in self._selected if choice.name == LAYERS else ():
            self._change(layer, inference=True)
        if training:
            self.budget.runs = MAX_RUNS
            self._measure_training()
        return self._report(choice)

    def install(self, report: Report) -> None:
        """Install the decisions of this selection's report; the model is in eval mode."""
        install(self.model, self.layers, self._forward, report)
        if any(row.by == "upconv" for row in self.parts):
            self._forward.watch()

    # In parts -------------------------------------------------------------------------------------

    def _capture(self) -> bool:
        """Capture the model for all examples; return whether networks compute any part."""
        captures: list[Capture] = []
        self.budget.progress("capturing the model", 1, 1)
        try:
            for args, keywords in self.examples:
                if not self._forward.serves(args, keywords):
                    watch = Watch(self.model, (args, keywords))
                    start = time.perf_counter()
                    self.budget.run(self.model, (args, keywords))
                    if time.perf_counter() - start > _LONG:
                        self._runs = _RUNS_OF_CHOICE[1]
                    watch.unchanged()
                    captures.append(self._forward.add_capture(args, keywords))
        except Unwatchable as error:
            self.why = f"no graph represents the model: {error}"
            return False
        parts = {p: key for capture in captures for p, key in keys_of(capture.parts).items()}
        verdicts: dict[Part, Verdict] = {}
        if self.budget.left:
            self.budget.progress("measuring the parts", 1, 1)
            verdicts = self._forward.measured(0.4 * self.budget.left)
        self.parts = [
            _part_row(i, part, key, verdicts.get(part))
            for i, (part, key) in enumerate(parts.items(), 1)
        ]
        self.left = Counter(why for capture in captures for why in capture.left.values())
        self.why = "" if parts else "a network can compute no part of its graph"
        return any(not row.why for row in self.parts)

    def _check_others(self) -> None:
        """Compare the parts' results with PyTorch's on the examples that are not timed."""
        for example in self.examples:
            if example is not self.timed and not self.parts_why:
                results = []
                for name in (PYTORCH, PARTS):
                    self._switch(name)
                    with torch.random.fork_rng(devices=[]):
                        results.append(self.budget.run(self.model, example))
                self.parts_why = difference(results[1], results[0])
        self._switch(PYTORCH)

    def _measure_layers(self) -> None:
        """Measure each layer in place, and fill `_selected`."""
        rounds = min(_MAX_ROUNDS, (self.budget.runs - 1 - self._runs) // 2)
        table = trials.measured(self.model, self.layers, self.timed, self.budget, rounds)
        for layer, samples in table.items():
            if rounds < 1:
                samples.why = samples.why or f"too few of the model's {MAX_RUNS} runs were left"
            verdict = samples.verdict()
            self.rows[layer] = replace(self.rows[layer], **verdict._asdict())
            if not verdict.why:
                self._selected.append(layer)

    # The choice -----------------------------------------------------------------------------------

    def _choose(self, name: str) -> Choice:
        """Choose PyTorch or another way to run the model, whichever is faster."""
        ways = [Way(label, self._run, partial(self._switch, label)) for label in (PYTORCH, name)]
        choice = self._choice(ways, "timing the whole model")
        if name == PARTS:
            self.parts_why = choice[PARTS].why
        self._switch(PYTORCH)
        return choice

    def _choice(self, ways: list[Way], what: str) -> Choice:
        """Choose the faster of two ways; leave enough time and runs for another choice."""
        budget = self.budget
        choice = choose(
            ways,
            seconds=min(10.0, 0.6 * budget.left),
            most_runs=max(1, min(self._runs, budget.runs)),
            arrays=lambda results: arrays_of(tree_leaves(results)),
            truth=self._in_float32 if self._is_16_bit() else None,
            progress=budget.progress,
            what=what,
        )
        budget.runs -= choice.runs
        return choice

    def _is_16_bit(self) -> bool:
        """Whether the model computes in 16 bits, where PyTorch's own errors may be large."""
        return any(p.dtype in (torch.bfloat16, torch.float16) for p in self.model.parameters())

    def _in_float32(self) -> list[Any]:
        """Return the results of a float32 copy of the model; no results if the copy fails."""
        self._switch(PYTORCH)

        def widen(value: Any) -> Any:
            is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.float() if is_floating else value

        try:
            model = copy.deepcopy(self.model).float()
            with torch.random.fork_rng(devices=[]):
                results = model(*tree_map(widen, self.timed[0]), **tree_map(widen, self.timed[1]))
        except (RuntimeError, TypeError, ValueError):
            return []
        return list(arrays_of(tree_leaves(results)))

    def _run(self) -> Any:
        random = torch.get_rng_state()
        results = self.model(*self.timed[0], **self.timed[1])
        torch.set_rng_state(random)
        return results

    def _switch(self, name: str) -> None:
        """Make the model run in PyTorch, in parts or by layers."""
        set_forward(self.model, None)
        for layer in self.layers:
            layer.remove()
        if name == LAYERS:
            for layer in self._selected:
                layer.install(inference=True, training=0)
        if name == PARTS:
            set_forward(self.model, self._forward)
            self._forward.watch()

    # Training -------------------------------------------------------------------------------------

    def _measure_training(self) -> None:
        """Choose the results that upconv computes in training; keep them if that is faster."""
        self.model.train()
        step = partial(_step, self.model, self.timed)
        self.budget.runs -= 1
        seen = trials.signatures(self.layers, step)
        deadline = time.perf_counter() + 0.7 * self.budget.left
        chosen: dict[Candidate, int] = {}
        known: dict[Any, int] = {}
        for i, layer in enumerate(self.layers):
            self.budget.progress("measuring training, layer", i + 1, len(self.layers))
            cases = [trials.case_of(layer, *call) for call in seen[layer]]
            key = tuple(case.key for case in cases)
            if key not in known:
                known[key] = int(trials.choice(cases)) if time.perf_counter() < deadline else 0
            chosen[layer] = known[key]
        if any(chosen.values()) and self._is_faster(step, chosen):
            for layer, results in chosen.items():
                self._change(layer, training=results)

    def _is_faster(self, step: Callable[[], None], chosen: dict[Candidate, int]) -> bool:
        def install(accelerated: bool) -> None:
            for layer, results in chosen.items():
                layer.remove()
                if accelerated and results:
                    layer.install(inference=False, training=results)

        ways = [Way(name, step, partial(install, name == LAYERS)) for name in (PYTORCH, LAYERS)]
        return self._choice(ways, "timing the whole training step").name == LAYERS

    def _change(self, layer: Candidate, **details: Any) -> None:
        row = self.rows[layer]
        self.rows[layer] = replace(row, by="upconv", details={**row.details, **details})

    # The report -----------------------------------------------------------------------------------

    def _report(self, choice: Choice) -> Report:
        """Return the report: rows for parts, layers and operations left to PyTorch."""
        if choice.name == PARTS:
            self.parts = [replace(row, by=PYTORCH if row.why else "upconv") for row in self.parts]
            ours = [row for row in self.parts if row.by == "upconv"]
            inside = {name: row.name for row in ours for name in row.details["layers"]}
            for layer, row in self.rows.items():
                if layer.name in inside and row.by == PYTORCH:
                    part = inside[layer.name].partition(":")[0]
                    self.rows[layer] = replace(row, by=part, why="")
        else:
            self.parts = [replace(row, why=row.why or self.parts_why) for row in self.parts]
        left = [
            Row(f"{count} other operations", "", PYTORCH, 0, why=why)
            for why, count in self.left.most_common(_MAX_REASONS)
        ]
        why = choice.undecided or self.why or "it is not faster with upconv"
        if any(row.by == "upconv" for row in (*self.parts, *self.rows.values())):
            why = ""
        best = choice.best
        times = (choice.baseline.seconds, best.seconds) if best.ratio else (None, None)
        rows = (*self.parts, *self.rows.values(), *left)
        return Report(PYTORCH, rows, why, *times, best.ratio)


def _elements(example: Example) -> int:
    """Return the number of elements in an example's tensors."""
    leaves = tree_leaves(example)
    return sum(int(leaf.numel()) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _row(layer: Candidate) -> Row:
    details = {"weight": list(layer.weight_shape), "inference": False, "training": 0}
    return Row(layer.name, layer.kind, PYTORCH, details=details)


def _part_row(number: int, part: Part, key: PartKey, verdict: Verdict | None) -> Row:
    """Return a part's row, with its layers' names and its operations' counts."""
    earlier, names = key
    before, after, why = verdict or (None, None, "")
    ends = " to ".join(dict.fromkeys([*names[:1], *names[-1:]]))
    counts = Counter(part.operations).most_common(3)
    kind = ", ".join(f"{count} {name}" for name, count in counts)
    name = f"part {number}: {ends}" if names and names[0] else f"part {number}"
    details = {"layers": list(names), "earlier": earlier}
    return Row(name, kind, PYTORCH, part.layers, before, after, why, details)


def _step(model: Any, example: Example) -> None:
    """Run a training step; its loss sums the mean squares of the results."""
    with torch.enable_grad():
        results = tree_leaves(model(*example[0], **example[1]))
        tensors = [result for result in results if isinstance(result, torch.Tensor)]
        losses = [tensor.float().square().mean() for tensor in tensors if tensor.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
    for parameter in model.parameters():
        parameter.grad = None


def set_forward(model: Any, forward: Forward | None) -> None:
    """Install a forward in a model; None removes it."""
    if isinstance(vars(model).get("forward"), Forward):
        del vars(model)["forward"]
    if forward is not None:
        vars(model)["forward"] = forward


def install(model: Any, layers: list[Candidate], forward: Forward, report: Report) -> None:
    """Install the parts and the layers that a report assigns to upconv."""
    rows = {row.name: row.details for row in report.rows if "inference" in row.details}
    for layer in layers:
        details = rows.get(layer.name, {})
        layer.remove()
        inference, training = bool(details.get("inference")), int(details.get("training", 0))
        if inference or training:
            layer.install(inference=inference, training=training)
        else:
            swaps.remove(layer.layer)
    parts = any(row.by == "upconv" and "inference" not in row.details for row in report.rows)
    vars(model)["_report"] = report
    set_forward(model, forward if parts else None)
