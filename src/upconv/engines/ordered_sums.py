"""Engines with a fixed order of addition, so that an output has the same bits at every size.

A result computed in pieces then has exactly the bits of a result computed at once. There are two:

1. The JIT engine, restricted to one kernel. By default it chooses a kernel by size, and kernels
   add in different orders.
2. NumPy along one axis, product by product, which is slow. BLAS adds in an order that depends on
   the matrix sizes, so the reference engine's bits differ between a part and the whole. Here
   every output starts with its bias and adds its products tap by tap and channel by channel.
   Streams use this engine for problems that the JIT engine refuses.
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
    """NumPy without matrix products, for problems with one axis, except weight gradients."""

    name: ClassVar[str] = "ordered"
    sums: ClassVar[str] = "products in turn"

    def fingerprint(self) -> str:
        """Return NumPy's version."""
        return f"numpy {np.__version__}"

    def refuses(self, problem: Problem) -> str | None:
        """Refuse all but forward passes and input gradients along one axis."""
        if problem.epilogue.slopes or problem.epilogue.has_second:
            return "it has no PReLU and no second result"
        if problem.rank == 1 and problem.direction is not Direction.WEIGHT_GRAD:
            return None
        return "it computes along one axis, and no weight gradients"

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """There is no choice."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Return the primitive, which prepares nothing."""
        return OrderedPrimitive(problem)


ORDERED = OrderedEngine()


class OrderedPrimitive:
    """A problem to be computed one product after the other; it holds no memory."""

    resident_bytes = 4096
    description = "one product after the other"
    predicted_cycles = 0.0

    def __init__(self, problem: Problem) -> None:
        self._problem, self._index_set = problem, IndexSet.of(problem.axes[0], reached=False)
        self._dtype = problem.dtype.accumulator.numpy
        shapes = problem.x_shape, problem.y_shape
        self.workspace_bytes = 3 * self._dtype.itemsize * sum(map(prod, shapes))

    def pack(self, weight: Array) -> Array:
        """Return the weight as (groups, reduced channels, result channels, taps)."""
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
            total[np.isnan(total)] = np.nan  # the sign of NaN + NaN depends on the operands' order
            result[...] = total

    def _forward(self, x: Array, w: Array, start: Array, shape: tuple[int, ...]) -> Array:
        padded = np.zeros((*shape[:3], self._index_set.length), self._dtype) + start
        for window, tap in self._taps():
            part = padded[..., window]
            for c in range(w.shape[1]):
                part += w[:, c, :, tap, None] * x[:, :, c, None]
        return padded[..., self._index_set.window]

    def _input_grad(self, g: Array, w: Array, start: Array, shape: tuple[int, ...]) -> Array:
        """Multiply padding zeros by weights too, as ordinary convolution does."""
        padded = np.zeros((*g.shape[:3], self._index_set.length), self._dtype)
        padded[..., self._index_set.window] = g
        total = np.zeros(shape, self._dtype) + start
        for window, tap in self._taps():
            for c in range(w.shape[1]):
                total += w[:, c, :, tap, None] * padded[:, :, c, None, window]
        return total

    def _taps(self) -> Iterator[tuple[slice, int]]:
        """Yield each tap's slice of the padded output, and the tap's number."""
        axis = self._index_set
        for tap in range(axis.kernel if axis.size else 0):
            begin = axis.origin + axis.dilation * tap
            yield slice(begin, begin + axis.stride * (axis.size - 1) + 1, axis.stride), tap

    def close(self) -> None:
        """Do nothing: the primitive holds no resources."""

    def _grouped(self, array: Array) -> Array:
        """Return a view as (batch, groups, channels per group, positions)."""
        ncx = array if self._problem.layout is DataLayout.NCX else array.swapaxes(1, 2)
        n, channels, size = ncx.shape
        groups = self._problem.groups
        return ncx.reshape(n, groups, channels // groups, size)


# The JIT engine -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InvariantEngine:
    """The JIT engine with the fastest kernel that adds in the order `sums`.

    Weight gradients promise no order."""

    sums: str | None
    name: ClassVar[str] = "jit"
    finite_weights_only: ClassVar[bool] = True

    def fingerprint(self) -> str:
        """Return the JIT engine's fingerprint."""
        return load("jit").fingerprint()

    def refuses(self, problem: Problem) -> str | None:
        """Answer as the JIT engine does."""
        return load("jit").refuses(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """There is no choice."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Build the JIT engine's primitive."""
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
    """Return the engine that adds, at every size, in the JIT engine's order for `problem`.

    Raises `EngineMissing` where llvmlite is not installed.
    """
    jit: Any = load("jit")
    kernels = ranked(
        candidate for candidate in jit.candidates(problem, 1) if not candidate.winograd
    )
    return InvariantEngine(
        next((candidate.sums for candidate in kernels if candidate.engine == jit.name), None)
    )
