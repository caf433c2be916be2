"""Errors, devices and small things, by the names they have in MXNet.

`mx.base`, `mx.context` and `mx.util` are this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import UpconvError

_DEVICES = ("cpu", "gpu", "cpu_pinned", "cpu_shared")


class MXNetError(UpconvError, RuntimeError):
    """An operator refuses its arguments, or a graph is not complete; the message says why."""


def _also(kind: type[Exception]) -> type[MXNetError]:
    """The error that is one of Python's kinds too, as MXNet's Python layers raise it."""
    names = {"__doc__": f"An `MXNetError` that is a {kind.__name__}.", "__module__": __name__}
    return type(f"MXNet{kind.__name__}", (MXNetError, kind), names | {"__str__": Exception.__str__})


MXNetTypeError, MXNetValueError, MXNetIndexError, MXNetKeyError, MXNetAssertionError = map(
    _also, (TypeError, ValueError, IndexError, KeyError, AssertionError)
)


def require(condition: Any, text: str) -> None:
    """Raise `MXNetAssertionError` with this text unless the condition holds."""
    if not condition:
        raise MXNetAssertionError(text)


class DeferredInitializationError(MXNetError):
    """A parameter is asked for before a first forward call has said what its shape is."""


@contextmanager
def raised_by(name: str) -> Iterator[None]:
    """Whatever goes wrong with the arguments of the operator called `name`, as an `MXNetError`."""
    try:
        yield
    except MXNetError:
        raise
    except (UpconvError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
        kinds = (MXNetIndexError, MXNetTypeError, MXNetValueError)
        kind = next((k for k in kinds if isinstance(error, k.__bases__[1])), MXNetError)
        raise kind(f"{name}: {error}") from error


def ordered(nodes: Iterable[Any], parents: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """The nodes of a graph that these depend on, and they, each after its parents."""
    seen, done = set(), []
    stack = [(node, False) for node in reversed([*nodes])]
    while stack:
        node, left = stack.pop()
        if left:
            done.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(parent, False) for parent in reversed([*parents(node)])]
    return done


@dataclass(frozen=True, repr=False)
class Context:
    """A device by name and number, usable in a `with` block; all compute on this processor.

    A GPU can be named, so that scripts can ask for one, but `num_gpus()` is 0, and making an array
    there raises `MXNetError`.
    """

    device_type: str
    device_id: int = 0

    def __post_init__(self) -> None:
        if self.device_type not in _DEVICES:
            known = ", ".join(_DEVICES)
            raise MXNetError(f"device_type is {self.device_type!r}; expected one of {known}.")

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        pass


Device = Context


cpu, gpu = partial(Context, "cpu"), partial(Context, "gpu")
"""The processor; and the name of a GPU, on which no array can be made."""
current_context = current_device = cpu
"""Where arrays are made when nothing else is said."""


def num_gpus() -> int:
    """0: this front end computes on the processor."""
    return 0


def require_processor(ctx: Any) -> None:
    """Raise `MXNetError` for a GPU; None and lists of one device are as good as the processor."""
    device = ctx[0] if isinstance(ctx, list) else ctx
    if isinstance(device, str):
        device = Context(device)
    if device is not None and device.device_type == "gpu":
        raise MXNetError(f"ctx is {device}; upconv.mxnet computes on the processor: use mx.cpu().")


def absent(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has a part of what MXNet's has."""

    def missing(name: str) -> Any:
        raise AttributeError(
            f"upconv.mxnet has no {module}{name}; docs/mxnet.md lists what it has."
        )

    return missing


def nothing(*_: Any, **__: Any) -> None:
    """Nothing: every call computes at once, and arrays of `mx.np` always have NumPy's rules."""


set_np = reset_np = nothing


def use_np(func: Any) -> Any:
    """The function or class as it is."""
    return func


use_np_array = use_np_shape = use_np


def np_shape(active: bool = True) -> AbstractContextManager[None]:
    """A block of code in which MXNet 1 has arrays without axes; here they always exist."""
    return nullcontext()


np_array = np_shape


def is_np_array() -> bool:
    """True: both kinds of arrays are there at any time."""
    return True


is_np_shape = is_np_array


def py_str(value: bytes | str) -> str:
    """Text from what a callback is given."""
    return value.decode() if isinstance(value, bytes) else value
