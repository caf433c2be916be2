"""Arrays in .npy and .npz files: read by NumPy without pickles, bounded, and written whole.

What an archive unpacks to is held against memory first; an array that a header claims and the file
does not hold is never filled. Whatever is wrong with a file ends in a `FileError` that names it.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer

from .. import memory
from ..arrays import Array
from ..errors import FileError, MemoryLimitError, brief
from ..files import opened, published, reported, require_free
from . import report

OVERWRITE = "Overwrite it with --force."


def read(name: str) -> Array:
    """The array in the .npy or .npz file `name`; "file.npz:member" picks one of several.

    "-" is the standard input, which must hold a .npy. Raises `FileError`, or `MemoryLimitError` for
    an array that would not fit.
    """
    if name == "-":
        with _named("the standard input"):
            return _array(np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False))
    path, member = split(name)
    with _named(brief(name)), opened(path) as file:
        memory.require(path.stat().st_size, f"the array in {brief(name)}")
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            if member:
                raise FileError(f"{brief(str(path))} is a .npy file, which has no members.")
            return found
        held = [each for each in found.files if member in ("", each)]
        if len(held) != 1:
            asked = f"no member {member!r}" if member else f"{len(found.files)} arrays"
            expected = ", ".join(map(repr, found.files[:20])) or "none"
            raise FileError(
                f"{brief(name)} has {asked}; expected one of: {expected}."
                " Pick one with file.npz:name."
            )
        return _members(found, held, brief(name))[held[0]]


def read_all(path: Path | None) -> dict[str, Array] | None:
    """Every array of a .npz file by its name; None without one. Raises what `read` raises."""
    if path is None:
        return None
    name = brief(str(path))
    with _named(name), opened(path) as file:
        if not zipfile.is_zipfile(file):
            raise FileError(f"{name} is no .npz, which is a zip of arrays by name.")
        file.seek(0)
        found = np.load(file, allow_pickle=False)
        return _members(found, found.files, name)


def split(name: str) -> tuple[Path, str]:
    """The file and the member of file.npz:member; a file of the whole name comes first.

    >>> split("nowhere/net.npz:decoder.weight")[1]
    'decoder.weight'
    """
    path, colon, member = name.rpartition(":")
    if colon and path.lower().endswith(".npz") and not Path(name).exists():
        return Path(path), member
    return Path(name), ""


def place(
    name: str | Path,
    suffixes: tuple[str, ...],
    *,
    force: bool,
    inputs: Iterable[Path | None],
    model: Path | None = None,
    option: str = "--output",
) -> Path:
    """Where a result called `name` goes, checked before any work is done; links are followed.

    `inputs` are never overwritten, nor what `model` is read from, files with its data included.
    """
    shown, given = str(name), [model, *inputs]
    if suffixes and Path(name).suffix.lower() not in suffixes:
        words = f"{brief(shown)} does not end in {' or '.join(suffixes)}"
        raise typer.BadParameter(words, param_hint=option)
    with reported(shown):
        path = Path(name).resolve()
        require_free(shown, path, force=force, inputs=given, overwrite=OVERWRITE)
        there = path.exists()
    if there and model is not None:  # only then is the model worth reading twice
        from ..onnx.models import files

        data = files(model)
        with reported(shown):
            require_free(shown, path, force=force, inputs=data, overwrite=OVERWRITE)
    return path


def write(path: Path | None, arrays: Mapping[str, Array], *, force: bool) -> None:
    """Write arrays to a .npz, or one to a .npy; None is the standard output, a .npy.

    Raises `FileError`, and `BrokenPipeError` where the standard output's reader left.
    """
    save = np.lib.format.write_array
    if path is None:
        (single,) = arrays.values()
        report.write(lambda: save(sys.stdout.buffer, single, allow_pickle=False))
        return
    with reported(str(path)), published(path, force=force, overwrite=OVERWRITE) as file:
        if path.suffix.lower() == ".npy":
            (single,) = arrays.values()
            save(file, single, allow_pickle=False)
            return
        with zipfile.ZipFile(file, "w") as archive:  # np.savez takes names as keywords: not all
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    save(member, array, allow_pickle=False)


def _members(archive: Any, names: Iterable[str], what: str) -> dict[str, Array]:
    """Members of a .npz, which are unpacked only if all of them fit into memory."""
    sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()}
    memory.require(sum(sizes[name] for name in names), f"the arrays in {what}")
    return {name: _array(archive[name]) for name in names}


def _array(found: Any) -> Array:
    if not isinstance(found, np.ndarray):  # an archive, or a member that is no array
        raise ValueError("it is neither a .npy nor a .npz of arrays")
    return found


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors from here on say which file it was: NumPy and zipfile raise a dozen kinds of them."""
    try:
        yield
    except (FileError, MemoryLimitError):
        raise
    except Exception as error:
        words: Any = getattr(error, "strerror", None) or " ".join(str(error).split())
        if "allow_pickle" in words:  # NumPy's advice is to unpickle it
            words = "it is neither a .npy nor a .npz of numbers; objects are never unpickled"
        raise FileError(f"Cannot read {what}: {words or type(error).__name__}"[:400]) from None
