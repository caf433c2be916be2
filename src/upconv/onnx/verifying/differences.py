"""Two arrays that should be one: how far apart they are, and whether that is rounding.

    error     the largest |a - b| over the elements that are finite in both
    scale     the largest magnitude of a finite element of either
    relative  error / scale: what is compared with what is allowed

1. NaN equals NaN in the same place, and an infinity its like; any other place where one of the two
   is not finite is a difference, whatever is allowed.
2. Two arrays without a single finite element agree on nothing that could be wrong: not equal, and
   the words say so. Empty arrays are equal.
3. What nothing rounds (integers, booleans, text) must be equal, unless a tolerance is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from ...arrays import Array

_BLOCK = 1 << 20
"""Elements looked at in one go: their copies in float64 are all the memory a comparison takes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value as two models have it: an output, or the result of a layer.

    `node` and `op` are the node that makes it in the first model; `shape` and `dtype` are what it
    has there. `error` and `scale` are as in the module's text, `allowed` is relative to the scale.
    `nans` counts NaN in either. `words` say what differs besides numbers.
    """

    name: str
    node: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    error: float
    scale: float
    allowed: float
    nans: tuple[int, int] = (0, 0)
    words: str = ""

    @property
    def relative(self) -> float:
        """The error as a part of the scale; 0 without an error."""
        return self.error / self.scale if self.error and self.scale else self.error

    @property
    def equal(self) -> bool:
        """Whether rounding explains all of it."""
        return not self.words and self.relative <= self.allowed

    def as_json(self) -> dict[str, Any]:
        """Every field for JSON, in which there is no infinity: null stands for it."""
        fields = {**asdict(self), "relative": self.relative, "equal": self.equal}
        numbers = ("error", "scale", "allowed", "relative")
        return fields | {name: fields[name] if isfinite(fields[name]) else None for name in numbers}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is made: its name, and the node and operator that make it."""

    name: str
    node: str = ""
    op: str = ""


def differences(place: Place, a: Any, b: Any, allowed: float) -> list[Difference]:
    """How a value differs; a sequence gives one difference per member, `name[i]`.

    >>> a, b = np.ones(3, np.float32), np.array([1, 1, 1.5], np.float32)
    >>> [found] = differences(Place("y"), a, b, 1e-6)
    >>> found.error, found.scale, found.equal
    (0.5, 1.5, False)
    """
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        members = enumerate(zip(a, b, strict=True))
        found = (
            differences(Place(f"{place.name}[{i}]", place.node, place.op), *pair, allowed)
            for i, pair in members
        )
        return [difference for group in found for difference in group]
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return [_unlike(place, a, b, f"{_kind(a)} became {_kind(b)}")]
    if a.shape != b.shape:
        return [_unlike(place, a, b, f"the shape {a.shape} became {b.shape}")]
    return [_compared(place, a, b, allowed)]


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return "a tensor" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _unlike(place: Place, a: Any, b: Any, words: str) -> Difference:
    shape, dtype = (a.shape, str(a.dtype)) if isinstance(a, np.ndarray) else ((), _kind(a))
    return Difference(place.name, place.node, place.op, shape, dtype, inf, 0.0, 0.0, words=words)


def _compared(place: Place, a: Array, b: Array, allowed: float) -> Difference:
    words = "" if a.dtype == b.dtype else f"{a.dtype} became {b.dtype}"
    seen = _Seen()
    for x, y in _blocks(a, b):
        seen.look(x, y)
    return Difference(
        place.name,
        place.node,
        place.op,
        a.shape,
        str(a.dtype),
        seen.error,
        seen.scale,
        allowed,
        (seen.nans_a, seen.nans_b),
        words or seen.words(a.size),
    )


def _blocks(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    x, y = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, _BLOCK):
        yield x[start : start + _BLOCK], y[start : start + _BLOCK]


@dataclass(slots=True)
class _Seen:
    """What blocks of two arrays have shown so far."""

    error: float = 0.0
    scale: float = 0.0
    nans_a: int = 0
    nans_b: int = 0
    finite: int = 0
    torn: int = 0

    def look(self, a: Array, b: Array) -> None:
        """Take in one more block."""
        if not (_numeric(a) and _numeric(b)):
            self.finite += a.size
            self.error = max(self.error, float(np.count_nonzero(a != b)))
            self.scale = 1.0
            return
        x, y = _wide(a), _wide(b)
        self.nans_a += int(np.count_nonzero(np.isnan(x)))
        self.nans_b += int(np.count_nonzero(np.isnan(y)))
        both = np.isfinite(x) & np.isfinite(y)
        alike = (x == y) | (np.isnan(x) & np.isnan(y))
        self.torn += int(np.count_nonzero(~both & ~alike))
        self.finite += int(np.count_nonzero(both))
        x, y = x[both], y[both]
        if x.size:
            with np.errstate(over="ignore"):  # 1e308 - -1e308
                self.error = max(self.error, float(np.abs(x - y).max()), _exact(a, b))
            self.scale = max(self.scale, float(np.abs(x).max()), float(np.abs(y).max()))

    def words(self, size: int) -> str:
        """What is to be said besides numbers."""
        if self.torn:
            return (
                f"{self.torn} of {size} elements are NaN or infinite in one of the two only"
                f" (NaN: {self.nans_a} and {self.nans_b})"
            )
        if size and not self.finite:
            return "there is no finite element in either, so nothing is proven"
        return ""


def _numeric(array: Array) -> bool:
    return array.dtype.kind in "biufcV" and array.dtype.names is None


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _exact(a: Array, b: Array) -> float:
    """1 where 64-bit integers differ that float64 holds for equal."""
    whole = a.dtype.kind in "iu" and b.dtype.kind in "iu" and max(a.itemsize, b.itemsize) == 8
    return float(whole and not np.array_equal(a, b))
