"""Find the layers of a model that upconv can compute, and swap their classes.

Modules stay the same objects; only their class changes. So `state_dict`, optimizers, hooks,
pickling and copying work as before. For each parametrized module PyTorch derives a class from
the layer's class. A copy of that class with upconv's base replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.weight_norm import WeightNorm

from .modules import LAYER_ATTRIBUTES, ORIGINALS, Acceleration, CachedWeightNorm, layer_geometry
from .tensors import DTYPES


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layer that upconv can compute."""

    name: str
    layer: Any
    original: Any
    accelerated: Any

    @property
    def kind(self) -> str:
        """The name of the layer's class before any parametrization."""
        return str(parametrize.type_before_parametrizations(self.layer).__name__)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The weight's shape in PyTorch, without computing a parametrized weight."""
        channels = self.layer.in_channels, self.layer.out_channels
        first, second = channels if self.layer.transposed else channels[::-1]
        return (first, second // self.layer.groups, *self.layer.kernel_size)

    def install(self, *, inference: bool, training: int) -> None:
        """Assign upconv's class to the layer."""
        vars(self.layer)["_acceleration"] = Acceleration(inference, training)
        self.layer.__class__ = self.accelerated
        _set_hooks(self.layer, CachedWeightNorm)

    def remove(self) -> None:
        """Restore the layer's class, but keep packed weights."""
        if vars(self.layer).pop("_acceleration", None) is not None:
            self.layer.__class__ = self.original
            _set_hooks(self.layer, WeightNorm)


def remove(layer: Any) -> None:
    """Restore the class and hooks of an accelerated layer, and drop its packed weight.

    Parametrizations added or removed since the layer was accelerated stay as they are.
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
    """Return `base`; for a parametrized module, a copy of PyTorch's class with that base."""
    if kind in ORIGINALS or kind in ACCELERATED:
        return base
    return type(kind.__name__, (base,), dict(vars(kind)))


def _set_hooks(layer: Any, kind: type) -> None:
    """Set the class of the hooks of the old `torch.nn.utils.weight_norm`."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            hook.__class__ = kind


def candidates(model: Any) -> list[Candidate]:
    """Return the layers of a model that upconv can compute, in the order of `named_modules`."""
    result = []
    for name, module in model.named_modules():
        accelerated = ACCELERATED.get(parametrize.type_before_parametrizations(module))
        if accelerated is not None and "forward" not in vars(module) and _known(module):
            classes = type(module), _rebased(type(module), accelerated)
            result.append(Candidate(name, module, *classes))
    return result


ACCELERATED: dict[type, type] = {original: layer for layer, original in ORIGINALS.items()}


def _known(module: Any) -> bool:
    """Whether upconv can compute a module; only PyTorch's own parametrizations are supported."""
    if parametrize.is_parametrized(module):
        lists = module.parametrizations
        modules = {type(step).__module__ for steps in lists.values() for step in steps}
        if list(lists) != ["weight"] or modules != {parametrizations.__name__}:
            return False
    padding = layer_geometry(module, module.kernel_size)[1]
    return (
        module.padding_mode == "zeros"
        and not isinstance(padding, str)
        and all(
            parameter.device.type == "cpu" and parameter.dtype in DTYPES
            for parameter in module.parameters()
        )
    )
