"""Writing a result: where it may go, and putting it there whole or not at all.

The manners of files are those of `upconv.files`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from ..arrays import Array
from ..errors import FileError
from ..files import published, reported, require_free

_SUFFIXES = (".npy", ".npz")
_OVERWRITE = "Overwrite it with --force."


@dataclass(frozen=True, slots=True)
class Target:
    """A place for a result, checked before the work begins.

    `path` is None for the standard output; links are followed, so that they stay links.
    """

    name: str
    path: Path | None
    force: bool

    @classmethod
    def of(cls, name: str, *, force: bool, inputs: Iterable[Path | None]) -> Target:
        """The target called `name`; `FileError` unless a result may be written there."""
        if name == "-":
            if sys.stdout is not None and sys.stdout.isatty():
                raise typer.BadParameter(
                    "binary data does not go to a terminal; name a file", param_hint="--output"
                )
            return cls(name, None, force)
        if Path(name).suffix.lower() not in _SUFFIXES:
            raise typer.BadParameter(
                f"{name!r} ends neither in .npy nor in .npz", param_hint="--output"
            )
        with reported(name):
            path = Path(name).resolve()
            require_free(name, path, force=force, inputs=inputs, overwrite=_OVERWRITE)
        return cls(name, path, force)

    def write(self, y: Array) -> None:
        """Write the result, named "y" in a .npz.

        Raises `FileError`, and `BrokenPipeError` where the standard output's reader left.
        """
        if self.path is None:
            _write_stdout(y)
            return
        with (
            reported(self.name),
            published(self.path, force=self.force, overwrite=_OVERWRITE) as file,
        ):
            if self.path.suffix.lower() == ".npz":
                np.savez(file, y=y)
            else:
                np.lib.format.write_array(file, y, allow_pickle=False)


def _write_stdout(y: Array) -> None:
    if sys.stdout is None:
        raise FileError("Cannot write the standard output: it is closed.")
    stream: Any = sys.stdout.buffer
    try:
        np.lib.format.write_array(stream, y, allow_pickle=False)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # its buffer would fail again while Python shuts down
        raise FileError(f"Cannot write the standard output: {error.strerror}.") from None
