"""Arrays in .npy and .npz files: read without pickles, within memory, and written completely.

The size of an unpacked archive is compared with memory first. An array whose header declares more
than the file holds is never filled. A fault of a file is a `FileError` that names it.
"""

from __future__ import annotations

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

_OVERWRITE = "Overwrite it with --force."


def read_all(path: Path | None) -> dict[str, Array] | None:
    """Return every array of a .npz file by its name, that of a .npy by ""; None without a file.

    Raises `FileError`, or `MemoryLimitError` for arrays that would not fit.
    """
    if path is None:
        return None
    with _loaded(path) as arrays:
        return _unpacked(path, arrays)


def place(
    name: str | Path | None,
    suffixes: tuple[str, ...],
    *,
    force: bool,
    inputs: Iterable[Path | None] = (),
    model: Path | None = None,
    option: str = "--output",
) -> Path | None:
    """Return the path of a result, if it has a name, checked before any work.

    `inputs` and the files of `model`, those of its data included, are never overwritten.
    """
    if name is None:
        return None
    shown, kept = str(name), [model, *inputs]
    if suffixes and Path(name).suffix.lower() not in suffixes:
        words = f"{brief(shown)} does not end in {' or '.join(suffixes)}"
        raise typer.BadParameter(words, param_hint=option)
    with reported(shown):
        path = Path(name).resolve()  # links are followed
        if model is not None and path.exists():  # otherwise do not read the model twice
            from ..onnx.models import files

            kept += files(model)
        require_free(shown, path, force=force, inputs=kept, overwrite=_OVERWRITE)
    return path


def write(path: Path, arrays: Mapping[str, Array], *, force: bool) -> None:
    """Write arrays to a .npz; raises `FileError`."""
    with (
        reported(str(path)),
        published(path, force=force, overwrite=_OVERWRITE) as file,
        zipfile.ZipFile(file, "w") as archive,  # np.savez takes names as keywords: not all
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


@contextmanager
def _loaded(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open the arrays of a file by name, not yet unpacked; that of a .npy by "".

    Errors in the block say which file it was: NumPy and zipfile raise a dozen kinds of them.
    """
    name = brief(str(path))
    try:
        with opened(path) as file:
            memory.require(path.stat().st_size, f"the array in {name}")
            content = np.load(file, allow_pickle=False)
            yield {"": content} if isinstance(content, np.ndarray) else content
    except (FileError, MemoryLimitError):
        raise
    except Exception as error:
        reason: Any = getattr(error, "strerror", None) or " ".join(str(error).split())
        if "allow_pickle" in reason:  # NumPy's advice is to unpickle it
            reason = "it is neither a .npy nor a .npz of numbers; objects are never unpickled"
        raise FileError(f"Cannot read {name}: {reason or type(error).__name__}"[:400]) from None


def _unpacked(path: Path, content: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays of a file, if all of them fit into memory."""
    archive = getattr(content, "zip", None)
    members = archive.infolist() if archive else ()
    nbytes = sum(member.file_size for member in members if member.filename.endswith(".npy"))
    memory.require(nbytes, f"the arrays in {brief(str(path))}")
    arrays = {name: content[name] for name in content}
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it is neither a .npy nor a .npz of arrays")
    return arrays
