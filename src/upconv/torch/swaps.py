"""Layers of a model that upconv can compute, and putting its classes in place and back.

Modules stay the same objects; only their class changes. So `state_dict`, optimisers and hooks stay,
and pickling and copying work as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.weight_norm import WeightNorm

from .functional import symmetric
from .modules import ORIGINALS, Acceleration
from .sequences import OURS_OF, Run, Sequential, run_at
from .tensors import DTYPES


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A layer that upconv can compute, and the run of a Sequential that it begins, if any."""

    name: str
    layer: Any
    original: Any
    ours: type
    parent: Any = None
    at: int = 0
    run: Run | None = None

    @property
    def followers(self) -> list[Any]:
        """The modules that are computed with the layer."""
        if self.run is None:
            return []
        return list(self.parent)[self.at + 1 : self.at + self.run.length]

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """PyTorch's, without making a weight that is computed."""
        channels = self.layer.in_channels, self.layer.out_channels
        first, second = channels if self.layer.transposed else channels[::-1]
        return (first, second // self.layer.groups, *self.layer.kernel_size)

    def install(self, *, inference: bool, training: int) -> None:
        """Give the layer, and the Sequential of its run, upconv's classes."""
        hooks = _weight_norm_hooks(self.layer)
        for key in hooks:
            del self.layer._forward_pre_hooks[key]
        parametrized = self.original is not ORIGINALS[self.ours]
        vars(self.layer)["_acceleration"] = Acceleration(
            self.original, inference, training, parametrized, hooks
        )
        self.layer.__class__ = self.ours
        if self.run is not None and inference:
            self.parent.__class__ = Sequential
            runs = vars(self.parent).setdefault("_runs", {})
            runs[self.at] = replace(self.run, kinds=(self.ours, *self.run.kinds[1:]))

    def remove(self) -> None:
        """Give the layer its class back, and its parent if no run is left; packed weights stay."""
        _give_back(self.layer)
        runs = {} if self.parent is None else vars(self.parent).get("_runs", {})
        runs.pop(self.at, None)
        if self.parent is not None and not runs:
            remove_runs(self.parent)


def remove(layer: Any) -> None:
    """Give a layer its class and hooks back, if it was accelerated; nothing stays packed."""
    _give_back(layer)
    if type(layer) not in ORIGINALS:
        for name in ("_packed", "_baked", "_folded"):
            vars(layer).pop(name, None)


def _give_back(layer: Any) -> None:
    acceleration = vars(layer).pop("_acceleration", None)
    if acceleration is not None:
        layer.__class__ = acceleration.original
        layer._forward_pre_hooks.update(acceleration.hooks)


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
    found = []
    for name, module in model.named_modules():
        kind = parametrize.type_before_parametrizations(module)
        if kind in OURS_OF and "forward" not in vars(module) and _known(module):
            run = runs.get(module, (None, 0, None))
            found.append(Candidate(name, module, type(module), OURS_OF[kind], *run))
    return found


def _known(module: Any) -> bool:
    """Whether upconv computes it, the weight plain or made by what depends on its own tensors."""
    known = all(each.device.type == "cpu" and each.dtype in DTYPES for each in module.parameters())
    if isinstance(module.padding, str):
        known = known and symmetric(module.padding, module.kernel_size, module.dilation) is not None
    known = known and module.padding_mode == "zeros"
    if parametrize.is_parametrized(module):
        lists = module.parametrizations
        known = known and list(lists) == ["weight"]
        known = known and all(
            type(each).__module__ == parametrizations.__name__ for each in lists["weight"]
        )
    return known


def _weight_norm_hooks(module: Any) -> dict[int, Any]:
    """The hook of `torch.nn.utils.weight_norm`, the old one, by its key."""
    return {
        key: hook
        for key, hook in module._forward_pre_hooks.items()
        if isinstance(hook, WeightNorm) and hook.name == "weight"
    }
