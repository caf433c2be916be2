"""`nn.Sequential` runs of a layer, a batch normalisation and an activation, computed as one.

`accelerate` gives a `nn.Sequential` the class `Sequential`, which hands such runs to their layer
where nothing in them trains and no gradient is recorded; otherwise modules are called one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .modules import ORIGINALS, End
from .tensors import Tensor

_NORMS = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}
_PASSED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # in eval mode
_ACTIVATIONS: dict[type, str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.LeakyReLU: "leaky_relu",
}


@dataclass(frozen=True, slots=True)
class Run:
    """Modules that begin with a layer: how many, which of them normalises, and the activation."""

    length: int
    norm: int | None
    activation: str
    kinds: tuple[type, ...]
    """The classes of the modules: others that are put in their places later end the run."""

    def end(self, modules: list[Any], x: Tensor) -> End | None:
        """What follows the layer as one `End`; None where the modules are to be called."""
        if tuple(map(type, modules)) != self.kinds or any(each.training for each in modules):
            return None
        if torch.is_grad_enabled() and (
            x.requires_grad
            or any(p.requires_grad for each in modules for p in each.parameters(recurse=True))
        ):
            return None
        norm = None if self.norm is None else modules[self.norm]
        return End(norm, self.activation)


class Sequential(nn.Sequential):  # type: ignore[misc]  # PyTorch is untyped here
    """`torch.nn.Sequential`, in which `accelerate` found runs that are computed as one.

    >>> from torch import nn
    >>> Sequential(nn.ReLU(), nn.Tanh())(torch.zeros(1))
    tensor([0.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """The modules' results one after the other, runs at once."""
        runs: Any = getattr(self, "_runs", {})
        modules = list(self)
        at = 0
        while at < len(modules):
            run = runs.get(at)
            end = None if run is None else run.end(modules[at : at + run.length], input)
            if end is None:
                input = modules[at](input)
                at += 1
            else:
                input = modules[at](input, end=end)
                at += run.length
        return input


def run_at(modules: list[Any], at: int) -> Run | None:
    """The run that begins with a layer, by the modules' classes before they are accelerated."""
    norm, activation, end = None, "", at + 1
    for i in range(at + 1, len(modules)):
        module, kind = modules[i], type(modules[i])
        if kind in _PASSED and not hooked(module):
            continue
        if kind in _NORMS and norm is None and _folds(modules[at], module) and not activation:
            norm, end = i - at, i + 1
        elif kind in _ACTIVATIONS and not hooked(module):
            if getattr(module, "approximate", "none") != "none":
                break
            activation, end = _ACTIVATIONS[kind], i + 1
            if kind is nn.LeakyReLU:
                activation += f":{module.negative_slope!r}"
            break
        else:
            break
    if end == at + 1:
        return None
    kinds = tuple(type(each) for each in modules[at:end])
    return Run(end - at, norm, activation, kinds)


def _folds(layer: Any, norm: Any) -> bool:
    """Whether a normalisation, by running statistics, is a factor and a term of each channel."""
    fits = _NORMS[type(norm)] == len(layer.kernel_size) and norm.num_features == layer.out_channels
    return fits and norm.running_mean is not None and not hooked(norm)


def hooked(module: Any) -> bool:
    """Whether a module has hooks, which a run computed as one would not call."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)


OURS_OF: dict[type, type] = {original: ours for ours, original in ORIGINALS.items()}
