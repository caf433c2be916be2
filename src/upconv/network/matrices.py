"""Arrays of equal shape as matrices, so that native code need not know ranks and layouts.

Element (i, r, c) of an array is at address + i * image + r * row + c * itemsize. There are `images`
matrices with `rows` rows of `length` elements, possibly followed by a shorter row. Axes are merged
if they are contiguous in all arrays.

Numbers per channel (scales, slopes) become numbers per row or per column:

    channels first                      rows are channels, columns are positions
    channels first, few positions       a row is an image; the table repeats each number
    channels last                       a row is several positions; the table repeats as a whole

An array that is broadcast along an axis has stride 0 there. If the axis runs along rows, the array
has one element per row: a *scalar*. Each row then belongs to one channel or position.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engines.jit.chains import PIECE
from ..problem import DataLayout
from .graph import Array

FEW_POSITIONS = 64
"""Shorter rows are merged, because a row's remainder takes as long as a few vectors."""
_MIN_ROW = 512  # elements of a merged row for channels last
PIECE_BYTES = 64 << 10
_MIN_PIECE = 8 << 10


class Matrices(NamedTuple):
    """Several arrays as matrices; `rest` is the length of a shorter last row.

    `strides` holds, for each array, the bytes from image to image and from row to row. `per_row`
    means that each row has one channel. Tables per channel repeat each number `repeats` times, and
    the result `tiles` times. `scalars` are the indices of arrays with one element per row.
    """

    images: int
    rows: int
    length: int
    rest: int
    strides: tuple[tuple[int, int], ...]
    per_row: bool
    repeats: int = 1
    tiles: int = 1
    scalars: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, arrays: Sequence[Array], layout: DataLayout, *, lanes: int, by_channel: bool,
        by_image: bool = False,
    ) -> Matrices:  # fmt: skip
        """View arrays of equal shape as matrices; all but array 0 may have extents of 1 instead.

        by_channel: each row or column belongs to one channel. by_image: images are not merged.
        """
        if any(array.shape != arrays[0].shape for array in arrays):
            batch, channels, *size = (arrays[0].shape[a] for a in layout.to_ncx(arrays[0].ndim - 2))
            extents = (channels, prod(size)) if layout is DataLayout.NCX else (prod(size), channels)
            return _broadcast(arrays, layout, batch, *extents)
        if layout is DataLayout.NCX:
            return cls._channels_first(arrays, by_channel, by_image)
        return cls._channels_last(arrays, by_channel, by_image, lanes)

    @classmethod
    def _channels_first(cls, arrays: Sequence[Array], by_channel: bool, by_image: bool) -> Matrices:
        batch, channels, *size = arrays[0].shape
        positions = prod(size)
        dense = all(array[:1].flags.c_contiguous for array in arrays)
        assert dense, "the channels of an image are not dense"  # noqa: S101 - our own invariant
        images = [image_stride(array) for array in arrays]
        if by_channel and positions >= FEW_POSITIONS:
            rows = tuple(positions * array.itemsize for array in arrays)
            strides = tuple(zip(images, rows, strict=True))
            return cls(batch, channels, positions, 0, strides, True)
        length = channels * positions
        merge = not (by_channel or by_image) and all(a.flags.c_contiguous for a in arrays)
        if merge:
            return cls(1, 1, batch * length, 0, ((0, 0),) * len(arrays), False)
        strides = tuple((image, 0) for image in images)
        return cls(batch, 1, length, 0, strides, False, repeats=positions)

    @classmethod
    def _channels_last(
        cls, arrays: Sequence[Array], by_channel: bool, by_image: bool, lanes: int
    ) -> Matrices:
        batch, *size, channels = arrays[0].shape
        positions = prod(size)
        steps = [position_stride(array) for array in arrays]
        images = [image_stride(array) for array in arrays]
        dense = all(s == channels * a.itemsize for s, a in zip(steps, arrays, strict=True))
        following = all(i == positions * s for i, s in zip(images, steps, strict=True))
        if not by_image and (batch == 1 or following):
            batch, positions = 1, batch * positions
        if not dense:
            strides = tuple(zip(images, steps, strict=True))
            return cls(batch, positions, channels, 0, strides, False)
        total = positions * channels
        if not by_channel:
            return cls(batch, 1, total, 0, tuple((image, 0) for image in images), False)
        length = lcm(channels, lanes)
        length *= -(-_MIN_ROW // length)
        if length > total:  # a single row of any length
            length = total
        rows = tuple(length * array.itemsize for array in arrays)
        strides = tuple(zip(images, rows, strict=True))
        tiles = length // channels
        return cls(batch, total // length, length, total % length, strides, False, tiles=tiles)

    def table(self, numbers: Array) -> Array:
        """Expand numbers per channel, on the last axis, to numbers per row or column."""
        if self.per_row:
            return numbers
        repeated = numbers.repeat(self.repeats, axis=-1)
        return np.tile(repeated, (*[1] * (numbers.ndim - 1), self.tiles))

    def pieces(self, itemsize: int, threads: int) -> NDArray[Any]:
        """Divide one image's matrix into pieces for jobs (records of `PIECE`): about 64 KiB each,
        or less if threads would otherwise be idle."""
        total = self.images * (self.rows * self.length + self.rest)
        share = total * itemsize // (4 * threads)
        size = max(_MIN_PIECE, min(PIECE_BYTES, share)) // itemsize
        columns = min(self.length, -(-size // 64) * 64)
        rows = max(1, size // max(1, self.length))
        first_row, first_column = np.mgrid[0 : self.rows : rows, 0 : self.length : columns]
        result = np.zeros(first_row.size + (self.rest > 0), PIECE)
        body = result[: first_row.size]
        body["row"], body["column"] = first_row.ravel(), first_column.ravel()
        body["rows"] = np.minimum(rows, self.rows - body["row"])
        body["length"] = np.minimum(columns, self.length - body["column"])
        if self.rest:
            result[-1] = self.rows, 0, 1, self.rest
        return result


def by_position(arrays: Sequence[Array], layout: DataLayout, groups: int) -> Matrices:
    """Return one image's channel groups as matrices; positions are rows for channels last, else
    columns."""
    batch, channels, *size = (arrays[0].shape[axis] for axis in layout.to_ncx(arrays[0].ndim - 2))
    assert batch == 1  # noqa: S101 - our own invariant
    count, positions = channels // groups, prod(size)
    if layout is DataLayout.NCX:
        matrices = _broadcast(arrays, layout, 1, count, positions)
        apart = (count * row for _, row in matrices.strides)
    else:
        matrices = _broadcast(arrays, layout, 1, positions, count)
        apart = (0 if i in matrices.scalars else count * a.itemsize for i, a in enumerate(arrays))
    strides = tuple((step, row) for step, (_, row) in zip(apart, matrices.strides, strict=True))
    return matrices._replace(images=groups, strides=strides)


def _broadcast(
    arrays: Sequence[Array], layout: DataLayout, images: int, rows: int, length: int
) -> Matrices:
    """Return matrices whose rows are channels or, for channels last, positions."""
    first, strides, scalars = layout is DataLayout.NCX, [], []
    for number, array in enumerate(arrays):
        _, channels, *size = (array.shape[axis] for axis in layout.to_ncx(array.ndim - 2))
        row = prod(size) * array.itemsize if first else position_stride(array)
        along, across = (prod(size), channels) if first else (channels, prod(size))
        strides.append((image_stride(array), 0 if across == 1 else row))
        if along == 1 < length:
            scalars.append(number)
    return Matrices(images, rows, length, 0, tuple(strides), first, scalars=tuple(scalars))


def image_stride(array: Array) -> int:
    """Return the distance in bytes from one image to the next; 0 for a single image."""
    return int(array.strides[0]) if len(array) > 1 else 0


def position_stride(array: Array) -> int:
    """Return the distance in bytes between positions, which must be evenly spaced."""
    channels = int(array.shape[-1])
    step, extent = 0, 1
    for axis in range(array.ndim - 2, 0, -1):
        if array.shape[axis] > 1:
            step = step or int(array.strides[axis])
            assert array.strides[axis] == extent * step  # noqa: S101 - our own invariant
            extent *= array.shape[axis]
    assert channels <= 1 or array.strides[-1] == array.itemsize  # noqa: S101 - our own invariant
    return step or channels * array.itemsize
