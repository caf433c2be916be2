"""Packing weights for the positions kernel: [group][block][outer taps][input channel][tile entry].

Every block reads its weights in order.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from ....geometry import Tap
from ..correlation import WeightForm
from ..cpu import Cpu
from ..packing import Numbers, Packer
from .tile import Tile
from .tiling import Block


class Packing(Packer):
    """A packer of weights for tiles and blocks: `starts` are the byte offsets of each block's
    weights, and `tap_bytes` the bytes of one outer tap in each block.

    `axes` lists the taps of each phase for each axis.
    """

    def __init__(
        self,
        weight: WeightForm,
        tiles: tuple[Tile, ...],
        blocks: tuple[Block, ...],
        axes: tuple[tuple[tuple[Tap, ...], ...], ...],
        cpu: Cpu,
    ) -> None:
        channels, compute = weight.reduced // weight.groups, weight.dtype.accumulator.numpy
        *outer_axes, last = axes
        tap_tuples = (taps for phases in product(*outer_axes) for taps in product(*phases))
        indices = [[tap.index for tap in taps] for taps in tap_tuples]
        outer = np.array(indices, np.int64).reshape(len(indices), len(outer_axes))
        outer = outer @ np.array(weight.strides[3:-1], np.int64)
        entries = np.array([tiles[block.kind].entries for block in blocks])
        self.tap_bytes = entries * channels * compute.itemsize
        starts = np.cumsum([0, *(self.tap_bytes * len(outer))])
        self.starts = starts[:-1]
        first = starts[:-1, None] + np.arange(len(outer)) * self.tap_bytes[:, None]
        tables = _piece_table(weight, tiles, blocks, last, first, outer)
        _, by_reduced, by_made, *_ = weight.strides
        super().__init__(
            weight, compute, weight.groups, channels, int(starts[-1]), *tables, cpu,
            run=len(outer) if by_made > by_reduced else 0,
        )  # fmt: skip


def _piece_table(
    weight: WeightForm,
    tiles: tuple[Tile, ...],
    blocks: tuple[Block, ...],
    last: tuple[tuple[Tap, ...], ...],
    first: Numbers,
    outer: Numbers,
) -> tuple[Numbers, Numbers]:
    """Return all blocks' pieces, and the element numbers that their entries gather."""
    by_made, by_tap = weight.strides[2], weight.strides[-1]
    firsts: dict[tuple[int, int, int], int] = {}
    numbers: list[int] = []
    pieces = np.zeros((*first.shape, 4), np.int64)
    for b, block in enumerate(blocks):
        tile, key = tiles[block.kind], (block.kind, block.phase, block.active)
        if key not in firsts:
            firsts[key] = len(numbers)
            phases = last[block.phase : block.phase + tile.phases]
            numbers += [
                channel * by_made + tap * by_tap if channel < block.active else -1
                for channel, tap in _entries(tile, phases)
            ]
        pieces[b, :, 0] = first[b]
        pieces[b, :, 1] = (block.channel * by_made + outer) * weight.dtype.itemsize
        pieces[b, :, 2:] = firsts[key], tile.entries
    return pieces.reshape(-1, 4), np.array(numbers or [0], np.int64)


@lru_cache(maxsize=256)
def _entries(tile: Tile, phases: tuple[tuple[Tap, ...], ...]) -> tuple[tuple[int, int], ...]:
    """Return (tile channel, tap along the last axis) for every weight of one input channel."""
    return tuple(
        (channel, next(t.index for t in phases[number] if t.shift == step.shift))
        for step in tile.steps
        for channel in range(tile.channels)
        for number in step.phases
    )
