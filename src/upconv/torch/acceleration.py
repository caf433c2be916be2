"""`accelerate`, `report` and `restore`: whole models, layer by layer, by measurement."""

from __future__ import annotations

import copy
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from ..checks import boolean, number
from ..errors import ArgumentError, brief
from . import reports, swaps, trials
from .reports import LayerReport, Report
from .swaps import Candidate
from .trials import Budget, Example, Progress

Model = TypeVar("Model")  # a `torch.nn.Module`: PyTorch is not there when types are checked


def accelerate(
    model: Model,
    example_inputs: Any = None,
    *,
    decisions: str | os.PathLike[str] | None = None,
    training: bool = False,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> Model:
    """Let upconv compute those convolutions of a model that it computes faster, in place.

    model: a module; it is changed and returned. Parameters, buffers and `state_dict` stay. A model
        that is not faster as a whole is given back unchanged.
    example_inputs: what the model is called with: a tensor, a tuple of positional arguments or a
        dict of keywords; a list of such stands for several inputs, and a layer is taken only where
        that pays on all of them. The model runs some ten to fifty times.
    decisions: a file that `report(model).save` wrote; its choices are applied, nothing is measured.
        A `RuntimeWarning` says if they were measured elsewhere.
    training: measure training steps too, and let upconv compute what it does faster there.
    seconds: bounds the measuring: no run of the model begins later, but for the comparison of the
        whole. A layer for which no time is left stays PyTorch's.
    progress: called with what is measured, the number of the round or layer from 1, and of how
        many; None shows a line on stderr where that is a terminal.

    Raises `ArgumentError` for decisions that are damaged or of another model, `FileError` where the
    file cannot be read, and what the model raises on the examples.

    >>> layers = nn.ConvTranspose2d(4, 8, 4, stride=2), nn.ReLU()
    >>> model = accelerate(nn.Sequential(*layers).eval(), torch.randn(1, 4, 8, 8))
    >>> [layer.kind for layer in report(model).layers]
    ['ConvTranspose2d']
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", f"of type {type(model).__name__}", "a torch.nn.Module")
    if (example_inputs is None) == (decisions is None):
        got = "both" if decisions is not None else "neither"
        expected = "either example_inputs or decisions"
        raise ArgumentError("example_inputs", got, expected, "Layers are chosen by measurement.")
    training, seconds = boolean("training", training), number("seconds", seconds, 0)
    restore(model)
    candidates = swaps.candidates(model)
    if decisions is not None:
        vars(model)["_report"] = _applied(candidates, decisions)
        return model
    examples = _examples(example_inputs)
    with _shown(progress) as show, _undisturbed(model):
        budget = Budget(time.perf_counter() + seconds, show)
        try:
            result = _chosen(model, candidates, examples, training, budget)
        except BaseException:
            restore(model)
            raise
    for candidate, row in zip(candidates, result.layers, strict=True):
        if not row.replaced:
            swaps.remove(candidate.layer)
    vars(model)["_report"] = result
    return model


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """`progress`, or in its place a line on stderr where that is a terminal."""
    if progress is not None or not (sys.stderr and sys.stderr.isatty()):
        yield progress or (lambda *_: None)
        return

    def write(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")  # replaces the line
        sys.stderr.flush()

    try:
        yield lambda what, i, of: write(f"upconv measures: {what}, {i} of {of}")
    finally:
        write("")


def report(model: Any) -> Report:
    """What `accelerate` decided about a model.

    Raises `ArgumentError` for a model that was not accelerated.

    >>> report(nn.ReLU())
    Traceback (most recent call last):
    upconv.errors.ArgumentError: model is not accelerated; expected one that accelerate returned.
    """
    result = vars(model).get("_report") if isinstance(model, nn.Module) else None
    if not isinstance(result, Report):
        raise ArgumentError("model", "not accelerated", "one that accelerate returned")
    return result


def restore(model: Model) -> Model:
    """Give every module of a model its own class back; parameters stay as they are now.

    >>> layer = nn.Conv1d(1, 1, 3)
    >>> restore(layer) is layer
    True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", f"of type {type(model).__name__}", "a torch.nn.Module")
    for module in model.modules():
        swaps.remove(module)
        swaps.remove_runs(module)
    vars(model).pop("_report", None)
    return model


def _applied(candidates: list[Candidate], path: str | os.PathLike[str]) -> Report:
    """Install the decisions of a file; nothing is changed where one of them does not fit."""
    saved, by_name = reports.read(path), {each.name: each for each in candidates}
    for layer in saved.layers:
        candidate = by_name.get(layer.name)
        if candidate is None:
            raise reports.refused(path, f"which names the layer {brief(layer.name)}, not there")
        if _row(candidate)[1:4] != (layer.kind, layer.weight, layer.followers):
            raise reports.refused(path, f"whose layer {brief(layer.name)} is another")
    if saved.elsewhere:
        text = f"The decisions {brief(str(path))} were measured with {saved.elsewhere}."
        warnings.warn(f"{text} Others may be faster here.", RuntimeWarning, stacklevel=3)
    for layer in saved.layers:
        if layer.replaced:
            candidate = by_name[layer.name]
            candidate.install(inference=layer.inference, training=layer.training)
    return saved


def _row(candidate: Candidate) -> tuple[str, str, tuple[int, ...], tuple[str, ...]]:
    followers = tuple(type(each).__name__ for each in candidate.members[1:])
    return candidate.name, candidate.kind, candidate.weight_shape, followers


def _examples(given: Any) -> list[Example]:
    """Example inputs as positional arguments and keywords."""
    inputs = given if isinstance(given, list) else [given]
    if not inputs:
        raise ArgumentError("example_inputs", "an empty list", "at least one input")
    tuples = [each if isinstance(each, (dict, tuple)) else (each,) for each in inputs]
    return [((), each) if isinstance(each, dict) else (each, {}) for each in tuples]


def _chosen(
    model: Any, candidates: list[Candidate], examples: list[Example], training: bool, budget: Budget
) -> Report:
    """The report of a model, whose layers are installed as it says."""
    model.eval()
    inference = budget.part(0.5 if training else 1.0)
    tables = []
    for i, example in enumerate(examples):
        part = inference.part(0.7 / (len(examples) - i), most=15.0)
        what = f"layers, input {i + 1} of {len(examples)}, round"
        tables.append(trials.measured(model, candidates, example, part, what))
    layers = {}
    for each in candidates:
        times = [table[each] for table in tables]
        layers[each] = LayerReport(
            *_row(each),
            inference=all(one.pays for one in times),
            before=_finite(max(one.before for one in times)),
            after=_finite(max(one.after for one in times)),
            why=_why(times),
        )
    with torch.no_grad():
        run = lambda: [model(*each, **keywords) for each, keywords in examples]  # noqa: E731
        best = _compared(layers, run, inference, "the whole model")
    if best[1] >= best[0]:
        why = "the whole model was not faster"
        for each, row in layers.items():
            layers[each] = replace(row, inference=False, why=why if row.inference else row.why)
    if training:
        model.train()
        layers = _trained(model, layers, examples, budget)
    _install(layers)
    return Report(tuple(layers.values()), *best)


def _finite(value: float) -> float:
    return value if value < float("inf") else 0.0


def _why(times: list[trials.Times]) -> str:
    if any(one.wrong for one in times):
        return "results differ"
    if not all(one.timed for one in times):
        return "no time was left"
    if any(_finite(one.before) == 0.0 for one in times):
        return "not called"
    gains = [one.before / one.after for one in times]
    least = f"{min(gains):.2f} times as fast"
    return least if len(gains) == 1 else f"{least} at least, of {len(gains)} inputs"


def _install(layers: dict[Candidate, LayerReport]) -> None:
    for candidate, row in layers.items():
        candidate.remove()
        if row.replaced:
            candidate.install(inference=row.inference, training=row.training)


def _compared(
    layers: dict[Candidate, LayerReport], run: Callable[[], object], budget: Budget, what: str
) -> tuple[float, float]:
    """The best milliseconds of a run by PyTorch and as the rows say; no layer stays installed.

    Both are 0 where the rows replace nothing.
    """
    ways = dict.fromkeys(layers, LayerReport("", "", ())), layers
    before = after = 0.0
    if any(row.replaced for row in layers.values()):
        budget.progress(what, 1, 1)
        seconds, switch = min(10.0, budget.left), lambda i: _install(ways[i])
        before, after = trials.best_of([run, run], seconds, budget.end, switch)
    _install(ways[0])
    return before, after


def _trained(
    model: Any, layers: dict[Candidate, LayerReport], examples: list[Example], budget: Budget
) -> dict[Candidate, LayerReport]:
    """The rows with what upconv computes in a training step, where whole steps are faster."""
    steps: list[Callable[[], None]] = [partial(_step, model, each) for each in examples]
    seen: dict[Any, list[Any]] = {each: [] for each in layers}
    for step in steps:
        for each, calls in trials.signatures(list(layers), step).items():
            seen[each] += [call for call in calls if call not in seen[each]]
    rows, part = {}, budget.part(0.7)
    for i, (each, row) in enumerate(layers.items()):
        budget.progress("training, layer", i + 1, len(layers))
        cases = [trials.case_of(each, *call) for call in seen[each]] if part.left else []
        rows[each] = replace(row, training=int(trials.choice(cases)))
    if not any(row.training for row in rows.values()):
        return rows
    run = lambda: [step() for step in steps]  # noqa: E731
    before, after = _compared(rows, run, budget, "the whole training step")
    if after >= before:
        rows = {each: replace(row, training=0) for each, row in layers.items()}
    return rows


def _step(model: Any, example: Example) -> None:
    """Forward and backward of the mean square of all results."""
    with torch.enable_grad():
        results = _tensors(model(*example[0], **example[1]))
        losses = [each.float().square().mean() for each in results if each.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
    for parameter in model.parameters():
        parameter.grad = None


def _tensors(result: Any) -> list[Any]:
    """The tensors in a result: alone, or in tuples, lists and dicts."""
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    inside = isinstance(result, (dict, tuple, list))
    return [each for part in parts for each in _tensors(part)] if inside else []


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Modes, buffers, gradients and PyTorch's random numbers are afterwards as they were."""
    modes = {module: module.training for module in model.modules()}
    buffers = {buffer: copy.deepcopy(buffer.detach()) for buffer in model.buffers()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
