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
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from ..activations import apply
from ..problem import DataLayout, Direction, Problem
from . import load
from .base import Array, Maybe, Primitive, ranked
from .im2col import IndexSet


@dataclass(frozen=True, slots=True)
class OrderedEngine:
    """NumPy without matrix products, for problems of one axis that are no weight gradients."""

    name: ClassVar[str] = "ordered"
    sums: ClassVar[str] = "products in turn"

    def fingerprint(self) -> str:
        """The version of NumPy."""
        return f"numpy {np.__version__}"

    def refuses(self, problem: Problem) -> str | None:
        """None for one axis, forward or as an input gradient."""
        if problem.epilogue.slopes or problem.epilogue.has_second:
            return "it has no PReLU and no second result"
        if problem.rank == 1 and problem.direction is not Direction.WEIGHT_GRAD:
            return None
        return "it computes along one axis, and no weight gradients"

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """There is no choice."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Nothing is prepared."""
        return OrderedPrimitive(problem)


ORDERED = OrderedEngine()


class OrderedPrimitive:
    """One problem; holds no memory."""

    resident_bytes = 4096
    description = "one product after the other"
    predicted_cycles = 0.0

    def __init__(self, problem: Problem) -> None:
        self._problem, self._index_set = problem, IndexSet.of(problem.axes[0], reached=False)
        self._dtype = problem.dtype.accumulator.numpy
        shapes = problem.x_shape, problem.y_shape
        self.workspace_bytes = 3 * self._dtype.itemsize * sum(map(prod, shapes))

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
        b: Any,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
        second: Maybe = None,
    ) -> None:
        """Compute into `out`."""
        problem, epilogue = self._problem, self._problem.epilogue
        operand, result = self._grouped(a).astype(self._dtype), self._grouped(out)
        compute = self._forward if problem.direction is Direction.FORWARD else self._input_grad
        with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
            start = 0 if bias is None else bias.astype(self._dtype).reshape(problem.groups, -1, 1)
            total = compute(operand, b, np.asarray(start), result.shape)
            if residual is not None:
                total += self._grouped(residual)
            if problem.accumulate:
                total += result
            apply(epilogue.activation, epilogue.slope, total)
            total[np.isnan(total)] = np.nan  # of two NaNs a sum keeps either's sign, by its place
            result[...] = total

    def _forward(self, x: Array, w: Array, start: Array, shape: tuple[int, ...]) -> Array:
        padded = np.zeros((*shape[:3], self._index_set.length), self._dtype) + start
        for window, tap in self._taps():
            part = padded[..., window]
            for c in range(w.shape[1]):
                part += w[:, c, :, tap, None] * x[:, :, c, None]
        return padded[..., self._index_set.window]

    def _input_grad(self, g: Array, w: Array, start: Array, shape: tuple[int, ...]) -> Array:
        """Zeros where there is nothing meet weights, as everywhere in ordinary convolution."""
        padded = np.zeros((*g.shape[:3], self._index_set.length), self._dtype)
        padded[..., self._index_set.window] = g
        total = np.zeros(shape, self._dtype) + start
        for window, tap in self._taps():
            for c in range(w.shape[1]):
                total += w[:, c, :, tap, None] * padded[:, :, c, None, window]
        return total

    def _taps(self) -> Iterator[tuple[slice, int]]:
        """Yield each tap's window of the padded output, and the tap's number."""
        axis = self._index_set
        for tap in range(axis.kernel if axis.size else 0):
            begin = axis.origin + axis.dilation * tap
            yield slice(begin, begin + axis.stride * (axis.size - 1) + 1, axis.stride), tap

    def close(self) -> None:
        """Nothing is held."""

    def _grouped(self, array: Array) -> Array:
        """A view as (batch, groups, channels of a group, positions)."""
        ncx = array if self._problem.layout is DataLayout.NCX else array.swapaxes(1, 2)
        n, channels, size = ncx.shape
        groups = self._problem.groups
        return ncx.reshape(n, groups, channels // groups, size)


# The JIT engine -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InvariantEngine:
    """The JIT engine with the fastest kernel that adds up in the order `sums`; weight gradients
    promise no order."""

    sums: str | None
    name: ClassVar[str] = "jit"
    finite_weights_only: ClassVar[bool] = True

    def fingerprint(self) -> str:
        """The JIT engine's."""
        return load("jit").fingerprint()

    def refuses(self, problem: Problem) -> str | None:
        """Answer as the JIT engine does."""
        return load("jit").refuses(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """There is no choice."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """The JIT engine's primitive."""
        jit: Any = load("jit")
        kernels = ranked(
            candidate for candidate in jit.candidates(problem, threads) if not candidate.winograd
        )
        names = (
            candidate.variant for candidate in kernels if candidate.sums == self.sums is not None
        )
        primitive: Primitive = jit.build(problem, threads, next(names, ""))
        return primitive


def invariant_engine(problem: Problem) -> InvariantEngine:
    """The engine that sums at every size as the JIT engine does `problem`.

    Raises `EngineMissing` where llvmlite is not installed.
    """
    jit: Any = load("jit")
    kernels = ranked(
        candidate for candidate in jit.candidates(problem, 1) if not candidate.winograd
    )
    return InvariantEngine(
        next((candidate.sums for candidate in kernels if candidate.engine == jit.name), None)
    )
