"""Scratch memory that calls take and give back, so that it is warm and no call waits for pages.

A few buffers are kept for the whole process, however many primitives there are.
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
_lock = threading.RLock()  # a garbage collection may give memory back at any time
forks.hold(_lock)


class _Buffer:
    """Bytes and their address, which NumPy takes most of a microsecond to tell."""

    __slots__ = ("address", "bytes", "nbytes")

    def __init__(self, nbytes: int) -> None:
        pages = on_huge_pages(nbytes)
        self.bytes: Bytes = np.empty(nbytes + 64, np.uint8) if pages is None else pages
        self.address, self.nbytes = -(-self.bytes.ctypes.data // 64) * 64, nbytes


_free: list[_Buffer] = []
_NOTHING = _Buffer(0)


class Workspace:
    """The address, aligned to 64 bytes, of at least `nbytes` bytes of one's own, in a `with` block.

    A class, because a generator would take five times as long.
    """

    __slots__ = ("_buffer",)

    def __init__(self, nbytes: int) -> None:
        self._buffer = _taken(nbytes) if nbytes else _NOTHING

    def __enter__(self) -> int:
        return self._buffer.address

    def __exit__(self, *error: object) -> None:
        if self._buffer is not _NOTHING:
            _give_back(self._buffer)


class _Lent:
    """A buffer as NumPy sees it, given back when no array looks at it any more."""

    def __init__(self, buffer: _Buffer, nbytes: int) -> None:
        self._buffer, where = buffer, (buffer.address, False)
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": where,
            "version": 3,
        }

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # at the interpreter's end this module's names are gone
            _give_back(self._buffer)


def warm(nbytes: int) -> Bytes:
    """An uninitialised array, aligned to 64 bytes, in such memory; not in much more than it needs,
    since it may be kept."""
    return np.asarray(_Lent(_taken(nbytes, 2 * nbytes), nbytes))


def _taken(nbytes: int, most: int = sys.maxsize) -> _Buffer:
    with _lock:
        best = None
        for buffer in _free:  # the smallest that fits, in few steps: they are in no cache
            if nbytes <= buffer.nbytes <= most:
                best, most = buffer, buffer.nbytes
        if best is not None:
            _free.remove(best)
            return best
        if len(_free) == _KEPT:
            _free.pop(0)  # too small for what runs now
    return _Buffer(nbytes)


def _give_back(buffer: _Buffer) -> None:
    if buffer.nbytes <= KEPT_BYTES:
        with _lock:
            if len(_free) < _KEPT:
                _free.append(buffer)
