"""What the models of cost count with, by the width of a vector: one table for all kernels.

A tile takes as long as the slowest of what it needs of a core: multiply-adds, loads, sums that wait
for the one before, bytes from the second-level cache. Processors of one width differ by less than
the shapes of tiles do, so a class is a width.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Figures of one class of processors.

    adds, loads: multiply-adds and loads of a vector in a cycle. latency: cycles from a register's
    multiply-add to its next. unaligned: loads that one across two lines counts as. line: parts of a
    line in a vector. weights: cycles in which a vector of weights comes from the second-level
    cache, each line once. stream: bytes in a cycle of panels that are read one after another.
    masked: how much longer a multiply-add under a mask takes.
    """

    adds: float
    loads: float
    latency: float
    unaligned: float
    line: float
    weights: float
    stream: float
    masked: float


_COSTS = {
    # Fitted on a Xeon with AMX, a Zen 5 (21 November 2026) and a Zen 4 (22 November).
    64: Costs(2, 2, 4, 2.0, 1.0, 2.2, 17, 1),
    # A Zen 4 held to AVX2 (22 November 2026). An unaligned load as 1.5 chooses tiles of one vector,
    # which take 1.4 times as long for fcn8s_final; weights at 1.1, half of a longer vector's, make
    # five layers of eight 2 to 6 % faster and two that stream many weights 4 to 17 % slower.
    32: Costs(2, 2, 4, 2.0, 1.0, 2.2, 17, 2),
    # Nothing was fitted: SSE2 and NEON as AVX2.
    16: Costs(2, 2, 4, 2.0, 1.0, 2.2, 17, 2),
}


def costs_of(vector_bytes: int) -> Costs:
    """The figures of processors with vectors of so many bytes."""
    return _COSTS[vector_bytes]
