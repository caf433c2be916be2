"""Modules that change how they compute where they stand, and change back.

A swapped module stays the same object: its parameters, hooks, parametrizations and every reference
to it are as they were, and so are the keys of `state_dict`. Only its class is another one, made
from its own and a function that takes the place of `forward`. Such a class is not importable by
name; pickling and copying go by the original class and the function, which are.

What lives here: classes. What never does: what a swapped module computes.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from functools import update_wrapper
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from .refusals import TensorArgumentError

Forward = Callable[..., Any]
"""A function (module, ...) at the top level of a module, which takes the place of `forward`."""

_ORIGINAL, _FORWARD, _SELF = "_upconv_original", "_upconv_forward", "_upconv_class"
_KEPT = "_upconv"
"""The attribute in which a swapped module keeps what its new way of computing needs."""


def swap(module: nn.Module, forward: Forward, kept: object = None) -> None:
    """Let `module` compute by `forward` from now on; `kept` is there as `kept_by(module)`."""
    own: Any = type(module)
    if parametrize.is_parametrized(module):
        # Such a class belongs to its module alone, and its first base is the class without
        # parametrizations, which torch goes back to when they are removed: ours has to be there.
        base = swapped_class(own.__bases__[0], forward)
        made: Any = type(own.__name__, (base,), {**_names(own), _ORIGINAL: own})
        setattr(made, _SELF, made)
        _turn(module, made)
    else:
        _turn(module, swapped_class(own, forward))
    module.__dict__[_KEPT] = kept


def _turn(module: nn.Module, own: Any) -> None:
    """Give a module another class, past a `__setattr__` of its own."""
    object.__setattr__(module, "__class__", own)


def swappable(module: nn.Module, forward: Forward) -> bool:
    """Whether a class that does the same can be made from the module's own.

    Such a class may want keywords, and `super(type(self), self)` would never end in another one.

    >>> class Named(nn.Module):
    ...     def __init_subclass__(cls, *, name):
    ...         cls.name = name
    >>> class Up(Named, name="up"):
    ...     pass
    >>> swappable(Up(), Up.forward), swappable(nn.ReLU(), nn.ReLU.forward)
    (False, True)
    """
    own: Any = original_class(module)
    if is_derived(module) or any(map(_asks_super_of_itself, _functions(own))):
        return False
    try:
        swapped_class(own, forward)
    except Exception:  # the code of anybody's class
        return False
    return True


def unswap(module: nn.Module) -> None:
    """The module as it was before `swap`; nothing happens to one that was not swapped.

    A class that was made from ours since then, as torch does for parametrizations, is made anew
    from the original. Where that cannot be, the class stays, and computes as the original does.
    """
    module.__dict__.pop(_KEPT, None)
    if is_swapped(module):
        try:
            _turn(module, _without_ours(type(module)))
        except Exception:  # the code of anybody's class
            return


def _without_ours(own: Any) -> Any:
    """A class with the original in the place of each swapped class among its bases."""
    original = vars(own).get(_ORIGINAL)
    if _FORWARD in vars(own):
        return original
    bases = tuple(map(_without_ours, own.__bases__))
    if bases == own.__bases__:
        return own
    names = _names(own)
    if any(map(_asks_super, names.values())):
        return own
    if original is not None and names == _names(original):
        return original
    return type(own)(own.__name__, bases, names)


def _names(own: Any) -> dict[str, Any]:
    """What stands in a class itself, but for what Python and we put there."""
    ours = ("__dict__", "__weakref__", _ORIGINAL, _SELF)
    return {name: value for name, value in vars(own).items() if name not in ours}


def _asks_super(value: Any) -> bool:
    """Whether a function knows the very class that it was written in."""
    code = getattr(value, "__code__", None)
    return code is not None and "__class__" in code.co_freevars


def _functions(own: Any) -> Iterator[Any]:
    """The functions of a class and its bases, PyTorch's own aside."""
    for base in own.__mro__:
        if base is not object and not base.__module__.startswith("torch."):
            for value in vars(base).values():  # of properties and of class methods, what they call
                yield getattr(value, "fget", getattr(value, "__func__", value))


def _asks_super_of_itself(function: Any) -> bool:
    """Whether a function may ask for `super` of the class that its object has then."""
    if type(function) is not FunctionType:
        return False
    names = function.__code__.co_names
    if not _BASES.isdisjoint(names):
        return True
    if "super" not in names:
        return False
    read = [each for each in dis.get_instructions(function) if each.opname not in _NO_STEPS]
    for step, first, second in zip(read, read[1:], [*read[2:], read[-1]], strict=False):
        if step.opname == "LOAD_GLOBAL" and step.argval == "super":
            bare = first.opname in ("PRECALL", "CALL")
            named = first.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and first.argval != "type"
            if not bare and (not named or second.argval == "__class__"):
                return True
    return False


_BASES = {"__base__", "__bases__", "__mro__", "mro"}
_NO_STEPS = {"CACHE", "EXTENDED_ARG", "PUSH_NULL"}


def is_swapped(module: nn.Module) -> bool:
    """Whether the module computes by a function of ours.

    >>> is_swapped(nn.ReLU())
    False
    """
    return hasattr(type(module), _ORIGINAL)


def is_as_swapped(module: nn.Module) -> bool:
    """Whether the module has the very class that `swap` gave it.

    >>> is_as_swapped(nn.ReLU())
    False
    """
    own = type(module)
    return getattr(own, _SELF, None) is own


def is_derived(module: nn.Module) -> bool:
    """Whether others, torch for parametrizations say, made the module's class from a swapped one.

    >>> is_derived(nn.ReLU())
    False
    """
    return is_swapped(module) and not is_as_swapped(module)


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


def calls_as_torch_does(own: type[nn.Module]) -> bool:
    """Whether calling a module of this class runs its hooks and its `forward`, and nothing else.

    >>> class Loud(nn.ReLU):
    ...     def __call__(self, x):
    ...         return super().__call__(x) + 1
    >>> calls_as_torch_does(nn.ReLU), calls_as_torch_does(Loud)
    (True, False)
    """
    return all(getattr(own, name) is getattr(nn.Module, name) for name in _CALLS)


_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__")


def swapped_class(original: Any, forward: Forward) -> Any:
    """A class like `original` that computes by `forward`; the same one while it lives."""
    for known in type.__subclasses__(original):  # which Python holds weakly
        own = vars(known)
        if own.get(_ORIGINAL) is original and own.get(_FORWARD) is forward and _SELF in own:
            return known  # and not one whose making failed halfway
    names = {
        "forward": _signed(forward, original.forward),
        "__reduce_ex__": _reduced,
        "__prepare_scriptable__": _no_script,
        "__module__": original.__module__,
        "__doc__": original.__doc__,
        _ORIGINAL: original,
        _FORWARD: forward,
    }
    made: Any = type(original)(f"Accelerated{original.__name__}", (original,), names)
    # Registries of classes have heard of another name; code that asks for its own finds it.
    made.__name__, made.__qualname__ = original.__name__, original.__qualname__
    setattr(made, _SELF, made)
    return made


def _reduced(self: nn.Module, protocol: Any) -> Any:
    own = type(self)
    original = getattr(own, _ORIGINAL)
    told = original.__reduce__ is not object.__reduce__
    if told or original.__reduce_ex__ is not object.__reduce_ex__:
        function, *rest = original.__reduce_ex__(self, protocol)  # as the class wants it
        return original if function is own else function, *rest
    args, kwargs = _arguments_of_new(self)
    state = self.__getstate__()  # raises for parametrized modules, as torch has it
    return _rebuilt, (original, getattr(own, _FORWARD), args, kwargs), state


def _arguments_of_new(module: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if hasattr(module, "__getnewargs_ex__"):
        args, kwargs = module.__getnewargs_ex__()
        return tuple(args), dict(kwargs)
    return tuple(module.__getnewargs__()) if hasattr(module, "__getnewargs__") else (), {}


def _no_script(self: nn.Module) -> None:
    got = f"a model with an accelerated {original_class(self).__name__}"
    remedy = "Use a restored model: upconv.torch.restore(model)."
    raise TensorArgumentError("obj", got, "a model as torch.jit.script can read it", remedy)


def _signed(forward: Any, original: Any) -> Any:
    """The function with the signature of the one whose place it takes, as tracers ask for it."""
    signed = FunctionType(forward.__code__, forward.__globals__, forward.__name__)
    signed.__defaults__, signed.__kwdefaults__ = forward.__defaults__, forward.__kwdefaults__
    return update_wrapper(signed, original)


def _rebuilt(
    original: Any, forward: Forward, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    own = swapped_class(original, forward)
    return own.__new__(own, *args, **(kwargs or {}))
