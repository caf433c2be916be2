"""Machine code on disk, so that later processes need not generate it again.

A file's name is a digest of everything that its code depends on. The file contains a digest of its
name and code, and then the code: the object file that LLVM emitted. A file with a wrong digest is
ignored, and so is a folder or a file that other users could have written. No call fails because of
a file system error, since code can always be generated.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..argument_checks import integer_variable
from ..errors import FileError
from ..files import cache_directory, opened
from ..memory import readable

# Import it now, for `cache_directory`: engines are imported under the lock `importing`, but later
# calls do not hold it, and a child process forked during an import would wait forever.
with suppress(ImportError):
    import platformdirs  # noqa: F401

_DIGEST_BYTES = 32
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_NAMES = re.compile(r"[0-9a-f]{64}(\.\d+\.\d+)?")
_MAX_BYTES = 32 << 20  # above this total, the oldest files are deleted, down to 3/4 of it


def code_directory() -> Path | None:
    """Return the machine code folder, which need not exist.

    The result is None if `UPCONV_CODE_CACHE` is 0 or the user has no home directory. Raises
    `ArgumentError` if the variable is neither 0 nor 1.
    """
    if integer_variable("UPCONV_CODE_CACHE", 0, 1) == 0:
        return None
    folder = cache_directory() / "compiled-code"
    return None if folder.parts[0] == "~" else folder


def description() -> str:
    """Return the folder, and the number and total size of its files, for `upconv doctor`."""
    folder = code_directory()
    if folder is None:
        return "not kept: UPCONV_CODE_CACHE is 0, or this user has no home directory"
    if not os.path.lexists(folder):
        return f"{folder} (does not exist yet)"
    if fault():
        return "not kept"
    sizes = [facts.st_size for _, facts in _files(folder)]
    return f"{folder}: {len(sizes)} files, {readable(sum(sizes))}"


def fault() -> str:
    """Return why code cannot be kept in the folder, or "" if it can."""
    folder = code_directory()
    if folder is None or not os.path.lexists(folder) or _usable(folder) is not None:
        return ""
    return f"compiled code is not kept: {folder} is writable by others, or not a folder; delete it"


def name_of(*dependencies: str) -> str:
    """Return the file name for code that depends on these strings."""
    return _digest("\0".join(dependencies).encode()).hex()


def read(name: str) -> bytes | None:
    """Return the code stored under a name, or None if there is none that can be trusted."""
    folder = _usable(code_directory())
    if folder is None:
        return None
    try:
        with opened(folder / name) as file:
            contents = file.read() if _is_safe(os.fstat(file.fileno())) else b""
    except (OSError, FileError):
        return None
    digest, code = contents[:_DIGEST_BYTES], contents[_DIGEST_BYTES:]
    return code if digest == _digest(name.encode() + code) else None


def write(name: str, code: bytes) -> None:
    """Store code under a name, atomically; do nothing if that is impossible.

    The file is not synced to disk: if a power failure damages it, it is ignored.
    """
    folder = _usable(code_directory())
    if folder is None:
        return
    temporary = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
    with suppress(OSError):
        try:
            with os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as file:
                file.write(_digest(name.encode() + code) + code)
            temporary.replace(folder / name)
        finally:
            temporary.unlink(missing_ok=True)
        if name.startswith("00"):  # one name in 256, because listing a full folder is slow
            _delete_oldest(folder)


def _delete_oldest(folder: Path) -> None:
    """Delete the folder's oldest files if it has become too large."""
    files = sorted(_files(folder), key=lambda each: each[1].st_mtime)
    nbytes = sum(facts.st_size for _, facts in files)
    if nbytes <= _MAX_BYTES:
        return
    for path, facts in files:
        path.unlink(missing_ok=True)
        nbytes -= facts.st_size
        if nbytes <= _MAX_BYTES * 3 // 4:
            return


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files in the folder that this module wrote, and no others."""
    for path in folder.iterdir():
        if _NAMES.fullmatch(path.name):
            with suppress(OSError):
                yield path, path.lstat()


def _usable(folder: Path | None) -> Path | None:
    """Return the folder, created if necessary, or None if others may write to it."""
    if folder is None:
        return None
    try:
        if not os.path.lexists(folder):
            _create(folder)
        facts = folder.lstat()
    except OSError:
        return None
    return folder if stat.S_ISDIR(facts.st_mode) and _is_safe(facts) else None


def _create(folder: Path) -> None:
    """Create a folder, but not as root in another user's home directory."""
    parents = folder.absolute().parents  # on Windows, even the drive may not exist
    existing = next((parent for parent in parents if parent.exists()), parents[-1])
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and existing.stat().st_uid != 0:
        raise PermissionError(existing)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _is_safe(facts: os.stat_result) -> bool:
    """Whether only this user or root can write to a file or folder; always true on Windows."""
    if not hasattr(os, "geteuid"):
        return True
    return facts.st_uid in {0, os.geteuid()} and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(contents: bytes) -> bytes:
    return hashlib.sha256(contents).digest()
