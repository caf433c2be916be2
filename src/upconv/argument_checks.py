"""Checks of single arguments: numbers, booleans, names.

`frozen` runs on every call. It makes a keyword hashable and keeps its exact types, so that 1, True
and 1.0 stay distinct. The module `keywords` interprets frozen keywords.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from math import inf, isfinite
from typing import Any, TypeVar

import numpy as np

from .errors import ArgumentError, DTypeError, brief

Frozen = Any
"""int | str | None | a tuple of those, at most two deep."""

LIMIT = 1 << 48
"""Upper bound of every size, kernel, stride, dilation and crop. An extent times an element size
then fits in 64 bits. No real array has 2**48 elements."""

_MAX_ENTRIES = 128
_ONE_EACH = "One int stands for all axes."

Choice = TypeVar("Choice", bound=Enum)


def frozen(argument: str, value: object, depth: int = 2) -> Frozen:
    """Return `value` with tuples for lists and arrays, and Python ints for all integers."""
    if type(value) is int or value is None or type(value) is str or _is_frozen(value):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # str() of a string enum's member would give its name
    if isinstance(value, np.ndarray) and value.ndim and value.size <= _MAX_ENTRIES:
        value = value.tolist()
    if isinstance(value, list | tuple) and len(value) > _MAX_ENTRIES:
        got, expected = f"{len(value)} values", "an int, or one int per spatial axis"
        raise ArgumentError(argument, got, expected, _ONE_EACH)
    if isinstance(value, list | tuple) and depth:
        return tuple(frozen(f"{argument}[{i}]", entry, depth - 1) for i, entry in enumerate(value))
    return _as_int(argument, value, "an int, or a tuple of ints", _CONVERT)


_CONVERT = "Convert it with int() if it is a whole number."


def _as_int(argument: str, value: object, expected: str, remedy: str) -> int:
    """Return `value` as an int. Booleans are refused: True is never meant as an integer."""
    if type(value) is int:
        return value
    if not isinstance(value, bool | np.bool_):
        with suppress(Exception):  # TypeError without __index__; __index__ may raise anything
            return operator.index(value)  # type: ignore[arg-type]
    raise DTypeError(argument, f"{brief(value)} ({type(value).__name__})", expected, remedy)


def integer(
    argument: str,
    value: object,
    low: int,
    high: int = LIMIT,
    remedy: str = "",
    kind: type[ArgumentError] = ArgumentError,
) -> int:
    """Return `value` as an int; raise `DTypeError` for other types, `kind` outside [low, high]."""
    number = _as_int(argument, value, "an integer", remedy)
    if low <= number <= high:
        return number
    bound = f"<= 2**48 = {LIMIT}" if number > high else f">= {low}"
    expected = f"an integer {bound}" if high == LIMIT else f"an integer from {low} to {high}"
    raise kind(argument, brief(number), expected, remedy)


def number(
    argument: str, value: object, low: float = -inf, high: float = inf, remedy: str = ""
) -> float:
    """Return a finite number within bounds, as a float; `DTypeError` if it is not a number."""
    expected = "a finite number"
    if low > -inf:
        expected += f" from {low:g} to {high:g}" if isfinite(high) else f" >= {low:g}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        got = f"{brief(value)} ({type(value).__name__})"
        raise DTypeError(argument, got, expected, remedy)
    try:
        result = float(value)
    except OverflowError:  # an int too large for a float
        result = inf
    if not isfinite(result) or not low <= result <= high:
        raise ArgumentError(argument, brief(value), expected, remedy)
    return result


def integer_variable(variable: str, low: int, high: int) -> int | None:
    """Return the integer in an environment variable; None if it is unset or blank."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        expected = f"an integer from {low} to {high}"
        raise ArgumentError(variable, brief(text), expected, "It is an environment variable.")
    return integer(variable, int(text), low, high, "It is an environment variable.")


def _is_frozen(value: object) -> bool:
    """Return whether `value` is a tuple of ints, or of tuples of ints: the most frequent forms."""
    if type(value) is not tuple or len(value) > _MAX_ENTRIES:
        return False
    for entry in value:
        if type(entry) is not int and not (type(entry) is tuple and _only_integers(entry)):
            return False
    return True


def _only_integers(entries: tuple[object, ...]) -> bool:
    for entry in entries:
        if type(entry) is not int:
            return False
    return len(entries) <= _MAX_ENTRIES


def boolean(argument: str, value: object) -> bool:
    """Return `value` if it is a bool, or raise `DTypeError`, since "no" and [0] are truthy."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise DTypeError(argument, brief(value), "a bool", "Write True or False.")


def function(argument: str, value: object, of: str) -> None:
    """Raise `DTypeError` unless `value` is callable or None; `of` names its arguments."""
    if value is not None and not callable(value):
        raise DTypeError(argument, brief(value), f"a function of {of}, or None")


def by_name(argument: str, value: object) -> dict[str, Any]:
    """Return a dict of shapes, or of similar values, by input name; empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        expected = "a dict of shapes by the names of inputs"
        raise ArgumentError(argument, brief(value), expected, 'Write {"x": (1, 80, 64)}.')
    return dict(value)


_LETTERS = "N is the batch, C channels, I and O input and output channels, X all spatial axes."


def one_of(argument: str, value: Frozen, kinds: type[Choice], remedy: str = _LETTERS) -> Choice:
    """Return the member of an enum whose value is `value`."""
    for kind in kinds:
        if kind._value_ == value:  # the same as `kind.value`, without two Python calls
            return kind
    names = ", ".join(repr(kind.value) for kind in kinds)
    raise ArgumentError(argument, brief(value), f"one of {names}", remedy)
