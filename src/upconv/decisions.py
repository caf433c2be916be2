"""Measured decisions in a JSON file, and the conditions that they hold for.

    {"format": "upconv.onnx decisions", "version": 1, "conditions": {...}, ...}

A decision holds for the processor, the number of threads, the versions and the model that it was
measured with. The file states them, and `difference` finds the first that is not as it is here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

from ._version import __version__
from .errors import ArgumentError, DTypeError, FileError, brief
from .files import opened, published, reported, require_free
from .tuning import processor_model

FilePath = str | os.PathLike[str]

Content = TypeVar("Content")


class _Saved(Protocol):
    @property
    def holds_for(self) -> Mapping[str, Any]:
        """The conditions that the decisions hold for, by name."""


Saved = TypeVar("Saved", bound=_Saved)

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


def write(path: FilePath, kind: str, content: Mapping[str, Any]) -> None:
    """Write decisions, whole or not at all, in place of a file that was there; else `FileError`."""
    name = _name(path)
    record = {"format": kind, "version": _VERSION, **content}
    with reported(name), published(Path(name).resolve(), force=True) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")


def read(path: FilePath, kind: str) -> dict[str, Any]:
    """Return what `write` was given; `FileError` for a file that is missing or is none of those."""
    name = _name(path)
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


def built(kind: type[Content], record: Any, **converted: Any) -> Content:
    """Make a dataclass of a JSON object, whose entries are of the types that the class declares.

    converted: the fields that JSON has no type for. Raises `TypeError` for any other object.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Row:
    ...     name: str
    ...     before: float | None = None
    >>> built(Row, {"name": "up1", "before": 2.5})
    Row(name='up1', before=2.5)
    """
    types = get_type_hints(kind)
    if not isinstance(record, dict) or record.keys() != types.keys():
        raise TypeError(f"it is {brief(record)}")
    for name in types.keys() - converted.keys():
        if not isinstance(record[name], types[name]):
            raise TypeError(f"its {name} is {brief(record[name])}")
    return kind(**{**record, **converted})


def restored(
    path: FilePath, read: Callable[[FilePath], Saved], now: Mapping[str, Any], remeasure: bool
) -> Saved | None:
    """Read decisions, which are None where they are to be measured again and written.

    Raises `ArgumentError` where they hold for other conditions than `now` and are not to be.
    """
    if not (remeasure and not os.path.lexists(_name(path))):
        saved = read(path)
        other = difference(saved.holds_for, now)
        if other is None:
            return saved
        if not remeasure:
            got = f"{brief(_name(path))}, measured with {other[0]}"
            remedy = "Measure again: remeasure=True writes the file anew."
            raise ArgumentError("decisions", got, f"decisions measured with {other[1]}", remedy)
    with reported(_name(path)):  # before it is measured
        require_free(_name(path), Path(_name(path)).resolve(), force=True, inputs=())
    return None


def damaged(path: FilePath, reason: str) -> FileError:
    """The error for a file that does not hold decisions."""
    return FileError(f"Cannot read {brief(_name(path))}: {reason}.")


def _name(path: FilePath) -> str:
    if not isinstance(path, str | os.PathLike):
        raise DTypeError("The file of decisions", brief(path), "a path")
    return str(os.fspath(path))
