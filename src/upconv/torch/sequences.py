"""`nn.Sequential` runs of a layer, a batch normalisation and an activation, computed as one.

`accelerate` gives a `nn.Sequential` the class `Sequential`, which hands such runs to their layer.
A run is computed as one only while its modules are in eval mode and have the signature that they
had when the run was made; otherwise modules are called one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as base
from torch.nn.utils.weight_norm import WeightNorm

from .modules import ORIGINALS, End, as_made
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
_SETTINGS: dict[type, str] = {
    **dict.fromkeys(_NORMS, "eps"),
    nn.GELU: "approximate",
    nn.LeakyReLU: "negative_slope",
}
"""The attribute that the result of a follower in eval mode depends on. The layer's attributes, and
all tensors, are read anew in every call."""

_HOOKS_OF_ALL = (
    base._global_forward_pre_hooks,
    base._global_forward_hooks,
    base._global_backward_pre_hooks,
    base._global_backward_hooks,
)

Signature = tuple[tuple[Any, ...], ...]


def signature(modules: Sequence[Any]) -> Signature:
    """Everything but tensors and modes that a run's result depends on, for each module.

    Its class, the keys of all its hooks, whether its `forward` was replaced, and its setting.
    """
    result = []
    for module in modules:
        before, after = module._forward_pre_hooks, module._forward_hooks
        back, gradient = module._backward_pre_hooks, module._backward_hooks
        hooks: tuple[int, ...] = ()
        if before or after or back or gradient:  # empty dictionaries take long to unpack
            hooks = (*before, *after, *back, *gradient)
        state, kind = vars(module), type(module)
        result.append((kind, hooks, "forward" in state, state.get(_SETTINGS.get(kind))))
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Run:
    """Modules that begin with a layer: how many, which of them normalises, and the activation."""

    length: int
    norm: int | None
    activation: str
    signature: Signature = ()

    def signed(self, modules: Sequence[Any]) -> Run:
        """The run with the signature of its modules as they are now."""
        return replace(self, signature=signature(modules))

    def holds(self, modules: Sequence[Any]) -> bool:
        """Whether these modules may be computed as one."""
        training = [module for module in modules if module.training]
        return not training and signature(modules) == self.signature

    def end(self, modules: Sequence[Any]) -> End:
        """Everything that follows the layer."""
        return End(modules[1:], None if self.norm is None else modules[self.norm], self.activation)


class Sequential(nn.Sequential):  # type: ignore[misc]  # PyTorch is untyped here
    """`torch.nn.Sequential` in which `accelerate` has marked runs that are computed as one.

    >>> import torch
    >>> Sequential(nn.ReLU(), nn.Tanh())(torch.zeros(1))
    tensor([0.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Compute the modules one after the other, and each run at once."""
        apart = any(_HOOKS_OF_ALL) or torch.jit.is_tracing()  # a trace reads parameters, too
        runs: Any = {} if apart else vars(self).get("_runs", {})
        modules = list(self)
        at = 0
        while at < len(modules):
            run = runs.get(at)
            members = () if run is None else modules[at : at + run.length]
            if members and run.holds(members):
                input = modules[at](input, end=run.end(members))
                at += run.length
            else:
                input = modules[at](input)
                at += 1
        return input


def run_at(modules: list[Any], at: int) -> Run | None:
    """The run that begins with a layer, by the modules' classes before they are accelerated."""
    if not as_made(modules[at], WeightNorm):
        return None
    norm, activation, end = None, "", at + 1
    for i in range(at + 1, len(modules)):
        module, kind = modules[i], type(modules[i])
        if not as_made(module):
            break
        if kind in _PASSED:
            continue
        if kind in _NORMS and norm is None:
            if not _folds(modules[at], module):
                break
            norm, end = i - at, i + 1
        else:
            activation = _activation(module)
            end = i + 1 if activation else end
            break
    return None if end == at + 1 else Run(end - at, norm, activation)


def _activation(module: Any) -> str:
    """An activation module in upconv's words; "" for any other module."""
    name = _ACTIVATIONS.get(type(module), "")
    if name == "leaky_relu":
        return f"{name}:{float(module.negative_slope)!r}"
    return "" if getattr(module, "approximate", "none") != "none" else name


def _folds(layer: Any, norm: Any) -> bool:
    """Whether a normalisation, by running statistics, is a factor and a term of each channel."""
    fits = _NORMS[type(norm)] == len(layer.kernel_size) and norm.num_features == layer.out_channels
    return fits and norm.running_mean is not None


OURS_OF: dict[type, type] = {original: ours for ours, original in ORIGINALS.items()}
