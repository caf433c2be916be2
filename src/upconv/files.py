"""Atomic writes of files, and reads of regular files only.

1. A file is written beside its target under another name, and renamed when it is on the disk. A
   reader sees the old file, the new one or none. An error or Ctrl-C leaves nothing behind.
2. An existing file is overwritten only on request, and an input of the same command never.
3. Pipes and devices are refused: opening one like a file could wait, or never end.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import DTypeError, FileError, UpconvError, brief

OVERWRITE = "Overwrite it with force=True."


def path_text(argument: str, path: object) -> str:
    """The text of a path; `DTypeError` for anything that is none."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise DTypeError(argument, f"{brief(path)} ({type(path).__name__})", "a path")
    return text


@contextmanager
def reported(name: str, verb: str = "write") -> Iterator[None]:
    """Turn errors of the system about a file into a `FileError` that names it."""
    try:
        yield
    except UpconvError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte in it
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"Cannot {verb} {brief(name)}: {reason}.") from None


def opened(path: Path) -> IO[bytes]:
    """A regular file, open for reading; raises `FileError` for anything else, and `OSError`."""
    if path.is_dir():
        raise FileError(f"{brief(str(path))} is a directory; expected a file.")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileError(f"{brief(str(path))} is not a regular file.")
    return os.fdopen(handle, "rb")


def require_free(
    name: str, path: Path, *, force: bool, inputs: Iterable[Path | None], overwrite: str = OVERWRITE
) -> None:
    """Raise `FileError` unless a result called `name` may be written to `path`."""
    if path.is_dir():
        raise FileError(f"{brief(name)} is a directory; expected the name of a file.")
    if path.exists():
        if any(
            source is not None and source.exists() and path.samefile(source) for source in inputs
        ):
            raise FileError(f"{brief(name)} is an input of this very call. Name another output.")
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{brief(name)} is not a regular file. Name another output.")
        if not force:
            raise FileError(f"{brief(name)} exists. {overwrite}")
    if not path.parent.is_dir():
        raise FileError(f"{brief(str(path.parent))} is not a directory. Make it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FileError(f"{brief(str(path.parent))} cannot be written to.")


@contextmanager
def published(path: Path, *, force: bool, overwrite: str = OVERWRITE) -> Iterator[IO[bytes]]:
    """A new file that becomes `path` at the end of the block, or is gone."""
    temporary = path.with_name(f".upconv-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:  # 0666 less the umask, as any program's new file
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not force and path.exists():  # somebody made it meanwhile
            raise FileError(f"{brief(str(path))} exists by now. {overwrite}")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
