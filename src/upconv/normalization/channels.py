"""The arithmetic of batch normalisation, in NumPy, on an array seen as a matrix.

With n elements in a channel, g the gradient of y, and r = 1 / sqrt(var + eps),

    mean = sum(x) / n    var = sum((x - mean)**2) / n
    xh = (x - mean) * r  y = gamma * xh + beta
    d_beta = sum(g)      d_gamma = sum(g * xh)
    d_x = gamma * r * (g - sum(g) / n - xh * sum(g * xh) / n)

Where mean and var are given the sums drop out of d_x. (Ioffe and Szegedy, "Batch Normalization",
2015, section 3.) Sums are kept in float64, of deviations from a pivot p, one element of a channel:

    mean = p + sum(x - p) / n        var = sum((x - p)**2) / n - (mean - p)**2

The difference loses digits where p is many deviations from the mean. Where it is more than ten the
sums are made once more, about the mean just found (Chan, Golub and LeVeque, "Algorithms for
computing the sample variance", The American Statistician 37, 1983).

y is made in the accumulator's type with the mean rounded to it; what the rounding left over is in
the shift, so data far from zero lose nothing. The gradient of x likewise.

The matrix has a channel per row, or several per column, so that NumPy's inner loops are long. It is
worked on in blocks that stay in a core's cache; threads gain nothing, since each step is so short
that they wait for the interpreter (benchmarks/batch_norm.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .. import memory
from ..arrays import Array

_BLOCK = 1 << 16
"""Elements of a block: half a MiB in float64, so that two fit in a usual second-level cache."""

_LONG_ROW = 512
"""From so many elements on a row is a channel; shorter ones are joined to columns."""

_FAR = 10.0
"""Deviations from pivot to mean from which on the sums are made again: two digits of sixteen."""


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """An array of shape `shape`, whose memory has its axes in `order`, as a matrix.

    In that order it is (A, C, B). `joined` 0: the rows are (A, C), of B elements. Else the columns
    are (joined, C, B), and there are A / joined rows.
    """

    shape: tuple[int, int, int]
    order: tuple[int, ...]
    joined: int

    @classmethod
    def of(cls, x: Array, axis: int) -> Channels:
        """For x and arrays of its shape, in the order in which x lies in memory."""
        order = tuple(sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis])))
        sizes, place = [x.shape[axis] for axis in order], order.index(axis)
        before, behind = prod(sizes[:place]), prod(sizes[place + 1 :])
        joined = 0
        if behind < _LONG_ROW:
            joined = 1
            while before and before % (2 * joined) == 0 and joined * behind * x.shape[axis] < 2048:
                joined *= 2
        return cls((before, x.shape[axis], behind), order, joined)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        before, channels, behind = self.shape
        if not self.joined:
            return before * channels, behind
        return before // self.joined, self.joined * channels * behind

    @property
    def count(self) -> int:
        """Elements of a channel: n."""
        return self.shape[0] * self.shape[2]

    def matrix(self, array: Array) -> Array:
        """An array as the matrix: a view where it lies so, else a copy."""
        ordered = array.transpose(self.order)
        if not ordered.flags.c_contiguous:
            memory.require(array.nbytes, "an operand in the order of x")
        return ordered.reshape(self.size)

    def store(self, out: Array, matrix: Array) -> None:
        """Write a matrix into the array that it was made of, unless it is a view of it."""
        if not np.may_share_memory(out, matrix):
            ordered = out.transpose(self.order)
            ordered[...] = matrix.reshape(ordered.shape)

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and biased variance of every channel of a matrix, float64; 0 without elements."""
        channels = self.shape[1]
        if not self.count:
            return np.zeros(channels), np.zeros(channels)
        first = x[0, : channels * self.shape[2] : self.shape[2]] if self.joined else x[:channels, 0]
        pivot = first.astype(np.float64)
        pivot[~np.isfinite(pivot)] = 0  # else an infinite first element would make the mean NaN
        mean, var = self._moments_about(pivot, x)
        far = np.square(mean - pivot) > _FAR**2 * var
        return self._moments_about(mean, x) if far.any() else (mean, var)

    def _moments_about(self, pivot: Array, x: Array) -> tuple[Array, Array]:
        total, squares = self.totals(pivot, x)
        offset = total / self.count
        return pivot + offset, np.maximum(squares / self.count - np.square(offset), 0)

    def totals(self, pivot: Array, x: Array, grad: Array | None = None) -> tuple[Array, Array]:
        """sum(f) and sum(f * (x - pivot)) of every channel, float64.

        f is `grad`, or without it the deviation x - pivot itself.
        """
        along, product = (0, "ij,ij->j") if self.joined else (1, "ij,ij->i")
        first, second = np.zeros(self.size[1 - along]), np.zeros(self.size[1 - along])
        spread = self._spread(pivot)
        for block in self._blocks():
            deviation = x[block].astype(np.float64)
            deviation -= spread[self._part(block)]
            factor = deviation if grad is None else grad[block].astype(np.float64)
            first[block[1 - along]] += np.add.reduce(factor, axis=along)
            if self.joined:  # einsum is slow along columns
                deviation *= factor
                second[block[1]] += np.add.reduce(deviation, axis=0)
            else:
                second[block[0]] += np.einsum(product, deviation, factor)
        return self._per_channel(first), self._per_channel(second)

    def combine(
        self,
        out: Array,
        x: Array,
        vectors: tuple[Array, Array, Array],
        grad: tuple[Array, Array] | None = None,
        *,
        accumulate: bool = False,
    ) -> None:
        """out = (x - mean) * scale + shift, of which `vectors` are; plus factor * g, of `grad`.

        Made in the type of `vectors`, one per channel. out may be x or g itself.
        """
        mean, scale, shift = map(self._spread, vectors)
        kind = mean.dtype
        factor = None if grad is None else self._spread(grad[0])
        direct = out.dtype == kind == x.dtype and grad is None and not accumulate
        for block in self._blocks():
            part = self._part(block)
            values = out[block] if direct else np.empty(x[block].shape, kind)
            np.subtract(x[block].astype(kind, copy=False), mean[part], out=values)
            values *= scale[part]
            values += shift[part]
            if grad is not None and factor is not None:
                values += grad[1][block].astype(kind, copy=False) * factor[part]
            if accumulate:
                values += out[block]
            if not direct:
                out[block] = values

    def _blocks(self) -> list[tuple[slice, slice]]:
        rows, columns = self.size
        width = max(1, min(columns, _BLOCK))
        height = max(1, _BLOCK // width)
        return [
            (slice(i, min(rows, i + height)), slice(j, min(columns, j + width)))
            for i in range(0, rows, height)
            for j in range(0, columns, width)
        ]

    def _spread(self, values: Array) -> Array:
        """One value per channel as one per row, (rows, 1), or per column, (1, columns)."""
        before, _, behind = self.shape
        if not self.joined:
            return np.tile(values, before)[:, None]
        return np.tile(np.repeat(values, behind), self.joined)[None]

    def _part(self, block: tuple[slice, slice]) -> tuple[slice, slice]:
        """The part of spread values that belongs to a block."""
        return (slice(None), block[1]) if self.joined else (block[0], slice(None))

    def _per_channel(self, sums: Array) -> Array:
        """Sums of rows or columns as sums of channels."""
        before, channels, behind = self.shape
        if not self.joined:
            return np.asarray(sums.reshape(before, channels).sum(0))
        return np.asarray(sums.reshape(self.joined, channels, behind).sum((0, 2)))


def inverse_deviation(var: Array, eps: float, *, batch: bool) -> Array:
    """r = 1 / sqrt(var + eps) of every channel.

    Where the batch's own variance and eps both are 0 it is 0, so that a constant channel gives
    beta, as in MXNet; given ones are divided by as they are, as everywhere.
    """
    with np.errstate(all="ignore"):
        total = var + eps
        invstd = 1 / np.sqrt(total)
    if batch:
        invstd[total == 0] = 0
    return np.asarray(invstd)


def affine(
    mean: Array, scale: Array, shift: Array, dtype: np.dtype[Any]
) -> tuple[Array, Array, Array]:
    """The vectors of `combine` in a type: what rounding the mean leaves over is in the shift."""
    rounded = mean.astype(dtype)
    left = rounded.astype(np.float64) - mean
    left[~np.isfinite(left)] = 0  # an infinite mean leaves nothing over
    return rounded, scale.astype(dtype), (shift + left * scale).astype(dtype)
