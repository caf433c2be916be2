"""Writing a result: where it may go, and putting it there whole or not at all.

The result is written to a temporary file beside the target and renamed when it is on the disk, so a
reader sees the old file, the new one or none, and an error or Ctrl-C leaves nothing behind.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import typer

from ..arrays import Array
from ..errors import FileError, brief

_SUFFIXES = (".npy", ".npz")


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
        with _reported(name):
            path = Path(name).resolve()
            _check(name, path, force, inputs)
        return cls(name, path, force)

    def write(self, y: Array) -> None:
        """Write the result, named "y" in a .npz.

        Raises `FileError`, and `BrokenPipeError` where the standard output's reader left.
        """
        if self.path is None:
            _write_stdout(y)
            return
        with _reported(self.name), _published(self.path, self.force) as file:
            if self.path.suffix.lower() == ".npz":
                np.savez(file, y=y)
            else:
                np.lib.format.write_array(file, y, allow_pickle=False)


def _check(name: str, path: Path, force: bool, inputs: Iterable[Path | None]) -> None:
    if path.is_dir():
        raise FileError(f"{brief(name)} is a directory; expected the name of a file.")
    if path.exists():
        if any(given is not None and given.exists() and path.samefile(given) for given in inputs):
            raise FileError(f"{brief(name)} is an input of this very call. Name another output.")
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{brief(name)} is not a regular file. Name another output.")
        if not force:
            raise FileError(f"{brief(name)} exists. Overwrite it with --force.")
    if not path.parent.is_dir():
        raise FileError(f"{brief(str(path.parent))} is not a directory. Make it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FileError(f"{brief(str(path.parent))} cannot be written to.")


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte in it
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"Cannot write {brief(name)}: {reason}.") from None


@contextmanager
def _published(path: Path, force: bool) -> Iterator[IO[bytes]]:
    """A new file that becomes `path` at the end of the block, or is gone."""
    temporary = path.with_name(f".upconv-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:  # 0666 less the umask, as any program's new file
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            temporary.replace(path)
        else:
            _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    """Give the file its name unless somebody took it meanwhile: a hard link never overwrites."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise FileError(f"{brief(str(path))} exists by now. Overwrite it with --force.") from None
    except (OSError, NotImplementedError):  # no hard links here (FAT, some network drives)
        _reserve(temporary, path)


def _reserve(temporary: Path, path: Path) -> None:
    """The same without hard links: the name is taken by an empty file, which is then replaced."""
    try:
        path.open("xb").close()
    except FileExistsError:
        raise FileError(f"{brief(str(path))} exists by now. Overwrite it with --force.") from None
    try:
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


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
