"""The type of sums, and so of packed weights, packed inputs and biases. `DType.accumulator` in
problem.py decides it."""

from __future__ import annotations

from ...problem import DType
from .values import STORED


def computed(dtype: DType) -> str:
    """Return the LLVM type in which kernels add products of a stored type."""
    return STORED[dtype.accumulator]
