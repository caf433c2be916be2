"""Rounding float32 to bfloat16, to nearest even: the upper half of the bits."""

from __future__ import annotations

import numpy as np

from .. import memory
from .base import Array


def rounded(what: str, array: Array) -> Array:
    """A copy of float32 numbers whose values bfloat16 has; `MemoryLimitError` if it would not fit.

    Half of the last place that stays is added, less one where that place is even. What that might
    turn into infinity, NaN, stays as it is.

    >>> rounded("x", np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32))
    array([1.      , 1.015625], dtype=float32)
    """
    memory.require(2 * array.nbytes, f"{what}, rounded to bfloat16")
    bits = np.ascontiguousarray(array).view(np.uint32)
    upper = ((bits >> 16 & 1) + 0x7FFF + bits) & 0xFFFF0000
    result: Array = np.where(np.isnan(array), array, upper.view(np.float32))
    return result
