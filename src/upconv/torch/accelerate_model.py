"""`accelerate`: a model's deconvolutions computed by upconv where that is right and faster.

1. Every `nn.ConvTranspose1d/2d/3d` is looked at; some are refused in words.
2. What follows each is found: by the order of `nn.Sequential`, and by watching other modules' code
   run on the example inputs.
3. With example inputs each way to compute a layer is tried on what the layer really gets: it has to
   be right, and faster. The fastest is taken, or the original left.
4. The whole model is compared with itself before, in results and in time. Where it differs, or is
   slower, layers are given back.

Layers stay the same objects, so sharing, hooks, optimisers and `state_dict` are as they were.

What lives here: the decisions. What never does: measuring, computing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from torch import nn

from ..errors import brief
from .accelerate_chains import Chains, chained_forward, chains_watched
from .accelerate_choices import Choice, choices_of, chosen, fusable, unmeasured
from .accelerate_layers import deconvolution_forward, tensors_of
from .accelerate_report import AccelerationReport
from .accelerate_runs import Example, difference, tensors_in
from .accelerate_sequences import is_sequence, sequence_forward, steps_of
from .accelerate_swaps import swap, unswap
from .accelerate_trials import watched
from .fused import Fused, Module
from .packing import release
from .refusals import TensorArgumentError, TensorTypeError

_REPORT = "_upconv_report"
_ROUNDS = 5
_SECONDS = 4.0
_NOISE = 1.02


def accelerate(
    model: Module, example_inputs: Any = None, *, fuse: bool = True, report: bool = False
) -> Module:
    """Let upconv compute a model's deconvolutions, in place, where that is right and faster.

    model: any `torch.nn.Module`. Its modules stay the same objects; some get another class.
    example_inputs: what the model is called with: a tensor, a tuple or list of positional arguments
        or a dict of keywords. Each layer is then tried on what it gets, compared with the original
        and timed, in a second or two per layer; those that are not faster, or not called, stay
        PyTorch's. The model runs some twenty times; buffers are put back, whatever else its code
        keeps is not. Without them every float32 layer is taken, unproven and untimed.
    fuse: compute a batch normalisation and an activation that follow together with the layer.
    report: print what was done to each layer and why; `acceleration_report` returns it.

    Returns the model. In training it computes what it always did, by PyTorch's operators; outside,
    parameters are followed. `restore(model)` undoes it. Accelerating twice is accelerating anew.

    Raises `TensorTypeError` if model is no module, `TensorArgumentError` if a flag is none, or the
    model cannot run on example_inputs; it is then as it was before it was ever accelerated.

    >>> import torch
    >>> model = nn.Sequential(nn.ConvTranspose2d(8, 4, 2, stride=2), nn.ReLU()).eval()
    >>> accelerate(model) is model
    True
    >>> acceleration_report(model).layers[0].before
    'ConvTranspose2d + ReLU'
    """
    _require_model(model)
    for name, value in (("fuse", fuse), ("report", report)):
        if not isinstance(value, bool):
            raise TensorArgumentError(name, brief(value), "True or False")
    restore(model)
    example = None if example_inputs is None else Example.of(example_inputs)
    try:
        if example is None:
            choices = choices_of(model, None, fuse=fuse)
            decided = {layer: unmeasured(choice) for layer, choice in choices.items()}
            note = "Not measured: pass example_inputs for proof and times."
            _apply(model, decided, {})
        else:
            decided, note = _measured(model, example, fuse)
    except BaseException:
        restore(model)
        raise
    made = AccelerationReport(tuple(choice.report() for choice in decided.values()), note)
    model.__dict__[_REPORT] = made
    if report:
        sys.stdout.write(f"{made}\n")
    return model


def restore(model: Module) -> Module:
    """Undo `accelerate`: every module computes as before; parameters are left as they are now.

    >>> model = accelerate(nn.Sequential(nn.ConvTranspose1d(1, 1, 2), nn.Tanh()))
    >>> type(restore(model)), type(model[0]).__name__
    (<class 'torch.nn.modules.container.Sequential'>, 'ConvTranspose1d')
    """
    _require_model(model)
    for module in model.modules():
        unswap(module)
        module.__dict__.pop(_REPORT, None)
        for tensor in tensors_of(module):
            release(tensor)
    return model


def acceleration_report(model: Module) -> AccelerationReport:
    """What `accelerate` did to a model, layer by layer; empty for a model it never saw.

    >>> acceleration_report(nn.ReLU()).layers
    ()
    """
    _require_model(model)
    found: AccelerationReport = vars(model).get(_REPORT, AccelerationReport(()))
    return found


def _require_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        expected = "a torch.nn.Module"
        remedy = "Exported programs and graphs are rewritten by upconv.torch.rewrite."
        raise TensorTypeError("model", f"{brief(model)} ({type(model).__name__})", expected, remedy)


def _apply(model: Module, decided: dict[Module, Choice], seen: Mapping[Module, Chains]) -> None:
    """Swap the classes of the layers that were decided for, and of what calls fused ones."""
    for module in model.modules():
        unswap(module)
    fused = {layer for layer, choice in decided.items() if choice.replaced and choice.way.names}
    for layer, choice in decided.items():
        if choice.replaced:
            swap(layer, deconvolution_forward, Fused(layer))
    for module in list(model.modules()) if fused else ():
        if is_sequence(module):
            steps = steps_of(module, fused.__contains__)
            if steps is not None:
                swap(module, sequence_forward, steps)
        elif module in seen:
            wanted = [one for one in seen[module].seen if one.fused.deconvolution in fused]
            if wanted:
                swap(module, chained_forward, Chains(wanted))


def _measured(model: Module, example: Example, fuse: bool) -> tuple[dict[Module, Choice], str]:
    """The choices that won their trials, applied and proved on the whole model."""
    before = example.run(model)
    with chains_watched(model, fusable(model, measured=True) if fuse else ()) as seen:
        example.run(model)
    choices = choices_of(model, seen, fuse=fuse)
    ways = {layer: choice.ways for layer, choice in choices.items() if not choice.refused}
    with watched(ways) as trials:
        example.run(model)
    decided = {
        layer: chosen(choice, trials[layer]) if layer in trials else choice
        for layer, choice in choices.items()
    }
    _apply(model, decided, seen)
    decided = _proved(model, example, decided, seen, before)
    note = _timed(model, example, decided, seen)
    if note is None:
        decided = {
            layer: choice.given_back("the whole model was not faster")
            for layer, choice in decided.items()
        }
        _apply(model, decided, seen)
        note = "Left as it was: the whole model was not faster."
    if not any(True for _ in tensors_in(before)):
        note += " Its result holds no tensors that could be compared."
    return decided, note


def _proved(
    model: Module,
    example: Example,
    decided: dict[Module, Choice],
    seen: Mapping[Module, Chains],
    before: Any,
) -> dict[Module, Choice]:
    """Give back one layer after the other, the last first, until the model's result is right."""
    for layer in [*reversed(decided), None]:
        off = difference(before, example.run(model))
        if off <= 1 or layer is None:
            break
        why = f"with it the model's result differs by {off:.3g} times what is allowed"
        decided = {**decided, layer: decided[layer].given_back(why)}
        _apply(model, decided, seen)
    return decided


def _timed(
    model: Module, example: Example, decided: dict[Module, Choice], seen: Mapping[Module, Chains]
) -> str | None:
    """A sentence on the whole model's time; None if it did not become faster."""
    if not any(choice.replaced for choice in decided.values()):
        return "Nothing was replaced."
    originals = {layer: choice.given_back("") for layer, choice in decided.items()}
    pairs: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(pairs) < _ROUNDS or (len(pairs) < 3 * _ROUNDS and _slower(pairs)):
        taken = []
        for state in (originals, decided):
            _apply(model, state, seen)
            example.run(model)  # packs weights, and wakes the pools of threads
            taken.append(example.seconds(model))
        pairs.append((taken[0], taken[1]))
        if len(pairs) > 2 and time.perf_counter() - begin > _SECONDS and not _slower(pairs):
            break
    if _slower(pairs):
        return None
    before, after = map(min, zip(*pairs, strict=True))
    return f"The whole model: {before * 1e3:.3g} ms before, {after * 1e3:.3g} ms after."


def _slower(pairs: list[tuple[float, float]]) -> bool:
    """Whether a model became slower: layers have proved faster, and noise shall not undo that."""
    before, after = zip(*pairs, strict=True)
    most = sum(new > old for old, new in pairs) > 0.7 * len(pairs)
    return most and all(of(after) > _NOISE * of(before) for of in (min, median))
