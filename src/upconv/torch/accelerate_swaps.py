"""Modules that change how they compute where they stand, and change back.

A swapped module stays the same object: its parameters, hooks, parametrizations and every reference
to it are as they were, and so are the keys of `state_dict`. Only its class is another one, made
from its own and a function that takes the place of `forward`. Such a class is not importable by
name; pickling and copying go by the original class and the function, which are.

What lives here: classes. What never does: what a swapped module computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

Forward = Callable[..., Any]
"""A function (module, ...) at the top level of a module, which takes the place of `forward`."""

_ORIGINAL = "_upconv_original"
_KEPT = "_upconv"
"""The attribute in which a swapped module keeps what its new way of computing needs."""


def swap(module: nn.Module, forward: Forward, kept: object = None) -> None:
    """Let `module` compute by `forward` from now on; `kept` is there as `kept_by(module)`."""
    own: Any = type(module)
    if parametrize.is_parametrized(module):
        # Such a class belongs to its module alone, and its first base is the class without
        # parametrizations, which torch goes back to when they are removed: ours has to be there.
        base = swapped_class(own.__bases__[0], forward)
        names: dict[str, Any] = {
            k: v for k, v in vars(own).items() if k not in ("__dict__", "__weakref__")
        }
        module.__class__ = type(own.__name__, (base,), {**names, _ORIGINAL: own})
    else:
        module.__class__ = swapped_class(own, forward)
    module.__dict__[_KEPT] = kept


def swappable(module: nn.Module, forward: Forward) -> bool:
    """Whether a class can be made from the module's own: such a class may want keywords.

    >>> class Named(nn.Module):
    ...     def __init_subclass__(cls, *, name):
    ...         cls.name = name
    >>> class Up(Named, name="up"):
    ...     pass
    >>> swappable(Up(), Up.forward), swappable(nn.ReLU(), nn.ReLU.forward)
    (False, True)
    """
    own: Any = original_class(module)
    try:
        swapped_class(own, forward)
    except Exception:  # the code of anybody's class
        return False
    return True


def unswap(module: nn.Module) -> None:
    """The module as it was before `swap`; nothing happens to one that was not swapped."""
    if is_swapped(module):
        module.__class__ = original_class(module)
        module.__dict__.pop(_KEPT, None)


def is_swapped(module: nn.Module) -> bool:
    """Whether the module computes by a function of ours.

    >>> is_swapped(nn.ReLU())
    False
    """
    return hasattr(type(module), _ORIGINAL)


def kept_by(module: nn.Module) -> Any:
    """What `swap` was given to keep; None for a module that was made from a swapped one's class.

    A slice of an `nn.Sequential` is: it computes as the original class does.
    """
    return module.__dict__.get(_KEPT)


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module before its swap.

    >>> original_class(nn.ReLU()).__name__
    'ReLU'
    """
    found: type[nn.Module] = getattr(type(module), _ORIGINAL, type(module))
    return found


def own_forward(module: nn.Module) -> Forward:
    """`forward` as it was before the swap, to be called with the module first.

    >>> own_forward(nn.ReLU()) is nn.ReLU.forward
    True
    """
    forward: Forward = original_class(module).forward
    return forward


@cache
def swapped_class(original: Any, forward: Forward) -> Any:
    """A class like `original` that computes by `forward`; the same one every time."""
    names = {
        "forward": forward,
        "__reduce_ex__": _reduced,
        "__module__": original.__module__,
        "__doc__": original.__doc__,
        _ORIGINAL: original,
    }
    return type(f"Accelerated{original.__name__}", (original,), names)


def _reduced(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    own = type(self)
    state = self.__getstate__()  # raises for parametrized modules, as torch has it
    return _rebuilt, (getattr(own, _ORIGINAL), own.forward), state


def _rebuilt(original: Any, forward: Forward) -> Any:
    own = swapped_class(original, forward)
    return own.__new__(own)
