"""Packing weights: every weight once per use, in the order in which the tiles use them.

A group's weight is cut by block, combination of outer phases and outer tap into *pieces* of
[input channel][entries]. Pieces of one block lie together, those of one combination within them
too: a tile reads its weights from the first to the last.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from ...geometry import Phase
from .correlation import Correlation
from .cpu import Cpu
from .packing import Numbers, Packer
from .schedule import Schedule
from .tile import Tile


class Packing(Packer):
    """Packs the weights of one correlation; places[combination][block] are byte offsets."""

    def __init__(
        self,
        correlation: Correlation,
        plan: Schedule,
        compute: np.dtype[Any],
        threads: int,
        cpu: Cpu,
    ) -> None:
        channels = correlation.reduced // correlation.groups
        by_tap = correlation.weight_strides[3:-1]
        combos = [
            [
                sum(tap.index * step for tap, step in zip(taps, by_tap, strict=True))
                for taps in product(*(phase.taps for phase in phases))
            ]
            for phases in plan.cells.combos()
        ]
        outer = np.array([tap for taps in combos for tap in taps], np.int64)
        before = np.cumsum([0, *map(len, combos)])
        entries = np.array([plan.tiles[block.kind].entries for block in plan.blocks])
        piece_bytes = entries * channels * compute.itemsize
        starts = np.cumsum([0, *(piece_bytes * len(outer))])
        self.places = starts[None, :-1] + before[:-1, None] * piece_bytes[None, :]
        first = starts[:-1, None] + np.arange(len(outer)) * piece_bytes[:, None]
        tables = _piece_table(correlation, plan, first, outer)
        own = correlation.groups, channels, int(starts[-1])
        super().__init__(correlation, compute, *own, *tables, threads, cpu)


def _piece_table(
    correlation: Correlation, plan: Schedule, first: Numbers, outer: Numbers
) -> tuple[Numbers, Numbers]:
    """The pieces of all blocks, and the element numbers their entries gather."""
    by_made, by_tap = correlation.weight_strides[2], correlation.weight_strides[-1]
    found: dict[tuple[int, int, int], int] = {}
    numbers: list[int] = []
    pieces = np.zeros((*first.shape, 4), np.int64)
    for b, block in enumerate(plan.blocks):
        tile, key = plan.tiles[block.kind], (block.kind, block.phase, block.live)
        if key not in found:
            found[key] = len(numbers)
            phases = plan.cells.last.phases[block.phase : block.phase + tile.phases]
            numbers += [
                channel * by_made + tap * by_tap if channel < block.live else -1
                for channel, tap in _entries(tile, phases)
            ]
        pieces[b, :, 0] = first[b]
        pieces[b, :, 1] = (block.channel * by_made + outer) * correlation.dtype.itemsize
        pieces[b, :, 2:] = found[key], tile.entries
    return pieces.reshape(-1, 4), np.array(numbers or [0], np.int64)


@lru_cache(maxsize=256)
def _entries(tile: Tile, phases: tuple[Phase, ...]) -> tuple[tuple[int, int], ...]:
    """(channel of the tile, tap of the last axis) of every weight of one input channel."""
    return tuple(
        (channel, next(t.index for t in phases[number].taps if t.shift == step.shift))
        for step in tile.steps
        for channel in range(tile.channels)
        for number in step.phases
    )
