"""Arrays as the kernels read and write them: where they lie well, else copies that do.

The kernels step along the first axes (images, and channels where they come first) by strides they
are told, and along the others as in a contiguous array. A residual is read where y is written, with
y's strides. A copy is scratch memory that depends on the arrays of a call, not on its problem: it
is asked for here, and `workspace_bytes` does not hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import memory
from ...problem import DataLayout
from ..base import Array
from ..copies import contiguous
from .correlation import Correlation


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """What a kernel is given; `out` is the caller's array, which `y` is or is copied to."""

    out: Array
    y: Array
    x: Array
    residual: Array | None

    @classmethod
    def of(cls, correlation: Correlation, out: Array, x: Array, residual: Array | None) -> Operands:
        """The arrays of a call, copied where they do not lie well."""
        free = 2 if correlation.layout is DataLayout.NCX else 1
        y = out
        if not _lies_well(out, free) or (residual is not None and residual.strides != out.strides):
            y = _contiguous("the result", out, filled=correlation.accumulate)
            residual = None if residual is None else _contiguous("the residual", residual)
        return cls(out, y, x if _lies_well(x, free) else _contiguous("x", x), residual)

    def deliver(self) -> None:
        """Put the result where the caller wants it."""
        if self.y is not self.out:
            self.out[...] = self.y


def _lies_well(array: Array, free: int) -> bool:
    """Whether all axes but the first `free` lie as in a contiguous array."""
    if array.flags.c_contiguous:
        return True
    step = array.itemsize
    for size, stride in zip(
        array.shape[: free - 1 : -1], array.strides[: free - 1 : -1], strict=True
    ):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _contiguous(what: str, array: Array, *, filled: bool = True) -> Array:
    """The array itself if it is contiguous, else a copy, `filled` with its values."""
    if array.flags.c_contiguous:
        return array
    memory.require(array.nbytes, f"a copy of {what}")
    return contiguous(array) if filled else np.empty(array.shape, array.dtype)
