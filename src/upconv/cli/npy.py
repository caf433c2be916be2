"""Read arrays from .npy and .npz files, without pickles, and write complete .npz files.

The size of an unpacked archive is first compared with the available memory. An array whose header
declares more than the file holds is never filled. A faulty file raises a `FileError` that names it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
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
    """Return the arrays of a .npz by name, or the array of a .npy under ""; None without a file.

    Raises `FileError`, or `MemoryLimitError` for arrays that do not fit into memory.
    """
    if path is None:
        return None
    name = brief(str(path))
    try:
        with opened(path) as file:
            memory.require(path.stat().st_size, f"the array in {name}")
            content = np.load(file, allow_pickle=False)
            return {"": content} if isinstance(content, np.ndarray) else _unpacked(name, content)
    except (FileError, MemoryLimitError):
        raise
    except Exception as error:  # NumPy and zipfile raise many kinds of errors
        reason: Any = getattr(error, "strerror", None) or " ".join(str(error).split())
        if "allow_pickle" in reason:  # NumPy advises unpickling the file
            reason = "it is neither a .npy nor a .npz of numbers; objects are never unpickled"
        raise FileError(f"Cannot read {name}: {reason or type(error).__name__}"[:400]) from None


def _unpacked(name: str, archive: Any) -> dict[str, Array]:
    """Return the arrays of a .npz, if all of them fit into memory."""
    members = archive.zip.infolist()
    nbytes = sum(member.file_size for member in members if member.filename.endswith(".npy"))
    memory.require(nbytes, f"reading the arrays in {name}")
    arrays = dict(archive)
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it is neither a .npy nor a .npz of arrays")
    return arrays


def place(
    name: str | Path | None,
    suffixes: tuple[str, ...],
    *,
    force: bool,
    inputs: Iterable[Path | None] = (),
    model: Path | None = None,
    option: str = "--output",
) -> Path | None:
    """Check and return the path of a result before any work; None without a name.

    `inputs` and the files of `model`, including its external data, are never overwritten.
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
        zipfile.ZipFile(file, "w") as archive,  # np.savez cannot take every name
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
