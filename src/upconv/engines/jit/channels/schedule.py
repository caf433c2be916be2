"""How a correlation is computed by the channel-vectorised kernel, as plain data: grids, blocks,
tiles, jobs.

Symbols, per axis, as in geometry.py: output o = s*j + r, phase r reads input j - e for its taps.
Along the last axis n neighbouring j may be taken together (`unroll`): o = s*n*j' + r' with
r' = s*i + r, which reads input n*j' - (e - i). A *phase group* is a run of phases r'; its outputs
lie side by side in channels-last memory: these are the lanes, (phase, channel) in that order. Phase
groups of one phase suit many channels; with few, more phases fill the vectors.

Nothing here touches an array or emits code. Tiles depend on the layer's class and on how few points
there are; on extents, once points are many, nothing that is compiled depends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from operator import itemgetter

from ....geometry import Phase
from ....problem import DataLayout
from ..correlation import Correlation, Line
from ..cpu import Cpu
from ..pool import useful_threads
from ..values import BYTES
from .lanes import POINTS, STEP, Along, Lanes, Reach, lanes_of, reach
from .phases import PhaseGroup, phase_groupings, points_along, shifts_of


@dataclass(frozen=True, slots=True)
class Block:
    """Lanes [lane, lane + active) of a phase group, in `vectors` vectors; `shifts` are the last
    axis's that any of them uses, and `masked` says that some use fewer."""

    lane: int
    active: int
    vectors: int
    points: int
    shifts: tuple[int, ...]
    masked: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Output points made by one list of taps: a phase of each outer axis, a phase group of the
    last."""

    outer: tuple[Phase, ...]
    phase_group: PhaseGroup
    counts: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """How the outputs of one image are cut into grids, and the cycles that a group takes.

    `depthwise`: one input channel per group, lanes are the channels of all groups, `multiplier` to
    an input. `dots`: input channels are multiplied in pairs, by dot-product instructions.
    """

    grids: tuple[Grid, ...]
    depthwise: bool
    multiplier: int
    cycles: float
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is decided about one correlation.

    A job is `step` points of `block_run` blocks; a pass of it has at most `chunk_bytes` of weights.
    """

    cut: Cut
    step: int
    runs: int
    block_run: int
    block_runs: int
    chunk_bytes: int
    threads: int

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of a group."""
        return tuple(block for grid in self.cut.grids for block in grid.blocks)

    def __str__(self) -> str:
        grids = self.cut.grids
        kind = " of their own" if self.cut.depthwise else " in pairs" if self.cut.dots else ""
        sizes = sorted({(block.points, block.vectors) for block in self.blocks})
        tiles = ", ".join(f"{points} points x {vectors} vectors" for points, vectors in sizes)
        unroll = grids[0].phase_group.unroll if grids else 1
        return (
            f"channels{kind}: tiles of {tiles}, {len(grids)}"
            f" grids, {unroll} positions unrolled, {len(self.blocks)} blocks, {self.runs} runs of"
            f" {self.step} points, {self.block_runs} runs of {self.block_run} blocks,"
            f" {self.threads} threads"
        )


# Blocks -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _divisions(lanes: Lanes, shifts: tuple[tuple[int, ...], ...]) -> tuple[tuple[Block, ...], ...]:
    """Ways to cut a phase group of these shifts into as few blocks as possible, of 1, 2 and more
    vectors at most."""
    total = len(shifts) * lanes.channels
    vectors = -(-total // lanes.width)
    divisions = []
    for most in range(1, min(len(lanes.sums), vectors + 1)):
        count, lane, blocks = -(-vectors // most), 0, []
        for i in range(count):
            wide = vectors // count + (i < vectors % count)
            active = min(wide * lanes.width, total - lane)
            blocks.append(_block(lanes, shifts, lane, active, wide))
            lane += wide * lanes.width
        divisions.append(tuple(blocks))
    return tuple(divisions)


@lru_cache(maxsize=1024)
def _blocks(
    lanes: Lanes, shifts: tuple[tuple[int, ...], ...], reach: Reach, outer: int
) -> tuple[float, tuple[Block, ...]]:
    """The cheapest blocks of a phase group and their cycles: from the shifts of each phase, for
    phase groups that have the same, and `outer` taps for each shift."""
    alike: dict[tuple[int, bool, tuple[int, ...]], tuple[float, int]] = {}
    options = []
    for division in _divisions(lanes, shifts):
        tiles = []
        for block in division:
            key = block.vectors, block.masked, block.shifts
            if key not in alike:
                alike[key] = _best_tile(lanes, block, reach, outer)
            tiles.append(alike[key])
        options.append((sum([cycles for cycles, _ in tiles]), division, tiles))
    cost, division, tiles = min(options, key=itemgetter(0))
    pairs = zip(division, tiles, strict=True)
    return cost, tuple([replace(block, points=points) for block, (_, points) in pairs])


def _best_tile(lanes: Lanes, block: Block, reach: Reach, outer: int) -> tuple[float, int]:
    """The cycles of all points of a block, whole tiles and one for the rest, and the points of the
    tiles that take the fewest, of equal ones the largest."""
    merged = merged_taps(lanes, block)
    cycles = _tap_cycles(lanes, block.vectors, block.masked, merged)
    taps, best = len(block.shifts) // merged * outer, (float("inf"), 0)
    start = lanes.costs.channels.tile
    for points, each, part in zip(POINTS, cycles, reach.parts, strict=False):
        whole, rest = divmod(reach.points, points)
        cost = whole * (start + taps * part * each)
        if rest:
            last = _FITTING[rest]
            cost += start + taps * reach.parts[last] * cycles[last]
        if cost <= best[0]:
            best = cost, points
    return best


def _block(
    lanes: Lanes, shifts: tuple[tuple[int, ...], ...], lane: int, active: int, vectors: int
) -> Block:
    first, last = lane // lanes.channels, (lane + active - 1) // lanes.channels
    each = [set(own) for own in shifts[first : last + 1]]
    every = sorted(set().union(*each), reverse=True)
    return Block(lane, active, vectors, 1, tuple(every), any(s != each[0] for s in each))


def merged_taps(lanes: Lanes, block: Block) -> int:
    """How many taps of the last axis read one run of memory: all of a block, or 1.

    Neighbouring positions lie side by side in one group; a mask is one tap's."""
    shifts, odd = block.shifts, lanes.dots > 0 and lanes.reduction % 2
    if block.masked or odd or lanes.depthwise or not (lanes.ungrouped and shifts):
        return 1
    return len(shifts) if shifts[0] - shifts[-1] == len(shifts) - 1 else 1


_FITTING = tuple(
    next(i for i, points in enumerate(POINTS) if points >= rest) for rest in range(POINTS[-1] + 1)
)


def fitting(rest: int) -> int:
    """The smallest tile for so many points."""
    return POINTS[_FITTING[rest]]


@lru_cache(maxsize=1024)
def _tap_cycles(lanes: Lanes, vectors: int, masked: bool, merged: int) -> tuple[float, ...]:
    """`tap_cycles` of the tiles whose sums stay in registers."""
    sizes = (points for points in POINTS if points <= lanes.sums[vectors] // vectors)
    return tuple(tap_cycles(lanes, points, vectors, masked, merged) for points in sizes)


def tap_cycles(lanes: Lanes, points: int, vectors: int, masked: bool, merged: int = 1) -> float:
    """Cycles of one tap, or of some that are one, in a tile: multiply-adds, or loads, or weights
    from the second-level cache, or sums that wait for the one before. Finding the inputs of a tap
    costs some, whatever is done with them."""
    costs, kernel = lanes.costs, lanes.costs.channels
    loads, weights = (points + vectors) / costs.loads, costs.weights * vectors
    if lanes.depthwise:
        products = kernel.depthwise_product * points * vectors
        return kernel.depthwise_tap + kernel.depthwise_point * points + products
    if lanes.dots:  # an instruction makes two products for each lane
        each = max(points * vectors / lanes.dots, loads, weights, kernel.dot_latency)
        reduction = -(-lanes.reduction // 2)
    else:
        adds = points * vectors / costs.adds * (costs.masked if masked else 1)
        each, reduction = max(adds, loads, weights, costs.latency), lanes.reduction
    start = kernel.tap + kernel.point * points
    return start + merged * reduction * (each + kernel.broadcast * points)


# The schedule -------------------------------------------------------------------------------------


def schedule(
    correlation: Correlation, threads: int, cpu: Cpu, dots: bool | None = None
) -> Schedule:
    """The schedule of a correlation that has outputs; `dots` as in `lanes_of`."""
    threads = useful_threads(correlation.multiply_adds, threads)
    return jobs(correlation, _cut(correlation, cpu, dots), threads, cpu)


@lru_cache(maxsize=64)
def _cut(correlation: Correlation, cpu: Cpu, dots: bool | None) -> Cut:
    """The cheapest way to cut the outputs into grids."""
    lanes = lanes_of(correlation, cpu, dots)
    outer = [line.phases for line in correlation.lines[:-1]]
    options = [_grids(correlation, lanes, outer, groups) for groups in phase_groupings(lanes)]
    cycles, grids = options[0]
    for other in options[1:]:
        # The first ones write to memory in longer runs: others must be clearly cheaper.
        if other[0] < lanes.costs.channels.clearly * cycles:
            cycles, grids = other
    multiplier = correlation.made // correlation.groups if lanes.depthwise else 1
    return Cut(grids, lanes.depthwise, multiplier, cycles, lanes.dots > 0)


def _grids(
    correlation: Correlation,
    lanes: Lanes,
    outer: list[tuple[Phase, ...]],
    phase_groups: tuple[PhaseGroup, ...],
) -> tuple[float, tuple[Grid, ...]]:
    """The grids of one way to cut the last axis, and the cycles of a group."""
    cost, grids, inside = 0.0, [], images_inside(correlation)
    last_line = correlation.lines[-1]
    rows = [
        (each, shifts, _along(last_line, each, shifts))
        for each in phase_groups
        for shifts in (shifts_of(lanes, each, last_line),)
    ]
    for phases in product(*outer):
        axes = [
            Along(line.size, phase.length, line.step, tuple(tap.shift for tap in phase.taps))
            for line, phase in zip(correlation.lines, phases, strict=False)
        ]
        taps = prod(len(phase.taps) for phase in phases)
        for phase_group, shifts, last in rows:
            counts = (*(phase.length for phase in phases), last.count)
            reached = reach((*axes, last), correlation.batch, inside)
            cycles, blocks = _blocks(lanes, shifts, reached, taps)
            cost += cycles * max(1, correlation.batch * prod(counts) / max(1, reached.points))
            grids.append(Grid(phases, phase_group, counts, blocks))
    return cost, tuple(grids)


def _along(line: Line, phase_group: PhaseGroup, shifts: tuple[tuple[int, ...], ...]) -> Along:
    """The last axis of a phase group's grids."""
    every = sorted({shift for own in shifts for shift in own})
    count = points_along(line, phase_group)
    return Along(line.size, count, line.step * phase_group.unroll, tuple(every))


def jobs(correlation: Correlation, cut: Cut, threads: int, cpu: Cpu) -> Schedule:
    """Cut into jobs: inputs of a run stay in the second-level cache, every thread has work."""
    groups = 1 if cut.depthwise else correlation.groups
    channels = correlation.reduced // groups
    total = correlation.batch * max((prod(grid.counts) for grid in cut.grids), default=0)
    blocks = sum(len(grid.blocks) for grid in cut.grids)
    inputs = int(cpu.l2 * cpu.costs.channels.l2_inputs)
    fit = max(4, inputs // (channels * BYTES[correlation.element]) // STEP)
    wanted = 1 if threads == 1 else 8 * threads
    steps = max(1, -(-total // STEP))  # of all points
    runs = max(-(-steps // fit), min(-(-wanted // groups), steps // 4), 1)
    if runs > 1:
        runs = -(-runs // threads) * threads  # as many for each
    step = -(-steps // runs) * STEP
    runs = max(1, -(-total // step))
    block_run = max(1, min(blocks, blocks * groups * runs // wanted))
    chunk_bytes = int(cpu.l2 * cpu.costs.channels.l2_weights)
    block_runs = -(-blocks // block_run)
    return Schedule(cut, step, runs, block_run, block_runs, chunk_bytes, threads)


def images_inside(correlation: Correlation) -> bool:
    """Whether a tile's points are the same place of different images: where images are small many
    places have few taps inside, and the others are skipped."""
    return correlation.batch > 1 and prod(correlation.operand_size) <= 64


def predicted_cycles(correlation: Correlation, plan: Schedule, cpu: Cpu) -> float:
    """Cycles that each thread takes: tiles, and transposing data whose channels come first.

    Comparable with the spatially vectorised kernel's prediction: neither counts what reading
    weights costs.
    """
    costs, transposing = cpu.costs.channels, 0.0
    if correlation.layout is DataLayout.NCX:
        numbers = prod(correlation.operand_shape) + prod(correlation.result_shape)
        transposing = costs.transpose * numbers
    tiles = plan.cut.cycles * (costs.depthwise if plan.cut.depthwise else correlation.groups)
    return (tiles + transposing) / plan.threads
