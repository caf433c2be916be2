"""Batch normalisation in NumPy, block by block in a core's cache.

Sums are kept in float64, of deviations from a pivot p, which is one element of each channel:

    mean = p + sum(x - p) / n        var = sum((x - p)**2) / n - (mean - p)**2

The difference loses digits where p is many deviations from the mean: at worst a factor n of them,
because p is one of the n. Where it is more than ten deviations away the sums are made once more,
about the mean just found (Chan, Golub and LeVeque, "Algorithms for computing the sample variance",
The American Statistician 37, 1983).

y is made in the accumulator's type as (x - m) * scale + shift, m being the mean rounded to that
type; what the rounding left over is in the shift, so data far from zero lose nothing. The gradient
of x is made likewise, as a * g + b * (x - m) + c.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import Array
from .grid import Grid, Spread
from .problem import Moments, Normalization, Totals

_FAR = 10.0
"""Deviations from pivot to mean from which on the sums are made again: two digits of sixteen."""

_VECTORS = 24
"""Per-channel arrays of float64 that one call has at a time, at most, written-out ones included."""


class BlockNormalizer:
    """NumPy on any shape, axis, strides and dtype; refuses nothing."""

    name = "reference"

    def fingerprint(self) -> str:
        """The version of NumPy."""
        return f"numpy {np.__version__}"

    def refuses(self, problem: Normalization) -> str | None:
        """Nothing."""
        return None

    def build(self, problem: Normalization, threads: int, variant: str = "") -> BlockNormalization:
        """Lay out the blocks."""
        return BlockNormalization(problem)


class BlockNormalization:
    """One normalisation laid out in blocks; holds no memory."""

    resident_bytes = 4096  # this object and its small tuples, about

    def __init__(self, problem: Normalization) -> None:
        self.problem = problem
        self.grid = Grid.of(problem.shape, problem.axis, problem.strides[problem.backward])
        self.dtype = problem.dtype.accumulator.numpy
        self.is_direct = problem.dtype is problem.dtype.accumulator and not problem.accumulate
        self.workspace_bytes = 8 * (6 * self.grid.box_elements + _VECTORS * problem.channels)

    def close(self) -> None:
        """Nothing is held."""

    def forward(
        self, y: Array, x: Array, gamma: Array, beta: Array, given: Moments | None
    ) -> Moments:
        """Normalise x into y; see `NormPrimitive.forward`."""
        x, y = x.transpose(self.grid.order), y.transpose(self.grid.order)
        with np.errstate(all="ignore"):  # overflow and NaN are results, not accidents
            moments = self._moments(x) if given is None else given
            scale = gamma * self.problem.inverse_deviation(moments.var)
            self._affine(y, x, moments.mean, scale, beta)
        return moments

    def backward(
        self, dx: Array | None, grad: Array, x: Array, gamma: Array, mean: Array, invstd: Array
    ) -> Totals:
        """The gradients; see `NormPrimitive.backward`."""
        grad, x = grad.transpose(self.grid.order), x.transpose(self.grid.order)
        with np.errstate(all="ignore"):
            totals = self._totals(grad, x, mean, invstd)
            if dx is not None:
                dx = dx.transpose(self.grid.order)
                self._input_gradient(dx, grad, x, gamma * invstd, mean, invstd, totals)
        return totals

    # Sums -----------------------------------------------------------------------------------------

    def _moments(self, x: Array) -> Moments:
        """Mean and biased variance of every channel; both 0 where there are no elements."""
        if not self.problem.count:
            return Moments(np.zeros(self.problem.channels), np.zeros(self.problem.channels))
        first: list[Any] = [0] * x.ndim
        first[self.grid.place] = slice(None)
        pivot = x[tuple(first)].astype(np.float64)
        pivot[~np.isfinite(pivot)] = 0  # else an infinite first element would make the mean NaN
        moments = self._moments_about(pivot, x)
        far = np.square(moments.mean - pivot) > _FAR**2 * moments.var
        return self._moments_about(moments.mean, x) if far.any() else moments

    def _moments_about(self, pivot: Array, x: Array) -> Moments:
        total, squares = np.zeros_like(pivot), np.zeros_like(pivot)
        spread, scratch = Spread(self.grid, pivot), self._scratch(np.float64)
        for block in self.grid.blocks():
            channels = block[self.grid.place]
            deviation = _minus(scratch, x[block], spread[block])
            total[channels] += self.grid.channel_sums(deviation)
            squares[channels] += self.grid.channel_products(deviation, deviation)
        offset = total / self.problem.count
        var = squares / self.problem.count - np.square(offset)
        return Moments(pivot + offset, np.maximum(var, 0))

    def _totals(self, grad: Array, x: Array, mean: Array, invstd: Array) -> Totals:
        """sum(g) and sum(g * xh)."""
        total, products = np.zeros_like(mean), np.zeros_like(mean)
        spread = Spread(self.grid, mean)
        first, second = self._scratch(np.float64), self._scratch(np.float64)
        for block in self.grid.blocks():
            channels = block[self.grid.place]
            g, deviation = _into(first, grad[block]), _minus(second, x[block], spread[block])
            total[channels] += self.grid.channel_sums(g)
            products[channels] += self.grid.channel_products(deviation, g)
        return Totals(total, products * invstd)

    # Elements -------------------------------------------------------------------------------------

    def _affine(self, y: Array, x: Array, mean: Array, scale: Array, beta: Array) -> None:
        """y = (x - mean) * scale + beta."""
        rounded = mean.astype(self.dtype)
        shift = beta + _left_over(rounded, mean) * scale
        minus, times, plus = (self._spread(v) for v in (rounded, scale, shift))
        scratch = None if self.is_direct else self._scratch(self.dtype)
        for block in self.grid.blocks():
            target = y[block]
            if scratch is None:
                np.subtract(x[block], minus[block], out=target)
                values = target
            else:
                values = _minus(scratch, x[block], minus[block])
            np.multiply(values, times[block], out=values)
            np.add(values, plus[block], out=values)
            if values is not target:
                target[...] = values

    def _input_gradient(
        self,
        dx: Array,
        grad: Array,
        x: Array,
        scale: Array,
        mean: Array,
        invstd: Array,
        totals: Totals,
    ) -> None:
        """dx = a * g + b * (x - m) + c, or added to dx."""
        n = self.problem.count
        if not self.problem.batch_statistics or not n:
            self._scaled(dx, grad, scale)
            return
        slope = -scale * invstd * totals.gx / n
        rounded = mean.astype(self.dtype)
        constant = slope * _left_over(rounded, mean) - scale * totals.g / n
        a, b, c, m = (self._spread(v) for v in (scale, slope, constant, rounded))
        first, second = self._scratch(self.dtype), self._scratch(self.dtype)
        for block in self.grid.blocks():
            values = _minus(first, x[block], m[block])
            np.multiply(values, b[block], out=values)
            g = _times(second, grad[block], a[block])
            np.add(values, g, out=values)
            np.add(values, c[block], out=values)
            self._store(dx[block], values)

    def _scaled(self, dx: Array, grad: Array, scale: Array) -> None:
        """dx = grad * scale: the gradient where the statistics were given."""
        times, scratch = self._spread(scale), self._scratch(self.dtype)
        for block in self.grid.blocks():
            self._store(dx[block], _times(scratch, grad[block], times[block]))

    def _store(self, target: Array, values: Array) -> None:
        if self.problem.accumulate:
            np.add(values, target, out=values)
        target[...] = values

    def _spread(self, values: Array) -> Spread:
        return Spread(self.grid, values.astype(self.dtype))

    def _scratch(self, dtype: Any) -> Array:
        return np.empty(self.grid.box_elements, dtype)


def _into(scratch: Array, values: Array) -> Array:
    """A copy of a block, contiguous, in scratch memory of the type to compute in."""
    copy = scratch[: values.size].reshape(values.shape)
    np.copyto(copy, values, casting="unsafe")
    return copy


def _minus(scratch: Array, values: Array, subtrahend: Array) -> Array:
    """values - subtrahend, contiguous, in scratch memory of the type to compute in."""
    if values.dtype != scratch.dtype:
        copy = _into(scratch, values)
        return np.subtract(copy, subtrahend, out=copy)
    return np.subtract(values, subtrahend, out=scratch[: values.size].reshape(values.shape))


def _times(scratch: Array, values: Array, factor: Array) -> Array:
    """values * factor, likewise."""
    if values.dtype != scratch.dtype:
        copy = _into(scratch, values)
        return np.multiply(copy, factor, out=copy)
    return np.multiply(values, factor, out=scratch[: values.size].reshape(values.shape))


def _left_over(rounded: Array, mean: Array) -> Array:
    """rounded - mean, 0 where that is no number: an infinite mean leaves nothing over."""
    difference = rounded.astype(np.float64) - mean
    difference[~np.isfinite(difference)] = 0
    return difference
