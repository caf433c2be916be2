"""Measurements of this machine, kept between processes in one SQLite file.

A record is a small dictionary of strings and numbers under a section and a key. Only the module
that owns a section interprets and validates its records. The file is not trusted: any fault in it
causes a warning and a new measurement.

SQLite writes each record atomically, one process at a time. Other programs' files are never
written to. A section keeps its latest 1024 records.

Functions import the modules for reading and writing, so that `import upconv` stays fast.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from ..files import cache_directory
from ..forks import importing

Record = dict[str, str | float]

_APPLICATION = 0x7570636F
"""SQLite's `application_id` in files of this store."""

_MAX_RECORDS = 1024
_LOCK_SECONDS = 10.0  # each lock holder writes to disk, which can be slow on a busy machine

_REMEDY = "measurements are lost when this process ends. Move it, or set UPCONV_TUNING_FILE"

_TABLE = (
    "CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT, section TEXT,"
    " key TEXT, record TEXT, UNIQUE (section, key) ON CONFLICT REPLACE)"
)
_INSERT = "INSERT INTO records (section, key, record) VALUES (?, ?, ?)"
_BOUND = (
    "DELETE FROM records WHERE section = ? AND number <= (SELECT number FROM records"
    " WHERE section = ? ORDER BY number DESC LIMIT 1 OFFSET ?)"
)
_FIND = "SELECT record FROM records WHERE section = ? AND key = ?"
_KEYS = "SELECT key FROM records WHERE section = ?"


class TuningStore:
    """Records by section and key, in a file; see the module's docstring.

    Records that cannot be written are kept in this process. `measured` counts the measurements of
    this process. The store is thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measured = 0
        self._own: dict[tuple[str, str], Record] = {}
        self._warned: set[str] = set()

    def find(self, section: str, key: str) -> Record | None:
        """Return the record of a key from this process, or else from the file."""
        with importing:
            import json

        if (section, key) in self._own:
            return self._own[section, key]
        for (text,) in self._rows((_FIND, (section, key))):
            try:
                record = json.loads(text)
            except (ValueError, TypeError):
                record = None
            if isinstance(record, dict):
                return record
            self.warn(f"has an invalid record in {section!r}; such records are ignored")
        return None

    def remember(self, section: str, key: str, record: Mapping[str, str | float]) -> None:
        """Store a record, in this process and in the file."""
        with importing:
            import json

        self._own[section, key] = dict(record)
        values = section, key, json.dumps(record, allow_nan=False)
        self._run("written", (_INSERT, values), (_BOUND, (section, section, _MAX_RECORDS)))

    def clear(self) -> None:
        """Delete all records, in this process and in the file."""
        self._own.clear()
        self.measured = 0
        if self.path.exists():
            self._run("cleared", ("DELETE FROM records", ()))

    def count(self, section: str) -> int:
        """Return the number of records in a section."""
        keys = {key for (key,) in self._rows((_KEYS, (section,)))}
        return len(keys | {key for name, key in self._own if name == section})

    def warn(self, complaint: str) -> None:
        """Warn about a fault of the file, once per fault and process."""
        if complaint not in self._warned:
            self._warned.add(complaint)
            message = f"the tuning file {str(self.path)!r} {complaint}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _rows(self, query: tuple[str, tuple[Any, ...]]) -> list[Any]:
        """Return the rows from the file; none if there is no file."""
        return self._run("read", query) if os.path.lexists(self.path) else []

    def _run(self, verb: str, *statements: tuple[str, tuple[Any, ...]]) -> list[Any]:
        """Run statements in one transaction and return their rows; warn if that fails.

        A fork waits until the file is closed. Otherwise the child could inherit SQLite's mutexes
        and file locks from another thread, and nothing in the child would release them.
        """
        try:
            with importing:
                import sqlite3
        except ImportError:
            self.warn(f"cannot be {verb} (this Python was built without sqlite3)")
            return []
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.exists() and not self.path.is_file():  # opening a pipe would block
                raise ValueError("it is not a regular file")
            with (
                importing,
                closing(sqlite3.connect(self.path, timeout=_LOCK_SECONDS)) as database,
                database,
            ):
                _require_own(database)
                return [row for statement in statements for row in database.execute(*statement)]
        except (OSError, ValueError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            self.warn(f"cannot be {verb} ({reason}); {_REMEDY}")
            return []


def _require_own(database: Any) -> None:
    """Raise `ValueError` for another program's database; an empty one becomes a store."""
    used = database.execute("SELECT name FROM sqlite_master").fetchall()
    ((application,),) = database.execute("PRAGMA application_id")
    if not used:
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute(_TABLE)
    elif application != _APPLICATION:
        raise ValueError("it is another program's database")


def tuning_file() -> Path:
    """Return the store's path: `UPCONV_TUNING_FILE`, or `tuning.sqlite` in the cache directory."""
    chosen = os.environ.get("UPCONV_TUNING_FILE", "").strip()
    return Path(chosen) if chosen else cache_directory() / "tuning.sqlite"
