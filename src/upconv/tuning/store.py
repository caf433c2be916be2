"""What was measured on this machine, kept in one JSON file between processes.

The file is a convenience and is trusted with nothing: who reads from it checks that an engine or a
variant exists, and whatever is wrong with it costs a warning and a new measurement.

1. Reading: a regular file of at most 4 MiB, JSON without a number that is none, every field of the
   right type and range; records that are not are left out. Nothing is ever unpickled or executed.
2. Writing: a complete temporary file in the same folder takes the file's place (`os.replace`), so
   that a reader sees the old or the new one. A link is replaced, what it points to never written.
3. Writing reads the file again first, under a lock between processes where there is one, and adds
   to what others wrote meanwhile. The oldest records go beyond 1024 in a table.
4. A file that does not begin as this store's own is somebody else's: it is never written over.

What lives here: where the file is, its form, reading and writing. What never does: measuring.
Modules that only reading and writing need are imported there: `import upconv` stays quick.
"""

from __future__ import annotations

import os
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

SCHEMA = 1
"""Raised when a field of the file changes its meaning; a file of another schema is started anew."""

Record = dict[str, str | float]
Tables = dict[str, dict[str, Record]]

_FIELDS: dict[str, dict[str, type]] = {
    "winners": {"engine": str, "variant": str, "seconds": float},
    "ceilings": {"flops": float, "bandwidth": float},
    "rewritings": {
        "median": float,
        "low": float,
        "high": float,
        "best": float,
        "rounds": float,
        "ratio": float,
        "ratio_low": float,
        "ratio_high": float,
        "error": float,
    },
}
"""Table -> field -> its type: text of at most 200 plain characters, or a positive finite number."""

_BEGINNING = b'{"upconv tuning"'
_LARGEST_FILE = 4 << 20
_MOST_RECORDS = 1024
_LONGEST_KEY = 500  # so that 1024 records of every table stay below the largest file
_LONGEST_TEXT = 200
_LOCK_SECONDS = 2.0


class _Foreign(ValueError):
    """The file is not this store's."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells one version of the file from the next."""

    inode: int
    modified: int
    nbytes: int


class TuningStore:
    """Records by table and key, in memory and in a file; see the module's docstring.

    What cannot be written is remembered in this process all the same. Safe to use from any thread
    without a lock, as dictionaries are replaced, not changed: threads that remember at once may
    lose each other's record in memory, not in the file.

    >>> TuningStore(Path("/nowhere/tuning.json")).find("winners", "a problem") is None
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own: Tables = _empty()
        self._read: Tables = _empty()
        self._stamp: _Stamp | None = None
        self._warned: set[str] = set()

    def find(self, table: str, key: str) -> Record | None:
        """What is remembered under a key: this process's own record, else the file's."""
        key = _short(key)
        own = self._own[table].get(key)
        return own if own is not None else self._contents()[table].get(key)

    def remember(self, table: str, key: str, record: Record) -> None:
        """Remember a record, here and in the file."""
        checked = _record(record, _FIELDS[table])
        if checked is None:
            raise TypeError(f"not a record of {table}: {record}")
        own = self._own = _merged(self._own, {**_empty(), table: {_short(key): checked}})
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _between_processes(self.path):
                self._replace(_merged(self._load(), own))
        except (OSError, ValueError) as error:
            self.warn(f"cannot be written ({_reason(error)}); measurements end with this process")

    def clear(self) -> None:
        """Forget everything, here and in the file."""
        self._own = _empty()
        try:
            if self.path.exists():
                with _between_processes(self.path):
                    self._load()  # raises for a file that is not ours to remove
                    self.path.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            self.warn(f"cannot be cleared ({_reason(error)})")

    def counts(self) -> dict[str, int]:
        """How many records each table has."""
        merged = _merged(self._contents(), self._own)
        return {table: len(records) for table, records in merged.items()}

    def warn(self, complaint: str) -> None:
        """Say what is wrong with the file, each thing once per process."""
        if complaint not in self._warned:
            self._warned.add(complaint)
            message = f"the tuning file {str(self.path)!r} {complaint}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _contents(self) -> Tables:
        """What the file holds, read anew only when it has changed."""
        try:
            stamp = _stamp(self.path.stat())
            if stamp == self._stamp:
                return self._read
            found = self._load()
        except FileNotFoundError:
            return _empty()
        except (OSError, ValueError) as error:
            self.warn(f"cannot be read ({_reason(error)}); it counts as empty")
            return _empty()
        self._read, self._stamp = found, stamp  # in this order: another thread may look
        return found

    def _load(self) -> Tables:
        """The file's records that are right; of a file of ours that is damaged, none.

        Raises `OSError` and, for a file that is not ours, `ValueError`.
        """
        import json

        try:
            data = _bytes_of(self.path)
        except FileNotFoundError:
            return _empty()
        if not data.strip(b"\0\t\r\n "):  # what a lost power supply leaves of a file
            return _empty()
        if not data.lstrip().startswith(_BEGINNING):
            raise _Foreign("it is no file of upconv's; move it away, or set UPCONV_TUNING_FILE")
        try:
            document = json.loads(data, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self.warn(f"is damaged ({_reason(error)}); it is started anew")
            return _empty()
        if document["upconv tuning"] != SCHEMA:
            self.warn(f"is of another schema than {SCHEMA}; it is started anew")
            return _empty()
        return self._checked(document)

    def _checked(self, document: dict[str, Any]) -> Tables:
        tables = _empty()
        for table, fields in _FIELDS.items():
            found = document.get(table, {})
            for key, value in found.items() if isinstance(found, dict) else [("", found)]:
                record = _record(value, fields) if key == _short(key) else None
                if record is None:
                    self.warn(f"has a record in {table!r} that is none; such are left out")
                else:
                    tables[table][key] = record
            _bound(tables[table])
        return tables

    def _replace(self, tables: Tables) -> None:
        """Put a complete new file in the file's place."""
        import json
        import tempfile

        text = json.dumps({"upconv tuning": SCHEMA, **tables}, allow_nan=False)
        handle, name = tempfile.mkstemp(prefix=".tuning-", suffix=".tmp", dir=self.path.parent)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:  # Ctrl-C too leaves nothing behind
            with suppress(OSError):
                Path(name).unlink()
            raise


def _empty() -> Tables:
    return {table: {} for table in _FIELDS}


def _bound(records: dict[str, Record]) -> None:
    """Drop the oldest records beyond the bound; a dictionary is in the order of insertion."""
    for key in list(records)[: max(0, len(records) - _MOST_RECORDS)]:
        del records[key]


def _merged(tables: Tables, newer: Tables) -> Tables:
    merged = _empty()
    for table, records in merged.items():
        kept = {k: r for k, r in tables[table].items() if k not in newer[table]}
        records.update(kept | newer[table])
        _bound(records)
    return merged


def _record(value: object, fields: dict[str, type]) -> Record | None:
    """A record with exactly the fields of its table, each of its type and range, else None."""
    if not isinstance(value, dict) or value.keys() != fields.keys():
        return None
    checked: Record = {}
    for name, kind in fields.items():
        found = value[name]
        if kind is str:
            if not isinstance(found, str) or len(found) > _LONGEST_TEXT or not _plain(found):
                return None
            checked[name] = found
            continue
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        try:
            number = float(found)
        except OverflowError:
            return None
        if not (isfinite(number) and number > 0):
            return None
        checked[name] = number
    return checked


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _short(key: str) -> str:
    """The key, or what stands for one that is too long for the file (dozens of axes)."""
    if len(key) <= _LONGEST_KEY and _plain(key):
        return key
    from hashlib import sha256

    return sha256(key.encode("utf-8", "backslashreplace")).hexdigest()


def _plain(text: str) -> bool:
    """Whether JSON keeps the length of a text, quotes and backslashes aside."""
    return text.isascii() and text.isprintable()


def _bytes_of(path: Path) -> bytes:
    """The bytes of a regular file that is not too large; opening a pipe does not wait."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise _Foreign("it is not a regular file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise _Foreign(f"it has {status.st_size} bytes, and at most {_LARGEST_FILE} are read")
    return data


def _stamp(status: os.stat_result) -> _Stamp:
    return _Stamp(status.st_ino, status.st_mtime_ns, status.st_size)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _between_processes(path: Path) -> Iterator[None]:
    """One process at a time writes `path`.

    Where there are no such locks, or one is held for long, two that write at once may lose a record
    of each other's, which costs that process's next one a measurement.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # another process holds it
                time.sleep(0.005)
            except OSError:  # this file system has no locks
                break
        yield
    finally:
        os.close(handle)


def cache_directory() -> Path:
    """Where measurements are kept: `UPCONV_CACHE_DIR`, or the user's cache directory."""
    chosen = os.environ.get("UPCONV_CACHE_DIR", "").strip()
    if chosen:
        return Path(chosen)
    try:
        from platformdirs import user_cache_dir
    except ImportError:  # `upconv doctor` reports the missing dependency
        return Path.home() / ".cache" / "upconv"
    return Path(user_cache_dir("upconv"))


def tuning_file() -> Path:
    """The file of the store: `UPCONV_TUNING_FILE`, or `tuning.json` in the cache directory."""
    chosen = os.environ.get("UPCONV_TUNING_FILE", "").strip()
    return Path(chosen) if chosen else cache_directory() / "tuning.json"
