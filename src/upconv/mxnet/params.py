"""MXNet's `.params` files: read named arrays from untrusted files, and write them.

1. The binary form, little endian. A list: u64 0x112, u64 ignored, u64 count, the arrays, u64 count
   of names (or 0), each u64 length and UTF-8. An array: u32 magic, i32 storage (not with the first
   magic), shape of the values (sparse), shape as i32 rank and i64 sizes; i32 device and its number,
   i32 element type, type and shape of each index array (sparse), values, index arrays. The oldest
   arrays have their rank in place of a magic, u32 sizes and no storage.
2. The archive of 2.x, a `.npz`. `numpy.load` would allocate the sizes that its headers declare.
3. The reader allocates an array only if the file holds its bytes, and reads no pickle. Sparse and
   compressed arrays may grow to 64 times the file plus 1 MiB.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .. import files, memory
from ..arrays import Array
from ..errors import ArgumentError, DTypeError, ModelError, brief

Name: TypeAlias = str | os.PathLike[str]

_LIST, _FIRST, _SECOND, _NUMPY = 0x112, 0xF993FAC8, 0xF993FAC9, 0xF993FACA
TYPES = ["<f4", "<f8", "<f2", "|u1", "<i4", "|i1", "<i8", "|b1", "<i2", "<u2", "<u4", "<u8"]
_BFLOAT16, _INDICES, _MAX_AXES = 12, (4, 6), 32
_HEADER = re.compile(
    rb"\x93NUMPY(?s:\x01\0..|[\x02\x03]\0....)\{'descr': '([^']*)', "
    rb"'fortran_order': False, 'shape': \(([\d, ]{0,999})\), \} *\n"
)
_DAMAGE = (ValueError, RuntimeError, OSError, EOFError, LookupError, ArithmeticError)


def read_params(path: Name) -> dict[str, Array]:
    """Read the arrays of a `.params` file by their stored names, such as "arg:conv0_weight".

    Sparse arrays become dense, bfloat16 becomes float32, and unnamed arrays are "0", "1", ...
    Raises `FileError` for a file that cannot be read, `ModelError` for a damaged file or an array
    without a value, and `MemoryLimitError` for arrays that do not fit into memory.

    >>> read_params("/nowhere/net-0000.params")
    Traceback (most recent call last):
    upconv.errors.FileError: Cannot read '/nowhere/net-0000.params': No such file or directory.
    """
    arrays = read_arrays(path)
    return arrays if isinstance(arrays, dict) else {str(i): x for i, x in enumerate(arrays)}


def read_arrays(source: Name | bytes) -> dict[str, Array] | list[Array]:
    """Read a file, or its bytes, as `read_params` does, but return unnamed arrays as a list."""
    if isinstance(source, bytes):
        name, data = "the buffer", source
    else:
        name = files.path_text("The file of parameters", source)
        with files.reported(name, "read"), files.opened(Path(name)) as file:
            size = os.fstat(file.fileno()).st_size
            memory.require(2 * size, f"reading the parameters {brief(name)}")
            data = file.read(size)
    reader = _Reader(data, 64 * len(data) + (1 << 20))
    try:
        return _archive(reader) if data[:2] == b"PK" else _list(reader)
    except (*_DAMAGE, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise ModelError(f"{brief(name)}, {reader.section}, byte {reader.at}: {error}.") from None


def write_params(
    path: Name, arrays: Mapping[str, Array] | Sequence[Array], *, np_shape: bool = False,
    force: bool = False,
) -> None:  # fmt: skip
    """Write arrays, with or without names, to one file in the binary form.

    arrays: bool, integers, float16, bfloat16, float32 or float64. MXNet 1.9.1 reads neither int16
        nor unsigned integers other than uint8.
    np_shape: write the form that MXNet reads only under NumPy's shape semantics. 2.x has no other
        semantics; 1.x has them after `npx.set_np()`. Arrays without axes or elements need it.
    force: overwrite the file if it exists.

    Raises `DTypeError`, `ArgumentError` for a name that cannot be stored, and `FileError`. An
    error leaves no partial file.

    >>> write_params("/nowhere/net-0000.params", {"arg:w": np.ones(3, np.float32)})
    Traceback (most recent call last):
    upconv.errors.FileError: '/nowhere' is not a directory. Create it first.
    """
    named = isinstance(arrays, Mapping)
    pairs = arrays.items() if isinstance(arrays, Mapping) else (("", x) for x in arrays)
    rows = [_row(name, np.asarray(values)) for name, values in pairs]
    np_shape |= any(0 in (values.ndim, *values.shape) for _, _, values in rows)
    text = files.path_text("The file of parameters", path)
    with files.reported(text):
        target = Path(text).resolve()
        files.require_free(text, target, force=force, inputs=())
        with files.published(target, force=force) as file:
            file.write(struct.pack("<QQQ", _LIST, 0, len(rows)))
            for _, kind, values in rows:
                head = (_NUMPY if np_shape else _SECOND, 0, values.ndim, *values.shape, 1, 0, kind)
                file.write(struct.pack(f"<Iii{values.ndim}qiii", *head))
                file.write(values.reshape(-1).view(np.uint8).data)
            file.write(struct.pack("<Q", len(rows) * named))
            for name, _, _ in rows * named:
                file.write(struct.pack("<Q", len(name)) + name)


def _row(name: str, values: Array) -> tuple[bytes, int, Array]:
    """Return a name, the element type's number and the values as a file holds them."""
    if not isinstance(name, str) or re.search("[\0\ud800-\udfff]", name):
        raise ArgumentError("arrays", f"named {brief(name)}", "UTF-8 without null characters")
    if values.dtype.name == "bfloat16":
        return name.encode(), _BFLOAT16, np.asarray(values, order="C").view("<u2")
    number = type_number(values.dtype, f"{brief(name)}.dtype")
    return name.encode(), number, np.asarray(values, TYPES[number], order="C")


def type_number(dtype: np.dtype[Any], name: str = "dtype") -> int:
    """Return MXNet's number for an element type; raise `DTypeError` if there is none."""
    text = dtype.newbyteorder("<").str
    if text not in TYPES:
        raise DTypeError(name, str(dtype), "bool, integers or floats")
    return TYPES.index(text)


@dataclass
class _Reader:
    """A file's bytes, the allowance for arrays that expand, and the reading position."""

    data: bytes
    growth: int
    section: str = "the header"
    at: int = 0

    def take(self, nbytes: int) -> int:
        """Return the position of the next `nbytes` bytes, which must exist, and step over them."""
        _require(nbytes <= len(self.data) - self.at, f"the file ends, {nbytes} bytes are missing")
        self.at += nbytes
        return self.at - nbytes

    def grow(self, nbytes: int) -> None:
        self.growth -= nbytes
        _require(self.growth >= 0, f"a file of {len(self.data)} bytes expands to {nbytes}")
        memory.require(nbytes, "an array of parameters")

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack_from("<" + form, self.data, self.take(struct.calcsize("<" + form)))

    def shape(self, least: int = 1, rank: int | None = None, size: str = "q") -> tuple[int, ...]:
        rank = self.numbers("i")[0] if rank is None else rank
        _require(least <= rank <= _MAX_AXES, f"an array has {rank} axes")
        sizes = self.numbers(f"{rank}{size}")
        # NumPy refuses even an empty array if the product of its other sizes is too large.
        countable = min(sizes, default=0) >= 0 and prod(size or 1 for size in sizes) < 1 << 60
        _require(countable, f"an array has the shape {brief(sizes)}")
        return sizes

    def values(self, kind: int, shape: tuple[int, ...]) -> Array:
        _require(0 <= kind <= _BFLOAT16, f"an element type is {kind}")
        dtype, count = np.dtype([*TYPES, "<u2"][kind]), prod(shape)
        start = self.take(count * dtype.itemsize)
        values = np.frombuffer(self.data, dtype, count, start).reshape(shape)
        if kind == _BFLOAT16:
            return np.stack([np.zeros_like(values), values], axis=-1).view("<f4")[..., 0]
        # A bool may be any byte in a file.
        return values.view(np.uint8).astype(bool) if dtype.kind == "b" else values.copy()


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _list(reader: _Reader) -> dict[str, Array] | list[Array]:
    magic, _, count = reader.numbers("QQQ")
    _require(magic == _LIST, "no list of arrays starts here")
    arrays = [_array(reader, f"array {index + 1} of {count}") for index in range(count)]
    reader.section = "the names"
    (named,) = reader.numbers("Q")
    _require(named in (0, count), f"there are {named} names for {count} arrays")
    names = [str(reader.numbers(f"{reader.numbers('Q')[0]}s")[0], "utf-8") for _ in range(named)]
    _require(len({*names}) == named, "two arrays have the same name")
    _require(reader.at == len(reader.data), "more data follows in the file")
    return dict(zip(names, arrays, strict=True)) if named else arrays


def _array(reader: _Reader, section: str) -> Array:
    reader.section, storage = section, 0
    (magic,) = reader.numbers("I")
    if magic in (_SECOND, _NUMPY):
        (storage,) = reader.numbers("i")
        _require(0 <= storage <= 2 * (magic == _SECOND), f"the storage is {storage}")
    stored = reader.shape() if storage else ()
    oldest = magic not in (_FIRST, _SECOND, _NUMPY)
    shape = reader.shape(1, magic, "I") if oldest else reader.shape(magic != _NUMPY)
    kind = reader.numbers("iii")[2]
    described = [(reader.numbers("i")[0], reader.shape()) for _ in range(storage)]
    listed = all(number in _INDICES and len(sizes) == 1 for number, sizes in described)
    _require(listed, "indices are not lists of int32 or int64")
    values = reader.values(kind, stored if storage else shape)
    indices = [reader.values(*entry) for entry in described]
    return _dense(reader, shape, values, indices) if storage else values


def _dense(reader: _Reader, shape: tuple[int, ...], values: Array, indices: list[Array]) -> Array:
    """Return a dense array from row numbers, or from row pointers and columns (CSR)."""
    reader.grow(prod(shape) * values.itemsize)
    dense = np.zeros(shape, values.dtype)
    if not values.size:
        return dense
    *pointers, columns = indices
    fit = len(shape) > len(pointers) and values.shape == (len(columns), *shape[len(indices) :])
    for pointer in pointers:
        fit = fit and len(pointer) == shape[0] + 1 and bool((pointer[1:] >= pointer[:-1]).all())
        fit = fit and pointer[0] == 0 and pointer[-1] == len(columns)
        indices[0] = np.repeat(np.arange(shape[0]), np.diff(pointer)) if fit else pointer
    for index, size in zip(indices, shape, strict=False):
        fit = fit and index.min() >= 0 and index.max() < size
    _require(fit, "the parts of a sparse array do not fit each other")
    dense[tuple(indices)] = values
    return dense


def _archive(reader: _Reader) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(BytesIO(reader.data)) as archive:
        for member in archive.infolist():
            reader.section = f"member {brief(member.filename)}"
            name = member.filename.removesuffix(".npy")
            _require(name not in (member.filename, *arrays), "it is a duplicate, or not a .npy")
            reader.grow(member.file_size)
            with archive.open(member) as file:
                parts = _HEADER.split(file.read(member.file_size), 1)
            _require(len(parts) == 4 and not parts[0], "it is not a .npy of numbers in C order")
            _, kind, sizes, data = parts
            shape = tuple(int(size) for size in sizes.replace(b",", b" ").split())
            inner = _Reader(data, 0)
            arrays[name] = inner.values(TYPES.index(kind.decode()), shape)
            _require(inner.at == len(data), f"it has more bytes than the shape {brief(shape)}")
    return arrays
