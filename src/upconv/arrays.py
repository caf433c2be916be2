"""Taking arrays from callers: what is accepted, what is refused, and what a result may be put into.

Accepted: NumPy arrays and everything with `__array__` or `__dlpack__` that lies in this process's
memory; float16, bfloat16 (ml_dtypes), float32 and float64; any strides; read-only. Nothing is
copied unless its bytes are in the other order. Refused in words: lists, integers, complex numbers,
masked arrays, arrays on another device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from .arguments import frozen
from .errors import ArgumentError, DTypeError, ShapeError, brief
from .geometry import LIMIT
from .problem import DType

Array = NDArray[Any]

_ACCEPTED = "float16, bfloat16, float32 or float64"
_ON_THE_HOST = 1  # DLPack's device type of ordinary memory


def as_array(argument: str, value: object) -> Array:
    """`value` as a NumPy array of a supported type in native byte order, without a copy if it can
    be.

    Raises `DTypeError` naming `argument` otherwise.

    >>> as_array("x", np.zeros(3, np.float32)).dtype
    dtype('float32')
    """
    array = value if type(value) is np.ndarray else _foreign(argument, value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    element_type(argument, array.dtype)
    return array


def converted(argument: str, value: object, dtype: object) -> Array:
    """`as_array`, and then in `dtype` unless that is None."""
    array = as_array(argument, value)
    return array if dtype is None else array.astype(dtype_of(dtype), copy=False)


def as_shape(argument: str, value: object) -> tuple[int, ...]:
    """A shape as a tuple of non-negative ints.

    >>> as_shape("input_shape", [1, np.int64(3)])
    (1, 3)
    """
    shape = frozen(argument, value, depth=1)
    if not isinstance(shape, tuple) or any(not isinstance(size, int) for size in shape):
        raise DTypeError(argument, brief(value), "a tuple of ints")
    for i, size in enumerate(shape):
        if not 0 <= size <= LIMIT:
            raise ShapeError(
                f"{argument}[{i}]", brief(size), f"an integer from 0 to 2**48 = {LIMIT}"
            )
    return shape


def optional_array(argument: str, value: object) -> Array | None:
    """`as_array`, with None left as it is."""
    return None if value is None else as_array(argument, value)


class Operand(NamedTuple):
    """Shape and dtype of an array (a NamedTuple: it is hashed on every call)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@overload
def described(array: Array) -> Operand: ...
@overload
def described(array: Array | None) -> Operand | None: ...
def described(array: Array | None) -> Operand | None:
    """Shape and dtype of an array, None for none."""
    return None if array is None else Operand(array.shape, array.dtype)


def element_type(argument: str, dtype: np.dtype[Any]) -> DType:
    """The `DType` of a NumPy dtype; `DTypeError` naming `argument` if there is none."""
    known = _KNOWN.get(dtype)
    if known is not None:
        return known
    if dtype.name == DType.BFLOAT16.value:  # ml_dtypes, imported by whoever made the array
        return DType.BFLOAT16
    raise DTypeError(f"{argument}.dtype", str(dtype), _ACCEPTED, _remedy(dtype))


def dtype_of(name: object) -> np.dtype[Any]:
    """The NumPy dtype of a caller's `dtype=` argument; `DTypeError` if it is not supported."""
    if isinstance(name, str) and name == DType.BFLOAT16.value:
        return DType.BFLOAT16.numpy
    try:
        dtype = np.dtype(name)  # type: ignore[call-overload]
    except TypeError:
        raise DTypeError("dtype", brief(name), _ACCEPTED) from None
    element_type("dtype", dtype)
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


def same_dtype(first: str, expected: np.dtype[Any], second: str, given: np.dtype[Any]) -> None:
    """Raise `DTypeError` unless two operands have one dtype."""
    if expected != given:
        raise DTypeError(
            f"{second}.dtype",
            str(given),
            f"{expected}, the dtype of {first}",
            f"Convert one of them, as in {second}.astype('{expected}').",
        )


def check_out(argument: str, out: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """`out` if a result of `shape` and `dtype` can be written into it, by NumPy's rules."""
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise DTypeError(argument, f"of type {type(out).__name__}", "a numpy.ndarray or None")
    if out.shape != shape:
        raise ShapeError(
            f"{argument}.shape", str(out.shape), str(shape), "Results are never broadcast."
        )
    if out.dtype != dtype:
        raise DTypeError(f"{argument}.dtype", str(out.dtype), str(dtype))
    if not out.flags.writeable:
        raise ArgumentError(argument, "read-only", "a writeable array", "Pass a copy.")
    if _overlaps_itself(out):
        raise ArgumentError(
            argument,
            f"an array with strides {out.strides} in which elements share memory",
            "an array whose elements are separate",
            "Pass a copy.",
        )
    return out


def overlap(out: Array, *operands: Array | None) -> bool:
    """Whether `out` may share memory with an operand (by bounds: never a wrong False)."""
    return any(operand is not None and np.may_share_memory(out, operand) for operand in operands)


def _foreign(argument: str, value: object) -> Array:
    """An object that is no plain NumPy array, through `__array__` or `__dlpack__`."""
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeError(
            argument, "a masked array", "an array without a mask", "Fill it first: x.filled(0)."
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    device = getattr(value, "__dlpack_device__", None)
    if device is not None and not isinstance(value, type) and int(device()[0]) != _ON_THE_HOST:
        raise DTypeError(
            argument,
            f"a {type(value).__name__} on DLPack device {tuple(map(int, device()))}",
            "an array in main memory",
            "Copy it to the CPU first.",
        )
    conversions: dict[str, Callable[[Any], Array]] = {
        "__array__": np.asarray,
        "__dlpack__": np.from_dlpack,
    }
    for protocol, convert in conversions.items():
        if hasattr(type(value), protocol):
            try:
                return convert(value)
            except Exception as error:  # foreign code: whatever it raises is its refusal
                raise DTypeError(
                    argument,
                    f"a {type(value).__name__} whose {protocol} failed: {error}",
                    "an array NumPy can look at",
                    "Detach it, copy it to the CPU, or convert it to a NumPy array first.",
                ) from error
    raise DTypeError(
        argument,
        f"{brief(value)}, a {type(value).__name__}",
        "an array, or an object with __array__ or __dlpack__",
        f"For numbers in a list write np.asarray({argument}, dtype=np.float32).",
    )


def _overlaps_itself(array: Array) -> bool:
    """Whether two elements may share memory; False for every view that slicing can make."""
    reach = array.itemsize
    for stride, count in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if count > 1 and array.size:
            if stride < reach:
                return True
            reach += stride * (count - 1)
    return False


def _remedy(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iub":
        return "Integers are not computed on: convert with .astype(np.float32)."
    if dtype.kind == "c":
        return "The operator is linear: pass the real and the imaginary part one after the other."
    if dtype == np.dtype("V2"):
        return (
            "A bfloat16 file is read as raw bytes: give them the type by .view(ml_dtypes.bfloat16)."
        )
    return "Convert with .astype(np.float32)."


_KNOWN = {np.dtype(kind.value): kind for kind in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)}
