"""What was measured on this machine, kept in one JSON file between processes.

A record is a small dictionary of texts and numbers under a section and a key. What a section means
is known only to its owner, who also checks what a record says: the file is trusted with nothing,
and whatever is wrong with it costs a warning and a new measurement.

1. Reading: a regular file of at most 16 MiB, JSON without a number that is none. Values that are no
   records are left out. Nothing is ever unpickled or executed.
2. Writing: a complete new file takes the file's place (`files.published`). A link is replaced, what
   it points to never written.
3. Writing reads the file again first, under a lock between processes where there is one, and adds
   to what others wrote meanwhile. The oldest records go beyond 1024 in a section.
4. A file that does not begin as this store's own is somebody else's: it is never written over.

Modules that only reading and writing need are imported there: `import upconv` stays quick.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

from .. import files

SCHEMA = 1
"""Raised when the form of the file changes; a file of another schema is started anew."""

Record = dict[str, str | float]
Sections = dict[str, dict[str, Record]]

_BEGINNING = b'{"upconv tuning"'
_LARGEST_FILE = 16 << 20
_MOST_RECORDS = 1024
_LOCK_SECONDS = 10.0  # each holder writes a file to the disk, which takes long on a busy machine


class TuningStore:
    """Records by section and key, in memory and in a file; see the module's docstring.

    What cannot be written is remembered in this process all the same. Safe to use from any thread
    without a lock, as dictionaries are replaced, not changed: threads that remember at once may
    lose each other's record in memory, not in the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own: Sections = {}
        self._read: Sections = {}
        self._stamp: object = None
        self._warned: set[str] = set()

    def find(self, section: str, key: str) -> Record | None:
        """What is remembered under a key: this process's own record, else the file's."""
        own = self._own.get(section, {}).get(key)
        return own if own is not None else self._contents().get(section, {}).get(key)

    def remember(self, section: str, key: str, record: Mapping[str, str | float]) -> None:
        """Remember a record, here and in the file."""
        own = self._own = _merged(self._own, {section: {key: dict(record)}})
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _between_processes(self.path):
                self._replace(_merged(self._load(), own))
        except (OSError, ValueError) as error:
            self.warn(f"cannot be written ({_reason(error)}); measurements end with this process")

    def clear(self) -> None:
        """Forget everything, here and in the file."""
        self._own = {}
        try:
            if self.path.exists():
                with _between_processes(self.path):
                    self._load()  # raises for a file that is not ours to remove
                    self.path.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            self.warn(f"cannot be cleared ({_reason(error)})")

    def count(self, section: str) -> int:
        """How many records a section has."""
        return len(_merged(self._contents(), self._own).get(section, {}))

    def warn(self, complaint: str) -> None:
        """Say what is wrong with the file, each thing once per process."""
        if complaint not in self._warned:
            self._warned.add(complaint)
            message = f"the tuning file {str(self.path)!r} {complaint}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _contents(self) -> Sections:
        """What the file holds, read anew only when it has changed."""
        try:
            status = self.path.stat()
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
            if stamp == self._stamp:
                return self._read
            found = self._load()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self.warn(f"cannot be read ({_reason(error)}); it counts as empty")
            return {}
        self._read, self._stamp = found, stamp  # in this order: another thread may look
        return found

    def _load(self) -> Sections:
        """The file's records; of a file of ours that is damaged, none.

        Raises `OSError` and, for a file that is not ours, `ValueError`.
        """
        import json

        try:
            with files.opened(self.path) as file:
                size, data = os.fstat(file.fileno()).st_size, file.read(_LARGEST_FILE + 1)
        except FileNotFoundError:
            return {}
        if len(data) > _LARGEST_FILE:
            raise ValueError(f"it has {size} bytes, and at most {_LARGEST_FILE} are read")
        if not data.strip(b"\0\t\r\n "):  # what a lost power supply leaves of a file
            return {}
        if not data.lstrip().startswith(_BEGINNING):
            raise ValueError("it is no file of upconv's; move it away, or set UPCONV_TUNING_FILE")
        try:
            document = json.loads(data, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self.warn(f"is damaged ({_reason(error)}); it is started anew")
            return {}
        if document.pop("upconv tuning") != SCHEMA:
            self.warn(f"is of another schema than {SCHEMA}; it is started anew")
            return {}
        sections: Sections = {}
        for section, found in document.items():
            records = found if isinstance(found, dict) else {"": found}
            sections[section] = {k: r for k, r in records.items() if _is_record(r)}
            if len(sections[section]) < len(records):
                self.warn(f"has a record in {section[:80]!r} that is none; such are left out")
        return sections

    def _replace(self, sections: Sections) -> None:
        """Put a complete new file in the file's place."""
        import json

        text = json.dumps({"upconv tuning": SCHEMA, **sections}, allow_nan=False)
        with files.published(self.path, force=True) as file:
            file.write(text.encode("ascii"))


def _merged(sections: Sections, newer: Sections) -> Sections:
    """All records, the newer ones last, without the oldest beyond the bound."""
    merged = dict(sections)
    for section, records in newer.items():
        kept = {k: r for k, r in merged.get(section, {}).items() if k not in records}
        merged[section] = dict([*kept.items(), *records.items()][-_MOST_RECORDS:])
    return merged


def _is_record(value: object) -> bool:
    """Whether it is a dictionary of texts and finite numbers; its owner checks what they mean."""
    return isinstance(value, dict) and all(
        isinstance(field, str) or (isinstance(field, float) and isfinite(field))
        for field in value.values()
    )


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _between_processes(path: Path) -> Iterator[None]:
    """One process at a time writes `path`.

    Where there are no such locks, or one is held for `_LOCK_SECONDS`, two that write at once may
    lose a record of each other's, which costs that process's next one a measurement.
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
