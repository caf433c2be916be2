"""Conversion of results to plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any


def document(value: Any) -> Any:
    """Convert a value to numbers, strings, lists and dictionaries; NaN and infinity become None.

    A dataclass becomes a dictionary of the fields that its repr shows.
    """
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {f.name: document(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {key: document(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [document(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value
