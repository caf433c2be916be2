"""Atomic file writes, and reads restricted to regular files.

1. A file is written under a temporary name in its folder, and renamed once it is on disk.
   Readers see the old file, the new one or none. An error or Ctrl-C leaves nothing behind.
2. Existing files are overwritten only on request, and inputs of the same command never.
3. Pipes and devices are refused: opening one could block, and reading it might never end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import DTypeError, FileError, UpconvError, brief

OVERWRITE = "Overwrite it with force=True."


def path_text(argument: str, path: object) -> str:
    """Return a path as a string; `DTypeError` if it is not a path."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise DTypeError(argument, f"{brief(path)} ({type(path).__name__})", "a path")
    return text


@contextmanager
def reported(name: str, verb: str = "write") -> Iterator[None]:
    """Convert the operating system's errors about a file to a `FileError` that names the file."""
    try:
        yield
    except UpconvError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"Cannot {verb} {brief(name)}: {reason}.") from None


def opened(path: Path) -> IO[bytes]:
    """Open a regular file for reading; raise `FileError` for anything else (or `OSError`)."""
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
    """Raise `FileError` unless a result may be written to `path`, which messages call `name`."""
    if path.is_dir():
        raise FileError(f"{brief(name)} is a directory; expected the name of a file.")
    if path.exists():
        if any(
            source is not None and source.exists() and path.samefile(source) for source in inputs
        ):
            raise FileError(f"{brief(name)} is an input of this call. Name another output.")
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{brief(name)} is not a regular file. Name another output.")
        if not force:
            raise FileError(f"{brief(name)} exists. {overwrite}")
    if not path.parent.is_dir():
        raise FileError(f"{brief(str(path.parent))} is not a directory. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FileError(f"{brief(str(path.parent))} is not writable.")


@contextmanager
def published(path: Path, *, force: bool, overwrite: str = OVERWRITE) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends, or is removed on error."""
    import secrets  # slow to import, and most calls do not need it

    temporary = path.with_name(f".upconv-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:  # mode 0666 minus the umask, like any new file
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not force and path.exists():  # another process created it in the meantime
            raise FileError(f"{brief(str(path))} has been created in the meantime. {overwrite}")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def cache_directory() -> Path:
    """Return `UPCONV_CACHE_DIR`, or the user's cache directory, for measurements and code."""
    chosen = os.environ.get("UPCONV_CACHE_DIR", "").strip()
    if chosen:
        return Path(chosen)
    try:
        from platformdirs import user_cache_dir
    except ImportError:  # `upconv doctor` reports the missing dependency
        return Path.home() / ".cache" / "upconv"
    return Path(user_cache_dir("upconv"))
