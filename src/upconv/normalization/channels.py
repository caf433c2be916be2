"""The arithmetic of batch normalization in NumPy, on an array viewed as a matrix.

With n elements in a channel, g the gradient of y, and r = 1 / sqrt(var + eps),

    mean = sum(x) / n    var = sum((x - mean)**2) / n
    xh = (x - mean) * r  y = gamma * xh + beta
    d_beta = sum(g)      d_gamma = sum(g * xh)
    d_x = gamma * r * (g - sum(g) / n - xh * sum(g * xh) / n)

With given mean and var, d_x has no sums (Ioffe and Szegedy, "Batch Normalization", 2015,
section 3). Sums are in float64, over deviations from a pivot p, one element of a channel:

    mean = p + sum(x - p) / n        var = sum((x - p)**2) / n - (mean - p)**2

The difference loses digits if p is many deviations from the mean. Beyond ten deviations, the sums
are recomputed with the first mean as pivot (Chan, Golub and LeVeque, "Algorithms for computing
the sample variance", The American Statistician 37, 1983).

y is computed in the accumulator's type, with the mean rounded to it. The shift contains the mean's
rounding error, so that data far from zero loses no digits. The same holds for d_x.

The matrix has one channel per row, or rows that join several channels, so that NumPy's inner loops
are long. Its blocks fit in a core's cache. Threads do not help: each step is so short that they
wait for the interpreter (benchmarks/batch_norm.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .. import memory
from ..arrays import Array

_BLOCK = 1 << 16
"""Elements of a block: half a MiB in float64, so that two fit in a typical second-level cache."""

_LONG_ROW = 512
"""Minimum length of a row for one channel; shorter rows are joined."""

_FAR = 10.0
"""Deviations from pivot to mean that cost two of sixteen digits; beyond, sums are repeated."""


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """An array viewed as a matrix of `size`; `order` lists its axes as they are in memory.

    In that order it is (A, C, B). Channels vary along `axis`: with 0 the rows are (A, C), each of B
    elements; with 1 the columns are (joined, C, B), and there are A / joined rows. `repeats` holds
    these sizes along the axis, (A, C, 1) or (joined, C, B).
    """

    order: tuple[int, ...]
    size: tuple[int, int]
    axis: int
    repeats: tuple[int, int, int]

    @classmethod
    def of(cls, x: Array, axis: int) -> Channels:
        """Return the matrix form, in x's memory order, of x and arrays of its shape."""
        order = tuple(sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis])))
        sizes, position = [x.shape[axis] for axis in order], order.index(axis)
        before, channels, after = (
            prod(sizes[:position]),
            x.shape[axis],
            prod(sizes[position + 1 :]),
        )
        if after >= _LONG_ROW:
            return cls(order, (before * channels, after), 0, (before, channels, 1))
        joined = 1
        while before and before % (2 * joined) == 0 and joined * after * channels < 2048:
            joined *= 2
        size = before // joined, joined * channels * after
        return cls(order, size, 1, (joined, channels, after))

    @property
    def count(self) -> int:
        """Number of elements in a channel: n."""
        return prod(self.size) // self.repeats[1]

    def matrix(self, array: Array) -> Array:
        """Return an array as the matrix: a view if its memory order allows it, else a copy."""
        ordered = array.transpose(self.order)
        if not ordered.flags.c_contiguous:
            memory.require(array.nbytes, "an operand in the order of x")
        return ordered.reshape(self.size)

    def store(self, out: Array, matrix: Array) -> None:
        """Write a matrix back into its array, unless it is a view of that array."""
        if not np.may_share_memory(out, matrix):
            ordered = out.transpose(self.order)
            ordered[...] = matrix.reshape(ordered.shape)

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return every channel's mean and biased variance in float64; 0 without elements."""
        _, channels, after = self.repeats
        if not self.count:
            return np.zeros(channels), np.zeros(channels)
        first = x[0, : channels * after : after] if self.axis else x[:channels, 0]
        pivot = first.astype(np.float64)
        pivot[~np.isfinite(pivot)] = 0  # an infinite pivot would make the mean NaN
        mean, var = self._moments_about(pivot, x)
        far = np.square(mean - pivot) > _FAR**2 * var
        return self._moments_about(mean, x) if far.any() else (mean, var)

    def _moments_about(self, pivot: Array, x: Array) -> tuple[Array, Array]:
        total, squares = self.totals(pivot, x)
        offset = total / self.count
        return pivot + offset, np.maximum(squares / self.count - np.square(offset), 0)

    def totals(self, pivot: Array, x: Array, grad: Array | None = None) -> tuple[Array, Array]:
        """Return every channel's sum(f) and sum(f * (x - pivot)) in float64.

        f is `grad` if given, else the deviation x - pivot.
        """
        first, second = np.zeros(self.size[self.axis]), np.zeros(self.size[self.axis])
        pivots = self._repeat(pivot)
        for block in self._blocks():
            deviation = x[block].astype(np.float64)
            deviation -= pivots[self._part(block)]
            factor = deviation if grad is None else grad[block].astype(np.float64)
            first[block[self.axis]] += np.add.reduce(factor, axis=1 - self.axis)
            if self.axis:  # einsum is slow along columns
                deviation *= factor
                second[block[1]] += np.add.reduce(deviation, axis=0)
            else:
                second[block[0]] += np.einsum("ij,ij->i", deviation, factor)
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
        """Compute out = (x - mean) * scale + shift, plus factor * g.

        vectors: mean, scale and shift, one value per channel, in the type to compute in. grad:
        factor and g. out may be x or g.
        """
        mean, scale, shift = map(self._repeat, vectors)
        kind = mean.dtype
        factor = None if grad is None else self._repeat(grad[0])
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

    def _repeat(self, values: Array) -> Array:
        """Repeat per-channel values for rows, as (rows, 1), or columns, as (1, columns)."""
        repeated = np.broadcast_to(values[:, None], self.repeats)
        return repeated.reshape((1, -1) if self.axis else (-1, 1))

    def _part(self, block: tuple[slice, slice]) -> tuple[slice, slice]:
        """Return a block's part of repeated values."""
        return (slice(None), block[1]) if self.axis else (block[0], slice(None))

    def _per_channel(self, sums: Array) -> Array:
        """Return channel sums, given row or column sums."""
        return np.asarray(sums.reshape(self.repeats).sum((0, 2)))


def inverse_deviation(var: Array, eps: float, *, batch: bool) -> Array:
    """Return every channel's r = 1 / sqrt(var + eps).

    If a batch's variance and eps are both 0, r is 0, so that y of a constant channel is beta, as in
    MXNet.
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
    """Return vectors for `combine` in a dtype; the shift absorbs the mean's rounding error."""
    rounded = mean.astype(dtype)
    left = rounded.astype(np.float64) - mean
    left[~np.isfinite(left)] = 0  # an infinite mean has no rounding error
    return rounded, scale.astype(dtype), (shift + left * scale).astype(dtype)
