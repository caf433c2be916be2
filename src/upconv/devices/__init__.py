"""Arrays on NVIDIA GPUs: PyTorch and CuPy directly, all other libraries through CuPy.

A `DeviceArray` is a view of a caller's array. It offers what a call needs (shape, dtype, indexing,
transposition), with memory and the stream of the array's library. upconv allocates no
memory itself, so the library's caches, limits and CUDA graphs cover everything.

Arrays of JAX, and of other libraries with `__dlpack__`, become CuPy arrays without a copy. Results
return through that library's `from_dlpack`. DLPack makes each side wait for the other's stream.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from ..errors import DTypeError
from ..forks import importing
from .arrays import DeviceArray, Library, out_of_memory

__all__ = ["DeviceArray", "Library", "device_array", "library", "out_of_memory", "same_place"]

ON_CUDA = 2
"""DLPack's device type for memory on an NVIDIA GPU."""


@lru_cache(maxsize=2)
def library(name: str) -> Library:
    """Return the library "torch" or "cupy"; `ImportError` if it is not installed."""
    with importing:
        module = import_module(f".{name}", __name__)
    instance: Library = getattr(module, name.capitalize())()
    return instance


def device_array(argument: str, value: object) -> DeviceArray | None:
    """Return the view of an array on an NVIDIA GPU; None for every other object.

    Raises `DTypeError` if an array of another library needs CuPy and CuPy is not installed.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(value, torch.Tensor):
        return library("torch").array(argument, value) if value.is_cuda else None
    if cupy is not None and isinstance(value, cupy.ndarray):
        return library("cupy").array(argument, value)
    if not hasattr(type(value), "__dlpack_device__"):
        return None
    try:
        device, number = map(int, value.__dlpack_device__())  # type: ignore[attr-defined]
    except Exception:  # third-party code; __array__ may still work
        return None
    return _through_cupy(argument, value, number) if device == ON_CUDA else None


def _through_cupy(argument: str, value: Any, number: int) -> DeviceArray:
    try:
        through: Any = library("cupy")
    except ImportError:
        got = f"an object of type {type(value).__name__} on DLPack device ({ON_CUDA}, {number})"
        remedy = "Install CuPy (cupy-cuda13x, or cupy-cuda12x), or copy it to the CPU first."
        raise DTypeError(argument, got, "a PyTorch or CuPy array there", remedy) from None
    array: DeviceArray = through.array(argument, through.module.from_dlpack(value))
    namespace = getattr(value, "__array_namespace__", None)
    array.origin = type(value).__module__.partition(".")[0]
    array.given_back = getattr(namespace() if namespace else None, "from_dlpack", None)
    return array


def same_place(named: Mapping[str, Any]) -> None:
    """Raise `DTypeError` unless the arrays, by argument name, are all in main memory, or all of one
    library and on one device."""
    present = {name: array for name, array in named.items() if array is not None}
    first = next((name for name, a in present.items() if isinstance(a, DeviceArray)), None)
    if first is None:
        return
    leader = present[first]
    for name, array in present.items():
        if isinstance(array, DeviceArray):
            if array.library is leader.library and array.device == leader.device:
                continue
            got = f"a {array.library.name} array on {array.place}"
        else:
            got = "an array in main memory"
        expected = f"a {leader.library.name} array on {leader.place}, like {first}"
        raise DTypeError(name, got, expected, "Move it there.")
