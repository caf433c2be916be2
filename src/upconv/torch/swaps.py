"""Layers of a model that upconv can compute, and putting its classes in place and back.

Modules stay the same objects; only their class changes. So `state_dict`, optimisers and hooks stay,
and pickling and copying work as before. A parametrized module has a class of its own, which
PyTorch derived from the layer's: its copy with another base takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.weight_norm import WeightNorm

from .modules import (
    LAYER_ATTRIBUTES,
    ORIGINALS,
    Acceleration,
    CachedWeightNorm,
    layer_geometry,
)
from .tensors import DTYPES


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layer that upconv can compute."""

    name: str
    layer: Any
    original: Any
    ours: Any

    @property
    def kind(self) -> str:
        """The name of the layer's class, without what a parametrization adds."""
        return str(parametrize.type_before_parametrizations(self.layer).__name__)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """PyTorch's, without making a weight that is computed."""
        channels = self.layer.in_channels, self.layer.out_channels
        first, second = channels if self.layer.transposed else channels[::-1]
        return (first, second // self.layer.groups, *self.layer.kernel_size)

    def install(self, *, inference: bool, training: int) -> None:
        """Give the layer upconv's class."""
        vars(self.layer)["_acceleration"] = Acceleration(inference, training)
        self.layer.__class__ = self.ours
        _set_hooks(self.layer, CachedWeightNorm)

    def remove(self) -> None:
        """Give the layer its class back; packed weights stay."""
        if vars(self.layer).pop("_acceleration", None) is not None:
            self.layer.__class__ = self.original
            _set_hooks(self.layer, WeightNorm)


def remove(layer: Any) -> None:
    """Give a layer its class and hooks back, if it was accelerated; nothing stays packed.

    Whatever was parametrized, or is no more, since the layer was accelerated stays as it is.
    """
    accelerated = vars(layer).pop("_acceleration", None) is not None
    original = ORIGINALS.get(parametrize.type_before_parametrizations(layer))
    if accelerated and original is not None:
        layer.__class__ = _rebased(type(layer), original)
        _set_hooks(layer, WeightNorm)
    if accelerated or original is None:
        for name in LAYER_ATTRIBUTES:
            vars(layer).pop(name, None)


def _rebased(kind: Any, base: Any) -> Any:
    """`base`, or the class that PyTorch derived for a parametrized module with that base."""
    if kind in ORIGINALS or kind in OURS_OF:
        return base
    return type(kind.__name__, (base,), dict(vars(kind)))


def _set_hooks(layer: Any, kind: type) -> None:
    """Give the hooks of `torch.nn.utils.weight_norm`, the old one, another class."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            hook.__class__ = kind


def candidates(model: Any) -> list[Candidate]:
    """The layers of a model that upconv can compute, in the order of `named_modules`."""
    result = []
    for name, module in model.named_modules():
        ours = OURS_OF.get(parametrize.type_before_parametrizations(module))
        if ours is not None and "forward" not in vars(module) and _known(module):
            classes = type(module), _rebased(type(module), ours)
            result.append(Candidate(name, module, *classes))
    return result


OURS_OF: dict[type, type] = {original: ours for ours, original in ORIGINALS.items()}


def _known(module: Any) -> bool:
    """Whether upconv computes it, the weight plain or made by what depends on its own tensors."""
    known = all(
        parameter.device.type == "cpu" and parameter.dtype in DTYPES
        for parameter in module.parameters()
    )
    padding = layer_geometry(module, module.kernel_size)[1]
    known = known and not isinstance(padding, str)
    known = known and module.padding_mode == "zeros"
    if parametrize.is_parametrized(module):
        lists = module.parametrizations
        known = known and list(lists) == ["weight"]
        known = known and all(
            type(each).__module__ == parametrizations.__name__ for each in lists["weight"]
        )
    return known
