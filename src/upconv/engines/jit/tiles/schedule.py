"""The schedule of a correlation on tiles, as plain data: the shape of register tiles, blocks of
outputs, and how operands are padded.

A tile of sums has 16 positions j of one phase and 16 output channels. The operand is packed with
channels in blocks of 32 and with the zeros that shifts reach. Symbols, per axis: position j reads
padded position p = step*j + (high - e) for a tap of shift e. With high - e = step*a + b, p lies in
*plane* b, which holds every step-th position, at j + a. So neighbouring positions lie side by side
for any step, and a tap is a constant offset.

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
from ..channels.lanes import Lanes, PhaseGroup
from ..channels.schedule import Block, Cut, Grid
from ..correlation import Correlation, Line, WeightForm
from ..cpu import Cpu
from ..pool import useful_threads
from ..processor_costs import Costs
from .merging import Merging
from .operations import PAIRS, ROW_BYTES, ROWS, TILE_BYTES

SHAPES = ((2, 2), (4, 1), (1, 4), (2, 1), (1, 2), (1, 1))
"""Tiles of positions by tiles of outputs that are summed at once, the best one first."""


@dataclass(frozen=True, slots=True)
class Padding:
    """One axis of the packed operand: `count` positions j, `planes` the residues of padded
    positions that some tap reads, `length` the positions of each plane. Position i of the operand
    is padded position i + `first`."""

    count: int
    step: int
    first: int
    planes: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, line: Line, before: int = 0) -> Padding:
        """The padding of a line; `before` as in channels/blocks.py."""
        count = max((-(-(line.out - p.offset) // line.stride) for p in line.phases), default=0)
        reads = {line.high - tap.shift for phase in line.phases for tap in phase.taps} or {0}
        planes = tuple(sorted({read % line.step for read in reads}))
        length = max(1, count) + max(reads) // line.step
        return cls(max(0, count), line.step, line.high - before, planes, length)

    def read(self, high: int, tap: Tap) -> tuple[int, int]:
        """The number of the plane that a tap reads, and the position from which it does."""
        position, plane = divmod(high - tap.shift, self.step)
        return self.planes.index(plane), position


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that is decided about one correlation: phases, tiles of positions by blocks of 16 outputs
    that are summed at once, and threads. `blocks` of outputs and of `inputs` are those of a group.
    Operands are read `in_place` where they are aligned, or `anywhere` they begin. `merging`:
    products take neighbouring taps.

    So many tiles are taken `at_once` for rows with `part_bytes` of weights, which find the inputs
    in a near cache; where it is 0, all tiles for each row."""

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
        """Numbers in memory of a position of the operand, in one group."""
        return self.merging.lanes if self.merging else self.inputs * PAIRS

    @property
    def width(self) -> int:
        """Inputs of a product."""
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


_CLEARLY = 1.15  # the first shape needs the least from caches, which other threads may share
_AS_FAST = 8  # times as fast as multiply-adds of vectors: smaller problems need fewer threads
_MANY_ROWS = 4  # from which on all rows for some tiles take less time than all tiles for a row


def scheduled(
    correlation: Correlation, inner: Correlation, lanes: int, threads: int, cpu: Cpu
) -> Schedule:
    """The schedule of a correlation whose taps and weights are those of `inner`, and whose
    positions have so many `lanes` in memory."""
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
        return cycles(shape) * (1 if shape == SHAPES[0] else _CLEARLY)

    rows, columns = min(SHAPES, key=preferred)
    threads = useful_threads(correlation.multiply_adds // _AS_FAST, threads)
    # Each group of tiles takes a call for each row.
    meets_many = len(cut.grids) * -(-blocks // columns) >= _MANY_ROWS
    part_bytes = int(cpu.l2 * cpu.costs.tiles.l2_weights)
    at_once = rows if meets_many else 0
    in_place = reads_in_place(correlation, lanes)
    positions = prod(line.step for line in correlation.lines)
    reads = -(-blocks // columns) * correlation.taps / positions
    places = in_place, in_place and reads <= cpu.costs.tiles.reads
    return Schedule(cut, rows, columns, blocks, inputs, threads, *places, at_once, part_bytes)


def reads_in_place(correlation: Correlation, lanes: int) -> bool:
    """Whether an operand can be read as it lies: a position of a group has `lanes` numbers, in
    blocks of 32 or of one group, and no zeros beside it."""
    typed = correlation.layout is DataLayout.NXC and correlation.dtype is DType.BFLOAT16
    whole = correlation.reduced == lanes * correlation.groups
    whole = whole and (lanes % PAIRS == 0 or correlation.groups == 1)
    return typed and whole and all(line.is_inside for line in correlation.lines)


def inputs_of(weight: WeightForm) -> int:
    """Blocks of 32 input channels of a group."""
    return -(-weight.reduced // weight.groups // PAIRS)


def phases_of(grid: Grid) -> tuple[Phase, ...]:
    """The phases of all axes, which `outer` and the only phase of the last one are."""
    (taps,) = grid.phase_group.taps
    listed = tuple(Tap(taps[shift], shift) for shift in grid.phase_group.shifts)
    return *grid.outer, Phase(grid.phase_group.start, 0, listed)


def is_flat(batch: int, paddings: list[Padding]) -> bool:
    """Whether tiles run on from row to row over the zeros between, or begin anew with each row."""
    return _flat_tiles(batch, paddings) <= _row_tiles(batch, paddings)


def least_tiles(batch: int, paddings: list[Padding]) -> int:
    """Tiles of positions of all images, about."""
    return min(_flat_tiles(batch, paddings), _row_tiles(batch, paddings))


def _flat_tiles(batch: int, paddings: list[Padding]) -> int:
    return -(-batch * prod(axis.length for axis in paddings) // ROWS)


def _row_tiles(batch: int, paddings: list[Padding]) -> int:
    *outer, last = paddings
    return batch * prod(axis.count for axis in outer) * -(-last.count // ROWS)


def step_cycles(
    correlation: Correlation, shape: tuple[int, int], steps: int, lanes: int, cpu: Cpu
) -> float:
    """Cycles of one step of a phase of so many: products, which wait for those before, or loads of
    tiles. `lanes` are the numbers of a position in memory."""
    (rows, columns), kernel = shape, cpu.costs.tiles
    near = working_bytes(correlation, shape, steps, lanes) <= kernel.l1_working * cpu.l1
    load = kernel.load if near else kernel.far_load
    crossing = 1 - gcd(lanes * 2, ROW_BYTES) / ROW_BYTES  # part of all rows
    loads = load * columns + max(load, kernel.load + kernel.crossing * crossing) * rows
    return max(kernel.product * rows * columns, loads, kernel.latency)


def working_bytes(correlation: Correlation, shape: tuple[int, int], steps: int, lanes: int) -> int:
    """Bytes of all inputs that some tiles of neighbouring positions read, which taps share, and of
    the weights that they meet in one phase."""
    rows, columns = shape
    positions = 1
    for i, line in enumerate(correlation.lines):
        reads = {line.high - tap.shift for phase in line.phases for tap in phase.taps}
        count, behind = 0, dict[int, int]()
        # Along the last axis, of each residue the positions that no read before has reached.
        for read in sorted(reads):
            first, plane = divmod(read, line.step)
            stop = first + (rows * ROWS if i == correlation.rank - 1 else 1)
            count += stop - max(first, behind.get(plane, first))
            behind[plane] = stop
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
    """The phases of the outputs, each a grid with blocks of 16 channels, of any size."""
    channels, *outer = weight.made // weight.groups, *phases[:-1]
    taps = tuple(phase.taps for phase in phases[-1])
    lanes = Lanes(
        step, strides[-1], taps, channels, ROWS, (), costs, False, 1,
        weight.groups == 1, weight.reduced // weight.groups, 1.0,
    )  # fmt: skip
    groups = [PhaseGroup.of(lanes, r, r + 1) for r in range(len(taps))]
    grids = tuple(
        Grid(chosen, group, tuple(_blocks(channels, group.shifts)))
        for chosen in product(*outer)
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
