"""The data of a model's tensors: whether it is there, and where it lies when it lies outside.

A tensor declares a shape of n elements of b bits. Its data is

1. in raw_data: ceil(n*b/8) bytes, or
2. in the list of its element type, with as many entries as n asks for (`_LISTS`), or
3. outside, in a file in the model's own folder: that many bytes from an offset on, or
4. nowhere, which is right for n = 0 alone: a declared shape never makes anybody allocate.

An outside file may be in a folder below the model's, and either may be a link; where links lead,
the file must be in the folder of the model they lead to. Outside data is memory mapped when it is
used, each time anew, and nothing is kept of it.

What lives here: single tensors. What never does: where in a model they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx_ir as ir
from onnx import TensorProto

from ..arrays import Array
from ..errors import FileError, ModelError, brief
from ..files import opened, reported

_DIRECT = 1
_BYTES = {
    **dict.fromkeys(("INT32", "INT16", "UINT16", "INT8", "UINT8", "BOOL", "FLOAT16"), _DIRECT),
    **dict.fromkeys(("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2"), _DIRECT),
    **dict.fromkeys(("FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT6E2M3", "FLOAT6E3M2"), _DIRECT),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 2),
    **dict.fromkeys(("INT2", "UINT2"), 4),
}
_LISTS: dict[str, dict[str, int]] = {
    "int32_data": _BYTES,
    "int64_data": {"INT64": _DIRECT},
    "uint64_data": {"UINT64": _DIRECT, "UINT32": _DIRECT},
    "float_data": {"FLOAT": _DIRECT},
    "double_data": {"DOUBLE": _DIRECT},
    "string_data": {"STRING": _DIRECT},
}
"""List -> element type it may hold -> elements per entry; complex ones take two entries each."""
_COMPLEX = {"COMPLEX64": "float_data", "COMPLEX128": "double_data"}

_MOST_AXES = 64  # NumPy's own
_MOST_DIGITS = 18  # of an offset or a length: below 2**63


@dataclass(frozen=True, slots=True)
class Folder:
    """Where outside data may lie: beside the model at `model`, or beside where that leads."""

    model: Path

    def find(self, location: str) -> Path:
        """The file at a location that a model names; raises `ModelError` for one outside."""
        anchored = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
        if not location or anchored or "\0" in location:
            raise ModelError(
                f"Its data lies at {brief(location)}; expected a path from the model's own folder."
            )
        folder, beside = self.model.parent, Path(os.path.realpath(self.model)).parent
        named, real = os.path.normpath(folder / location), Path(os.path.realpath(folder / location))
        inside = real.is_relative_to(os.path.realpath(folder)) or real.parent == beside
        if not (inside and Path(named).is_relative_to(os.path.normpath(folder))):
            raise ModelError(f"Its data lies at {brief(location)}, outside the model's folder.")
        return real


def require_data(tensor: TensorProto) -> None:
    """Raise `ModelError` unless a tensor that is not outside has the data its shape asks for."""
    dtype, count = _declared(tensor)
    if tensor.HasField("segment"):
        raise ModelError("It is a segment of a larger tensor, which is not supported.")
    lists = {field: len(getattr(tensor, field)) for field in _LISTS}
    filled = [field for field, entries in lists.items() if entries]
    if len(filled) + tensor.HasField("raw_data") > 1:
        raise ModelError("It has its data in two places.")
    if tensor.HasField("raw_data"):
        if dtype is ir.DataType.STRING:
            raise ModelError("It is of text, but has its data in raw_data.")
        _require_count("bytes", len(tensor.raw_data), nbytes(dtype, count), tensor)
    elif filled or count:
        field = filled[0] if filled else "its data"
        wanted = _entries(dtype, count, filled[0]) if filled else count
        _require_count(f"entries in {field}", lists.get(field, 0), wanted, tensor)


@dataclass(frozen=True, slots=True)
class Outside:
    """A tensor whose data lies in a file."""

    path: Path
    tensor: ir.LazyTensor


def outside(tensor: TensorProto, folder: Folder | None) -> Outside:
    """The tensor whose data lies in a file; raises `ModelError`, and `FileError` without the file.

    The file's size is looked at; nothing of it is read.
    """
    dtype, count = _declared(tensor)
    if dtype is ir.DataType.STRING:
        raise ModelError("It is of text, which cannot lie outside a model.")
    if folder is None:
        raise ModelError("Its data lies in a file; load the model by its path.")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path, wanted = folder.find(entries.get("location", "")), nbytes(dtype, count)
    offset = _number("offset", entries.get("offset", "0"))
    length = _number("length", entries.get("length", str(wanted)))
    _require_count("bytes", length, wanted, tensor)
    _require_size(path, offset + wanted)
    shape = ir.Shape(tensor.dims)
    read = partial(_mapped, path, offset, wanted, dtype, shape, tensor.name)
    properties = {entry.key: entry.value for entry in tensor.metadata_props}
    lazy = ir.LazyTensor(
        read,
        dtype=dtype,
        shape=shape,
        name=tensor.name,
        doc_string=tensor.doc_string or None,
        metadata_props=properties,
    )
    return Outside(path, lazy)


def dense_array(values: Array, indices: Array, dims: Sequence[int]) -> Array:
    """A sparse tensor written out; indices: (n, rank), or (n,) into all elements in a row.

    >>> dense_array(np.array([5.0]), np.array([[1, 0]]), (2, 2))
    array([[0., 0.],
           [5., 0.]])
    """
    dense = np.zeros(tuple(dims), values.dtype)
    if indices.ndim == 2:
        dense[tuple(indices.T)] = values
    else:
        dense.reshape(-1)[indices] = values
    return dense


def nbytes(dtype: ir.DataType, count: int) -> int:
    """The bytes of `count` elements, packed where they are smaller than a byte."""
    return -(-count * dtype.bitwidth // 8)


def _declared(tensor: TensorProto) -> tuple[ir.DataType, int]:
    """Element type and number of elements."""
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        dtype = ir.DataType.UNDEFINED
    if dtype is ir.DataType.UNDEFINED:
        raise ModelError(f"Its element type, {tensor.data_type}, is none that onnx-ir knows.")
    if len(tensor.dims) > _MOST_AXES:
        raise ModelError(f"It has {len(tensor.dims)} axes; expected at most {_MOST_AXES}.")
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"Its shape {_shape(tensor)} has a negative size.")
    return dtype, prod(tensor.dims)


def _shape(tensor: TensorProto) -> str:
    return brief(tuple(tensor.dims))


def _entries(dtype: ir.DataType, count: int, field: str) -> int:
    if _COMPLEX.get(dtype.name) == field:
        return 2 * count
    if dtype.name not in _LISTS[field]:
        raise ModelError(f"It is of type {dtype.name}, but has its data in {field}.")
    return -(-count // _LISTS[field][dtype.name])


def _require_count(what: str, got: int, wanted: int, tensor: TensorProto) -> None:
    if got != wanted:
        kind = ir.DataType(tensor.data_type).name
        raise ModelError(
            f"It has {got} {what}; expected {wanted} for the shape {_shape(tensor)} of {kind}."
        )


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ModelError(f"The {key} of its data is {brief(text)}; expected a number of bytes.")
    return int(text)


def _require_size(path: Path, end: int) -> None:
    with reported(str(path), "read"), opened(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size < end:
        raise FileError(f"{brief(str(path))} has {size} bytes, but its data ends at byte {end}.")


def _mapped(
    path: Path, offset: int, wanted: int, dtype: ir.DataType, shape: ir.Shape, name: str
) -> ir.TensorProtocol:
    if not wanted:
        return ir.Tensor(np.empty(shape.numpy(), dtype.numpy()), dtype=dtype, name=name)
    _require_size(path, offset + wanted)  # a file that was cut since would end the process
    return ir.ExternalTensor(path, offset, wanted, dtype, shape=shape, name=name)
