"""Which register tiles the spatially vectorised kernel computes a layer with: a model of their
cost.

What a tile looks like depends on the layer's class (channels, kernel, stride, dilation, crops,
rank), never on its extents, so that a new length compiles nothing. Nothing here touches an array or
emits code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ....activations import Activation
from ....geometry import Tap
from ....problem import DataLayout
from ..activation import NO_END, End
from ..correlation import Correlation, Line, WeightForm
from ..costs import Costs
from ..cpu import Cpu
from ..rows import Finish
from ..values import BYTES, STORED
from .tile import Step, Tile


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of the tile: `active` channels from `channel` on (one group's), phases from `phase`
    on."""

    kind: int
    channel: int
    active: int
    phase: int


@dataclass(frozen=True, slots=True)
class _Class:
    """What tiles depend on: the weight, the rank, taps of outer axes for each phase on average,
    stride and taps by phase of the last axis, and the end that tiles apply."""

    weight: WeightForm
    rank: int
    outer_taps: float
    stride: int
    taps: tuple[tuple[Tap, ...], ...]
    end: End


def tiles_for(
    correlation: Correlation, last: Line, cpu: Cpu
) -> tuple[tuple[Tile, ...], tuple[Block, ...]]:
    """The tile classes of a correlation and the blocks of one group that they compute."""
    of_phase = prod(
        sum(len(phase.taps) for phase in line.phases) / max(1, len(line.phases))
        for line in correlation.lines[:-1]
    )
    taps = tuple(phase.taps for phase in last.phases)
    own = in_tile(correlation)
    kind = _Class(correlation.weight, correlation.rank, of_phase, last.stride, taps, own)
    return _tiles(kind, cpu)


@lru_cache(maxsize=256)
def _tiles(kind: _Class, cpu: Cpu) -> tuple[tuple[Tile, ...], tuple[Block, ...]]:
    """The tiles of a class and its blocks."""
    phases, most = len(kind.taps), cpu.sums(1)
    runs = [n for n in (phases, *(1 << i for i in range(6))) if n <= min(phases, most)]
    options = [_tiling(kind, cpu, n) for n in dict.fromkeys(runs)]
    _, tiles, blocks = min(options, key=lambda option: option[0])
    return tiles, blocks


def _tiling(kind: _Class, cpu: Cpu, most: int) -> tuple[float, tuple[Tile, ...], tuple[Block, ...]]:
    """Tiles of at most so many phases, and the cycles of a vector of positions of all of them."""
    weight = kind.weight
    lanes = cpu.lanes(BYTES[weight.element])
    sums = weight.reduced // weight.groups * kind.outer_taps
    own = weight.made // weight.groups
    kinds: dict[Tile, int] = {}
    blocks, total, vectors = [], 0.0, 0
    for start, count in _chunks(len(kind.taps), most):
        steps = _steps(kind.taps[start : start + count])
        dense = count == kind.stride
        pieces = 0 if dense else lanes
        cost, vectors, channels = _shape(own, count, steps, cpu, kind.rank, sums, pieces, vectors)
        total += cost
        sizes = lanes, vectors, channels, count
        tile = Tile(weight.element, *sizes, steps, dense, kind.end)
        number = kinds.setdefault(tile, len(kinds))
        blocks += [
            Block(number, channel, min(channels, own - channel), start)
            for channel in range(0, own, channels)
        ]
    blocks.sort(key=lambda block: block.channel)
    return total, tuple(kinds), tuple(blocks)


def in_tile(correlation: Correlation) -> End:
    """The end that tiles apply themselves: a cheap one that nothing comes before.

    They store a second result only where they store the first one in its own type.
    """
    end = End.of(correlation.epilogue)
    if not end.is_cheap or correlation.epilogue.residual or correlation.accumulate:
        return NO_END
    if STORED[correlation.dtype] == correlation.element:
        return end
    return end._replace(second=Activation.NONE, second_slope=0.0)


def finish_of(correlation: Correlation) -> Finish:
    """What is left to do, where tiles apply `in_tile`, for results that go by way of a stage."""
    stored, layout = STORED[correlation.dtype], correlation.layout
    whole = Finish.of(
        correlation.element, stored, correlation.epilogue, layout,
        accumulate=correlation.accumulate,
    )  # fmt: skip
    end = in_tile(correlation)
    if (end.activation, end.slope, end.slopes) != whole.end[:3]:
        return whole
    late = End(second=whole.end.second, second_slope=whole.end.second_slope)
    return whole._replace(end=late, layout=DataLayout.NCX)


def stores(correlation: Correlation) -> bool:
    """Whether tiles store results where they belong."""
    left = finish_of(correlation)
    if in_tile(correlation).has_second:
        left = left._replace(end=NO_END)
    return left.is_plain


def _chunks(phases: int, most: int) -> Iterator[tuple[int, int]]:
    """Phases in runs of at most so many: all of them, or powers of two."""
    start = 0
    while start < phases:
        left = phases - start
        count = left if most == phases else min(most, 1 << (left.bit_length() - 1))
        yield start, count
        start += count


def _steps(phases: tuple[tuple[Tap, ...], ...]) -> tuple[Step, ...]:
    """For each shift the phases that use it, in order of memory."""
    users: dict[int, list[int]] = {}
    for number, taps in enumerate(phases):
        for tap in taps:
            users.setdefault(tap.shift, []).append(number)
    return tuple(Step(shift, tuple(users[shift])) for shift in sorted(users, reverse=True))


@lru_cache(maxsize=512)
def _shape(
    own: int,
    phases: int,
    steps: tuple[Step, ...],
    cpu: Cpu,
    rank: int,
    sums: float,
    pieces: int,
    width: int,
) -> tuple[float, int, int]:
    """Cycles for a vector of positions of all channels, vectors and channels of the best tile.

    `sums` is how many input channels and outer taps a tile goes through, `pieces` in how many a
    vector of results is stored beside the first; `width` its vectors, where other tiles of the
    layer have so many, or 0.
    """
    best, costs = (0.0, 0, 0), cpu.costs
    # Where a tile is little work, placing it counts, which is quick where it fits a row.
    fetching = costs.positions.fetch * len(steps)
    choices = range(1, (8 if sums >= 16 else 4) + 1)
    if width and phases * width <= cpu.sums(width):
        choices = range(width, width + 1)
    for vectors in choices:
        most = min(own, cpu.sums(vectors) // (phases * vectors))
        for channels in range(1, most + 1):
            blocks = -(-own // channels)
            if -(-own // blocks) < channels:
                continue  # as many blocks do with fewer channels
            each = cycles_per_channel(costs, vectors, channels, steps) + fetching
            placing = placing_cycles(costs, vectors, channels, phases, pieces)
            tile = sums * each + placing + costs.positions.loop
            cost = tile * blocks / vectors * (1 + _misfit(costs, vectors, rank))
            if not best[1] or cost < best[0]:
                best = (cost, vectors, channels)
    return best


def _misfit(costs: Costs, vectors: int, rank: int) -> float:
    """The part of the time that is lost where rows end, because tiles so wide do not fit them."""
    kernel = costs.positions
    odd = kernel.odd if vectors & (vectors - 1) else 0.0
    return odd + (kernel.wide if rank == 1 else kernel.wide_image) * (vectors - 1)


def cycles_per_channel(costs: Costs, vectors: int, channels: int, steps: tuple[Step, ...]) -> float:
    """Cycles one input channel takes: multiply-adds, or loads, most inputs not aligned and each of
    their lines asked for before, or sums that wait for the one before."""
    uses = sum(len(step.phases) for step in steps)
    adds = channels * uses * vectors / costs.adds
    inputs = costs.unaligned * vectors * len(steps) + costs.line * vectors
    loads = (inputs + channels * uses + (len(steps) > 1)) / costs.loads
    return max(adds, loads, costs.latency * _longest(steps)) + costs.step


@lru_cache(maxsize=512)
def _longest(steps: tuple[Step, ...]) -> int:
    """The most multiply-adds of one register for an input channel."""
    return max((sum(r in s.phases for s in steps) for r in range(64)), default=1)


def placing_cycles(costs: Costs, vectors: int, channels: int, phases: int, pieces: int) -> float:
    """Cycles that finding out where a tile's results go, and storing them, takes."""
    kernel = costs.positions
    return kernel.store + vectors * channels * (kernel.phase * phases + kernel.piece * pieces)


def single_vector_cost(tile: Tile) -> float:
    """The time a tile of one vector takes, a vector's share of a whole tile taking 1."""
    wide = cycles_per_channel(tile.costs, tile.vectors, tile.channels, tile.steps) / tile.vectors
    return cycles_per_channel(tile.costs, 1, tile.channels, tile.steps) / wide
