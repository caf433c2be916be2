"""Validation of callers' arrays, both operands and `out`.

Operands are NumPy arrays, or objects with `__array__` or `__dlpack__` in this process's memory.
Their dtype is float16, bfloat16 (ml_dtypes), float32 or float64. Any strides are allowed, and
read-only arrays too. Only arrays in another byte order are copied. Lists, integers, complex
numbers, masked arrays and arrays on another device are refused with a reason. `as_operand` also
accepts arrays on NVIDIA GPUs (`devices`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from . import memory
from .argument_checks import frozen, integer
from .devices import DeviceArray, device_array
from .errors import ArgumentError, DTypeError, ShapeError, brief
from .problem import DType

Array = NDArray[Any]

_ACCEPTED = "float16, bfloat16, float32 or float64"
_FLOATS = "upconv computes only on real floating-point numbers."
_NEW = "Make one with numpy.empty(shape, dtype), or let upconv allocate it."
_ON_THE_HOST = 1  # DLPack's device type for main memory
_HOST_ONLY = (
    "Copy it to the CPU first. Only conv_transpose, conv, their gradients and plans accept arrays"
    " on NVIDIA GPUs."
)


def as_array(argument: str, value: object) -> Array:
    """Return `value` as an array of a supported dtype, copied only to change its byte order."""
    array = on_host(argument, value)
    if array.dtype in _KNOWN:  # `_KNOWN` holds only native byte orders
        return array
    if not array.dtype.isnative:
        native = array.dtype.newbyteorder("=")
        element_type(f"{argument}.dtype", native)
        array = _astype(f"{argument} in native byte order", array, native)
    element_type(f"{argument}.dtype", array.dtype)
    return array


def as_operand(argument: str, value: object) -> Array:
    """Return the result of `as_array`, or a `DeviceArray` for an array on an NVIDIA GPU. Both are
    typed as `Array`, since callers treat them alike."""
    if type(value) is not np.ndarray:
        operand: Any = device_array(argument, value)
        if operand is not None:
            return cast(Array, operand)
    elif value.dtype in _KNOWN:
        return value  # the result of `as_array`, without its two calls
    return as_array(argument, value)


def optional_operand(argument: str, value: object) -> Array | None:
    """Return the result of `as_operand`, or None for None."""
    return None if value is None else as_operand(argument, value)


def on_host(argument: str, value: object) -> Array:
    """Return `value` as a plain NumPy array of any dtype; `DTypeError` if it is not an array."""
    return value if type(value) is np.ndarray else _as_numpy(argument, value)


def array_or_numbers(argument: str, value: object, dtype: np.dtype[Any] | None) -> Array:
    """Return an array in native byte order from an array, a number or nested lists of numbers.

    dtype: the dtype for numbers and lists. NumPy's default is used for None, and for numbers that
    cannot be cast to it.
    """
    if not isinstance(value, list | tuple | bool | int | float):
        array = on_host(argument, value)
        return array if array.dtype.isnative else copied(argument, array)
    try:
        plain = np.asarray(value)
        fits = dtype is None or np.can_cast(plain.dtype, dtype, "same_kind")
        return np.array(value, dtype) if fits else plain
    except Exception as error:  # objects in lists run third-party code
        got = f"{brief(value)} (NumPy says: {' '.join(str(error).split())[:200]})"
        raise DTypeError(argument, got, "an array, or numbers in lists") from None


def converted(argument: str, value: object, dtype: object) -> Array:
    """Return the result of `as_operand`, converted to `dtype` unless that is None."""
    array = as_operand(argument, value)
    if dtype is None:
        return array
    kind = dtype_of(dtype)
    if isinstance(array, DeviceArray):
        same_dtype("dtype", kind, argument, array.dtype)
        return array
    return _astype(f"{argument} as {kind}", array, kind)


def copied(purpose: str, array: Array) -> Array:
    """Return a contiguous copy in native byte order; `MemoryLimitError` if it does not fit."""
    if isinstance(array, DeviceArray):
        return array.copy()
    return _astype(purpose, array, array.dtype.newbyteorder("="), copy=True)


def _astype(purpose: str, array: Array, dtype: np.dtype[Any], *, copy: bool = False) -> Array:
    """Call `array.astype` if there is memory for it; overflow to infinity is a valid result."""
    if array.dtype == dtype and not copy:
        return array
    memory.require(array.size * dtype.itemsize, purpose)
    try:
        with np.errstate(all="ignore"):
            result: Array = array.astype(dtype, order="C")
    except MemoryError as error:
        raise memory.refused(purpose, error) from None
    return result


_AS_SHAPE = "Write it in the form of an array's .shape."


def as_shape(argument: str, value: object) -> tuple[int, ...]:
    """Return a shape as a tuple of non-negative ints."""
    try:
        shape = frozen(argument, value, depth=1)
    except DTypeError:
        if isinstance(value, list | tuple) or not hasattr(type(value), "shape"):
            raise
        got, remedy = f"of type {type(value).__name__}", "Pass the array's shape, as in x.shape."
        raise DTypeError(argument, got, "a tuple of ints", remedy) from None
    if not isinstance(shape, tuple):
        raise DTypeError(argument, brief(value), "a tuple of ints", _AS_SHAPE)
    return tuple(
        integer(f"{argument}[{i}]", size, 0, remedy=_AS_SHAPE, kind=ShapeError)
        for i, size in enumerate(shape)
    )


class Operand(NamedTuple):
    """Shape and dtype of an array (a NamedTuple, since it is hashed on every call)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@overload
def described(array: Array) -> Operand: ...
@overload
def described(array: Array | None) -> Operand | None: ...
def described(array: Array | None) -> Operand | None:
    """Return the shape and dtype of an array; None for None."""
    return None if array is None else Operand(array.shape, array.dtype)


def element_type(argument: str, dtype: np.dtype[Any]) -> DType:
    """Return the `DType` of a NumPy dtype; `DTypeError` names `argument` if there is none."""
    known = _KNOWN.get(dtype)
    if known is not None:
        return known
    if dtype.name == DType.BFLOAT16.value:  # the array's owner imported ml_dtypes
        if dtype.isnative:
            _KNOWN[dtype] = DType.BFLOAT16  # since looking up the name takes a microsecond
        return DType.BFLOAT16
    raise DTypeError(argument, str(dtype)[:80], _ACCEPTED, _remedy(dtype))


def dtype_of(name: object) -> np.dtype[Any]:
    """Return the NumPy dtype of a `dtype=` argument; `DTypeError` if it is not supported."""
    if isinstance(name, str) and name == DType.BFLOAT16.value:
        return DType.BFLOAT16.numpy
    try:
        dtype: np.dtype[Any] = np.dtype(name).newbyteorder("=")  # type: ignore[call-overload]
    except Exception:  # NumPy raises various errors for invalid dtypes
        raise DTypeError("dtype", brief(name), _ACCEPTED, _FLOATS) from None
    if dtype not in _KNOWN and dtype.name != DType.BFLOAT16.value:
        raise DTypeError("dtype", brief(name), _ACCEPTED, _FLOATS)
    return dtype


def same_dtype(first: str, expected: np.dtype[Any], second: str, actual: np.dtype[Any]) -> None:
    """Raise `DTypeError` unless two operands have the same dtype."""
    if expected != actual:
        remedy = f"Convert one of them, as in {second}.astype('{expected}')."
        wanted = f"{expected}, the dtype of {first}"
        raise DTypeError(f"{second}.dtype", str(actual), wanted, remedy)


def check_out(argument: str, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return `out` as a plain array if a result of `shape` and `dtype` can be written into it."""
    if type(out) is not np.ndarray and not isinstance(out, DeviceArray):
        if not isinstance(out, np.ndarray) or _is_masked(out):
            kind = f"of type {type(out).__name__}"
            raise DTypeError(argument, kind, "a numpy.ndarray or None", _NEW)
        out = np.ndarray.view(out, np.ndarray)
    target: Array = out
    if target.shape != shape:
        remedy = "Results are never broadcast."
        raise ShapeError(f"{argument}.shape", str(target.shape), str(shape), remedy)
    if target.dtype != dtype:
        raise DTypeError(f"{argument}.dtype", str(target.dtype), str(dtype), _NEW)
    if isinstance(out, DeviceArray):
        pairs, words = zip(out.shape, out.strides, strict=True), ""
        shared = any(size > 1 and not step for size, step in pairs)
    elif not target.flags.writeable:
        raise ArgumentError(argument, "read-only", "a writeable array", "Pass a copy.")
    else:
        words = " in which elements share memory"
        shared = not target.flags.c_contiguous and _overlaps_itself(target)
    if shared:
        got = f"an array with strides {target.strides}{words}"
        raise ArgumentError(argument, got, "an array whose elements are separate", "Pass a copy.")
    return target


def _is_masked(value: object) -> bool:
    """Return whether `value` is a masked array, without importing numpy.ma, which takes 8 ms."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return masked is not None and isinstance(value, masked)


def overlap(array: Array, others: Iterable[Array | None]) -> bool:
    """Return whether `array` may share memory with another (by bounds, so False is certain)."""
    if isinstance(array, DeviceArray):
        return any(_spans_meet(array, other) for other in others if other is not None)
    for other in others:  # noqa: SIM110 (`any` takes twice as long, on every call)
        if other is not None and np.may_share_memory(array, other):
            return True
    return False


def _spans_meet(first: DeviceArray, second: Any) -> bool:
    one: range = first.span
    other: range = second.span
    return max(one.start, other.start) < min(one.stop, other.stop)


def shares_memory(first: Array, second: Array) -> bool:
    """Return whether two arrays share an element; True if NumPy cannot tell within `max_work`."""
    if isinstance(first, DeviceArray):
        return _spans_meet(first, second)
    try:
        return np.shares_memory(first, second, max_work=100_000)  # type: ignore[arg-type]  # stub is narrow
    except np.exceptions.TooHardError:
        return True


def _as_numpy(argument: str, value: object) -> Array:
    """Convert an object other than a plain NumPy array by `__array__` or `__dlpack__`."""
    if _is_masked(value):
        remedy = "Fill it first: x.filled(0)."
        raise DTypeError(argument, "a masked array", "an array without a mask", remedy)
    if isinstance(value, np.ndarray):
        return np.ndarray.view(value, np.ndarray)
    kind = type(value)
    protocols = [name for name in _CONVERSIONS if hasattr(kind, name)]
    if not protocols:
        got = f"{brief(value)} ({kind.__name__})"
        expected = "an array, or an object with __array__ or __dlpack__"
        remedy = f"For numbers in a list write np.asarray({argument}, dtype=np.float32)."
        raise DTypeError(argument, got, expected, remedy)
    _require_host(argument, value)
    reasons = []
    for name in protocols:
        try:
            array = _CONVERSIONS[name](value)
        except Exception as error:  # third-party code may raise anything
            reasons.append(f"{name} failed ({brief(error)})")
            continue
        if _is_masked(array):
            return _as_numpy(argument, array)
        return array
    got = f"an object of type {kind.__name__} whose {' and '.join(reasons)}"
    remedy = "Detach it, copy it to the CPU, or convert it to a NumPy array first."
    raise DTypeError(argument, got, "an array that NumPy can read", remedy)


def _require_host(argument: str, value: object) -> None:
    """Refuse an array that reports another device; accept an array that reports none."""
    try:
        device = tuple(map(int, value.__dlpack_device__()))  # type: ignore[attr-defined]
    except Exception:  # third-party code; its __array__ may still work
        return
    if device[:1] != (_ON_THE_HOST,):
        got = f"an object of type {type(value).__name__} on DLPack device {device}"
        raise DTypeError(argument, got, "an array in main memory", _HOST_ONLY)


_CONVERSIONS: dict[str, Callable[[Any], Array]] = {
    "__array__": np.asanyarray,
    "__dlpack__": np.from_dlpack,
}


def _overlaps_itself(array: Array) -> bool:
    """Return whether two elements may share memory; False for every view that slicing can make."""
    reach = array.itemsize
    for stride, count in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if count > 1 and array.size:
            if stride < reach:
                return True
            reach += stride * (count - 1)
    return False


def _remedy(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iub":
        return "Integers are not supported: convert with .astype(np.float32)."
    if dtype.kind == "c":
        return "The operator is linear: pass the real and the imaginary part in separate calls."
    if dtype == np.dtype("V2"):
        return "NumPy reads bfloat16 files as raw bytes: convert with .view(ml_dtypes.bfloat16)."
    return "Convert with .astype(np.float32)."


_KNOWN = {np.dtype(kind.value): kind for kind in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)}
