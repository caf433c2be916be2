"""Conversion of frameworks' arguments to plain ints, tuples and enum members.

Every dialect reads its arguments here, once. Afterwards an argument is an int of at least its lower
bound, a tuple with one such int per spatial axis, or a member of an enum. NumPy integers count as
ints. Bools, floats and strings in place of an integer are refused; every error names the argument
and the index of the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Set
from enum import Enum
from itertools import islice
from typing import Any, TypeGuard, TypeVar

from ..argument_checks import integer as integer
from ..argument_checks import one_of
from ..errors import ArgumentError, DTypeError, ShapeError, brief
from ..geometry import Axis

Member = TypeVar("Member", bound=Enum)
_MAX_ENTRIES = 128


def integers(
    name: str, value: object, low: int, counts: Container[int] = range(_MAX_ENTRIES + 1),
    expected: str = "", remedy: str = "",
) -> tuple[int, ...]:  # fmt: skip
    """Return a list, tuple or array of integers, each at least `low`, as a tuple.

    counts: the allowed numbers of entries; for others, `ShapeError` says what is `expected`.
    """
    sequence = entries(value)
    if sequence is None:
        raise DTypeError(name, f"{brief(value)} ({type(value).__name__})", "a tuple of integers")
    if len(sequence) > _MAX_ENTRIES:
        got, expected = f"of more than {_MAX_ENTRIES} entries", f"at most {_MAX_ENTRIES}"
        raise ArgumentError(name, got, expected)
    numbers = tuple(integer(f"{name}[{i}]", entry, low) for i, entry in enumerate(sequence))
    if len(numbers) not in counts:
        raise ShapeError(name, str(numbers), expected, remedy)
    return numbers


def entries(value: object) -> tuple[Any, ...] | None:
    """Return a sequence's entries, at most one more than allowed; None for other values."""
    if not is_sequence(value):
        return None
    try:
        return tuple(islice(value, _MAX_ENTRIES + 1))
    except Exception:  # third-party code: a value that cannot be read is not a sequence
        return None


def is_sequence(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value has ordered entries: lists, tuples and arrays, not strings or sets."""
    if isinstance(value, (str, bytes, Mapping, Set)) or getattr(value, "shape", None) == ():
        return False  # an array without axes is a number, though it has __iter__ and __len__
    return isinstance(value, Iterable) and hasattr(value, "__len__")


def sizes(value: object) -> tuple[int, ...]:
    """Return the spatial input size, one int per axis; a bare int means one axis."""
    if not is_sequence(value):
        return (integer("size", value, low=0),)
    size = integers("size", value, low=0)
    if not size:
        raise ShapeError("size", "()", "at least one spatial axis", "Give x.shape without N and C.")
    return size


def per_axis(
    name: str, value: object, rank: int, low: int, *, absent: int | None = None,
    repeated: bool = False,
) -> tuple[int, ...]:  # fmt: skip
    """Return one integer per spatial axis; a bare int means a single axis.

    absent: the number for every axis if the argument is None. repeated: whether a bare int applies
    to every axis, as in PyTorch and Keras.
    """
    if value is None and absent is not None:
        return (absent,) * rank
    if not is_sequence(value):
        numbers = (integer(name, value, low),) * (rank if repeated else 1)
    else:
        numbers = integers(name, value, low)
    if len(numbers) != rank:
        raise ArgumentError(
            name,
            f"{brief(numbers)} ({len(numbers)} of them)",
            f"one integer per spatial axis, {rank} here",
            "The input size, given without N and C, determines the number of axes.",
        )
    return numbers


def text(name: str, value: object) -> str:
    """Return a string, or ASCII bytes as in ONNX models, as a str."""
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    if not isinstance(value, str):
        raise DTypeError(name, f"{brief(value)} ({type(value).__name__})", "a string")
    return value


def member(name: str, value: object, kind: type[Member], remedy: str = "") -> Member:
    """Return the member of a string enum that has this value."""
    return one_of(name, text(name, value), kind, remedy)


def axes(make: Callable[..., Axis], *columns: Iterable[Any]) -> tuple[Axis, ...]:
    """Apply `make` to the i-th entries of all columns, for every axis i; errors name the axis."""
    results = []
    for i, row in enumerate(zip(*columns, strict=True)):
        try:
            results.append(make(*row))
        except ArgumentError as error:
            name = error.argument if "[" in error.argument else f"{error.argument} on axis {i}"
            raise type(error)(name, error.got, error.expected, error.remedy) from None
    return tuple(results)
