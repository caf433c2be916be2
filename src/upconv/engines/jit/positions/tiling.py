"""The choice of register tiles with which the positions kernel computes a layer.

A tile depends on the layer's class (channels, kernel, stride, dilation, crops, rank), never on its
sizes, so a new length needs no compilation. Nothing here touches an array or emits code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from ....activations import Activation
from ....geometry import Tap
from ....problem import DataLayout
from ..activation import NO_ACTIVATION, ActivationEpilogue
from ..correlation import Correlation, Line, WeightForm
from ..cpu import Cpu
from ..rows import Finish, plain
from ..values import BYTES, STORED
from .tile import Step, Tile


class Block(NamedTuple):
    """A tile's rows: `active` channels of a group from `channel` on, and phases from `phase` on."""

    kind: int
    channel: int
    active: int
    phase: int


class _Class(NamedTuple):
    """A class of layers: the weight, the rank, the average number of outer taps per phase, the
    last axis's stride and taps by phase, the activations that tiles apply, and the type in which
    they store results."""

    weight: WeightForm
    rank: int
    outer_taps: float
    stride: int
    taps: tuple[tuple[Tap, ...], ...]
    epilogue: ActivationEpilogue
    stored: str


def tiles_for(
    correlation: Correlation, last: Line, cpu: Cpu
) -> tuple[tuple[Tile, ...], tuple[Block, ...]]:
    """Return a correlation's tile classes, and the blocks of one group that they compute."""
    by_phase = prod(
        sum(len(phase.taps) for phase in line.phases) / max(1, len(line.phases))
        for line in correlation.lines[:-1]
    )
    taps, weight = tuple(phase.taps for phase in last.phases), correlation.weight
    form = weight, correlation.rank, by_phase, last.stride, taps
    ends = in_tile(correlation), finish_of(correlation).computed
    return _tiles(_Class(*form, *ends), cpu)


@lru_cache(maxsize=256)
def _tiles(kind: _Class, cpu: Cpu) -> tuple[tuple[Tile, ...], tuple[Block, ...]]:
    """Return a class's tiles and blocks."""
    phases, most = len(kind.taps), cpu.sums(1)
    counts = [n for n in (phases, *(1 << i for i in range(6))) if n <= min(phases, most)]
    options = [_tiling(kind, cpu, n) for n in dict.fromkeys(counts)]
    _, tiles, blocks = min(options, key=lambda option: option[0])
    return tiles, blocks


def _tiling(kind: _Class, cpu: Cpu, most: int) -> tuple[float, tuple[Tile, ...], tuple[Block, ...]]:
    """Return tiles of at most `most` phases, with their cycles per vector of positions."""
    weight = kind.weight
    sums = weight.reduced // weight.groups * kind.outer_taps
    result_channels = weight.made // weight.groups
    kinds: dict[Tile, int] = {}
    blocks, total, vectors = list[Block](), 0.0, 0
    for start, count in _chunks(len(kind.taps), most):
        sizes = cpu.lanes(BYTES[weight.element]), 1, 1, count
        steps, dense = _steps(kind.taps[start : start + count]), count == kind.stride
        single = Tile(weight.element, kind.stored, *sizes, steps, dense, kind.epilogue)
        cycles, tile = _best_tile(single, result_channels, kind.rank, sums, cpu, vectors)
        total, vectors = total + cycles, tile.vectors
        number = kinds.setdefault(tile, len(kinds))
        blocks += [
            Block(number, channel, min(tile.channels, result_channels - channel), start)
            for channel in range(0, result_channels, tile.channels)
        ]
    blocks.sort(key=lambda block: block.channel)
    return total, tuple(kinds), tuple(blocks)


@lru_cache(maxsize=512)
def _best_tile(
    single: Tile, result_channels: int, rank: int, sums: float, cpu: Cpu, width: int
) -> tuple[float, Tile]:
    """Return the best tile, with its cycles per vector of positions in all result channels.

    It extends `single` by vectors and channels, and sums over `sums` input channels and outer taps.
    `width` is the number of vectors of the layer's other tiles, or 0.
    """
    costs, phases = cpu.costs.positions, single.phases
    # Placing takes a large share of a small tile's time, and is fast if the tile fits into a row.
    choices = range(1, (8 if sums >= 16 else 4) + 1)
    if width and phases * width <= cpu.sums(width):
        choices = range(width, width + 1)
    best = inf, single
    for vectors in choices:
        # Wide tiles do not fit at the ends of rows.
        lost = costs.odd if vectors & (vectors - 1) else 0.0
        lost += (costs.wide if rank == 1 else costs.wide_image) * (vectors - 1)
        for channels in range(1, min(result_channels, cpu.sums(vectors) // (phases * vectors)) + 1):
            blocks = -(-result_channels // channels)
            if -(-result_channels // blocks) < channels:
                continue  # fewer channels would do with the same number of blocks
            tile = replace(single, vectors=vectors, channels=channels)
            channel = tile.cycles + costs.fetch * len(tile.steps)
            cycles = sums * channel + tile.placing + costs.loop
            best = min(best, (cycles * blocks / vectors * (1 + lost), tile), key=lambda b: b[0])
    return best


def _chunks(phases: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut phases into runs of at most `most`: all of them, or powers of two."""
    start = 0
    while start < phases:
        left = phases - start
        count = left if most == phases else min(most, 1 << (left.bit_length() - 1))
        yield start, count
        start += count


def _steps(phases: tuple[tuple[Tap, ...], ...]) -> tuple[Step, ...]:
    """Return the phases that use each shift, in memory order of the shifts."""
    users: dict[int, list[int]] = {}
    for number, taps in enumerate(phases):
        for tap in taps:
            users.setdefault(tap.shift, []).append(number)
    return tuple(Step(shift, tuple(users[shift])) for shift in sorted(users, reverse=True))


def in_tile(correlation: Correlation) -> ActivationEpilogue:
    """Return the activations that tiles apply: cheap ones not preceded by residual or accumulation.

    They store a second result only in the computed type, since it depends on the unrounded first.
    """
    epilogue = ActivationEpilogue.of(correlation.epilogue)
    if not epilogue.is_cheap or correlation.epilogue.residual or correlation.accumulate:
        return NO_ACTIVATION
    if STORED[correlation.dtype] == correlation.element:
        return epilogue
    return epilogue._replace(second=Activation.NONE, second_slope=0.0)


def finish_of(correlation: Correlation) -> Finish:
    """Return the part of an epilogue that tiles do not apply, for staged results.

    If there is none, tiles round results themselves, and this copies them.
    """
    finish = Finish.of(correlation, correlation.layout)
    epilogue = finish.epilogue
    if in_tile(correlation)[:3] != epilogue[:3]:
        return finish
    late = epilogue._replace(activation=Activation.NONE, slope=0.0, slopes=False)
    finish = finish._replace(epilogue=late, layout=DataLayout.NCX)
    return plain(finish.stored) if finish.is_cast else finish


def stores(correlation: Correlation) -> bool:
    """Whether tiles store all results directly in y."""
    left = finish_of(correlation)
    if in_tile(correlation).has_second:
        left = left._replace(epilogue=NO_ACTIVATION)
    return left.is_plain
