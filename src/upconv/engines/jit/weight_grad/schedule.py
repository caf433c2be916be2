"""A weight gradient's schedule: its spatial blocks, and the part of them that a job computes.

docs/jit.md explains it. One operand's channels are a tile's *rows*, the other's run along its
*lanes*. Spatial blocks are distributed to *sets*, whose sums are added in order. A *unit* is a
block of lanes and some taps, with all rows; a job computes some units of one set. It packs operands
into its thread's memory, because another core's caches may be far away.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import TypeVar

from ....problem import Problem
from ..cpu import Cpu
from ..values import BYTES
from .sides import footprint, sides_of

T = TypeVar("T")

_JOBS = 8  # the desired number of jobs, unless there are more threads
_SHORT_JOBS = 64  # if more jobs do not mean more packing, so that threads end at the same time
_PANELS = 2 << 20  # bytes of a thread's panels
_SUMS = 8 << 20  # bytes of all sets' sums, if there are several sets
_ENTRIES = 1 << 16  # taps in all spatial blocks
_SPATIAL_BLOCKS = 1 << 10  # at most, because preparing one takes a tenth of a millisecond
_MIN_POSITIONS = 32  # in a spatial block, regardless of memory


class Plan:
    """A problem's schedule."""

    def __init__(self, problem: Problem, cpu: Cpu, dots: bool = False, threads: int = 1) -> None:
        self.problem, self.sides = problem, sides_of(problem, cpu, dots)
        tile = self.sides.tile
        self.element = BYTES[tile.element]
        self.taps = prod(axis.kernel for axis in problem.axes)
        blocks = self.sides.row_blocks, self.sides.lane_blocks
        # All pairs below have a value for x and one for g.
        self.widths, self.in_place = self.sides.widths, self.sides.in_place
        self.blocks = (blocks[1],) * 2 if tile.depthwise else self.sided(*blocks)
        self.channels = problem.in_channels, problem.out_channels
        operands = zip(self.in_place, self.channels, self.widths, strict=True)
        self.position_strides = tuple((n if i else w) * self.element for i, n, w in operands)
        if tile.taps > 1:
            step = problem.axes[-1].dilation * self.sided(*self.position_strides)[0]
            self.sides = replace(self.sides, tile=replace(tile, step=step))
        self.block_bytes = tile.rows * tile.width * self.element  # for one tap
        self.all_bytes = self.taps * self.block_bytes * self.lanes * self.sides.row_blocks
        self.rows_together, self.columns = self._cut(cpu)
        self.spatial_blocks = ceil(self._rows / self.rows_together) * len(self.columns)
        self.sets = self._sets(self.spatial_blocks)
        self._share(cpu, threads)

    @property
    def lanes(self) -> int:
        """Number of blocks of lanes in all groups."""
        return self.sides.groups * self.sides.lane_blocks

    @property
    def single(self) -> bool:
        """Whether there is one spatial block, so that no sums are kept from one to the next."""
        return self.spatial_blocks == 1

    @property
    def held(self) -> tuple[int, int]:
        """The numbers of panels of x and g that a thread packs: all rows' (one if depthwise), one
        of lanes."""
        x, g = self.sided(1 if self.sides.tile.depthwise else self.sides.row_blocks, 1)
        return 0 if self.in_place[0] else x, 0 if self.in_place[1] else g

    def spatial_blocks_of(self, number: int) -> range:
        """Return a set's spatial blocks."""
        count = self.spatial_blocks
        return range(number * count // self.sets, (number + 1) * count // self.sets)

    def sided(self, x: T, g: T) -> tuple[T, T]:
        """Return the value for the rows, and the value for the lanes."""
        return (x, g) if self.sides.lanes_of_g else (g, x)

    def __str__(self) -> str:
        blocks = f"{self.spatial_blocks} spatial blocks"
        return f"weight gradient: {self.sides}, {blocks}, {self.part} taps to a job"

    def _sets(self, spatial_blocks: int) -> int:
        """Return the number of sets for `spatial_blocks` spatial blocks."""
        return max(1, min(_JOBS, spatial_blocks, _SUMS // self.all_bytes))

    @property
    def _rows(self) -> int:
        """Number of rows of x, over images and outer axes."""
        return self.problem.batch * prod(axis.size for axis in self.problem.axes[:-1])

    def _cut(self, cpu: Cpu) -> tuple[int, list[range]]:
        """Return the number of rows of x in a spatial block, and the ranges of positions in a row.
        A range is an entire row if several rows fit, because rows share parts of g."""
        problem, last, rows = self.problem, self.problem.axes[-1], self._rows
        room = self._room(cpu, rows * last.size)
        reach = prod(ceil(axis.extent / axis.stride) for axis in problem.axes[:-1])
        length = min(last.size, max(room // min(rows, 4 * reach), ceil(last.extent / last.stride)))
        length = ceil(last.size / ceil(last.size / max(1, length)))
        together = max(1, min(rows, room // length))
        starts = range(0, last.size, length)
        columns = [range(start, min(last.size, start + length)) for start in starts]
        return ceil(rows / ceil(rows / together)), columns

    def _room(self, cpu: Cpu, total: int) -> int:
        """Return the number of positions, out of `total`, in a spatial block. A panel of x and one
        of g fit in part of the second-level cache, and a thread's panels are bounded."""
        outputs = prod(axis.stride for axis in self.problem.axes)  # per position of x
        widths = [width * self.element for width in self.widths]
        x, g = (footprint(*both) for both in zip(widths, self.position_strides, strict=True))
        held = sum(n * w for n, w in zip(self.held, (widths[0], widths[1] * outputs), strict=True))
        panels = int(cpu.l2 * cpu.costs.weight_grad.l2_panels)
        room = max(_MIN_POSITIONS, min(panels // (x + g * outputs), _PANELS // max(1, held)))
        room = max(room, total // _SPATIAL_BLOCKS, total * self.taps // _ENTRIES)
        count = ceil(total / room)
        if self.lanes < _JOBS:
            count = max(count, min(ceil(_JOBS / self.lanes), total // _MIN_POSITIONS))
        sets = self._sets(count)
        return max(1, total // (ceil(count / sets) * sets))

    def _share(self, cpu: Cpu, threads: int) -> None:
        """Choose the numbers of taps in a unit and of units in a job."""
        taps, many = self.taps, self.sides.tile.taps
        jobs = ceil(max(_JOBS, threads) / self.sets)
        parts = ceil(taps * self.block_bytes / (cpu.l2 * cpu.costs.weight_grad.l2_sums))
        if self.spatial_blocks == self.sets:
            # A thread continues with other taps in the spatial block that it has packed.
            parts, jobs = max(parts, ceil(jobs / self.lanes)), ceil(_SHORT_JOBS / self.sets)
        self.part = ceil(taps // many / min(parts, taps // many)) * many
        self.units = self.lanes * ceil(taps / self.part)
        self.units_of_job = ceil(self.units / min(jobs, self.units))
