"""Errors, devices and switches, under MXNet's names: `mx.base`, `mx.context` and `mx.util`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import UpconvError

_DEVICES = ("cpu", "gpu", "cpu_pinned", "cpu_shared")


class MXNetError(UpconvError, RuntimeError):
    """Arguments that an operator refuses, or an incomplete graph; the message says why."""


def _also(kind: type[Exception]) -> type[MXNetError]:
    """Create an `MXNetError` that is also a Python error, as raised by MXNet's Python code."""
    names = {"__doc__": f"An `MXNetError` that is a {kind.__name__}.", "__module__": __name__}
    return type(f"MXNet{kind.__name__}", (MXNetError, kind), names | {"__str__": Exception.__str__})


MXNetTypeError, MXNetValueError, MXNetIndexError, MXNetKeyError, MXNetAssertionError = map(
    _also, (TypeError, ValueError, IndexError, KeyError, AssertionError)
)


def require(condition: Any, message: str) -> None:
    """Raise `MXNetAssertionError` with this message unless the condition holds."""
    if not condition:
        raise MXNetAssertionError(message)


class DeferredInitializationError(MXNetError):
    """A read of a parameter before the first forward call, which determines its shape."""


@contextmanager
def raised_by(name: str) -> Iterator[None]:
    """Convert errors about the arguments of the operator `name` to `MXNetError`."""
    try:
        yield
    except MXNetError:
        raise
    except (UpconvError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
        kinds = (MXNetIndexError, MXNetTypeError, MXNetValueError)
        kind = next((k for k in kinds if isinstance(error, k.__bases__[1])), MXNetError)
        raise kind(f"{name}: {error}") from error


def ordered(nodes: Iterable[Any], parents: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """Return these nodes and all nodes on which they depend, each after its parents."""
    seen, result = set(), []
    stack = [(node, False) for node in reversed([*nodes])]
    while stack:
        node, after_parents = stack.pop()
        if after_parents:
            result.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(parent, False) for parent in reversed([*parents(node)])]
    return result


@dataclass(frozen=True, repr=False)
class Context:
    """A device by name and number; it may be used in a `with` block.

    All arrays are computed on the processor: a GPU can be named, but `num_gpus()` is 0, and
    creating an array on it raises `MXNetError`.
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
"""The processor, and a GPU, on which no array can be created."""
current_context = current_device = cpu
"""The default device."""


def num_gpus() -> int:
    """Return 0: this front end computes on the processor."""
    return 0


def require_processor(ctx: Any) -> None:
    """Raise `MXNetError` for a GPU; a list of one device counts as the device."""
    device = ctx[0] if isinstance(ctx, list) else ctx
    if isinstance(device, str):
        device = Context(device)
    if device is not None and device.device_type == "gpu":
        raise MXNetError(f"ctx is {device}; upconv.mxnet computes on the processor: use mx.cpu().")


def absent(module: str) -> Callable[[str], Any]:
    """Create a `__getattr__` for a module that has only some of MXNet's names."""

    def missing(name: str) -> Any:
        raise AttributeError(
            f"upconv.mxnet has no {module}{name}; docs/mxnet.md lists what it has."
        )

    return missing


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing: calls compute immediately, and arrays of `mx.np` always have NumPy's rules."""


set_np = reset_np = nothing


def use_np(func: Any) -> Any:
    """Return the function or class unchanged."""
    return func


use_np_array = use_np_shape = use_np


def np_shape(active: bool = True) -> AbstractContextManager[None]:
    """Return a context that does nothing: arrays without axes or elements always exist here."""
    return nullcontext()


np_array = np_shape


def is_np_array() -> bool:
    """Return True: both kinds of arrays always exist."""
    return True


is_np_shape = is_np_array


def py_str(value: bytes | str) -> str:
    """Decode a name that a monitor's callback receives."""
    return value.decode() if isinstance(value, bytes) else value
