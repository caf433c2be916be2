"""The planes kernel's candidate."""

from __future__ import annotations

from ...base import Candidate
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import direct, refused
from .primitive import plane_tile, predicted_cycles

PLANES = "planes"


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the only candidate."""
    tile = plane_tile(correlation, cpu)
    if tile is None:
        reason = "it needs AVX2 or AVX-512, and a depthwise layer of stride 1 and short reach"
        return (refused(PLANES, reason),)
    cycles = predicted_cycles(correlation, tile, threads)
    return (direct(correlation, PLANES, cycles, 0, threads, cpu),)
