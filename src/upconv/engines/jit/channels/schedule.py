"""The channels kernel's schedule as plain data: grids, blocks, tiles, jobs.

Symbols, per axis: output o = s*j + r of phase r reads input t*j - e for each tap (s is `stride`, t
is `step`). Along the last axis n neighbouring j may be unrolled: o = s*n*j' + r' with r' = s*i + r,
which reads input t*n*j' - (e - t*i). A *phase group* is a run of phases r'. Its outputs are
adjacent in channels-last memory: these are the lanes, (phase, channel) in that order. Phase groups
of one phase suit many channels. With few channels, more phases fill the vectors.

Nothing here touches data or emits code. With many points, grids, blocks and tiles do not depend on
sizes, and all sizes of a layer share one `Cut`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from ....geometry import Phase
from ....problem import DataLayout
from ....threads import useful_threads
from ..correlation import Correlation
from ..cpu import Cpu
from ..packing import Numbers
from ..values import BYTES
from .lanes import Lanes, PhaseGroup, lanes_of, phase_groupings
from .reach import MANY, POINTS, STEP, Along, Reach, fitting, part_inside, reach


@dataclass(frozen=True, slots=True)
class Block:
    """A phase group's lanes [lane, lane + active), in `vectors` vectors. `shifts` are the shifts
    along the last axis that any lane uses; `masked` says that some lanes use fewer. Weights are
    packed in the same way for any number of `points` in a tile."""

    lane: int
    active: int
    vectors: int
    shifts: tuple[int, ...]
    masked: bool
    points: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Grid:
    """Points with the same taps: a phase of each outer axis, without its length, and a phase group
    of the last axis."""

    outer: tuple[Phase, ...]
    phase_group: PhaseGroup
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """The outputs of one image, cut into grids.

    `cycles` are a group's: for all points if these are few, else for one position. `rates` are the
    cycles per point of each grid. `offsets` are each grid's first outputs along all axes, and
    `steps` the outputs from one point to the next.
    """

    lanes: Lanes
    grids: tuple[Grid, ...]
    cycles: float = field(compare=False)
    rates: Numbers = field(compare=False)
    offsets: Numbers = field(compare=False)
    steps: Numbers = field(compare=False)
    _hash: int = field(compare=False)

    def __hash__(self) -> int:
        return self._hash  # hashing all shifts is slow

    @property
    def unroll(self) -> int:
        """A point's number of positions along the last axis."""
        return max((grid.phase_group.unroll for grid in self.grids), default=1)

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest shift along the last axis."""
        shifts = [e for group in {g.phase_group for g in self.grids} for e in group.shifts]
        return min(shifts, default=0), max(shifts, default=0)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all grids."""
        return tuple(block for grid in self.grids for block in grid.blocks)

    def counts(self, outs: tuple[int, ...]) -> Numbers:
        """Return each grid's points along each axis, for `outs` outputs."""
        counts: Numbers = np.maximum(-((self.offsets - outs) // self.steps), 0)
        return counts


@dataclass(frozen=True, slots=True)
class Schedule:
    """All decisions about a correlation.

    A job is `step` points of `block_run` blocks.
    """

    cut: Cut
    step: int
    runs: int
    block_run: int
    block_runs: int
    threads: int

    def __str__(self) -> str:
        cut, blocks = self.cut, self.cut.blocks
        pairs = " in pairs" if cut.lanes.dots else ""
        sizes = sorted({(block.points, block.vectors) for block in blocks})
        tiles = ", ".join(f"{points} points x {vectors} vectors" for points, vectors in sizes)
        return (
            f"{'depthwise ' * cut.lanes.depthwise}channels{pairs}: tiles of {tiles},"
            f" {len(cut.grids)} grids, {cut.unroll} positions unrolled, {len(blocks)} blocks,"
            f" {self.runs} runs of {self.step} points, {self.block_runs} runs of {self.block_run}"
            f" blocks, {self.threads} threads"
        )


# Blocks -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _divisions(lanes: Lanes, phase_group: PhaseGroup) -> tuple[tuple[Block, ...], ...]:
    """Return cuts of a phase group into the fewest blocks of at most 1, 2, 3 ... vectors."""
    total = len(phase_group.taps) * lanes.channels
    vectors = -(-total // lanes.width)
    divisions = []
    for most in range(1, min(len(lanes.sums), vectors + 1)):
        count, lane, blocks = -(-vectors // most), 0, []
        for i in range(count):
            size = vectors // count + (i < vectors % count)
            active = min(size * lanes.width, total - lane)
            blocks.append(_block(lanes, phase_group, lane, active, size))
            lane += size * lanes.width
        divisions.append(tuple(blocks))
    return tuple(divisions)


def _block(lanes: Lanes, phase_group: PhaseGroup, lane: int, active: int, vectors: int) -> Block:
    first, last = lane // lanes.channels, (lane + active - 1) // lanes.channels
    phases = [set(taps) for taps in phase_group.taps[first : last + 1]]
    shifts = tuple(sorted(set().union(*phases), reverse=True))
    return Block(lane, active, vectors, shifts, any(phase != phases[0] for phase in phases))


@lru_cache(maxsize=1024)
def _blocks(
    lanes: Lanes, phase_group: PhaseGroup, reached: Reach, outer: int
) -> tuple[float, tuple[Block, ...]]:
    """Return a phase group's fastest blocks, and their cycles for all points. Each shift has
    `outer` taps."""
    tiles: dict[tuple[int, bool, tuple[int, ...]], tuple[float, int]] = {}
    best: tuple[float, tuple[Block, ...]] = float("inf"), ()
    for division in _divisions(lanes, phase_group):
        keys = [(block.vectors, block.masked, block.shifts) for block in division]
        for key, block in zip(keys, division, strict=True):
            if key not in tiles:
                tiles[key] = _best_tile(lanes, block, reached, outer)
        cycles = sum(tiles[key][0] for key in keys)
        if cycles < best[0]:
            sized = zip(keys, division, strict=True)
            best = cycles, tuple(replace(block, points=tiles[key][1]) for key, block in sized)
    return best


def _best_tile(lanes: Lanes, block: Block, reached: Reach, outer: int) -> tuple[float, int]:
    """Return a block's fewest cycles for all points, and the number of points in that tile.

    Full tiles and one tile for the rest compute the points. Of equally fast tiles, the largest is
    chosen."""
    merged = merged_taps(lanes, block)
    cycles = _tap_cycles(lanes, block.vectors, block.masked, merged)
    taps, best = len(block.shifts) // merged * outer, (float("inf"), 0)
    start = lanes.costs.channels.tile
    for points, tap_cycles, share in zip(POINTS, cycles, reached.parts, strict=False):
        tiles, rest = divmod(reached.points, points)
        total = tiles * (start + taps * share * tap_cycles)
        if rest:
            last = POINTS.index(fitting(rest))
            total += start + taps * reached.parts[last] * cycles[last]
        if total <= best[0]:
            best = total, points
    return best


def merged_taps(lanes: Lanes, block: Block) -> int:
    """Return how many taps along the last axis read one run of memory: all of a block's, or 1.

    With several groups, neighbouring positions are not adjacent. A mask belongs to one tap."""
    shifts, odd = block.shifts, lanes.dots > 0 and lanes.reduction % 2
    if block.masked or odd or lanes.depthwise or not (lanes.ungrouped and shifts):
        return 1
    return len(shifts) if shifts[0] - shifts[-1] == len(shifts) - 1 else 1


@lru_cache(maxsize=1024)
def _tap_cycles(lanes: Lanes, vectors: int, masked: bool, merged: int) -> tuple[float, ...]:
    """Return the cycles of one tap, or `merged` taps, in each tile whose sums fit in registers.

    The slowest of these decides: multiply-adds, loads, weights from the second-level cache, and the
    latency of a sum. Broadcasting inputs and finding a tap's inputs are added.
    """
    costs, kernel = lanes.costs, lanes.costs.channels
    points = np.array([n for n in POINTS if n <= lanes.sums[vectors] // vectors], np.float64)
    products = points * vectors
    if lanes.depthwise:
        cycles = kernel.depthwise_tap + kernel.depthwise_point * points
        return tuple((cycles + kernel.depthwise_product * products * lanes.reduction).tolist())
    adds = products / costs.adds * (costs.masked if masked else 1)
    latency, reduction = costs.latency, lanes.reduction
    if lanes.dots:  # one instruction adds two products in each lane
        adds, latency, reduction = products / lanes.dots, kernel.dot_latency, -(-reduction // 2)
    loads, weights = (points + vectors) / costs.loads, costs.weights * vectors
    step = np.maximum(np.maximum(adds, loads), max(weights, latency)) + kernel.broadcast * points
    return tuple((kernel.tap + kernel.point * points + merged * reduction * step).tolist())


# The schedule -------------------------------------------------------------------------------------


def schedule(
    correlation: Correlation, threads: int, cpu: Cpu, dots: bool | None = None
) -> Schedule:
    """Return the schedule of a correlation that has outputs; `dots` is as in `lanes_of`."""
    threads, lines = useful_threads(correlation.multiply_adds, threads), correlation.lines
    strides = tuple(line.stride for line in lines)
    outer = tuple(tuple(phase._replace(length=0) for phase in line.phases) for line in lines[:-1])
    few = correlation if _positions(correlation) <= _FEW else None
    cut, *others = _cuts(lanes_of(correlation, cpu, dots), strides, outer, few)
    row = -(-lines[-1].out // lines[-1].stride)
    for other in others:
        # Earlier cuts are preferred, so a later one must be clearly faster.
        clearly = cpu.costs.channels.clearly * _row_cycles(cut, row, few)
        cut = other if _row_cycles(other, row, few) < clearly else cut
    return jobs(correlation, cut, threads, cpu)


_FEW = 240  # maximum positions for which their number and skipped taps affect the choice
_LONG = 256  # longest row for which the positions that unrolling adds matter


def _positions(correlation: Correlation) -> int:
    """Return the number of positions j in all images."""
    return correlation.batch * prod(-(-line.out // line.stride) for line in correlation.lines)


def _row_cycles(cut: Cut, row: int, few: Correlation | None) -> float:
    """Return a cut's cycles, including positions that unrolling adds at the end of a row."""
    if few is not None or row > _LONG:
        return cut.cycles
    return cut.cycles * -(-row // cut.unroll) * cut.unroll / row


@lru_cache(maxsize=128)
def _cuts(
    lanes: Lanes,
    strides: tuple[int, ...],
    outer: tuple[tuple[Phase, ...], ...],
    few: Correlation | None,
) -> tuple[Cut, ...]:
    """Return cuts of the outputs into grids, which depend on sizes if positions are `few`."""
    return tuple(_cut(lanes, strides, outer, groups, few) for groups in phase_groupings(lanes))


def _cut(
    lanes: Lanes,
    strides: tuple[int, ...],
    outer: tuple[tuple[Phase, ...], ...],
    phase_groups: tuple[PhaseGroup, ...],
    few: Correlation | None,
) -> Cut:
    """Return the cut with these phase groups along the last axis."""
    total, grids, rates, offsets = 0.0, [], [], []
    for phases in product(*outer):
        taps = prod(len(phase.taps) for phase in phases)
        for group in phase_groups:
            reached = MANY if few is None else _reach(few, phases, group)
            cycles, blocks = _blocks(lanes, group, reached, taps)
            rates.append(cycles / max(1, reached.points))
            total += rates[-1] / group.unroll if few is None else cycles
            grids.append(Grid(phases, group, blocks))
            offsets.append([*(phase.offset for phase in phases), group.start])
    unroll = phase_groups[0].unroll if phase_groups else 1
    steps = np.array([*strides[:-1], strides[-1] * unroll], np.int64)
    tables = np.array(rates), np.array(offsets, np.int64).reshape(-1, len(steps)), steps
    key = lanes, tuple(grids)
    return Cut(*key, total, *tables, hash(key))


def _reach(correlation: Correlation, phases: tuple[Phase, ...], group: PhaseGroup) -> Reach:
    """Return a grid's reach."""
    *lines, last = correlation.lines
    axes = [
        Along(
            line.size, -(-(line.out - phase.offset) // line.stride), line.step,
            tuple(tap.shift for tap in phase.taps),
        )
        for line, phase in zip(lines, phases, strict=True)
    ]  # fmt: skip
    count = max(0, -(-(last.out - group.start) // (last.stride * group.unroll)))
    axes.append(Along(last.size, count, last.step * group.unroll, group.shifts))
    return reach(tuple(axes), correlation.batch, inside=images_inside(correlation))


def jobs(correlation: Correlation, cut: Cut, threads: int, cpu: Cpu) -> Schedule:
    """Choose jobs: a run's inputs fit in the second-level cache, and all threads have work.

    A strided operand has several inputs per point."""
    groups = 1 if cut.lanes.depthwise else correlation.groups
    channels = correlation.reduced // groups
    total = correlation.batch * int(cut.counts(correlation.result_size).prod(1).max(initial=0))
    blocks = len(cut.blocks)
    inputs = int(cpu.l2 * cpu.costs.channels.l2_inputs)
    reads = prod(min(line.step, line.high - line.low + 1) for line in correlation.lines)
    fit = max(4, inputs // (channels * reads * BYTES[correlation.element]) // STEP)
    wanted = 1 if threads == 1 else 8 * threads
    steps = max(1, -(-total // STEP))  # of STEP points
    runs = max(-(-steps // fit), min(-(-wanted // groups), steps // 4), 1)
    if runs > 1:
        runs = -(-runs // threads) * threads  # about equally many for each thread
    step = -(-steps // runs) * STEP
    runs = max(1, -(-total // step))
    block_run = max(1, min(blocks, blocks * groups * runs // wanted))
    return Schedule(cut, step, runs, block_run, -(-blocks // block_run), threads)


def images_inside(correlation: Correlation) -> bool:
    """Whether a tile's points are one position in several images. In small images, many positions
    have few taps inside the input, and tiles skip the others."""
    return correlation.batch > 1 and prod(correlation.operand_size) <= 64


def predicted_cycles(correlation: Correlation, plan: Schedule, cpu: Cpu) -> float:
    """Return the cycles per thread for tiles and for transposing channels-first data.

    Like the positions kernel's prediction, this assumes that weights are in caches.
    """
    costs, cut, transposing = cpu.costs.channels, plan.cut, 0.0
    if correlation.layout is DataLayout.NCX:
        numbers = prod(correlation.operand_shape) + prod(correlation.result_shape)
        transposing = costs.transpose * numbers
    points = cut.counts(correlation.result_size).prod(1)
    tiles = correlation.batch * float(points @ cut.rates)
    if _positions(correlation) > _FEW:
        skipping = correlation.lines if images_inside(correlation) else correlation.lines[:-1]
        tiles *= prod(map(part_inside, skipping))
    tiles *= costs.depthwise if cut.lanes.depthwise else correlation.groups
    return (tiles + transposing) / plan.threads
