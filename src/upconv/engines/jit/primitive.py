"""Around the kernels: weights that are not finite.

The kernels multiply the zeros between rows by weights. That is exact unless a weight is infinite or
NaN, where the product would be NaN though no input was there: such weights go to the reference
engine, which multiplies only what there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import memory
from ...problem import Problem
from ..base import Array, Primitive
from ..reference import ReferenceEngine


@dataclass(frozen=True, slots=True, eq=False)
class _NotFinite:
    """A weight some of which is infinite or NaN, packed by the primitive that computes with it."""

    primitive: Primitive
    weight: Any


class Guarded:
    """A kernel, for finite weights, and the reference engine for others."""

    def __init__(self, kernel: Primitive, problem: Problem, threads: int) -> None:
        self._kernel, self._problem, self._threads = kernel, problem, threads

    @property
    def workspace_bytes(self) -> int:
        """The kernel's scratch memory."""
        return self._kernel.workspace_bytes

    @property
    def resident_bytes(self) -> int:
        """The kernel's code and tables."""
        return self._kernel.resident_bytes

    @property
    def description(self) -> str:
        """The kernel's schedule in one line."""
        return self._kernel.description

    @property
    def predicted_cycles(self) -> float:
        """Cycles that each thread takes, by the kernel's model."""
        return self._kernel.predicted_cycles

    def pack(self, weight: Array) -> Any:
        """The weight in the kernel's order, or as it is where it is not finite."""
        if weight.nbytes > memory.ALWAYS_FINE:  # what would not fit is not looked at either
            memory.require(weight.nbytes, "the packed weight")
        with np.errstate(all="ignore"):  # a sum is quick to look at; where it overflows, all are
            finite = np.isfinite(np.sum(weight, dtype=np.float64)) or np.isfinite(weight).all()
        if finite:
            return self._kernel.pack(weight)
        reference = ReferenceEngine().build(self._problem, self._threads)
        return _NotFinite(reference, reference.pack(weight))

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Compute into `out`."""
        if isinstance(b, _NotFinite):
            b.primitive.run(out, a, b.weight, bias, residual)
        else:
            self._kernel.run(out, a, b, bias, residual)

    def close(self) -> None:
        """Let go of the kernel."""
        self._kernel.close()
