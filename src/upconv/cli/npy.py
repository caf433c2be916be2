"""Arrays in .npy and .npz files: read by NumPy without pickles, bounded, and written whole.

NumPy allocates what a header claims before it reads: the claim is held against the bytes that are
there first. Whatever is wrong with a file ends in a `FileError` that names it.
"""

from __future__ import annotations

import io
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import typer
from numpy.lib import format as npy_format

from .. import memory
from ..arrays import Array
from ..errors import FileError, MemoryLimitError, brief
from ..files import opened, published, reported, require_free
from . import report

OVERWRITE = "Overwrite it with --force."

_UNREADABLE = (
    ValueError,  # which most of NumPy's are
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,  # what Python's parser raises for a header nested too deep
    EOFError,
    KeyError,
    OverflowError,
    RuntimeError,  # zipfile: encrypted, or compressed in a way it does not know
    zlib.error,
    zipfile.BadZipFile,
    OSError,
)
"""What NumPy's reader and zipfile raise for a damaged file."""


def read(name: str) -> Array:
    """The array in the .npy or .npz file `name`; "file.npz:member" picks one of several.

    "-" is the standard input, which must hold a .npy. Raises `FileError`, or `MemoryLimitError` for
    an array that would not fit.
    """
    if name == "-":
        with _named("the standard input"):
            data = sys.stdin.buffer.read()
            return _array(io.BytesIO(data), len(data), "the standard input")
    path, member = split(name)
    with _named(brief(str(path))), opened(path) as file:
        start = file.read(6)
        file.seek(0)
        if start[:2] != b"PK":
            if start != npy_format.MAGIC_PREFIX:
                raise FileError(f"{brief(name)} is neither a .npy nor a .npz file.")
            if member:
                raise FileError(f"{brief(str(path))} is a .npy file, which has no members.")
            return _array(file, path.stat().st_size, brief(name))
        with zipfile.ZipFile(file) as archive:
            held = [info.filename.removesuffix(".npy") for info in _members(archive)]
            found = [info for info in _members(archive) if member in ("", _stem(info))]
            if len(found) != 1:
                asked = f"no member {member!r}" if member else f"{len(held)} arrays"
                expected = ", ".join(map(repr, held[:20])) or "none"
                raise FileError(
                    f"{brief(name)} has {asked}; expected one of: {expected}."
                    " Pick one with file.npz:name."
                )
            return _member(archive, found[0], brief(name))


def read_all(path: Path) -> dict[str, Array]:
    """Every array of a .npz file by its name. Raises what `read` raises."""
    with _named(brief(str(path))), opened(path) as file, zipfile.ZipFile(file) as archive:
        claimed = sum(info.file_size for info in _members(archive))
        memory.require(claimed, f"the arrays in {brief(str(path))}")
        return {
            _stem(info): _member(archive, info, brief(f"{path}:{_stem(info)}"))
            for info in _members(archive)
        }


def split(name: str) -> tuple[Path, str]:
    """The file and the member of file.npz:member; a file of the whole name comes first.

    >>> split("nowhere/net.npz:decoder.weight")[1]
    'decoder.weight'
    """
    path, colon, member = name.rpartition(":")
    if colon and path.lower().endswith(".npz") and not Path(name).exists():
        return Path(path), member
    return Path(name), ""


def target(
    name: str, suffixes: tuple[str, ...], *, force: bool, inputs: Iterable[Path | None]
) -> Path:
    """Where a result called `name` goes, checked before any work is done; links are followed."""
    if Path(name).suffix.lower() not in suffixes:
        words = f"{name!r} does not end in {' or '.join(suffixes)}"
        raise typer.BadParameter(words, param_hint="--output")
    with reported(name):
        path = Path(name).resolve()
        require_free(name, path, force=force, inputs=inputs, overwrite=OVERWRITE)
    return path


def write(path: Path | None, arrays: Mapping[str, Array], *, force: bool) -> None:
    """Write arrays to a .npz, or one to a .npy; None is the standard output, a .npy.

    Raises `FileError`, and `BrokenPipeError` where the standard output's reader left.
    """
    if path is None:
        (single,) = arrays.values()
        report.write(lambda: npy_format.write_array(sys.stdout.buffer, single, allow_pickle=False))
        return
    with reported(str(path)), published(path, force=force, overwrite=OVERWRITE) as file:
        if path.suffix.lower() == ".npy":
            (single,) = arrays.values()
            npy_format.write_array(file, single, allow_pickle=False)
            return
        with zipfile.ZipFile(file, "w") as archive:  # np.savez takes names as keywords: not all
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy_format.write_array(member, array, allow_pickle=False)


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [info for info in archive.infolist() if info.filename.endswith(".npy")]


def _stem(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> Array:
    with archive.open(info) as file:
        return _array(file, info.file_size, what)


def _array(file: IO[bytes], size: int, what: str) -> Array:
    """One array in .npy format, from a file of `size` bytes that stands at its beginning."""
    version = npy_format.read_magic(file)
    readers = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
    if version not in readers:
        raise FileError(f"{what} has .npy format {version[0]}.{version[1]}; expected 1.0 or 2.0.")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise FileError(f"{what} holds Python objects, which are never unpickled.")
    there, claimed = size - file.tell(), prod(shape) * dtype.itemsize
    if claimed > there or any(size < 0 for size in shape):
        raise FileError(
            f"{what} claims an array of shape {brief(shape)} and dtype {dtype}, {claimed} bytes; it"
            f" holds {there}. It is damaged or was cut off."
        )
    memory.require(claimed, f"the array in {what}")
    file.seek(0)
    found: Array = npy_format.read_array(file, allow_pickle=False)
    return found


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors from here on say which file it was."""
    try:
        yield
    except (FileError, MemoryLimitError):
        raise
    except _UNREADABLE as error:
        reason: Any = getattr(error, "strerror", None) or " ".join(str(error).split())
        words = str(reason or type(error).__name__)[:300]
        raise FileError(f"Cannot read {what}: {words}") from None
