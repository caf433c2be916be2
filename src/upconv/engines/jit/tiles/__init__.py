"""The tile kernel: bfloat16 products of 16 positions by 16 channels, in tile registers.

What every choice asks stands here, and imports the kernel only where operands are bfloat16.
"""

from __future__ import annotations

from ....forks import importing
from ....problem import DType
from ...base import Candidate
from ..correlation import Correlation
from ..cpu import Cpu

TILES = "tiles"


def takes_tiles(correlation: Correlation) -> bool:
    """Whether operands are bfloat16, or are to be rounded to it."""
    return correlation.rounded or correlation.dtype is DType.BFLOAT16


def tile_candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """The candidates of the kernel."""
    if not takes_tiles(correlation):
        return ()
    with importing:  # most first calls do without it
        from .candidates import candidates

    return candidates(correlation, threads, cpu)
