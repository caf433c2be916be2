"""The fallback to the reference engine for weights that are not finite, with a count of its uses.

Kernels multiply the zeros around and between rows by weights. That is exact unless a weight is
infinite or NaN: then such a product would be NaN. The reference engine multiplies only real inputs.
`cache_info().fallbacks` counts how often it was used instead.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .. import forks, memory
from ..errors import ArgumentError
from ..problem import Problem
from . import load
from .base import Array, Maybe, Primitive

_SMALL = 1 << 12  # numbers
_lock = threading.Lock()
forks.hold(_lock)
_count = 0


class NonFinite(Exception):
    """Raised by a primitive's `pack` for a weight with an infinite or NaN element."""


def count() -> int:
    """Return how often the reference engine has been used instead."""
    return _count


def set_count(number: int) -> None:
    """Set the number from which `count` continues."""
    global _count
    with _lock:
        _count = number


def reference(problem: Problem, threads: int) -> Primitive:
    """Build the reference engine's primitive, and count it as a fallback."""
    set_count(_count + 1)
    return load("reference").build(problem, threads)


def is_finite(array: Array) -> bool:
    """Whether all elements are finite: a finite sum suffices, else each element is checked."""
    if array.size <= _SMALL:  # suppressing warnings for the sum would take longer
        return bool(np.isfinite(array).all())
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.sum(array, dtype=np.float64)) or np.isfinite(array).all())


class NonFiniteWeight:
    """A weight with an infinite or NaN element, and the reference primitive that uses it."""

    engine = "reference"

    def __init__(self, problem: Problem, threads: int, weight: Array) -> None:
        self._primitive = reference(problem, threads)
        self._packed = self._primitive.pack(weight)

    def run(self, out: Array, a: Array, *ends: Maybe) -> None:
        """Compute into `out`; `ends` are the arguments of `Primitive.run` after b."""
        self._primitive.run(out, a, self._packed, *ends)


class NonFiniteFallback:
    """A primitive that uses the reference engine for weights that are not finite."""

    def __init__(self, inner: Primitive, problem: Problem, threads: int) -> None:
        self._inner, self._problem, self._threads = inner, problem, threads
        self.workspace_bytes, self.resident_bytes = inner.workspace_bytes, inner.resident_bytes
        self.predicted_cycles = inner.predicted_cycles
        self.order = getattr(inner, "order", None)

    @property
    def description(self) -> str:
        """The inner primitive's description."""
        return self._inner.description

    def pack(self, weight: Array) -> Any:
        """Return the weight in the primitive's order, or a `NonFiniteWeight`."""
        if weight.nbytes > memory.ALWAYS_FINE:  # refuse it before its elements are read
            memory.require(weight.nbytes, "the packed weight")
        try:
            return self._inner.pack(weight)
        except NonFinite:
            return NonFiniteWeight(self._problem, self._threads, weight)

    def run(self, out: Array, a: Array, b: Any, *ends: Maybe) -> None:
        """Compute into `out`; `ends` are the arguments of `Primitive.run` after b."""
        if isinstance(b, NonFiniteWeight):
            b.run(out, a, *ends)
        else:
            self._inner.run(out, a, b, *ends)

    def run_once(self, out: Array, a: Array, weight: Array, *ends: Maybe) -> None:
        """Pack a weight for this call only, and compute into `out`."""
        inner: Any = self._inner
        # A kernel that finds a non-finite weight while it runs may have overwritten `out`.
        if self._problem.accumulate or not getattr(inner, "packs_in_call", False):
            self.run(out, a, self.pack(weight), *ends)
            return
        try:
            inner.run_once(out, a, weight, *ends)
        except NonFinite:
            NonFiniteWeight(self._problem, self._threads, weight).run(out, a, *ends)

    def steps(self, out: Array, a: Array, b: Any, *ends: Any) -> list[Any]:
        """Return the inner primitive's steps for a finite weight."""
        if isinstance(b, NonFiniteWeight):
            remedy = "Call the layer by itself: the reference engine then computes it."
            words = "finite numbers: a native program cannot handle infinity or NaN"
            raise ArgumentError("weight", "not finite", words, remedy)
        inner: Any = self._inner
        steps: list[Any] = inner.steps(out, a, b, *ends)
        return steps

    def close(self) -> None:
        """Close the inner primitive."""
        self._inner.close()
