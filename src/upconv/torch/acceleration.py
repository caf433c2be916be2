"""`accelerate`, `report` and `restore` for whole models, in parts or layer by layer."""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .. import front_end_reports
from ..argument_checks import boolean, function, number
from ..errors import ArgumentError, FileError, brief
from ..front_end_reports import Report
from ..terminal import Progress, shown
from ..timing import Others
from . import swaps
from .forwards import Forward
from .selection import MAX_RUNS, PYTORCH, Selection, install, set_forward
from .swaps import Candidate
from .tensors import thread_count
from .trials import Budget, Example

Model = TypeVar("Model", bound=nn.Module)

_MAX_EXAMPLES = 4


def accelerate(
    model: Model,
    example_inputs: Any = None,
    *,
    decisions: str | os.PathLike[str] | None = None,
    remeasure: bool = False,
    training: bool = False,
    seconds: float = 60.0,
    filter_fn: Callable[[str, Any], bool] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Modify a model in place so that upconv computes the parts or layers where it is faster.

    upconv is used in eval mode without gradients: after `model.eval()`, and within
    `torch.inference_mode()` or `torch.no_grad()`. It is used in training steps and for gradients
    only with `training=True`.

    model: the module to modify and return; it keeps its parameters, buffers and `state_dict`. A
        model that upconv does not make faster is returned unchanged.
    example_inputs: the model's arguments: a tensor, a tuple of positional arguments or a dict of
        keyword arguments. A list may hold up to four such inputs; the largest is timed. The model
        runs at most 30 times for inference and for 30 training steps.
    decisions: a file written by `report(model).save`; its decisions are applied without measuring.
        They are refused if the layers, processor, thread count or versions differ from those
        measured, and for training unless that was measured.
    remeasure: if the file of `decisions` is missing or was measured under other conditions, measure
        and write it. This also requires `example_inputs`.
    training: also measure training steps, and let upconv compute the results where it is faster.
    seconds: the time limit. Once it has passed, no run of the model but the first may start.
    filter_fn: called with the name and the module of each convolution; upconv may compute those
        for which it returns True.
    progress: called with the name of a step, its number from 1, and the number of steps. Without
        it, progress is shown on a line of stderr if that is a terminal.

    Raises `FileError` for a file that cannot be read, and `ArgumentError` for arguments or
    decisions that do not fit the model or the machine. The model's own errors propagate.

    >>> layers = nn.ConvTranspose2d(4, 8, 4, stride=2), nn.ReLU()
    >>> model = accelerate(nn.Sequential(*layers).eval(), torch.randn(1, 4, 8, 8))
    >>> [row.kind for row in report(model).rows][-1:]
    ['ConvTranspose2d']
    """
    _check_model(model)
    training, seconds = boolean("training", training), number("seconds", seconds, 0)
    if boolean("remeasure", remeasure) and (example_inputs is None or decisions is None):
        expected = "decisions, the file to write, and example_inputs"
        raise ArgumentError("remeasure", "True", expected)
    if not remeasure and (example_inputs is None) == (decisions is None):
        expected = "either example_inputs or decisions"
        if decisions is None:
            remedy = "Pass the arguments of a typical call, such as a tensor."
            raise ArgumentError("example_inputs", "None", expected, remedy)
        remedy = "To measure if the file is missing or does not fit, add remeasure=True."
        raise ArgumentError("example_inputs", "given with decisions", expected, remedy)
    examples = _examples(example_inputs)
    restore(model)
    refused = _refused(model, filter_fn)
    layers = [candidate for candidate in swaps.candidates(model) if candidate.name not in refused]
    conditions = _conditions(model, layers, training)
    if decisions is not None:
        saved = front_end_reports.restored(decisions, PYTORCH, conditions, remeasure)
        if saved is not None:
            _check_rows(decisions, saved, [layer.name for layer in layers])
            slower = [
                (row.details.get("earlier", 0), tuple(row.details["layers"]))
                for row in saved.rows
                if row.by == PYTORCH and "layers" in row.details
            ]
            # The first call captures the model.
            install(model, layers, Forward(model, refused, slower), saved)
            return model
    with shown(progress) as say:
        budget, others = Budget(time.perf_counter() + seconds, MAX_RUNS, say), Others()
        try:
            with _preserved_state(model):
                selection = Selection(model, layers, refused, examples, budget)
                result = replace(selection.result(training), conditions=conditions)
                result = replace(result, load=others.words())
                if decisions is not None:
                    result.save(decisions)
                selection.install(result)
        except BaseException:
            restore(model)
            raise
    return model


def report(model: Any) -> Report:
    """Return the decisions that `accelerate` made for a model.

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
    """Restore the original classes and forwards of a model and its modules; keep the parameters.

    >>> layer = nn.Conv1d(1, 1, 3)
    >>> restore(layer) is layer
    True
    """
    _check_model(model)
    for module in model.modules():
        swaps.remove(module)
        set_forward(module, None)
    vars(model).pop("_report", None)
    return model


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", f"of type {type(model).__name__}", "a torch.nn.Module")


def _examples(example_inputs: Any) -> list[Example]:
    """Return the example inputs as positional arguments and keywords."""
    inputs = example_inputs if isinstance(example_inputs, list) else [example_inputs]
    if not 0 < len(inputs) <= _MAX_EXAMPLES:
        got = f"a list of {len(inputs)}" if inputs else "an empty list"
        remedy = f"The model runs at most {MAX_RUNS} times."
        raise ArgumentError("example_inputs", got, f"1 to {_MAX_EXAMPLES} inputs", remedy)
    calls = [call if isinstance(call, (dict, tuple)) else (call,) for call in inputs]
    for given, call in zip(inputs, calls, strict=True):
        values = tree_leaves(call)
        has_tensor = any(isinstance(value, torch.Tensor) for value in values)
        if given is not None and values and not has_tensor:
            kinds = ", ".join(dict.fromkeys(type(value).__name__ for value in values))
            got = f"a tuple of {kinds}" if isinstance(given, tuple) else f"of type {kinds}"
            remedy = "For a shape, pass torch.randn(shape); for an array, torch.from_numpy(array)."
            expected = "the model's arguments, including at least one tensor"
            raise ArgumentError("example_inputs", got, expected, remedy)
    return [((), call) if isinstance(call, dict) else (call, {}) for call in calls]


def _refused(model: Any, filter_fn: Callable[[str, Any], bool] | None) -> frozenset[str]:
    """Return the names of the convolutions that a filter excludes."""
    function("filter_fn", filter_fn, "(name, module)")
    if filter_fn is None:
        return frozenset()
    kind = nn.modules.conv._ConvNd
    layers = [item for item in model.named_modules() if isinstance(item[1], kind)]
    return frozenset(name for name, module in layers if not filter_fn(name, module))


def _conditions(
    model: Any, layers: list[Candidate], training: bool
) -> dict[str, front_end_reports.Condition]:
    lines = [f"{layer.name}: {layer.kind} {layer.weight_shape}" for layer in layers]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    described = f"{type(model).__name__}, {len(layers)} layers ({digest})"
    versions = {"torch": str(torch.__version__), "model": described}
    return front_end_reports.conditions(
        thread_count(), **versions, **({"training": 1} if training else {})
    )


def _check_rows(path: Any, saved: Report, layers: list[str]) -> None:
    """Raise `FileError` if the rows are for other layers or have invalid details."""
    names = [row.name for row in saved.rows if "inference" in row.details]
    if names != layers:
        reason = f"its rows are for the layers {brief(names)}, but the model has {brief(layers)}"
        raise FileError(f"Cannot read {brief(os.fspath(path))}: it is damaged, {reason}.")
    for row in saved.rows:
        inference, training = row.details.get("inference", False), row.details.get("training", 0)
        inside = row.details.get("layers", [])
        is_key = isinstance(inside, list) and all(isinstance(name, str) for name in inside)
        is_key = is_key and isinstance(row.details.get("earlier", 0), int)
        if not isinstance(inference, bool) or training not in range(8) or not is_key:
            reason = f"the details of {brief(row.name)} are {brief(dict(row.details))}"
            raise FileError(f"Cannot read {brief(os.fspath(path))}: it is damaged, {reason}.")


@contextmanager
def _preserved_state(model: Any) -> Iterator[None]:
    """Restore modes, buffers, gradients and PyTorch's random state at the end."""
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
