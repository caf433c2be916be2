"""`Conv1d/2d/3d` and `ConvTranspose1d/2d/3d`: PyTorch's modules, computed by upconv.

They derive from PyTorch's, so constructors, parameters, `state_dict`, printing and `isinstance` are
theirs. `accelerate` turns a model's layers into these by assigning the class.

For inference a module owns its packed weight: it is packed anew when the parameter changes, and
dropped by `train()`, by `.to()` and with the module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from .functional import convolved, geometry, recorded, symmetric
from .packing import Packed, owned
from .problems import Ours
from .tensors import Tensor


@dataclass(slots=True, eq=False)
class Acceleration:
    """What `accelerate` made of a layer; a module that was made by its constructor has none."""

    original: type
    inference: bool = True
    training: int = 0
    """Which results upconv computes where gradients are recorded, as `Ours`."""
    parametrized: bool = False
    hooks: dict[int, Any] = field(default_factory=dict)
    """Hooks of the old `weight_norm`, which would make the weight anew in every call."""


class Layer:
    """What the six modules share: where the weight comes from, and what is packed of it."""

    def train(self, mode: bool = True) -> Any:
        """PyTorch's; lets go of packed weights."""
        vars(self).pop("_packed", None)
        return super().train(mode)  # type: ignore[misc]

    def _apply(self, *arguments: Any, **keywords: Any) -> Any:
        vars(self).pop("_packed", None)
        return super()._apply(*arguments, **keywords)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:  # what a parametrization computes; its class has a property
            if name == "parametrizations" or not parametrize.is_parametrized(self, name):
                raise
            return self.parametrizations[name]()

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError(
            "torch.jit.script does not read modules of upconv.torch. Trace the model, or"
            " upconv.torch.restore it first."
        )


class Conv1d(Layer, nn.Conv1d):  # type: ignore[misc]  # PyTorch is untyped here
    """`torch.nn.Conv1d`, computed by upconv.

    >>> layer = Conv1d(1, 1, 2, bias=False).eval()
    >>> _ = nn.init.ones_(layer.weight)
    >>> with torch.no_grad():
    ...     layer(torch.tensor([[[1.0, 2.0, 4.0]]]))
    tensor([[[3., 6.]]])
    """

    def forward(self, input: Tensor, *, end: End | None = None) -> Tensor:
        """(N, C, L) or (C, L) to (N, F, L') or (F, L'). `end` is for `upconv.torch.Sequential`."""
        return _convolution(self, 1, input, end)


class Conv2d(Layer, nn.Conv2d):  # type: ignore[misc]
    """`torch.nn.Conv2d`, computed by upconv; see `Conv1d`."""

    def forward(self, input: Tensor, *, end: End | None = None) -> Tensor:
        """(N, C, H, W) or (C, H, W) to (N, F, H', W') or (F, H', W')."""
        return _convolution(self, 2, input, end)


class Conv3d(Layer, nn.Conv3d):  # type: ignore[misc]
    """`torch.nn.Conv3d`, computed by upconv; see `Conv1d`."""

    def forward(self, input: Tensor, *, end: End | None = None) -> Tensor:
        """(N, C, D, H, W) or (C, D, H, W) to the same with F channels."""
        return _convolution(self, 3, input, end)


class ConvTranspose1d(Layer, nn.ConvTranspose1d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose1d`, computed by upconv.

    >>> layer = ConvTranspose1d(1, 1, 2, stride=2, bias=False).eval()
    >>> _ = nn.init.ones_(layer.weight)
    >>> with torch.no_grad():
    ...     layer(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """

    def forward(self, input: Tensor, output_size: Any = None, *, end: End | None = None) -> Tensor:
        """(N, C, L) or (C, L) to (N, F, L') or (F, L'), L' being `output_size` where given."""
        return _transposed(self, 1, input, output_size, end)


class ConvTranspose2d(Layer, nn.ConvTranspose2d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose2d`, computed by upconv; see `ConvTranspose1d`."""

    def forward(self, input: Tensor, output_size: Any = None, *, end: End | None = None) -> Tensor:
        """(N, C, H, W) or (C, H, W) to (N, F, H', W') or (F, H', W')."""
        return _transposed(self, 2, input, output_size, end)


class ConvTranspose3d(Layer, nn.ConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose3d`, computed by upconv; see `ConvTranspose1d`."""

    def forward(self, input: Tensor, output_size: Any = None, *, end: End | None = None) -> Tensor:
        """(N, C, D, H, W) or (C, D, H, W) to the same with F channels and the output's size."""
        return _transposed(self, 3, input, output_size, end)


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """What follows a layer and is computed with it: a normalisation, then an activation."""

    norm: Any = None
    activation: str = ""

    def apply_to(self, layer: Any, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's weight and bias with the normalisation folded in."""
        norm = self.norm
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        offset = -norm.running_mean if bias is None else bias - norm.running_mean
        offset = offset * scale if norm.bias is None else offset * scale + norm.bias
        ones = (1,) * (weight.dim() - 2)
        if not layer.transposed:
            return weight * scale.reshape(-1, 1, *ones), offset
        by_group = weight.unflatten(0, (layer.groups, -1))
        return (by_group * scale.reshape(layer.groups, 1, -1, *ones)).flatten(0, 1), offset


def _convolution(layer: Any, rank: int, x: Tensor, end: End | None) -> Tensor:
    padding, kernel = layer.padding, layer.kernel_size
    if isinstance(padding, str):
        padding = symmetric(padding, kernel, layer.dilation)
    if padding is None or layer.padding_mode != "zeros":
        return _by_pytorch(layer, x)
    how = layer.stride, padding, layer.dilation, False, (0,) * rank, layer.groups
    return _computed(layer, rank, x, how, end)


def _transposed(layer: Any, rank: int, x: Tensor, output_size: Any, end: End | None) -> Tensor:
    extra = layer.output_padding
    if output_size is not None:
        sizes = (layer.stride, layer.padding, layer.kernel_size, rank, layer.dilation)
        extra = tuple(layer._output_padding(x, output_size, *sizes))
    how = layer.stride, layer.padding, layer.dilation, True, extra, layer.groups
    return _computed(layer, rank, x, how, end, output_size)


def _by_pytorch(layer: Any, *arguments: Any) -> Tensor:
    """The forward of PyTorch's class, on a weight that is made anew if it has to be."""
    acceleration = vars(layer).get("_acceleration")
    for hook in () if acceleration is None else acceleration.hooks.values():
        hook(layer, arguments)
    return super(Layer, layer).forward(*arguments)


def _computed(layer: Any, rank: int, x: Tensor, how: Any, end: End | None, *rest: Any) -> Tensor:
    acceleration = vars(layer).get("_acceleration")
    weight, bias = weight_of(layer), layer.bias
    if recorded(x, weight, bias):
        ours = Ours.ALL if acceleration is None else acceleration.training
        if not ours:
            return _by_pytorch(layer, x, *rest)
        return convolved(rank, x, weight, bias, geometry(rank, *how), ours)
    if acceleration is not None and not acceleration.inference:
        return _by_pytorch(layer, x, *rest)
    if end is not None and end.norm is not None:
        weight, bias = _folded(layer, end, weight, bias)
    if not layer.training and not torch.compiler.is_compiling() and weight.device.type == "cpu":
        # What is packed of the weight ends with the layer, which holds it.
        vars(layer)["_packed"] = owned(weight, vars(layer).get("_packed"))
    return convolved(rank, x, weight, bias, how, activation="" if end is None else end.activation)


def weight_of(layer: Any) -> Tensor:
    """A layer's weight; a parametrized one is computed anew only when its sources change."""
    acceleration = vars(layer).get("_acceleration")
    if acceleration is None or not (acceleration.parametrized or acceleration.hooks):
        return layer.weight
    if acceleration.parametrized:
        sources = list(layer.parametrizations["weight"].parameters())
        sources += layer.parametrizations["weight"].buffers()
        make = layer.parametrizations["weight"]
    else:
        (hook,) = acceleration.hooks.values()
        sources = [getattr(layer, f"{hook.name}_{end}") for end in "gv"]
        make = lambda: hook.compute_weight(layer)  # noqa: E731
    graded = torch.is_grad_enabled() and any(each.requires_grad for each in sources)
    if graded or layer.training or torch.compiler.is_compiling():
        return make()
    return _derived(layer, "_baked", sources, make)


def _folded(layer: Any, end: End, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    norm = end.norm
    extra = (bias, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    sources = [weight, *(each for each in extra if each is not None)]

    def fold() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return end.apply_to(layer, weight, bias)

    if torch.compiler.is_compiling():
        return fold()
    return _derived(layer, "_folded", sources, fold)  # type: ignore[no-any-return]


def _derived(layer: Any, name: str, sources: list[Tensor], make: Callable[[], Any]) -> Any:
    """What is made of some tensors, made anew only where one of them has changed."""
    before: tuple[list[Packed | None], Any] | None = vars(layer).get(name)
    if before is not None and len(before[0]) == len(sources):
        pairs = zip(before[0], sources, strict=True)
        if all(was is not None and was.of(source) for was, source in pairs):
            return before[1]
    value = make()
    vars(layer)[name] = [Packed(each) for each in sources], value
    return value


_OURS = (Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
ORIGINALS: dict[type, Any] = {ours: getattr(nn, ours.__name__) for ours in _OURS}
