"""Engines that keep one order of sums: the same bits for an output, whatever the size.

Whoever computes a result in pieces, and wants the bits of the whole, asks for one of these in both.

1. The JIT engine, held to one kernel. Left to itself it takes one of two, by size, and each adds up
   in an order of its own.
2. NumPy, product after product, along one axis; slow. Matrix products of BLAS add up in an order
   that depends on their sizes, so the reference engine has other bits for a part than for the
   whole. Here every output starts as its bias and adds, tap by tap and channel by channel, the
   products there are. It is for streams of what the JIT engine refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..activations import apply
from ..geometry import Axis
from ..problem import DataLayout, Direction, Problem
from . import load
from .base import Array, Primitive


class OrderedEngine:
    """NumPy without matrix products, for problems of one axis that are no weight gradients."""

    name = "ordered"
    variant = ""

    def fingerprint(self) -> str:
        """The version of NumPy."""
        return f"numpy {np.__version__}"

    def refuses(self, problem: Problem) -> str | None:
        """None for one axis, forward or as an input gradient."""
        if problem.rank == 1 and problem.direction is not Direction.WEIGHT_GRAD:
            return None
        return "it computes along one axis, and no weight gradients"

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """There is no choice."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Nothing is prepared."""
        return OrderedPrimitive(problem)

    def __reduce__(self) -> str:
        return "ORDERED"


ORDERED = OrderedEngine()


class OrderedPrimitive:
    """One problem; holds no memory."""

    resident_bytes = 4096
    description = "one product after the other"
    predicted_cycles = 0.0

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._dtype = problem.dtype.accumulator.numpy
        shapes = problem.x_shape, problem.y_shape
        self.workspace_bytes = 3 * self._dtype.itemsize * sum(map(_count, shapes))

    def pack(self, weight: Array) -> Array:
        """The weight as (groups, reduced, made, taps), by group."""
        problem = self._problem
        iox = weight.transpose(problem.weight_layout.to_iox(1)).astype(self._dtype)
        grouped = iox.reshape(problem.groups, -1, *iox.shape[1:])
        return grouped if problem.direction is Direction.FORWARD else grouped.swapaxes(1, 2)

    def run(
        self,
        out: Array,
        a: Array,
        b: Array,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Compute into `out`."""
        problem, epilogue = self._problem, self._problem.epilogue
        axis, result = problem.axes[0], self._grouped(out)
        operand = self._grouped(a).astype(self._dtype)
        compute = self._forward if problem.direction is Direction.FORWARD else self._input_grad
        with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
            start = 0 if bias is None else bias.astype(self._dtype).reshape(problem.groups, -1, 1)
            total = compute(axis, operand, b, np.asarray(start), result.shape)
            if residual is not None:
                total += self._grouped(residual)
            apply(epilogue.activation, epilogue.slope, total)
            if problem.accumulate:
                total += result
            total[np.isnan(total)] = np.nan  # of two NaNs a sum keeps either's sign, by its place
            result[...] = total

    def _forward(
        self, axis: Axis, x: Array, w: Array, start: Array, shape: tuple[int, ...]
    ) -> Array:
        """The full result, and what the crops leave of it; with begins for what they add."""
        full = np.zeros((*shape[:3], max(0, axis.full) if axis.size else 0), self._dtype) + start
        for place, tap in _taps(axis):
            part = full[..., place]
            for c in range(w.shape[1]):
                part += w[:, c, :, tap, None] * x[:, :, c, None]
        total = np.zeros(shape, self._dtype) + start
        there, inner = _overlap(axis, full.shape[-1])
        total[..., there] = full[..., inner]
        return total

    def _input_grad(
        self, axis: Axis, g: Array, w: Array, start: Array, shape: tuple[int, ...]
    ) -> Array:
        """From a full array, with zeros where there is nothing: they meet weights, as everywhere
        in ordinary convolution."""
        full = np.zeros((*g.shape[:3], max(0, axis.full) if axis.size else 0), self._dtype)
        there, inner = _overlap(axis, full.shape[-1])
        full[..., inner] = g[..., there]
        total = np.zeros(shape, self._dtype) + start
        for place, tap in _taps(axis):
            for c in range(w.shape[1]):
                total += w[:, c, :, tap, None] * full[:, :, c, None, place]
        return total

    def close(self) -> None:
        """Nothing is held."""

    def _grouped(self, array: Array) -> Array:
        """A view as (batch, groups, channels of a group, positions)."""
        ncx = array if self._problem.layout is DataLayout.NCX else array.swapaxes(1, 2)
        n, channels, size = ncx.shape
        groups = self._problem.groups
        step, inner = ncx.strides[1], channels // groups
        strides = (ncx.strides[0], step * inner, step, ncx.strides[2])
        return np.lib.stride_tricks.as_strided(ncx, (n, groups, inner, size), strides)


def _taps(axis: Axis) -> Iterator[tuple[slice, int]]:
    """Each tap, and the positions of the full result that it and all inputs meet at."""
    for tap in range(axis.kernel if axis.size else 0):
        begin = axis.dilation * tap
        yield slice(begin, begin + axis.stride * (axis.size - 1) + 1, axis.stride), tap


def _overlap(axis: Axis, full: int) -> tuple[slice, slice]:
    """Where outputs and the full result are the same: among the outputs, and in the full result."""
    start, stop = max(0, axis.crop_begin), min(full, axis.crop_begin + axis.out)
    if stop <= start:
        return slice(0, 0), slice(0, 0)
    return slice(start - axis.crop_begin, stop - axis.crop_begin), slice(start, stop)


def _count(shape: Any) -> int:
    return int(np.prod(shape))


# The JIT engine -----------------------------------------------------------------------------------


if TYPE_CHECKING:
    from .jit import JitEngine


class InvariantEngine:
    """The JIT engine with the kernel `variant`; weight gradients have one kernel only.

    One for each variant in a process: pickling keeps that.
    """

    name = "jit"
    finite_weights_only = True

    def __init__(self, variant: str) -> None:
        jit: Any = load("jit")
        self._jit: JitEngine = jit
        self.variant = variant

    def fingerprint(self) -> str:
        """The JIT engine's."""
        return self._jit.fingerprint()

    def refuses(self, problem: Problem) -> str | None:
        """What the JIT engine says."""
        return self._jit.refuses(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """There is no choice."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """The JIT engine's primitive."""
        only = problem.direction is Direction.WEIGHT_GRAD
        return self._jit.build(problem, threads, "" if only else self.variant)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with, (self.variant,)

    def __repr__(self) -> str:
        return f"<jit {self.variant}>".replace(" >", ">")


@lru_cache(maxsize=8)
def _with(variant: str) -> InvariantEngine:
    return InvariantEngine(variant)


def invariant_engine(problem: Problem) -> InvariantEngine:
    """The engine that sums at every size as the JIT engine does `problem`.

    Raises `EngineMissing` where llvmlite is not installed.
    """
    jit: Any = load("jit")
    engine: JitEngine = jit
    return _with("" if engine.refuses(problem) else engine.settled(problem))
