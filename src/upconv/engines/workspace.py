"""Scratch memory that calls borrow and return, so that it is warm and needs no new pages.

All primitives in the process share a few buffers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .. import forks
from .huge_pages import on_huge_pages

Bytes = NDArray[np.uint8]

_KEPT = 4
KEPT_BYTES = 64 << 20
_lock = threading.RLock()  # garbage collection may return a buffer at any time
forks.hold(_lock)


class _Buffer:
    """Memory and its address, whose lookup in NumPy takes most of a microsecond."""

    __slots__ = ("address", "bytes", "nbytes")

    def __init__(self, nbytes: int) -> None:
        pages = on_huge_pages(nbytes)
        self.bytes: Bytes = np.empty(nbytes + 64, np.uint8) if pages is None else pages
        self.address, self.nbytes = -(-self.bytes.ctypes.data // 64) * 64, nbytes


_free: list[_Buffer] = []
_NOTHING = _Buffer(0)


class Workspace:
    """A context manager that yields the address of `nbytes` bytes, aligned to 64.

    It is a class because a generator would be five times as slow.
    """

    __slots__ = ("_buffer",)

    def __init__(self, nbytes: int) -> None:
        self._buffer = _borrow(nbytes) if nbytes else _NOTHING

    def __enter__(self) -> int:
        return self._buffer.address

    def __exit__(self, *error: object) -> None:
        if self._buffer is not _NOTHING:
            _give_back(self._buffer)


class _Loan:
    """A borrowed buffer that NumPy can wrap; it is returned once no array refers to it."""

    def __init__(self, buffer: _Buffer, nbytes: int) -> None:
        self._buffer, where = buffer, (buffer.address, False)
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": where,
            "version": 3,
        }

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # when the interpreter exits, this module's names are gone
            _give_back(self._buffer)


def warm(nbytes: int) -> Bytes:
    """Return an uninitialized array in a shared buffer, aligned to 64 bytes.

    The buffer is at most twice as large, since the caller may keep it."""
    return np.asarray(_Loan(_borrow(nbytes, 2 * nbytes), nbytes))


def _borrow(nbytes: int, most: int = sys.maxsize) -> _Buffer:
    with _lock:
        best = None
        for buffer in _free:  # find the smallest that fits, with little code: it is rarely cached
            if nbytes <= buffer.nbytes <= most:
                best, most = buffer, buffer.nbytes
        if best is not None:
            _free.remove(best)
            return best
        if len(_free) == _KEPT:
            _free.pop(0)  # it does not fit current calls
    return _Buffer(nbytes)


def _give_back(buffer: _Buffer) -> None:
    if buffer.nbytes <= KEPT_BYTES:
        with _lock:
            if len(_free) < _KEPT:
                _free.append(buffer)
