"""Scratch memory that calls take and give back, so that it is warm and no call waits for pages.

A few buffers are kept for the whole process, however many primitives there are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_KEPT = 4
_KEPT_BYTES = 64 << 20
_lock = threading.Lock()
_free: list[Bytes] = []


@contextmanager
def workspace(nbytes: int) -> Iterator[int]:
    """The address, aligned to 64 bytes, of at least `nbytes` bytes of one's own."""
    buffer = _taken(nbytes + 64)
    try:
        yield (buffer.ctypes.data + 63) // 64 * 64
    finally:
        if buffer.nbytes <= _KEPT_BYTES:
            with _lock:
                if len(_free) < _KEPT:
                    _free.append(buffer)


def _taken(nbytes: int) -> Bytes:
    with _lock:
        for i in range(len(_free) - 1, -1, -1):
            if _free[i].nbytes >= nbytes:
                return _free.pop(i)
        if len(_free) == _KEPT:
            _free.pop(0)  # too small for what runs now
    return np.empty(nbytes, np.uint8)
