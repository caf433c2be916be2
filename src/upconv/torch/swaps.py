"""Layers of a model that upconv can compute, and putting its classes in place and back.

Modules stay the same objects; only their class changes. So `state_dict`, optimisers and hooks stay,
and pickling and copying work as before. A parametrized module has a class of its own, which
PyTorch derived from the layer's: its copy with another base takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.weight_norm import WeightNorm

from .modules import ORIGINALS, Acceleration, CachedWeightNorm, layer_geometry
from .sequences import OURS_OF, Run, Sequential, run_at
from .tensors import DTYPES


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layer that upconv can compute, and the run of a Sequential that it begins, if any."""

    name: str
    layer: Any
    original: Any
    ours: Any
    parent: Any = None
    at: int = 0
    run: Run | None = None

    @property
    def kind(self) -> str:
        """The name of the layer's class, without what a parametrization adds."""
        return str(parametrize.type_before_parametrizations(self.layer).__name__)

    @property
    def members(self) -> list[Any]:
        """The layer and the modules that are computed with it."""
        if self.run is None:
            return [self.layer]
        return list(self.parent)[self.at : self.at + self.run.length]

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """PyTorch's, without making a weight that is computed."""
        channels = self.layer.in_channels, self.layer.out_channels
        first, second = channels if self.layer.transposed else channels[::-1]
        return (first, second // self.layer.groups, *self.layer.kernel_size)

    def install(self, *, inference: bool, training: int) -> None:
        """Give the layer, and the Sequential of its run, upconv's classes."""
        vars(self.layer)["_acceleration"] = Acceleration(inference, training)
        self.layer.__class__ = self.ours
        _set_hooks(self.layer, CachedWeightNorm)
        if self.run is not None and inference:
            self.parent.__class__ = Sequential
            runs = vars(self.parent).setdefault("_runs", {})
            runs[self.at] = self.run.signed(self.members)

    def remove(self) -> None:
        """Give the layer its class back, and its parent if no run is left; packed weights stay."""
        if vars(self.layer).pop("_acceleration", None) is not None:
            self.layer.__class__ = self.original
            _set_hooks(self.layer, WeightNorm)
        runs = {} if self.parent is None else vars(self.parent).get("_runs", {})
        runs.pop(self.at, None)
        if self.parent is not None and not runs:
            remove_runs(self.parent)


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
        for name in ("_packed", "_baked", "_folded"):
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


def remove_runs(module: Any) -> None:
    """Make a Sequential PyTorch's own again."""
    if vars(module).pop("_runs", None) is not None:
        module.__class__ = nn.Sequential


def candidates(model: Any) -> list[Candidate]:
    """The layers of a model that upconv can compute, in the order of `named_modules`."""
    runs: dict[Any, Any] = {}
    for module in model.modules():
        members = list(module) if type(module) is nn.Sequential else []
        for at, member in enumerate(members):
            if type(member) in OURS_OF and members.count(member) == 1:
                runs[member] = module, at, run_at(members, at)
    result = []
    for name, module in model.named_modules():
        ours = OURS_OF.get(parametrize.type_before_parametrizations(module))
        if ours is not None and "forward" not in vars(module) and _known(module):
            run = runs.get(module, (None, 0, None))
            classes = type(module), _rebased(type(module), ours)
            result.append(Candidate(name, module, *classes, *run))
    return result


def _known(module: Any) -> bool:
    """Whether upconv computes it, the weight plain or made by what depends on its own tensors."""
    known = all(each.device.type == "cpu" and each.dtype in DTYPES for each in module.parameters())
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
