"""A weight gradient's schedule on tile registers.

A tile's rows are channels of g, its columns are channels of x, and it sums over 32 positions. A
*unit* is 32 channels of g with a *part* of the channels of x, and all taps. A job computes some
units for a *set* of spatial blocks, and packs the data they need into its thread's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, prod

from ....problem import DataLayout, Problem
from ..cpu import Cpu
from ..tiles.operations import PAIRS, ROW_BYTES, ROWS, TILE_BYTES
from .tile_geometry import Flat, flat_of

_JOBS = 8  # the desired number of jobs
_SUMS = 4 << 20  # bytes of all sets' sums
_BLOCKS = 16, 24, 32, 48  # options for the maximum chunks in a spatial block


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The schedule: `sets` sets of `works` spatial blocks of `chunks` times 32 positions. A thread
    packs `part` blocks of 16 channels of x. `cycles` are for all threads together."""

    flat: Flat
    groups: int
    x: int  # channels in a group
    g: int
    taps: int
    sets: int
    works: int
    chunks: int
    part: int
    cycles: float = 0.0

    @property
    def parts(self) -> int:
        """Number of parts into which a group's channels of x are cut."""
        return ceil(ceil(self.x / ROWS) / self.part)

    @property
    def units(self) -> int:
        """Number of units in all groups."""
        return self.groups * self.parts * ceil(self.g / (2 * ROWS))

    @property
    def single(self) -> bool:
        """Whether there is one spatial block, so that no sums are kept from one to the next."""
        return self.sets * self.works == 1

    @property
    def jobs(self) -> int:
        """Number of jobs per set."""
        return min(self.units, ceil(_JOBS / self.sets))

    @property
    def block_bytes(self) -> int:
        """Bytes of the sums for 16 by 16 channels."""
        return ROWS * ROW_BYTES * self.taps

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit's sums."""
        return 2 * self.part * self.block_bytes

    @property
    def x_positions(self) -> int:
        """Number of positions in a panel of x: a spatial block's, and those that shifts reach."""
        return self.chunks * PAIRS + self.flat.high - self.flat.low

    @property
    def parities(self) -> int:
        """1 if pairs begin only at positions of one parity, else 2."""
        return self.flat.parities

    @property
    def parity_bytes(self) -> int:
        """Bytes per panel of x and parity, an odd number of cache lines. Vectors may be stored up
        to a tile past the last position."""
        return (ceil(self.x_positions / 2) * ROW_BYTES + TILE_BYTES) | ROW_BYTES

    @property
    def x_bytes(self) -> int:
        """Bytes of the panels for 16 channels of x."""
        return self.parities * self.parity_bytes | ROW_BYTES

    def __str__(self) -> str:
        blocks = f"{self.sets * self.works} spatial blocks of {self.chunks * PAIRS} positions"
        phases = f"{len(self.flat.phases)} phases of g"
        return f"weight gradient: tiles, {phases}, {blocks}, {self.parts} parts of x"


@lru_cache(maxsize=64)
def tile_plan(problem: Problem, cpu: Cpu) -> TilePlan:
    """Return the schedule with the fewest cycles."""
    return min(_plans(problem, cpu), key=lambda plan: plan.cycles)


def _plans(problem: Problem, cpu: Cpu) -> Iterator[TilePlan]:
    flat, groups = flat_of(problem), problem.groups
    x, g = problem.in_channels // groups, problem.out_channels // groups
    taps = prod(problem.kernel)
    blocks, block, costs = ceil(x / ROWS), ROWS * ROW_BYTES * taps, cpu.costs.weight_grad
    set_bytes = groups * blocks * ceil(g / ROWS) * block
    most = max(1, min(_JOBS, flat.chunks, _SUMS // set_bytes))
    least = min(most, ceil(_JOBS / (groups * ceil(g / (2 * ROWS)))))
    for sets, max_chunks in product(range(least, most + 1), _BLOCKS):
        works = ceil(flat.chunks / (sets * max_chunks))
        chunks = ceil(flat.chunks / (sets * works))
        positions = chunks * PAIRS + flat.high - flat.low
        row = flat.parities * ROW_BYTES // 2 * positions
        panels, sums = cpu.l2 * costs.l2_panels // row, cpu.l2 * costs.l2_sums // (2 * block)
        part = max(2, int(min(panels, sums)))
        part = ceil(blocks / ceil(blocks / part))
        plan = TilePlan(flat, groups, x, g, taps, sets, works, chunks, part + part % 2)
        yield _counted(problem, plan, cpu)


def _counted(problem: Problem, plan: TilePlan, cpu: Cpu) -> TilePlan:
    """Return a plan with its cycles for products, loads and stores of sums, packing, results."""
    costs, blocks = cpu.costs.weight_grad, ceil(plan.x / ROWS) * ceil(plan.g / ROWS)
    tiles = plan.groups * blocks * plan.taps
    spatial = plan.sets * plan.works
    channels_first = problem.layout is DataLayout.NCX
    packed_x = plan.jobs if plan.works > 1 else min(2, plan.jobs)
    pack_g = costs.tile_rows + channels_first * costs.tile_stride * problem.axes[-1].stride
    cycles = tiles * spatial * (plan.chunks * costs.tile_product + costs.tile_sums)
    cycles += prod(problem.y_shape) * plan.parts * pack_g
    cycles += prod(problem.x_shape) * packed_x * plan.parities * costs.tile_pairs
    cycles += tiles * ROWS * ROWS * (costs.tile_result + (plan.sets - 1) * costs.tile_set)
    return replace(plan, cycles=cycles)
