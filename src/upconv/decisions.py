"""Measured decisions in a JSON file, and the conditions that they hold for.

    {"format": "upconv.onnx decisions", "version": 1, "conditions": {...}, ...}

A decision holds for the processor, the number of threads, the versions and the model that it was
measured with. The file states them, and `difference` finds the first that is not as it is here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._version import __version__
from .errors import FileError, brief
from .files import opened, published, reported, require_free
from .tuning import processor_model

FilePath = str | os.PathLike[str]

_VERSION = 1
_MOST_BYTES = 1 << 26


def conditions(threads: int, **others: str) -> dict[str, str | int]:
    """The conditions of a measurement made now, by name.

    >>> list(conditions(2, torch="2.13"))
    ['processor', 'threads', 'upconv', 'torch']
    """
    return {"processor": processor_model(), "threads": threads, "upconv": __version__, **others}


def difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first condition that differs, as it was saved and as it is now; else None.

    >>> difference({"threads": 4, "upconv": "1.0"}, {"threads": 2, "upconv": "1.0"})
    ('threads 4', 'threads 2')
    """
    for name, value in now.items():
        if saved.get(name) != value:
            return f"{name} {brief(saved.get(name))}", f"{name} {brief(value)}"
    return None


def require_writable(path: FilePath) -> None:
    """Raise `FileError` unless decisions may be written here: ask before measuring."""
    name = os.fspath(path)
    with reported(name):
        require_free(name, Path(name).resolve(), force=True, inputs=())


def write(path: FilePath, kind: str, content: Mapping[str, Any]) -> None:
    """Write decisions, whole or not at all, in place of a file that was there; else `FileError`."""
    name = os.fspath(path)
    record = {"format": kind, "version": _VERSION, **content}
    with reported(name), published(Path(name).resolve(), force=True) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")


def read(path: FilePath, kind: str) -> dict[str, Any]:
    """Return what `write` was given; `FileError` for a file that is missing or is none of those."""
    name = os.fspath(path)
    with reported(name, "read"), opened(Path(name)) as file:
        data = file.read(_MOST_BYTES)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.pop("format", None) != kind:
        raise damaged(path, f"expected a file of {kind}")
    if (version := record.pop("version", None)) != _VERSION:
        raise damaged(path, f"its version is {brief(version)}; expected {_VERSION}")
    return record


def typed(record: Any, types: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether a record has these entries and no others, each of one of its types.

    >>> typed({"threads": True}, {"threads": (int,)})
    False
    """
    known = isinstance(record, dict) and record.keys() == types.keys()
    return known and all(type(record[name]) in types[name] for name in types)


def damaged(path: FilePath, reason: str) -> FileError:
    """The error for a file that does not hold decisions."""
    return FileError(f"Cannot read {brief(os.fspath(path))}: {reason}.")
