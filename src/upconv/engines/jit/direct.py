"""What the candidates of all kernels that add up directly have in common."""

from __future__ import annotations

from ..base import Candidate, Eligible
from .correlation import Correlation
from .cpu import Cpu

_PACK, _STREAMED = 0.55, 0.9  # cycles of a packed number, and more where it leaves the caches
L3 = 24 << 20  # bytes that stay in the third-level cache


def direct(
    correlation: Correlation, variant: str, cycles: float, workspace: int, threads: int, cpu: Cpu
) -> Candidate:
    """A kernel's candidate: `cycles` of each thread and bytes of scratch memory."""
    packing = packing_cycles(weight_numbers(correlation), correlation, threads, cpu)
    # Where a result adds up one channel, all kernels go by taps; else each has an order of its own.
    sums = "taps" if correlation.reduced == correlation.groups else variant
    return Candidate("jit", variant, cycles, packing, workspace, sums)


def refused(variant: str, reason: str, *, winograd: bool = False) -> Candidate:
    """The candidate of a kernel that does not do a correlation, and why."""
    return Candidate("jit", variant, winograd=winograd, eligible=Eligible.NEVER, reason=reason)


def weight_numbers(correlation: Correlation, taps: int = 0) -> int:
    """Numbers of a weight, or of one with so many `taps`."""
    pairs = correlation.reduced * correlation.made // correlation.groups
    return pairs * (taps or correlation.taps)


def packing_cycles(numbers: int, correlation: Correlation, threads: int, cpu: Cpu) -> float:
    """Cycles of each thread that packing a weight takes.

    On a Zen 4 (2026-11-23, one thread), 0.3 to 0.4 ns a number for up to 12 MB, 0.5 for 17, 0.8 for
    more than the third-level cache holds; half a cycle of 64-byte vectors is 0.28 ns.
    """
    streamed = min(1.0, (numbers * correlation.dtype.itemsize / L3) ** 2)
    return numbers * (_PACK + _STREAMED * streamed) * 64 / cpu.vector_bytes / threads
