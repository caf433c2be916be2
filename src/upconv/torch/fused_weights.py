"""The weight that a deconvolution really uses: where it comes from, and what is folded into it.

Weight normalisation and spectral normalisation compute a layer's weight from other tensors before
every call. Outside training it is a function of those tensors: while they are at rest, so is the
weight, and what was packed of it. A batch normalisation that follows is put into the weight: with
r = 1 / sqrt(var + eps), channel by channel of the output, in float64 and rounded once,

    weight' = weight * gamma * r        bias' = (bias - mean) * gamma * r + beta

What lives here: sources of weights, folding, the memory of what was folded. What never does:
packing, modules that are called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from .packing import Kept, kept, newest
from .tensors import Tensor

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Source(NamedTuple):
    """What a layer's weight is made from, and how; it is the first tensor where nothing makes it.

    by: torch's own objects that make it. hook: the one among them that is a hook, or None.
    """

    tensors: tuple[Tensor, ...]
    make: Callable[[], Tensor] | None = None
    by: tuple[Any, ...] = ()
    hook: Any = None

    @property
    def weight(self) -> Tensor:
        """The weight, made now.

        >>> Source((torch.ones(1),)).weight
        tensor([1.])
        """
        return self.tensors[0] if self.make is None else self.make()


class Normalization(NamedTuple):
    """A batch normalisation by running statistics; gamma and beta may be None."""

    mean: Tensor
    var: Tensor
    gamma: Tensor
    beta: Tensor
    eps: float

    @classmethod
    def of(cls, module: Any) -> Normalization:
        """The numbers of a module.

        >>> Normalization.of(nn.BatchNorm2d(3, affine=False)).gamma is None
        True
        """
        # Attributes of modules are found slowly; `foldable` has said that these are registered.
        buffers, parameters = module._buffers, module._parameters
        statistics = buffers["running_mean"], buffers["running_var"]
        return cls(*statistics, parameters["weight"], parameters["bias"], module.eps)


class Folded(NamedTuple):
    """A weight as it is used, and a bias or None."""

    weight: Tensor
    bias: Tensor


def foldable(module: nn.Module, layer: Any) -> bool:
    """Whether a module is a batch normalisation, of a layer's results, by running statistics.

    >>> layer = nn.ConvTranspose2d(1, 3, 2)
    >>> foldable(nn.BatchNorm2d(3), layer), foldable(nn.BatchNorm3d(3), layer)
    (True, False)
    >>> foldable(nn.BatchNorm2d(3, track_running_stats=False), layer)
    False
    """
    if type(module) is not NORMS[len(layer.kernel_size) - 1]:
        return False
    if module.num_features != layer.out_channels:
        return False
    buffers, parameters = module._buffers, module._parameters
    if buffers.get("running_mean") is None or buffers.get("running_var") is None:
        return False
    return "weight" in parameters and "bias" in parameters


def source_of(layer: Any) -> Source | None:
    """Where the weight comes from; None where `weight_refusal` says why that cannot be told.

    >>> len(source_of(parametrizations.weight_norm(nn.ConvTranspose1d(1, 1, 2))).tensors)
    2
    """
    hooks = layer._forward_pre_hooks
    if "parametrizations" not in layer._modules and not hooks:
        return Source((layer.weight,))
    if weight_refusal(layer) is not None:
        return None
    if "parametrizations" in layer._modules:
        made = layer.parametrizations.weight
        tensors = (*made.parameters(), *made.buffers())
        return Source(tensors, lambda: layer.weight, tuple(made))
    for hook in hooks.values():
        endings = _HOOK_TENSORS.get(type(hook))
        if endings:
            tensors = tuple([getattr(layer, hook.name + ending) for ending in endings])
            return Source(tensors, partial(_by_hook, hook, layer), (hook,), hook)
    return Source((layer.weight,))


# Torch's normalisations by hooks, with the names of the tensors that they make the weight from.
_HOOK_TENSORS: dict[type, tuple[str, ...]] = {
    WeightNorm: ("_g", "_v"),
    SpectralNorm: ("_orig", "_u", "_v"),
}


def _by_hook(hook: Any, layer: Any) -> Tensor:
    """What a hook would make, put where it would put it: others may read it there."""
    if isinstance(hook, SpectralNorm):
        made = hook.compute_weight(layer, do_power_iteration=False)
    else:
        made = hook.compute_weight(layer)
    setattr(layer, hook.name, made)
    return made


_KNOWN = (
    parametrizations._WeightNorm,
    parametrizations._SpectralNorm,
    parametrizations._Orthogonal,
)


def weight_refusal(layer: Any) -> str | None:
    """Why what is packed of a layer's weight could become stale unseen; None if it cannot."""
    if parametrize.is_parametrized(layer):
        others = sorted(set(layer.parametrizations) - {"weight"})
        if others:
            return f"its {', '.join(others)} is parametrized: only weights are followed"
        for way in layer.parametrizations.weight:
            if type(way) not in _KNOWN:
                name = type(way).__name__
                return f"its weight is made by {name}, which may depend on anything"
    hooks = [hook for hook in layer._forward_pre_hooks.values() if type(hook) in _HOOK_TENSORS]
    if len(hooks) > 1 or any(hook.name != "weight" for hook in hooks):
        return "it has several normalisations by hooks of torch.nn.utils"
    return None


def cast_once(weight: Tensor, dtype: Any) -> Tensor:
    """A weight in another type, without gradients, made anew only when it has changed.

    >>> weight = torch.ones(1)
    >>> cast_once(weight, torch.bfloat16) is cast_once(weight, torch.bfloat16)
    True
    """
    make = partial(weight.detach().to, dtype)
    return _remembered(weight, [], (dtype,), lambda: Folded(make(), None)).weight


class _Entry(NamedTuple):
    """What was folded, and how the tensors besides the one that remembers it were then."""

    marks: tuple[Kept | None, ...]
    folded: Folded


def folded(source: Source, bias: Tensor, norm: Normalization | None, groups: int) -> Folded:
    """Weight and bias with a normalisation folded in, made anew only when a tensor has changed."""
    if norm is None:  # the bias is used as it is
        return Folded(_made(source), bias)
    first, *others = (*source.tensors, *norm[:4], bias)
    how = (norm.eps, *source.by)
    return _remembered(first, others, how, lambda: _fold(source.weight, bias, norm, groups))


def _made(source: Source) -> Tensor:
    first, *others = source.tensors
    if source.make is None:
        return first
    how = (None, *source.by)
    return _remembered(first, others, how, lambda: Folded(source.weight.detach(), None)).weight


def _remembered(
    first: Tensor, others: list[Tensor], how: tuple[Any, ...], make: Callable[[], Folded]
) -> Folded:
    """What is made of tensors, made once while they are at rest; the first one remembers it.

    So it goes with the first one. What was made with others that are gone goes when something else
    is made: a normalisation whose tensors are replaced again and again leaves nothing behind.
    how: what decides besides the tensors, as a key.
    """
    keeper = kept(first)
    marks = tuple([None if tensor is None else kept(tensor) for tensor in others])
    key = (how, *map(id, others))
    found = None if keeper is None else keeper.derived.get(key)
    if found is not None and all(map(_same, found.marks, marks)):
        known: Folded = found.folded
        return known
    with torch.no_grad():
        made = make()
    seen = all((mark is None) == (each is None) for mark, each in zip(marks, others, strict=True))
    if keeper is not None and seen:
        living = {k: entry for k, entry in keeper.derived.items() if _lives(entry)}
        keeper.derived = newest(living, key, _Entry(marks, made))
    return made


def _lives(entry: _Entry) -> bool:
    return all(mark is None or mark.lives for mark in entry.marks)


def _same(before: Kept | None, now: Kept | None) -> bool:
    return before is now


def _fold(weight: Tensor, bias: Tensor, norm: Normalization, groups: int) -> Folded:
    factor = 1 / torch.sqrt(norm.var.double() + norm.eps)
    if norm.gamma is not None:
        factor = factor * norm.gamma.double()
    shift = -norm.mean.double() if bias is None else bias.double() - norm.mean.double()
    shift = shift * factor
    if norm.beta is not None:
        shift = shift + norm.beta.double()
    per_group = factor.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, 0)
    per_tap = per_group.reshape(*weight.shape[:2], *[1] * (weight.dim() - 2))
    scaled = torch.empty_like(weight)  # with its strides, which decide about the result's
    return Folded(scaled.copy_(weight.double() * per_tap), shift.to(weight.dtype))
