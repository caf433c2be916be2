"""`accelerate`, `report` and `restore`: whole models, layer by layer, by measurement."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, brief
from . import reports, swaps, trials
from .reports import LayerReport, Report
from .swaps import Candidate
from .trials import Example

_NOISE = 1.02  # a whole model may seem to take that much longer though each layer is faster


def accelerate(
    model: Any,
    example_inputs: Any = None,
    *,
    decisions: str | Path | None = None,
    training: bool = False,
) -> Any:
    """Let upconv compute those convolutions of a model that it computes faster, in place.

    model: a module; it is changed and returned. Parameters, buffers and `state_dict` stay.
    example_inputs: what the model is called with: a tensor, a tuple of positional arguments or a
        dict of keywords; a list of such stands for several inputs, and a layer is taken only where
        that pays on all of them. The model runs some ten to fifty times.
    decisions: a file that `report(model).save` wrote; its choices are applied, nothing is measured.
    training: measure training steps too, and let upconv compute what it does faster there.

    Raises `ArgumentError` for decisions that are damaged or of another model, `OSError` where the
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
    restore(model)
    found = swaps.candidates(model)
    if decisions is not None:
        return _applied(model, found, reports.read(decisions), decisions)
    examples = _examples(example_inputs)
    with _undisturbed(model):
        try:
            made = _chosen(model, found, examples, training)
        except BaseException:
            restore(model)
            raise
    for candidate, row in zip(found, made.layers, strict=True):
        if not row.replaced:
            swaps.remove(candidate.layer)
    vars(model)["_report"] = made
    return model


def report(model: Any) -> Report:
    """What `accelerate` decided about a model.

    Raises `ArgumentError` for a model that was not accelerated.

    >>> report(nn.ReLU())
    Traceback (most recent call last):
    upconv.errors.ArgumentError: model is not accelerated; expected one that accelerate returned.
    """
    found = vars(model).get("_report")
    if not isinstance(found, Report):
        raise ArgumentError("model", "not accelerated", "one that accelerate returned")
    return found


def restore(model: Any) -> Any:
    """Give every module of a model its own class back; parameters stay as they are now.

    >>> layer = nn.Conv1d(1, 1, 3)
    >>> restore(layer) is layer
    True
    """
    for module in model.modules():
        swaps.remove(module)
        swaps.remove_runs(module)
    vars(model).pop("_report", None)
    return model


def _applied(model: Any, found: list[Candidate], saved: Report, path: str | Path) -> Any:
    """The model with decisions of a file; nothing is changed where one of them does not fit."""
    by_name = {each.name: each for each in found}
    for layer in saved.layers:
        candidate = by_name.get(layer.name)
        if candidate is None:
            raise reports.refused(path, f"which names the layer {brief(layer.name)}, not there")
        if _row(candidate)[1:4] != (layer.kind, layer.weight, layer.followers):
            raise reports.refused(path, f"whose layer {brief(layer.name)} is another")
    for layer in saved.layers:
        if layer.replaced:
            candidate = by_name[layer.name]
            candidate.install(inference=layer.inference, training=layer.training)
    vars(model)["_report"] = saved
    return model


def _row(candidate: Candidate) -> tuple[str, str, tuple[int, ...], tuple[str, ...]]:
    kind = candidate.ours.__name__
    followers = tuple(type(each).__name__ for each in candidate.followers)
    return candidate.name, kind, candidate.weight_shape, followers


def _examples(given: Any) -> list[Example]:
    """Example inputs as positional arguments and keywords."""
    inputs = given if isinstance(given, list) else [given]
    if not inputs:
        raise ArgumentError("example_inputs", "an empty list", "at least one input")
    tuples = [each if isinstance(each, (dict, tuple)) else (each,) for each in inputs]
    return [((), each) if isinstance(each, dict) else (each, {}) for each in tuples]


def _chosen(model: Any, found: list[Candidate], examples: list[Example], training: bool) -> Report:
    """The report of a model, whose layers are installed as it says."""
    model.eval()
    tables = [trials.measured(model, found, example) for example in examples]
    layers = {}
    for each in found:
        times = [table[each] for table in tables]
        pays = all(one.pays for one in times)
        layers[each] = LayerReport(
            *_row(each),
            inference=pays,
            before=_finite(max(one.before for one in times)),
            after=_finite(max(one.after for one in times)),
            why=_why(times),
        )
    with torch.no_grad():
        best = _compared(layers, lambda: model(*examples[0][0], **examples[0][1]))
    if best[1] > _NOISE * best[0]:
        why = "the whole model was not faster"
        layers = {each: replace(row, inference=False, why=why) for each, row in layers.items()}
    if training:
        model.train()
        layers = _trained(model, layers, examples)
    _install(layers)
    return Report(tuple(layers.values()), *best)


def _finite(value: float) -> float:
    return value if value < float("inf") else 0.0


def _why(times: list[trials.Times]) -> str:
    if any(one.wrong for one in times):
        return "results differ"
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
    layers: dict[Candidate, LayerReport], run: Callable[[], object]
) -> tuple[float, float]:
    """The best milliseconds of a run by PyTorch and as the rows say; no layer stays installed."""
    bare = dict.fromkeys(layers, LayerReport("", "", ()))

    def run_as(rows: dict[Candidate, LayerReport]) -> None:
        _install(rows)
        run()

    before, after = trials.best_of([lambda: run_as(bare), lambda: run_as(layers)], 10.0)
    _install(bare)
    return before, after


def _trained(
    model: Any, layers: dict[Candidate, LayerReport], examples: list[Example]
) -> dict[Candidate, LayerReport]:
    """The rows with what upconv computes in a training step, where whole steps are faster."""
    steps = [lambda example=example: _step(model, example) for example in examples]
    seen: dict[Any, list[Any]] = {each: [] for each in layers}
    for step in steps:
        for each, calls in trials.signatures(list(layers), step).items():
            seen[each] += [call for call in calls if call not in seen[each]]
    made = {}
    for each, row in layers.items():
        cases = [trials.case_of(each, *call) for call in seen[each]]
        made[each] = replace(row, training=int(trials.choice(cases)))
    before, after = _compared(made, steps[0])
    if after > _NOISE * before:
        made = {each: replace(row, training=0) for each, row in layers.items()}
    return made


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
