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

_OVERWRITE = "Overwrite it with --force."


def read(name: str) -> Array:
    """The array in the .npy or .npz file `name`; "file.npz:member" picks one of several.

    "-" is the standard input. Raises `FileError`, or `MemoryLimitError` for an array that would not
    fit.
    """
    path, member = split(name)
    with _loaded(name, path) as held:
        wanted = [each for each in held if member in ("", each)]
        if len(wanted) != 1:
            asked = f"no member {member!r}" if member else f"{len(held)} arrays"
            raise FileError(
                f"{brief(name)} has {asked}; expected one of:"
                f" {', '.join(map(repr, list(held)[:20])) or 'none'}. Pick one with file.npz:name."
            )
        return _unpacked(name, held, wanted)[wanted[0]]


def read_all(path: Path | None) -> dict[str, Array] | None:
    """Every array of a .npz file by its name, that of a .npy by ""; None without a file.

    Raises what `read` raises.
    """
    if path is None:
        return None
    with _loaded(str(path), path) as held:
        return _unpacked(str(path), held, list(held))


def split(name: str) -> tuple[Path, str]:
    """The file and the member of file.npz:member; a file of the whole name comes first."""
    path, colon, member = name.rpartition(":")
    if colon and path.lower().endswith(".npz") and not Path(name).exists():
        return Path(path), member
    return Path(name), ""


def place(
    name: str | Path | None,
    suffixes: tuple[str, ...],
    *,
    force: bool,
    inputs: Iterable[Path | None] = (),
    model: Path | None = None,
    option: str = "--output",
) -> Path | None:
    """Where a result called `name` goes, if anywhere, checked before any work is done.

    `inputs` are never overwritten, nor what `model` is read from, files with its data included.
    """
    if name is None:
        return None
    shown, kept = str(name), [model, *inputs]
    if suffixes and Path(name).suffix.lower() not in suffixes:
        words = f"{brief(shown)} does not end in {' or '.join(suffixes)}"
        raise typer.BadParameter(words, param_hint=option)
    with reported(shown):
        path = Path(name).resolve()  # links are followed
        if model is not None and path.exists():  # only then is the model worth reading twice
            from ..onnx.models import files

            kept += files(model)
        require_free(shown, path, force=force, inputs=kept, overwrite=_OVERWRITE)
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
    with reported(str(path)), published(path, force=force, overwrite=_OVERWRITE) as file:
        if path.suffix.lower() == ".npy":
            (single,) = arrays.values()
            save(file, single, allow_pickle=False)
            return
        with zipfile.ZipFile(file, "w") as archive:  # np.savez takes names as keywords: not all
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    save(member, array, allow_pickle=False)


@contextmanager
def _loaded(name: str, path: Path) -> Iterator[Mapping[str, Any]]:
    """The arrays of a file by name, not yet unpacked; that of a .npy by "".

    Errors in the block say which file it was: NumPy and zipfile raise a dozen kinds of them.
    """
    what = "the standard input" if name == "-" else brief(name)
    try:
        with io.BytesIO(sys.stdin.buffer.read()) if name == "-" else opened(path) as file:
            if name != "-":
                memory.require(path.stat().st_size, f"the array in {what}")
            found = np.load(file, allow_pickle=False)
            yield {"": found} if isinstance(found, np.ndarray) else found
    except (FileError, MemoryLimitError):
        raise
    except Exception as error:
        words: Any = getattr(error, "strerror", None) or " ".join(str(error).split())
        if "allow_pickle" in words:  # NumPy's advice is to unpickle it
            words = "it is neither a .npy nor a .npz of numbers; objects are never unpickled"
        raise FileError(f"Cannot read {what}: {words or type(error).__name__}"[:400]) from None


def _unpacked(name: str, held: Mapping[str, Any], wanted: list[str]) -> dict[str, Array]:
    """Arrays of a file, if all of them fit into memory."""
    archive = getattr(held, "zip", None)
    members = archive.infolist() if archive else ()
    sizes = [each.file_size for each in members if each.filename.removesuffix(".npy") in wanted]
    memory.require(sum(sizes), f"the arrays in {brief(name)}")
    found = {each: held[each] for each in wanted}
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise ValueError("it is neither a .npy nor a .npz of arrays")
    return found
