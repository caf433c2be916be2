"""Data by tensor id, as callers give them, checked against what is known of the tensors.

What lives here: arrays, mappings and lists at the border. What never does: what is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import Array, as_array
from ..errors import DTypeError, ShapeError, brief
from .logical_tensors import DataType, LogicalTensor

_MOST_SIZES = 12  # of a tensor of sizes: no tensor has more dimensions


def as_data(tensor: LogicalTensor, value: object) -> Array:
    """`value` as an array of a tensor's type; `DTypeError` where it is none.

    >>> as_data(LogicalTensor(2, "s32"), [1, 6, 3])
    array([1, 6, 3], dtype=int32)
    """
    name = f"data[{tensor.id}]"
    if tensor.data_type == DataType.S32.value:
        return _sizes(name, value)
    array = as_array(name, value)
    if array.dtype != tensor.dtype:
        expected = f"{tensor.dtype}, which {tensor.data_type} is"
        raise DTypeError(f"{name}.dtype", str(array.dtype), expected, "Convert it first.")
    return array


def checked(tensor: LogicalTensor, value: object) -> Array:
    """`as_data`, of the very shape of a tensor whose dims are known."""
    array = as_data(tensor, value)
    if array.shape != tensor.shape:
        remedy = "Compile for this shape."
        raise ShapeError(
            f"data[{tensor.id}].shape", str(array.shape), f"{tensor.shape}, as compiled", remedy
        )
    return array


def described(name: str, lists: Sequence[Iterable[LogicalTensor]]) -> list[LogicalTensor]:
    """Logical tensors out of several lists; `DTypeError` for anything else."""
    found = []
    for given in lists:
        if not isinstance(given, list | tuple):
            raise DTypeError(name, brief(given), "a list of LogicalTensor")
        for tensor in given:
            if not isinstance(tensor, LogicalTensor):
                raise DTypeError(name, f"one with {brief(tensor)}", "a list of LogicalTensor")
            found.append(tensor)
    return found


def keyed(name: str, given: object) -> dict[int, Any]:
    """A mapping from tensor ids as a dict; `DTypeError` for anything else."""
    if not isinstance(given, Mapping) or not all(
        isinstance(key, int | np.integer) and not isinstance(key, bool) for key in given
    ):
        got = f"a {type(given).__name__}"
        if isinstance(given, Mapping):
            got += f" with keys {brief(list(given))}"
        raise DTypeError(name, got, "a dict from tensor ids to arrays")
    return {int(key): value for key, value in given.items()}


def equal(first: Array, second: Array) -> bool:
    """Whether two arrays of one shape and type hold the same bits.

    >>> equal(np.array([np.nan]), np.array([np.nan]))
    True
    """
    bits = f"u{first.dtype.itemsize}"
    one, other = (np.ascontiguousarray(array).view(bits) for array in (first, second))
    return bool(np.array_equal(one, other))


def _sizes(name: str, value: object) -> Array:
    """A few integers, as s32."""
    try:
        array = np.asarray(value)
    except Exception:  # foreign __array__, ragged lists: whatever it is, it is no tensor of sizes
        raise DTypeError(name, brief(value), "a few integers") from None
    fits = array.dtype.kind in "iu" and array.size <= _MOST_SIZES
    if not fits or (array.size and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31):
        raise DTypeError(name, brief(value), "a few integers of 32 bits")
    return array.astype(np.int32)
