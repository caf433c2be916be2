"""The shared parts of the candidates of direct kernels."""

from __future__ import annotations

from ...problem import DType
from ..base import Candidate, Eligible
from .correlation import Correlation
from .cpu import Cpu

TILES = "tiles"
"""The variant of tile registers."""


def takes_tiles(correlation: Correlation) -> bool:
    """Whether operands are bfloat16, or are to be rounded to it."""
    return correlation.rounded or correlation.dtype is DType.BFLOAT16


def direct(
    correlation: Correlation, variant: str, cycles: float, workspace: int, threads: int, cpu: Cpu
) -> Candidate:
    """A kernel's candidate: `cycles` of each thread and bytes of scratch memory."""
    packing = packing_cycles(weight_numbers(correlation), correlation, threads, cpu)
    # Where a result sums one channel, all kernels add up by taps; else each has its own order.
    sums = "taps" if correlation.reduced == correlation.groups else variant
    return Candidate("jit", variant, cycles, packing, workspace, sums)


def refused(variant: str, reason: str, *, winograd: bool = False) -> Candidate:
    """The candidate of a kernel that does not do a correlation, and why."""
    return Candidate("jit", variant, winograd=winograd, eligible=Eligible.NEVER, reason=reason)


def weight_numbers(correlation: Correlation, taps: int = 0) -> int:
    """Count the numbers of a weight, or of a weight with so many `taps`."""
    pairs = correlation.reduced * correlation.made // correlation.groups
    return pairs * (taps or correlation.taps)


def packing_cycles(numbers: int, correlation: Correlation, threads: int, cpu: Cpu) -> float:
    """Cycles of each thread that packing a weight takes."""
    costs = cpu.costs.packing
    streamed = min(1.0, (numbers * correlation.dtype.itemsize / cpu.costs.l3) ** 2)
    return numbers * (costs.number + costs.streamed * streamed) * 64 / cpu.vector_bytes / threads
