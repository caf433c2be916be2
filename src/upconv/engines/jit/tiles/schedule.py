"""A correlation's schedule on tiles, as plain data: the shape of register tiles, blocks of outputs,
and the padding of operands.

A tile of sums has 16 positions j of one phase and 16 output channels. The operand is packed with
channels in blocks of 32 and with the zeros that shifts reach. Symbols, per axis: position j reads
padded position p = step*j + (high - e) for a tap with shift e. With high - e = step*a + b, p is in
*plane* b, which holds every step-th position, at j + a. So neighbouring positions are adjacent for
any step, and a tap is a constant offset.

Nothing here touches an array of data or emits code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, prod

import numpy as np

from ....geometry import Phase, Tap
from ....problem import DataLayout, DType
from ....threads import useful_threads
from ..channels.lanes import Lanes, PhaseGroup
from ..channels.schedule import Block, Cut, Grid
from ..correlation import Correlation, Line, WeightForm
from ..cpu import Cpu
from ..processor_costs import Costs
from .merging import Merging
from .operations import PAIRS, ROW_BYTES, ROWS, TILE_BYTES

SHAPES = ((2, 2), (4, 1), (1, 4), (2, 1), (1, 2), (1, 1))
"""Tiles of positions by blocks of outputs that are summed at once; the first one is preferred."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The packed operand's axis: `count` positions j, and `length` positions in each plane.
    `planes` are the residues of the padded positions that some tap reads. Position i of the operand
    is padded position i + `first`."""

    count: int
    step: int
    first: int
    planes: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, line: Line, before: int = 0) -> Padding:
        """Return a line's padding; `before` is as in channels/blocks.py."""
        count = max((-(-(line.out - p.offset) // line.stride) for p in line.phases), default=0)
        reads = {line.high - tap.shift for phase in line.phases for tap in phase.taps} or {0}
        planes = tuple(sorted({read % line.step for read in reads}))
        length = max(1, count) + max(reads) // line.step
        return cls(max(0, count), line.step, line.high - before, planes, length)

    def read(self, high: int, tap: Tap) -> tuple[int, int]:
        """Return the number of the plane that a tap reads, and the position it reads if j = 0."""
        position, plane = divmod(high - tap.shift, self.step)
        return self.planes.index(plane), position


@dataclass(frozen=True, slots=True)
class Schedule:
    """A correlation's schedule: `rows` tiles of positions by `columns` blocks of 16 outputs are
    summed at once. A group has `blocks` of outputs, and `inputs` blocks of 32 channels. With
    `in_place`, aligned operands are not packed, and with `anywhere` unaligned ones are not either.

    A thread computes `at_once` tiles for rows with `part_bytes` of weights, so that the rows find
    their inputs in a near cache. If `at_once` is 0, it computes all tiles for each row."""

    cut: Cut
    rows: int
    columns: int
    blocks: int
    inputs: int
    threads: int
    in_place: bool
    anywhere: bool
    at_once: int
    part_bytes: int
    merging: Merging | None = None

    @property
    def lanes(self) -> int:
        """The count of numbers of a position in memory, in one group."""
        return self.merging.lanes if self.merging else self.inputs * PAIRS

    @property
    def width(self) -> int:
        """Number of inputs of a product."""
        return self.merging.width if self.merging else PAIRS

    def __str__(self) -> str:
        taps = " of neighbouring taps" if self.merging else ""
        reading = taps + " read in place" * self.in_place
        return (
            f"tiles: {self.rows} x {self.columns} of {ROWS} positions x {ROWS} channels,"
            f" {len(self.cut.grids)} phases, {self.blocks} blocks of outputs, {self.inputs} of 32"
            f" inputs{reading}{' if aligned' if self.in_place and not self.anywhere else ''},"
            f" {self.threads} threads"
        )


_MARGIN = 1.15  # the first shape loads least from caches, which other threads may share
_SPEED = 8  # speed relative to vector multiply-adds: fewer threads are useful
_MANY_ROWS = 4  # from so many on, all rows for some tiles are faster than all tiles for a row


def scheduled(
    correlation: Correlation, inner: Correlation, lanes: int, threads: int, cpu: Cpu
) -> Schedule:
    """Return the schedule of a correlation with the taps and weights of `inner`. A position has
    `lanes` numbers in memory."""
    lines = inner.lines
    phases = tuple(tuple(phase._replace(length=0) for phase in line.phases) for line in lines)
    strides = tuple(line.stride for line in lines)
    cut = _cut(inner.weight, strides, phases, lines[-1].step, cpu.costs)
    blocks = -(-cut.lanes.channels // ROWS)
    tiles = least_tiles(correlation.batch, [Padding.of(line) for line in correlation.lines])
    inputs = inputs_of(inner.weight)
    taps = max((prod(len(phase.taps) for phase in phases_of(g)) for g in cut.grids), default=0)
    steps = taps * inputs

    def cycles(shape: tuple[int, int]) -> float:
        runs = -(-tiles // shape[0]) * -(-blocks // shape[1])
        step = step_cycles(correlation, shape, steps, lanes, cpu)
        return runs * (step + cpu.costs.tiles.tile / max(1, steps))

    def preferred(shape: tuple[int, int]) -> float:
        return cycles(shape) * (1 if shape == SHAPES[0] else _MARGIN)

    rows, columns = min(SHAPES, key=preferred)
    threads = useful_threads(correlation.multiply_adds // _SPEED, threads)
    # Computing few tiles at once takes a call for each row and each group of tiles.
    has_many_rows = len(cut.grids) * -(-blocks // columns) >= _MANY_ROWS
    part_bytes = int(cpu.l2 * cpu.costs.tiles.l2_weights)
    at_once = rows if has_many_rows else 0
    in_place = reads_in_place(correlation, lanes)
    positions = prod(line.step for line in correlation.lines)
    reads = -(-blocks // columns) * correlation.taps / positions
    reading = in_place, in_place and reads <= cpu.costs.tiles.reads
    return Schedule(cut, rows, columns, blocks, inputs, threads, *reading, at_once, part_bytes)


def reads_in_place(correlation: Correlation, lanes: int) -> bool:
    """Whether an operand can be read in place: it is bfloat16 with channels last, no tap reads
    outside it, and `lanes`, the channels of a group, are blocks of 32 unless there is one group."""
    stored = correlation.layout is DataLayout.NXC and correlation.dtype is DType.BFLOAT16
    fits = correlation.reduced == lanes * correlation.groups
    fits = fits and (lanes % PAIRS == 0 or correlation.groups == 1)
    return stored and fits and all(line.is_inside for line in correlation.lines)


def inputs_of(weight: WeightForm) -> int:
    """Return the number of blocks of 32 input channels in a group."""
    return -(-weight.reduced // weight.groups // PAIRS)


def phases_of(grid: Grid) -> tuple[Phase, ...]:
    """Return all axes' phases: `outer`, and the last axis's only phase."""
    (taps,) = grid.phase_group.taps
    listed = tuple(Tap(taps[shift], shift) for shift in grid.phase_group.shifts)
    return *grid.outer, Phase(grid.phase_group.start, 0, listed)


def is_flat(batch: int, paddings: list[Padding]) -> bool:
    """Whether tiles continue from row to row across the zeros; else each row begins a tile."""
    return _flat_tiles(batch, paddings) <= _row_tiles(batch, paddings)


def least_tiles(batch: int, paddings: list[Padding]) -> int:
    """Return the approximate number of tiles of positions in all images."""
    return min(_flat_tiles(batch, paddings), _row_tiles(batch, paddings))


def _flat_tiles(batch: int, paddings: list[Padding]) -> int:
    return -(-batch * prod(axis.length for axis in paddings) // ROWS)


def _row_tiles(batch: int, paddings: list[Padding]) -> int:
    *outer, last = paddings
    return batch * prod(axis.count for axis in outer) * -(-last.count // ROWS)


def step_cycles(
    correlation: Correlation, shape: tuple[int, int], steps: int, lanes: int, cpu: Cpu
) -> float:
    """Return the cycles of one of a phase's `steps`: for products, for loads, or for waiting for
    the previous products. A position has `lanes` numbers in memory."""
    (rows, columns), costs = shape, cpu.costs.tiles
    is_near = working_bytes(correlation, shape, steps, lanes) <= costs.l1_working * cpu.l1
    load = costs.load if is_near else costs.far_load
    crossing = 1 - gcd(lanes * 2, ROW_BYTES) / ROW_BYTES  # share of all rows
    loads = load * columns + max(load, costs.load + costs.crossing * crossing) * rows
    return max(costs.product * rows * columns, loads, costs.latency)


def working_bytes(correlation: Correlation, shape: tuple[int, int], steps: int, lanes: int) -> int:
    """Return the bytes of all different inputs that neighbouring tiles' taps read, and of their
    weights in one phase."""
    rows, columns = shape
    positions = 1
    for i, line in enumerate(correlation.lines):
        reads = {line.high - tap.shift for phase in line.phases for tap in phase.taps}
        count, ends = 0, dict[int, int]()
        # Count the positions of each residue that no earlier read includes.
        for read in sorted(reads):
            first, plane = divmod(read, line.step)
            stop = first + (rows * ROWS if i == correlation.rank - 1 else 1)
            count += stop - max(first, ends.get(plane, first))
            ends[plane] = stop
        positions *= count
    return positions * lanes * 2 + columns * steps * TILE_BYTES


@lru_cache(maxsize=256)
def _cut(
    weight: WeightForm,
    strides: tuple[int, ...],
    phases: tuple[tuple[Phase, ...], ...],
    step: int,
    costs: Costs,
) -> Cut:
    """Return the outputs' phases, each a grid with blocks of 16 channels, for any size."""
    channels, *outer = weight.made // weight.groups, *phases[:-1]
    taps = tuple(phase.taps for phase in phases[-1])
    lanes = Lanes(
        step, strides[-1], taps, channels, ROWS, (), costs, False, 1,
        weight.groups == 1, weight.reduced // weight.groups, 1.0,
    )  # fmt: skip
    groups = [PhaseGroup.of(lanes, r, r + 1) for r in range(len(taps))]
    grids = tuple(
        Grid(outer_phases, group, tuple(_blocks(channels, group.shifts)))
        for outer_phases in product(*outer)
        for group in groups
    )
    offsets = [[*(p.offset for p in grid.outer), grid.phase_group.start] for grid in grids]
    table = np.array(offsets, np.int64).reshape(-1, len(strides))
    key = lanes, grids
    return Cut(
        *key, 0.0, np.zeros(len(grids), np.int64), table, np.array(strides, np.int64), hash(key)
    )


def _blocks(channels: int, shifts: tuple[int, ...]) -> Iterable[Block]:
    for first in range(0, channels, ROWS):
        yield Block(first, min(ROWS, channels - first), 1, shifts, masked=False)
