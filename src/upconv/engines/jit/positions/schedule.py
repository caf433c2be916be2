"""The positions kernel's schedule as plain data: padded positions, cache blocks, jobs, threads.

The padded positions are one long row. Each axis has enough for inputs, outputs, and the zeros that
shifts read between one row and the next: max(I + e_max, J - e_min).

Nothing here touches an array or emits code. tiling.py chooses tiles by the layer's class. The
division of the work into cache blocks and jobs depends on all sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from ....geometry import Phase
from ....threads import useful_threads
from ..correlation import Correlation, Line
from ..cpu import Cpu
from ..packing import Numbers
from ..values import BYTES, STORED
from .tile import Tile
from .tiling import Block, stores, tiles_for

_BLOCKS_IN_PLACE = 16
"""Minimum cache blocks per row for reading in place: those at the row's ends are packed."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """All decisions about one correlation.

    A job computes `block_run` blocks of `cache_block` positions, and also reads `halo_before`
    positions before them and `halo_after` after them. If `shared`, all threads pack the input
    first; else each job packs its cache block, unless `reads_in_place` and the block lies inside an
    input row. Tiles start anew every `span_rows` rows; if this is 0, they continue across rows. If
    `ends_early`, the last tiles end at the last position.
    """

    padded: PaddedPositions
    tiles: tuple[Tile, ...]
    blocks: tuple[Block, ...]
    halo_before: int
    halo_after: int
    cache_block: int
    span_rows: int
    block_run: int
    shared: bool
    threads: int
    buffer_positions: int
    reads_in_place: bool = False
    ends_early: bool = False

    @property
    def cache_blocks(self) -> int:
        """Number of cache blocks that cover all positions."""
        return -(-self.padded.total // self.cache_block)

    @property
    def in_place(self) -> Numbers:
        """The cache blocks that are read in place: all that they read lies inside an input row."""
        start, tile = np.arange(self.cache_blocks) * self.cache_block, self.tiles[0]
        size = np.minimum(self.cache_block, self.padded.total - start)
        early = self.ends_early & (size >= tile.width)
        # A tile that cuts its inputs from adjacent vectors reads one vector more.
        reach = (tile.lanes if tile.cuts else 0) - self.padded.low
        stop = start + reach + np.where(early, size, -(-size // tile.width) * tile.width)
        row = start // self.padded.row_stride * self.padded.row_stride
        inside = (start - self.halo_before >= row) & (stop <= row + self.padded.last.size)
        return np.flatnonzero(inside & self.reads_in_place)

    def __str__(self) -> str:
        tile = self.tiles[0]
        order = "by rows" if self.span_rows else "across rows"
        packing = "packed by all first" if self.shared else "packed by each job"
        packing = f"{len(self.in_place)} read in place" if self.reads_in_place else packing
        return (
            f"positions: tile of {tile.channels} channels x {tile.phases} phases x"
            f" {tile.vectors} vectors of {tile.lanes}, {len(self.blocks)} blocks,"
            f" {self.cache_blocks} cache blocks of {self.cache_block} positions {order}, {packing},"
            f" {self.threads} threads"
        )


@lru_cache(maxsize=64)  # both the choice of a kernel and the kernel need it
def schedule(correlation: Correlation, threads: int, cpu: Cpu) -> Schedule:
    """Return the schedule of a correlation that has outputs."""
    padded = PaddedPositions.of(correlation)
    tiles, blocks = tiles_for(correlation, padded.last, cpu)
    # A tile that cuts its inputs from adjacent vectors reads one vector more.
    halo_before, halo_after = padded.high, tiles[0].width + tiles[0].lanes - padded.low
    room = _room(correlation, tiles[0], halo_before + halo_after, cpu)
    span_rows = _span_rows(correlation, padded, tiles[0]) if padded.row_stride <= room else 0
    useful = useful_threads(correlation.multiply_adds, threads)
    if useful > 1 and _is_one_row(correlation, padded) and not correlation.has_larger_weight:
        # Threads then divide the row. Otherwise they would divide the results' channels and all
        # read the entire input.
        span_rows = 0
    reads_in_place = _reads_in_place(correlation, padded, tiles[0], len(blocks), cpu)
    single_block = Schedule(
        padded, tiles, blocks, halo_before, halo_after, padded.total,
        0 if reads_in_place else span_rows, len(blocks), shared=True, threads=useful,
        buffer_positions=padded.total + halo_before + halo_after,
        reads_in_place=reads_in_place, ends_early=stores(correlation),
    )  # fmt: skip
    return _cut(single_block, correlation, cpu)


def _is_one_row(correlation: Correlation, padded: PaddedPositions) -> bool:
    """Whether there is only one row, so that tiles starting anew in each row change nothing."""
    return correlation.batch * padded.rows == 1


def _span_rows(correlation: Correlation, padded: PaddedPositions, tile: Tile) -> int:
    """Return the number of rows after which tiles start anew, or 0 for never. If there would be too
    many records for all rows, the table has records for a few rows, with at least eight tiles."""
    across, by_row = (_row_cycles(correlation, padded, tile, flag) for flag in (False, True))
    if by_row <= across:
        return 1
    rows = correlation.batch * padded.rows
    staged = min(rows, padded.total // tile.width)
    direct = rows if padded.row_stride > tile.width else 0
    nbytes = 48 * rows + 40 * (staged + direct)  # two pieces per row, and TILES
    if nbytes <= tile.costs.positions.records:
        return 0
    return max(4, -(-8 * tile.width // padded.row_stride))


def _reads_in_place(
    correlation: Correlation, padded: PaddedPositions, tile: Tile, blocks: int, cpu: Cpu
) -> bool:
    """Whether packing would only copy most of each row, and reading in place is faster."""
    nbytes = prod(correlation.operand_shape) * correlation.dtype.itemsize
    costs, least, few = cpu.costs.positions, tile.width, blocks == 1
    if _packs_ends(correlation, padded):
        least = _BLOCKS_IN_PLACE * max(tile.width, padded.high - padded.low)
    elif blocks <= costs.reads:
        few = few or nbytes <= costs.read_l2 * cpu.l2
    is_long = correlation.rank == 1 and padded.last.size >= least
    return is_long and few and STORED[correlation.dtype] == correlation.element


def _packs_ends(correlation: Correlation, padded: PaddedPositions) -> bool:
    """Whether blocks at rows' ends are packed, because they also read zeros or the next row."""
    return correlation.batch > 1 or padded.high > padded.low


def predicted_cycles(correlation: Correlation, plan: Schedule, cpu: Cpu) -> float:
    """Return the cycles per thread for tiles, placing their results, and packing the input."""
    channels, padded = correlation.reduced // correlation.groups, plan.padded
    costs = cpu.costs.positions
    by_row = plan.span_rows == 1 or _is_one_row(correlation, padded)
    rows_cycles = [_row_cycles(correlation, padded, tile, by_row) for tile in plan.tiles]
    # The last tile of the last row, or of all positions, takes as long as a full one.
    part = padded.row_stride if by_row else plan.tiles[0].width
    rows = -(-padded.total // part) * part / padded.row_stride
    tiles = sum(rows_cycles[block.kind] for block in plan.blocks) * rows
    positions = padded.total + plan.halo_before + plan.halo_after
    packing = costs.pack * channels * positions / plan.tiles[0].lanes
    packing = 0 if plan.reads_in_place else packing
    return costs.shortfall * correlation.groups * (tiles + packing) / plan.threads


def _row_cycles(
    correlation: Correlation, padded: PaddedPositions, tile: Tile, by_row: bool
) -> float:
    """Return the cycles of one block's tiles for a row.

    If tiles start anew in every row, a row's last tiles compute some results twice, or are slow
    tiles of one vector. If they continue across rows, they also compute the padded positions
    between rows, and results in two rows pass through the stage.
    """
    reduction = correlation.reduced // correlation.groups
    taps = sum(prod(len(phase.taps) for phase in phases) for phases in padded.phase_tuples())
    phase_tuples = prod(len(line.phases) for line in padded.outer)

    def cycles(part: Tile) -> float:
        return reduction * taps * part.cycles + phase_tuples * part.placing

    staged = phase_tuples * tile.costs.positions.stage * (1 + tile.channels)
    if not by_row:
        return cycles(tile) * padded.row_stride / tile.width + staged
    full, rest = divmod(padded.last.phases[0].length, tile.width)
    narrow = -(-rest // tile.lanes)
    nearly = narrow > tile.tail_vectors
    tail = cycles(tile) if nearly else narrow * cycles(tile.narrowed(1))
    fits = full or (not nearly and rest >= tile.lanes)
    return full * cycles(tile) + tail + (0 if fits else staged)


def _evened(total: int, cache_block: int, width: int, groups: int, threads: int) -> int:
    """Return a cache block of at most `cache_block` positions that gives all threads the same
    number of jobs."""
    cache_blocks = -(-total // cache_block)
    while groups * cache_blocks % threads and groups * cache_blocks < 16 * threads:
        cache_blocks += 1
    return min(cache_block, max(width, -(-total // cache_blocks // width) * width))


def _room(correlation: Correlation, tile: Tile, halo: int, cpu: Cpu) -> int:
    """Return how many positions' inputs, for one group, fit in part of the second-level cache. A
    quarter of that is enough if a volume's halos do not fit anyway.
    """
    channels = correlation.reduced // correlation.groups
    lanes = int(cpu.l2 * cpu.costs.positions.l2_input) // (BYTES[tile.element] * channels)
    return max(lanes - halo, lanes // 4)


def _cut(plan: Schedule, correlation: Correlation, cpu: Cpu) -> Schedule:
    """Choose cache blocks and jobs such that panels stay in L2 and every thread has work."""
    channels, total = correlation.reduced // correlation.groups, plan.padded.total
    width = plan.padded.row_stride if plan.span_rows else plan.tiles[0].width
    halo = plan.halo_before + plan.halo_after
    fitting = max(width, _room(correlation, plan.tiles[0], halo, cpu) // width * width)
    wanted = 1 if plan.threads == 1 else 4 * plan.threads
    packs_ends = plan.reads_in_place and _packs_ends(correlation, plan.padded)
    if packs_ends:
        wanted = max(wanted, _BLOCKS_IN_PLACE * correlation.batch)
    even = -(-total // -(-wanted // correlation.groups))
    cache_block = max(width, min(fitting, -(-even // width) * width))
    cache_block = _evened(total, cache_block, width, correlation.groups, plan.threads)
    enough = correlation.groups * -(-total // cache_block) >= wanted
    itemsize = BYTES[plan.tiles[0].element]
    packed = correlation.reduced * (total + halo) * itemsize
    small = plan.threads * channels * (cache_block + halo) * itemsize
    nbytes = prod(correlation.operand_shape) * correlation.dtype.itemsize
    bound = 1.3 * nbytes + (plan.threads << 22)
    if packs_ends or (enough and halo <= cache_block // 3) or packed > max(bound, small):
        positions = cache_block + halo
        return replace(plan, shared=False, cache_block=cache_block, buffer_positions=positions)
    cache_block = max(width, min(fitting, -(-total // width) * width))
    runs = min(len(plan.blocks), -(-wanted // (correlation.groups * -(-total // cache_block))))
    if plan.reads_in_place:  # the last block too, unless it is shorter than a tile
        cache_block = max(width, -(-total // (-(-total // cache_block) * width)) * width)
        plan = replace(plan, shared=False, buffer_positions=cache_block + halo)
    return replace(plan, cache_block=cache_block, block_run=-(-len(plan.blocks) // runs))


# Padded positions ---------------------------------------------------------------------------------


def padded_size(line: Line) -> int:
    """Return an axis's number of padded positions: enough for operand, result, and the zeros
    between rows."""
    return max(line.size + max(line.high, 0), line.phases[0].length - min(line.low, 0), 1)


@dataclass(frozen=True, slots=True)
class PaddedPositions:
    """A batch's positions, flattened into one long row.

    `sizes` are each axis's padded positions. A row has `row_stride` positions and an image has
    `rows` rows. `steps` are the outer axes' strides in rows. Position q reads positions q - high
    ... q - low. The first `total` positions contain all outputs.
    """

    lines: tuple[Line, ...]
    sizes: tuple[int, ...]
    row_stride: int
    rows: int
    steps: tuple[int, ...]
    low: int
    high: int
    total: int

    @classmethod
    def of(cls, correlation: Correlation) -> PaddedPositions:
        """Return the padded positions of a correlation that has outputs."""
        lines = correlation.lines
        *outer, last = lines
        padded = tuple(map(padded_size, lines))
        steps = tuple(prod(padded[i + 1 : -1]) for i in range(len(outer)))
        rows, row_stride = prod(padded[:-1]), padded[-1]
        pairs = list(zip(outer, steps, strict=True))
        last_row = sum((o.phases[0].length - 1) * step for o, step in pairs)
        return cls(
            lines, padded, row_stride, rows, steps,
            low=sum(o.low * step for o, step in pairs) * row_stride + last.low,
            high=sum(o.high * step for o, step in pairs) * row_stride + last.high,
            total=((correlation.batch - 1) * rows + last_row) * row_stride + last.phases[0].length,
        )  # fmt: skip

    @property
    def last(self) -> Line:
        """The axis along which vectors run."""
        return self.lines[-1]

    @property
    def outer(self) -> tuple[Line, ...]:
        """The other axes."""
        return self.lines[:-1]

    def phase_tuples(self) -> Iterator[tuple[Phase, ...]]:
        """Return the combinations of the outer axes' phases."""
        return product(*(line.phases for line in self.outer))
