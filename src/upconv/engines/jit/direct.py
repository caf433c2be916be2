"""Code that the candidates of all direct kernels share."""

from __future__ import annotations

from ...problem import DType
from ..base import Candidate, Eligible
from .correlation import Correlation
from .cpu import Cpu

TILES = "tiles"
"""The variant that uses tile registers."""


def takes_tiles(correlation: Correlation) -> bool:
    """Whether operands are bfloat16 or will be rounded to it."""
    return correlation.rounded or correlation.dtype is DType.BFLOAT16


def direct(
    correlation: Correlation, variant: str, cycles: float, workspace: int, threads: int, cpu: Cpu
) -> Candidate:
    """Return a kernel's candidate, from its cycles per thread and bytes of scratch memory."""
    packing = packing_cycles(weight_numbers(correlation), correlation, threads, cpu)
    # With one channel to sum over, all kernels add by taps; otherwise their orders differ.
    sums = "taps" if correlation.reduced == correlation.groups else variant
    return Candidate("jit", variant, cycles, packing, workspace, sums)


def refused(variant: str, reason: str, *, winograd: bool = False) -> Candidate:
    """Return the candidate of a kernel that cannot compute a correlation, with the reason."""
    return Candidate("jit", variant, winograd=winograd, eligible=Eligible.NEVER, reason=reason)


def weight_numbers(correlation: Correlation, taps: int = 0) -> int:
    """Return the number of elements in a weight, or in one with `taps` taps."""
    pairs = correlation.reduced * correlation.made // correlation.groups
    return pairs * (taps or correlation.taps)


def packing_cycles(numbers: int, correlation: Correlation, threads: int, cpu: Cpu) -> float:
    """Return the cycles per thread for packing a weight."""
    costs = cpu.costs.packing
    streamed = min(1.0, (numbers * correlation.dtype.itemsize / cpu.costs.l3) ** 2)
    return numbers * (costs.number + costs.streamed * streamed) * 64 / cpu.vector_bytes / threads
