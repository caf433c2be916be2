"""Reading arrays from .npy and .npz files that nobody vouches for.

Nothing is unpickled, and nothing is allocated on the word of a header: its length is checked before
it is read, the shape it claims against the bytes that are there and against free memory. Whatever
is wrong with a file ends in a `FileError` that names it.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from .. import memory
from ..arrays import Array
from ..errors import FileError, MemoryLimitError, brief

_LONGEST_HEADER = 10_000  # NumPy's own limit for headers that nobody vouches for
_CHUNK = 1 << 20
_MOST_AXES = 32

_LENGTH_FIELDS = {(1, 0): "<H", (2, 0): "<I"}
_HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}

_UNREADABLE = (
    ValueError,
    TypeError,
    SyntaxError,
    TokenError,
    OverflowError,
    RecursionError,
    MemoryError,  # what Python's parser raises for a header nested too deep
    EOFError,
    KeyError,
    RuntimeError,  # zipfile: encrypted
    NotImplementedError,  # zipfile: a compression it does not know
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    OSError,
)
"""What NumPy's header reader and zipfile raise for a damaged or hostile file."""


def read(name: str) -> Array:
    """The array in the .npy or .npz file `name`; "file.npz:member" picks one of several.

    "-" is the standard input, which must hold a .npy. Raises `FileError`, or `MemoryLimitError` for
    an array that would not fit.
    """
    if name == "-":
        with _reported("the standard input"):
            return _array(sys.stdin.buffer, None, "the standard input")
    path, member = _split(name)
    with _reported(brief(str(path))), _regular(path).open("rb") as file:
        start = file.read(6)
        file.seek(0)
        if start[:2] == b"PK":
            return _member(file, member, name)
        if start != npy_format.MAGIC_PREFIX:
            raise FileError(f"{brief(name)} is neither a .npy nor a .npz file.")
        if member:
            raise FileError(f"{brief(str(path))} is a .npy file, which has no members.")
        return _array(file, os.fstat(file.fileno()).st_size, brief(name))


def read_all(path: Path) -> dict[str, Array]:
    """Every array of a .npz file by its name. Raises what `read` raises."""
    with _reported(brief(str(path))), zipfile.ZipFile(_regular(path)) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        claimed = sum(info.file_size for info in members)
        memory.require(claimed, f"the arrays in {brief(str(path))}")
        arrays = {}
        for info in members:
            with archive.open(info) as member:
                name = info.filename[: -len(".npy")]
                arrays[name] = _array(member, info.file_size, brief(f"{path}:{name}"))
        return arrays


def path_of(name: str) -> Path | None:
    """The file that `read(name)` would read; None for the standard input."""
    return None if name == "-" else _split(name)[0]


def _split(name: str) -> tuple[Path, str]:
    """A file called as written comes before one with a member picked."""
    path, colon, member = name.rpartition(":")
    if colon and path.lower().endswith(".npz") and not Path(name).exists():
        return Path(path), member
    return Path(name), ""


def _regular(path: Path) -> Path:
    """`path` if it can be read without waiting: no directory, pipe or device."""
    if not stat.S_ISREG(path.stat().st_mode):
        what = "a directory" if path.is_dir() else "not a regular file"
        raise FileError(f"{brief(str(path))} is {what}; expected a .npy or .npz file.")
    return path


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Say which file it was."""
    try:
        yield
    except (FileError, MemoryLimitError):
        raise
    except _UNREADABLE as error:
        known = isinstance(error, OSError) and error.strerror
        reason = known or " ".join(str(error).split()) or type(error).__name__
        raise FileError(f"Cannot read {what}: {reason[:300]}") from None


def _member(file: IO[bytes], wanted: str, name: str) -> Array:
    with zipfile.ZipFile(file) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        found = [
            info for info in members if wanted in ("", info.filename, info.filename[: -len(".npy")])
        ]
        if len(found) != 1:
            held = ", ".join(repr(info.filename[: -len(".npy")]) for info in members[:20])
            asked = f"no member {wanted!r}" if wanted else f"{len(members)} arrays"
            raise FileError(
                f"{brief(name)} has {asked}; expected one of: {held or 'none'}."
                " Pick one with file.npz:name."
            )
        with archive.open(found[0]) as member:
            return _array(member, found[0].file_size, brief(name))


def _array(file: IO[bytes], size: int | None, what: str) -> Array:
    """One array in .npy format, from a file of `size` bytes (None: not known)."""
    shape, fortran_order, dtype, header_bytes = _header(file, what)
    nbytes = prod(shape) * dtype.itemsize
    if size is not None and nbytes > size - header_bytes:
        raise FileError(
            f"{what} claims an array of shape {brief(shape)} and dtype {dtype}, {nbytes} bytes;"
            f" it holds {size - header_bytes}. It is damaged or was cut off."
        )
    memory.require(nbytes, f"the array in {what}")
    data = np.empty(nbytes, np.uint8)
    got = 0
    while got < nbytes:
        chunk = file.read(min(_CHUNK, nbytes - got))
        if not chunk:
            raise FileError(f"{what} was cut off: {got} of {nbytes} bytes of its array are there.")
        data[got : got + len(chunk)] = np.frombuffer(chunk, np.uint8)
        got += len(chunk)
    return data.view(dtype).reshape(shape, order="F" if fortran_order else "C")


def _header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """(shape, fortran_order, dtype, bytes read), every field checked."""
    magic = _exactly(file, npy_format.MAGIC_LEN, what)
    version = npy_format.read_magic(io.BytesIO(magic))
    if version not in _HEADER_READERS:
        raise FileError(
            f"{what} has .npy format {version[0]}.{version[1]}; expected 1.0 or 2.0, in which"
            " arrays of numbers are written."
        )
    field = _LENGTH_FIELDS[version]
    length_bytes = _exactly(file, struct.calcsize(field), what)
    (length,) = struct.unpack(field, length_bytes)
    if length > _LONGEST_HEADER:
        raise FileError(f"{what} has a header of {length} bytes; {_LONGEST_HEADER} are allowed.")
    header = length_bytes + _exactly(file, length, what)
    shape, fortran_order, dtype = _HEADER_READERS[version](io.BytesIO(header))
    if dtype.hasobject:
        raise FileError(
            f"{what} holds Python objects, which are never unpickled; expected an array of floats."
        )
    if len(shape) > _MOST_AXES or any(type(n) is not int or n < 0 for n in shape):
        raise FileError(f"{what} claims the shape {brief(shape)}, which no array can have.")
    if dtype.itemsize == 0:
        raise FileError(f"{what} has the dtype {dtype}, whose elements have no bytes.")
    return shape, fortran_order, dtype, npy_format.MAGIC_LEN + len(header)


def _exactly(file: IO[bytes], count: int, what: str) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise FileError(f"{what} was cut off inside its header.")
    return data
