"""Attribute values as frameworks write them -> plain ints, tuples and enum members.

Every dialect normalises here, once; behind this border an attribute is an int >= its lower bound,
a tuple with one such int per spatial axis, or a member of an enum. NumPy integers count as ints;
bools, floats and text where an integer belongs are refused, and every refusal names the attribute
with the index of the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from itertools import islice
from typing import Any, TypeGuard, TypeVar

from ..checks import integer as integer
from ..checks import one_of
from ..errors import ArgumentError, DTypeError, ShapeError, brief
from ..geometry import Axis

Member = TypeVar("Member", bound=Enum)


def integers(name: str, value: object, low: int) -> tuple[int, ...]:
    """A list, tuple or array of integers, each of at least `low`, as a tuple."""
    read = entries(value)
    if read is None:
        raise DTypeError(name, f"{brief(value)} ({type(value).__name__})", "a tuple of integers")
    if len(read) > _MOST_ENTRIES:
        expected = f"at most {_MOST_ENTRIES}"
        raise ArgumentError(name, f"of more than {_MOST_ENTRIES} entries", expected)
    return tuple(integer(f"{name}[{i}]", entry, low) for i, entry in enumerate(read))


_MOST_ENTRIES = 128


def entries(value: object) -> tuple[Any, ...] | None:
    """The entries of a sequence, a few more than allowed at most; None for what has none."""
    if not is_sequence(value):
        return None
    try:
        return tuple(islice(value, _MOST_ENTRIES + 1))
    except Exception:  # foreign code: what cannot be read is no sequence
        return None


def is_sequence(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether `value` holds entries in an order: lists, tuples, arrays; never text or sets."""
    if isinstance(value, (str, bytes, Mapping, Set)) or getattr(value, "shape", None) == ():
        return False  # an array without axes is a number, though it has __iter__ and __len__
    return isinstance(value, Iterable) and hasattr(value, "__len__")


def sizes(value: object) -> tuple[int, ...]:
    """The spatial input size: one int per axis; a bare int is one axis."""
    if not is_sequence(value):
        return (integer("size", value, low=0),)
    size = integers("size", value, low=0)
    if not size:
        raise ShapeError("size", "()", "at least one spatial axis", "Give x.shape without N and C.")
    return size


def per_axis(
    name: str, value: object, rank: int, low: int, *, absent: int | None = None
) -> tuple[int, ...]:
    """One integer per spatial axis; a bare int is one axis only.

    An attribute that may be missing has an `absent`, which None stands for on every axis.
    """
    if value is None and absent is not None:
        return (absent,) * rank
    numbers = integers(name, value, low) if is_sequence(value) else (integer(name, value, low),)
    return _counted(name, numbers, rank)


def per_axis_or_one(name: str, value: object, rank: int, low: int) -> tuple[int, ...]:
    """One integer per spatial axis; a bare int stands for every axis (PyTorch, Keras)."""
    if not is_sequence(value):
        return (integer(name, value, low),) * rank
    return _counted(name, integers(name, value, low), rank)


def _counted(name: str, numbers: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if len(numbers) != rank:
        raise ArgumentError(
            name,
            f"{brief(numbers)} ({len(numbers)} of them)",
            f"one integer per spatial axis, {rank} here",
            "The input size, given without N and C, decides how many axes there are.",
        )
    return numbers


def text(name: str, value: object) -> str:
    """Text, or ASCII bytes as ONNX stores it, as str."""
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    if not isinstance(value, str):
        raise DTypeError(name, f"{brief(value)} ({type(value).__name__})", "text")
    return value


def member(name: str, value: object, kind: type[Member], remedy: str = "") -> Member:
    """The member of an enum of strings whose value is the text given."""
    return one_of(name, text(name, value), kind, remedy)


def axes(make: Callable[..., Axis], *columns: Iterable[Any]) -> tuple[Axis, ...]:
    """`make` on the i-th entry of every column, for every axis i; an error names the axis."""
    made = []
    for i, row in enumerate(zip(*columns, strict=True)):
        try:
            made.append(make(*row))
        except ArgumentError as error:
            name = error.argument if "[" in error.argument else f"{error.argument} on axis {i}"
            raise type(error)(name, error.got, error.expected, error.remedy) from None
    return tuple(made)
