"""Copies of arrays into the order of their axes, in blocks that caches hold.

NumPy copies along the source's order. Where that is channels-last and the copy's is not, nearly
each element may cost a line of memory: 4 MiB of 256 channels and 64 x 64 positions took 6.6
milliseconds, in blocks 0.6. The other way round NumPy is as fast as blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .. import memory
from ..problem import Problem
from .base import Array

_SMALL = 1 << 15  # bytes, which fit the innermost cache
_FEW = 128  # bytes, two lines: of so few channels all are read at once anyway
_COLUMNS = 64


def contiguous(array: Array) -> Array:
    """The array if the last axis is the fastest and it has no gaps, else a copy that is so.

    >>> contiguous(np.arange(6).reshape(2, 3).T).strides
    (16, 8)
    """
    if array.flags.c_contiguous:
        return array
    copy = np.empty(array.shape, array.dtype)
    axes = [axis for axis in range(array.ndim) if array.shape[axis] > 1]
    fastest = min(axes, key=lambda axis: abs(array.strides[axis]), default=array.ndim - 1)
    runs = array.shape[fastest] * array.itemsize if axes else 0
    if array.nbytes <= _SMALL or runs < _FEW or fastest == axes[-1]:
        copy[...] = array
    else:
        _copy_in_blocks(copy, array)
    return copy


def laid_out(what: str, array: Array, *, filled: bool = True) -> Array:
    """The array itself if it is contiguous, else a copy, `filled` with its values.

    Raises `MemoryLimitError`, which calls it a copy of `what`, if it would not fit.
    """
    if array.flags.c_contiguous:
        return array
    memory.require(array.nbytes, f"a copy of {what}")
    return contiguous(array) if filled else np.empty(array.shape, array.dtype)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array.

    >>> contiguous_strides((2, 3, 5))
    (15, 5, 1)
    """
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


class Tensor(NamedTuple):
    """An array as a library describes it: sizes, and strides in elements, of its axes in order."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], order: Iterable[int]) -> Tensor:
        """A contiguous array of a shape, its axes in another order.

        >>> Tensor.of((2, 3, 5), (0, 2, 1))
        Tensor(dims=(2, 5, 3), strides=(15, 1, 5))
        """
        strides = contiguous_strides(shape)
        return cls(*zip(*((shape[i], strides[i]) for i in order), strict=True))

    @classmethod
    def data(cls, problem: Problem, channels: int, size: tuple[int, ...]) -> Tensor:
        """x or y, contiguous in the problem's layout, as N, C, *X."""
        shape = problem.layout.shape(problem.batch, channels, size)
        return cls.of(shape, problem.layout.to_ncx(problem.rank))


def _copy_in_blocks(target: Array, source: Array) -> None:
    """Copy so many entries at a time of the last axes, as many of which lie as one axis in both."""
    shape = source.shape
    last, size = source.ndim - 1, shape[-1]
    while last and source.strides[last - 1] == source.strides[last] * shape[last]:
        last -= 1
        size *= shape[last]
    shape = (*shape[:last], size)
    target = target.reshape(shape)
    source = as_strided(source, shape, (*source.strides[:last], source.strides[-1]))
    for start in range(0, size, _COLUMNS):
        part = np.s_[..., start : start + _COLUMNS]
        target[part] = source[part]
