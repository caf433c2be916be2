"""`Snapshot`: the state of a model, except tensors, on which a captured graph relies.

A capture freezes the values that Python code reads: attributes, children, modes and hooks of all
modules. The snapshot compares them with the model before each call, in less than a microsecond per
module. It looks into attributes that are lists, sets, dicts and plain objects (configurations). It
does not compare other values that code reads, such as global variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as base
from torch.nn.utils.weight_norm import WeightNorm

from .modules import LAYER_ATTRIBUTES, Layer

_INTERNAL = frozenset(vars(nn.Module()))
_IGNORED = frozenset({"forward", "_report", "_is_torch_compile", *LAYER_ATTRIBUTES})
"""Attributes that this package and `torch.compile` write."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device)
_MAX_DEPTH, _MAX_OBJECTS = 6, 10_000

HOOKS_OF_ALL = (
    base._global_forward_pre_hooks,
    base._global_forward_hooks,
    base._global_backward_pre_hooks,
    base._global_backward_hooks,
)


class _Anything:
    """An object equal to all others, in place of a tensor, which each call reads again."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


_ANYTHING = _Anything()


class Unwatchable(Exception):
    """A model that no graph can represent; the message says why."""


class Snapshot:
    """A model's modules, attributes, modes and hooks at one moment.

    Raises `Unwatchable` for hooks of inner modules, which a graph would not call, and for modules
    that are kept outside their parents' children.

    >>> model = nn.Sequential(nn.ReLU())
    >>> snapshot = Snapshot(model)
    >>> snapshot.holds(), model.train(False) is model, snapshot.holds()
    (True, True, False)
    """

    def __init__(self, model: Any) -> None:
        self._hooks: list[Any] = []
        self._values: list[tuple[list[Any], Any]] = []
        self._seen: dict[int, Any] = {}
        self._modules = list(model.modules())
        for module in self._modules:
            self._add_module(module, inner=module is not model)

    def holds(self) -> bool:
        """Whether the model is unchanged."""
        if any(self._hooks) or any(HOOKS_OF_ALL):
            return False
        try:
            return all(saved == [*now] for saved, now in self._values)
        except (RuntimeError, TypeError, ValueError):  # a comparison of tensors is not a bool
            return False

    def _add_module(self, module: Any, *, inner: bool) -> None:
        state = vars(module)
        hooks = module._forward_pre_hooks.values()
        computed = {hook.name for hook in hooks if isinstance(hook, WeightNorm)}
        if inner:
            self._add_hooks(module)
        if module._modules:
            self._values.append(([*module._modules.values()], module._modules.values()))
        else:
            self._hooks.append(module._modules)
        parameters = module._parameters.values()
        self._values.append(([x if x is None else _ANYTHING for x in parameters], parameters))
        for name in LAYER_ATTRIBUTES if isinstance(module, Layer) else ():
            state.setdefault(name, None)  # so that they are always present
        ignored = _IGNORED | computed
        if inner:
            saved = [_ANYTHING if name in ignored else value for name, value in state.items()]
            self._values.append((saved, state.values()))
        else:
            live = _Watched(state)
            self._values.append(([*live], live))
        for name, value in state.items():
            if name not in _INTERNAL | ignored:
                self._add(value, 1)

    def _add_hooks(self, module: Any) -> None:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            if not hooks:
                self._hooks.append(hooks)
            elif all(isinstance(hook, WeightNorm) for hook in hooks.values()):
                self._values.append(([*hooks.values()], hooks.values()))
            else:
                raise Unwatchable(f"an inner {type(module).__name__} has hooks")

    def _add(self, value: Any, depth: int) -> None:
        """Watch an attribute's contents if they can change."""
        if isinstance(value, nn.Module):
            if value not in self._modules:
                raise Unwatchable(f"a {type(value).__name__} is kept outside the model's children")
            return
        if isinstance(value, (*_PLAIN, torch.Tensor)) or callable(value):
            return
        if id(value) in self._seen or depth > _MAX_DEPTH or len(self._seen) > _MAX_OBJECTS:
            return
        self._seen[id(value)] = value
        live = _contents(value)
        if live is None:
            return
        self._values.append(([*live], live))
        if isinstance(value, dict):
            self._values.append(([*value], value.keys()))
        for part in live:
            self._add(part, depth + 1)


class _Watched:
    """A view of the outer model's attributes, without the ignored ones."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return (value for name, value in self._state.items() if name not in _IGNORED)


def _contents(value: Any) -> Any:
    """Return a live view of an object's contents; None if it has none."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    state = getattr(value, "__dict__", None)
    return state.values() if isinstance(state, dict) else None
