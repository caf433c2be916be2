"""`Conv1d/2d/3d` and `ConvTranspose1d/2d/3d`: PyTorch's modules, computed by upconv.

They derive from PyTorch's modules, and inherit their constructors, parameters, `state_dict` and
printing. `accelerate` turns a model's layers into these modules by assigning the class.

For inference a module owns its packed weight. It packs the weight again when the parameter changes,
and drops the packed weight in `train()` and `.to()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.weight_norm import WeightNorm

from .functional import Arguments, by_function, convolved, geometry, only_pytorch, recorded
from .packing import Version, owned
from .problems import ResultMask
from .tensors import Tensor


@dataclass(frozen=True, slots=True)
class Acceleration:
    """The results that upconv computes for a layer: all, or some if it was accelerated."""

    inference: bool = True
    training: int = ResultMask.ALL
    """A `ResultMask` of the results that upconv computes if gradients are recorded."""


_EVERYTHING = Acceleration()

LAYER_ATTRIBUTES = ("_acceleration", "_packed", "_baked")
"""Attributes that upconv adds to PyTorch's modules; None or missing if unset."""


class Layer:
    """The base of the six modules; a change of mode, device or dtype drops the packed weight."""

    def train(self, mode: bool = True) -> Any:
        """Set the mode as PyTorch does, and drop the packed weight."""
        vars(self)["_packed"] = None
        return super().train(mode)  # type: ignore[misc]

    def _apply(self, *arguments: Any, **keywords: Any) -> Any:
        vars(self)["_packed"] = None
        return super()._apply(*arguments, **keywords)  # type: ignore[misc]

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError(
            "torch.jit.script cannot compile modules of upconv.torch. Trace the model, or"
            " call upconv.torch.restore(model) first."
        )


class Conv1d(Layer, nn.Conv1d):  # type: ignore[misc]  # PyTorch is untyped here
    """`torch.nn.Conv1d`, computed by upconv.

    >>> layer = Conv1d(1, 1, 2, bias=False).eval()
    >>> _ = nn.init.ones_(layer.weight)
    >>> with torch.no_grad():
    ...     layer(torch.tensor([[[1.0, 2.0, 4.0]]]))
    tensor([[[3., 6.]]])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, *size) or (C, *size) to F channels and the output size."""
        return _computed(self, input)


class Conv2d(Layer, nn.Conv2d):  # type: ignore[misc]
    """`torch.nn.Conv2d`, computed by upconv; see `Conv1d`."""

    forward = Conv1d.forward


class Conv3d(Layer, nn.Conv3d):  # type: ignore[misc]
    """`torch.nn.Conv3d`, computed by upconv; see `Conv1d`."""

    forward = Conv1d.forward


class ConvTranspose1d(Layer, nn.ConvTranspose1d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose1d`, computed by upconv.

    >>> layer = ConvTranspose1d(1, 1, 2, stride=2, bias=False).eval()
    >>> _ = nn.init.ones_(layer.weight)
    >>> with torch.no_grad():
    ...     layer(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """Map (N, C, *size) or (C, *size) to F channels and `output_size` or the default size."""
        return _computed(self, input, output_size)


class ConvTranspose2d(Layer, nn.ConvTranspose2d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose2d`, computed by upconv; see `ConvTranspose1d`."""

    forward = ConvTranspose1d.forward


class ConvTranspose3d(Layer, nn.ConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose3d`, computed by upconv; see `ConvTranspose1d`."""

    forward = ConvTranspose1d.forward


def _computed(layer: Any, x: Tensor, *output_size: Any) -> Tensor:
    """Return a layer's result, computed by upconv or PyTorch."""
    if layer.padding_mode != "zeros":
        return super(Layer, layer).forward(x, *output_size)
    weight, bias = weight_of(layer), layer.bias
    arguments = layer_geometry(layer, weight.shape[2:])
    if output_size and output_size[0] is not None:
        stride, padding, dilation, transposed, _, groups = arguments
        sizes = (stride, padding, layer.kernel_size, len(layer.kernel_size), dilation)
        output_padding = tuple(layer._output_padding(x, output_size[0], *sizes))
        arguments = (stride, padding, dilation, transposed, output_padding, groups)
    acceleration = vars(layer).get("_acceleration") or _EVERYTHING
    pytorch_only = only_pytorch(x, weight, bias, arguments)
    graded = not pytorch_only and recorded(x, weight, bias)
    mask = acceleration.training if graded else acceleration.inference
    if pytorch_only or not mask:
        return by_function(x, weight, bias, arguments)
    if graded:
        return convolved(x, weight, bias, arguments, mask)
    if not layer.training and weight.is_cpu and not _in_graph():
        # The layer holds the packed weight, so both have the same lifetime.
        vars(layer)["_packed"] = owned(weight, vars(layer).get("_packed"))
    return convolved(x, weight, bias, arguments)


def layer_geometry(layer: Any, kernel: Sequence[int]) -> Arguments:
    """Return the six arguments of the operators from a layer's current attributes."""
    axes = layer.stride, layer.padding, layer.dilation
    return geometry(kernel, *axes, layer.transposed, layer.output_padding, layer.groups)


def weight_of(layer: Any) -> Tensor:
    """Return a layer's weight; recompute a parametrized one only if its sources have changed."""
    lists = layer._modules.get("parametrizations")
    parametrization = None if lists is None else lists._modules.get("weight")
    if parametrization is None or not all(map(_is_fixed, parametrization.modules())):
        return layer.weight
    sources = [*parametrization.parameters(), *parametrization.buffers()]
    return _derived(layer, sources, lambda: layer.weight)


def _is_fixed(module: Any) -> bool:
    """Whether part of a parametrization depends only on its own tensors."""
    known = type(module).__module__ in (parametrizations.__name__, parametrize.__name__)
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    patched = "forward" in vars(module) or any(getattr(module, name) for name in hooks)
    return known and not module.training and not patched


class CachedWeightNorm(WeightNorm):  # type: ignore[misc]
    """A hook of the old `weight_norm` that recomputes the weight only if its sources change."""

    def __call__(self, module: Any, inputs: Any) -> None:
        """Set the module's weight."""
        sources = [getattr(module, f"{self.name}_{part}") for part in "gv"]
        weight = _derived(module, sources, lambda: self.compute_weight(module))
        setattr(module, self.name, weight)


def _derived(layer: Any, sources: list[Tensor], make: Callable[[], Any]) -> Any:
    """Return a value computed from tensors; recompute it only if one of them has changed."""
    graded = torch.is_grad_enabled() and any(source.requires_grad for source in sources)
    if graded or _in_graph() or not all(source.is_cpu for source in sources):
        return make()
    versions, value = vars(layer).get("_baked") or ((), None)
    now = _watched(sources, value)
    pairs = zip(versions, now, strict=False)
    if len(versions) == len(now) and all(version and version.of(x) for version, x in pairs):
        return value
    with torch.inference_mode(False), torch.no_grad():  # the next call may record gradients
        value = make()
    vars(layer)["_baked"] = [*map(Version, _watched(sources, value))], value
    return value


def _in_graph() -> bool:
    """Whether this call is being traced into a graph, where weight values are not constants."""
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def _watched(sources: list[Tensor], value: Any) -> list[Tensor]:
    """Return the sources and the value: users may write to the weight that a hook sets."""
    return [*sources, value] if isinstance(value, torch.Tensor) else sources


_LAYERS = (Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
ORIGINALS: dict[type, Any] = {layer: getattr(nn, layer.__name__) for layer in _LAYERS}
