"""Rounding of float32 to bfloat16, the upper half of its bits, to nearest even."""

from __future__ import annotations

import numpy as np

from .. import memory
from .base import Array


def rounded(what: str, array: Array) -> Array:
    """Return a float32 copy of an array, rounded to values that bfloat16 can represent.

    It adds 0x7FFF, plus 1 where the last remaining bit is odd. NaN is preserved separately, since
    the sum might turn it into infinity. Raises `MemoryLimitError` if the copy would not fit.

    >>> rounded("x", np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32))
    array([1.      , 1.015625], dtype=float32)
    """
    memory.require(2 * array.nbytes, f"{what}, rounded to bfloat16")
    bits = np.ascontiguousarray(array).view(np.uint32)
    upper = ((bits >> 16 & 1) + 0x7FFF + bits) & 0xFFFF0000
    result: Array = np.where(np.isnan(array), array, upper.view(np.float32))
    return result
