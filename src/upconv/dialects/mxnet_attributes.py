"""Attributes of MXNet's operators: Python values, or strings, converted to Python values.

MXNet passes every attribute as a string. Therefore "(3, 3)", (3, 3) and [3, 3] are one value, as
are True, "True", "true", 1 and "1". A bare int is a shape with only one axis.

An operator declares its attributes as `name:kind` or `name:kind=default`. A kind is one of `KINDS`,
or words separated by bars; "?" allows None. The default is a string like any other value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, DTypeError, brief

Kind = Callable[[str, Any], Any]
Attributes = SimpleNamespace

_REQUIRED: Any = object()
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class Attribute(NamedTuple):
    """The kind of an attribute, and its default."""

    kind: Kind
    default: Any


def declared(text: str) -> dict[str, Attribute]:
    """Return the attributes that a string declares.

    >>> attributes = declared("kernel:shape stride:shape=() mode:max|avg=max size:int?=None")
    >>> parsed(attributes, {"kernel": "(3, 3)"})
    namespace(kernel=(3, 3), stride=(), mode='max', size=None)
    """
    attributes = {}
    for item in text.split():
        name, _, rest = item.partition(":")
        word, equals, default = rest.partition("=")
        bare = word.rstrip("?")
        kind = KINDS[bare] if bare in KINDS else partial(_one_of, bare.split("|"))
        kind = partial(_optional, kind) if word.endswith("?") else kind
        attributes[name] = Attribute(kind, kind(name, default) if equals else _REQUIRED)
    return attributes


def parsed(attributes: Mapping[str, Attribute], arguments: Mapping[str, Any]) -> Attributes:
    """Return all of an operator's attributes, given a call's; raise `ArgumentError`."""
    for name in arguments:
        if name not in attributes:
            expected = f"one of {', '.join(attributes)}" if attributes else "no attribute"
            raise ArgumentError("an attribute", brief(name), expected)
    values = {name: attribute.default for name, attribute in attributes.items()}
    values |= {name: attributes[name].kind(name, value) for name, value in arguments.items()}
    for name, value in values.items():
        if value is _REQUIRED:
            raise ArgumentError(name, "not given", "a value", "This attribute has no default.")
    return Attributes(**values)


def _literal(name: str, value: Any, expected: str) -> Any:
    """Return the Python value of a string; any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value.strip().replace("L", ""))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ArgumentError(name, brief(value), expected) from None


def _integer(name: str, value: Any, low: int | None = None, high: float = inf) -> int:
    expected = "an integer" if low is None else f"an integer >= {low}"
    expected = expected if high == inf else f"an integer from {low} to {high}"
    value = _literal(name, value, expected)
    fits = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not fits or (low is not None and value < low) or value > high:
        raise ArgumentError(name, brief(value), expected)
    return int(value)


def _number(name: str, value: Any) -> float:
    """Return a real number; a string may have C's format ("inf", "1e-05")."""
    try:
        if isinstance(value, (str, int, float, np.number)):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ArgumentError(name, brief(value), "a number")


def _scalar(name: str, value: Any) -> float | int:
    """Return a number, as an int if it is an integer, because integer arrays need one."""
    if isinstance(value, (int, np.integer, np.bool_)):
        return int(value)
    number = _number(name, value)
    return int(number) if isinstance(value, str) and value.lstrip("+-").isdigit() else number


def _boolean(name: str, value: Any) -> bool:
    known = isinstance(value, (str, np.bool_)) or (isinstance(value, int) and value in (0, 1))
    word = str(value).strip().lower() if known else ""
    if word not in _BOOLEANS:
        raise ArgumentError(name, brief(value), "True, False, 1, 0 or one of these as a string")
    return _BOOLEANS[word]


def _shape(name: str, value: Any, entry: Kind = _integer) -> tuple[Any, ...]:
    value = _literal(name, value, 'a shape such as "(3, 3)"')
    if isinstance(value, np.ndarray):
        value = value.tolist()
    entries = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(entry(f"{name}[{i}]", e) for i, e in enumerate(entries))


def _optional(kind: Kind, name: str, value: Any) -> Any:
    absent = value is None or (isinstance(value, str) and value == "None")
    return None if absent else kind(name, value)


def _one_of(words: list[str], name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in words:
        raise ArgumentError(name, brief(value), "one of " + ", ".join(words))
    return str(value)


def _dtype(name: str, value: Any) -> Any:
    try:
        dtype = None if value is None else np.dtype(value)  # NumPy's None is float64
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biuf":  # other packages may add types to NumPy
        raise DTypeError(name, brief(value), "an element type such as 'float32'")
    return dtype


KINDS: dict[str, Kind] = {
    "shape": _shape,
    "bounds": partial(_shape, entry=partial(_optional, _integer)),
    "int": _integer,
    "count": partial(_integer, low=1),
    "few": partial(_integer, low=1, high=2**16),
    "size": partial(_integer, low=0),
    "number": _number,
    "scalar": _scalar,
    "bool": _boolean,
    "dtype": _dtype,
    "text": lambda _, value: str(value),
    "any": lambda _, value: value,
}


def text(value: Any) -> str:
    """Return the string that MXNet stores for an attribute."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return str(tuple(int(e) if isinstance(e, np.integer) else e for e in value))
    return np.dtype(value).name if isinstance(value, (type, np.dtype)) else str(value)
