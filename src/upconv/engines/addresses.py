"""Array addresses for native code.

`array.ctypes.data` returns the same but takes a microsecond, and a call has up to five arrays.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .base import Array

_BYTE = ctypes.c_char
MEMORY: Any = _BYTE * (1 << 62)
"""A type that overlays memory of any size; creating a type for each size would take 9 us."""


def address_of(array: Array) -> int:
    """Return the address of the array's first element.

    >>> import numpy as np
    >>> numbers = np.zeros(3)
    >>> address_of(numbers[1:]) - address_of(numbers)
    8
    """
    try:
        known: Any = array if array.dtype.kind != "V" else array.view(np.uint16)  # bfloat16
        return ctypes.addressof(_BYTE.from_buffer(known))
    except (TypeError, ValueError):  # read-only, strided, empty, or of a type without buffers
        return array.ctypes.data
