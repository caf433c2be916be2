"""Packing weights for the channels kernel: [group][grid][block][tap][input channel][lane].

For dot products: [group][grid][block][tap][pair of input channels][lane][channel in the pair], with
zeros if the last pair has one channel.

Every block reads its weights in order. Lanes that do not use a tap have zeros, and so do lanes
after a block's active ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np

from ..correlation import WeightForm
from ..cpu import Cpu
from ..packing import Numbers, Packer
from .lanes import Lanes
from .schedule import Block, Cut, Grid


def uses(grid: Grid, block: Block) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield a block's taps in the order of its sums: the kernel indices along the outer axes, and
    the shifts along all axes."""
    outer = [phase.taps for phase in grid.outer]
    for taps, shift in product(product(*outer), block.shifts):
        yield tuple(tap.index for tap in taps), (*(tap.shift for tap in taps), shift)


def taps_of_lanes(lanes: Lanes, grid: Grid, block: Block, shift: int) -> Numbers:
    """Return the kernel index along the last axis that each of a block's lanes uses at a shift, or
    -1 if none and after the active lanes."""
    taps = [taps.get(shift, -1) for taps in grid.phase_group.taps]
    numbers = np.arange(block.lane, block.lane + block.vectors * lanes.width)
    used: Numbers = np.array(taps, np.int64)[np.minimum(numbers // lanes.channels, len(taps) - 1)]
    used[block.active :] = -1
    return used


class ChannelPacking(Packer):
    """A packer of weights for a cut's blocks, which begin at `offsets` bytes. Each tap has a
    multiple of `multiple` input channels, of which the last may be zeros."""

    def __init__(self, weight: WeightForm, cut: Cut, cpu: Cpu, multiple: int = 1) -> None:
        lanes, grids = cut.lanes, cut.grids
        channels, double = weight.reduced // weight.groups, weight.dtype.itemsize == 8
        compute = np.dtype(np.uint16 if lanes.dots else np.float64 if double else np.float32)
        multiple = max(multiple, 2) if lanes.dots else multiple
        self.row_channels = -(-channels // multiple) * multiple
        self.itemsize = compute.itemsize
        row = self.row_channels * compute.itemsize  # bytes of all input channels in a lane
        sizes = [
            prod(len(phase.taps) for phase in grid.outer) * len(block.shifts) * block.vectors
            for grid in grids
            for block in grid.blocks
        ]
        *self.offsets, nbytes = accumulate((size * lanes.width * row for size in sizes), initial=0)
        tables, taps, rows = np.zeros(1, np.int64), None, self.row_channels
        if rows == channels and _channels_are_innermost(weight, cut):
            pieces, count = _lanes_of_blocks(weight, cut, self.offsets), _taps(grids[0])
            channels, rows, taps = channels * count, rows * count, 1
        elif _transposes(weight, cut):
            pieces, taps = _lanes_of_blocks(weight, cut, self.offsets), _taps(grids[0])
        else:
            pieces, tables = _gathered(weight, cut, self.offsets, row)
        groups = 1 if lanes.depthwise else weight.groups
        super().__init__(weight, compute, groups, channels, nbytes, pieces, tables, cpu, taps, rows)


def _gathered(weight: WeightForm, cut: Cut, starts: list[int], row: int) -> tuple[Numbers, Numbers]:
    """Return the pieces, and the tables of the elements that they gather.

    Taps whose kernel indices differ by the same number in all phases share a table."""
    itemsize, (*outer, by_tap) = weight.dtype.itemsize, weight.strides[3:]
    table_starts: dict[tuple[Any, ...], int] = {}
    tables: list[Numbers] = []
    pieces, offsets, size, lanes = [], iter(starts), 0, cut.lanes
    for grid in cut.grids:
        for block in grid.blocks:
            offset, width = next(offsets), block.vectors * lanes.width
            for indices, (*_, shift) in uses(grid, block):
                taps = [taps.get(shift, -1) for taps in grid.phase_group.taps]
                first = min((tap for tap in taps if tap >= 0), default=0)
                # The block itself is not a key, because hashing all its shifts is slow.
                indices_from_first = tuple(max(-1, tap - first) for tap in taps)
                key = grid.phase_group, block.lane, block.vectors, indices_from_first
                if key not in table_starts:
                    table_starts[key] = size
                    used = taps_of_lanes(lanes, grid, block, shift)
                    tables.append(_elements(weight, lanes, block, used) - first * by_tap)
                    size += width
                source = sum(i * s for i, s in zip(indices, outer, strict=True))
                source += first * by_tap
                pieces.append((offset, source * itemsize, table_starts[key], width))
                offset += row * width
    numbers = np.concatenate([*tables, np.zeros(1, np.int64)])
    return np.array(pieces, np.int64).reshape(-1, 4), np.maximum(numbers, -1)


def _elements(weight: WeightForm, lanes: Lanes, block: Block, taps: Numbers) -> Numbers:
    """Return the element of each lane for these taps; lanes without one get a very low number."""
    by_group, _, by_made, *_, by_tap = weight.strides
    numbers = np.arange(block.lane, block.lane + len(taps)) % lanes.channels
    base = numbers % lanes.multiplier * by_made + numbers // lanes.multiplier * by_group
    if not lanes.depthwise:
        base = numbers * by_made
    elements: Numbers = np.where(taps < 0, np.iinfo(np.int64).min // 2, base + taps * by_tap)
    return elements


def _transposes(weight: WeightForm, cut: Cut) -> bool:
    """Whether to transpose weights instead of gathering them: all taps of all reduced channels are
    adjacent, in order, and results are far apart."""
    by_reduced, by_made, *by_tap = weight.strides[1:]
    if not _is_in_order(cut):
        return False
    steps, taps = _steps(cut.grids[0]), _taps(cut.grids[0])
    if weight.reduced == weight.groups:
        by_reduced = taps  # with only one channel, any stride is right
    return by_tap == steps and by_reduced == taps and by_made >= max(by_reduced, 2)


def _channels_are_innermost(weight: WeightForm, cut: Cut) -> bool:
    """Whether each tap's channels are adjacent; taps are then packed as one tap's channels."""
    channels = weight.reduced // weight.groups
    by_reduced, by_made, *by_tap = weight.strides[1:]
    if by_reduced != 1 or not _is_in_order(cut) or (cut.lanes.dots and channels % 2):
        return False
    steps, taps = _steps(cut.grids[0]), _taps(cut.grids[0])
    return taps > 1 and by_tap == [s * channels for s in steps] and by_made >= taps * channels


def _is_in_order(cut: Cut) -> bool:
    """Whether there is one phase, whose taps are used in the order of their indices."""
    (grid, *others), lanes = cut.grids, cut.lanes
    if others or len(grid.phase_group.taps) > 1 or lanes.depthwise:
        return False
    return all(indices == list(range(len(indices))) for indices in _axes(grid))


def _lanes_of_blocks(weight: WeightForm, cut: Cut, offsets: list[int]) -> Numbers:
    """Return each block's offset, bytes to its first lane's weights, active lanes, and width."""
    (grid,), by_made = cut.grids, weight.strides[2]
    itemsize, width = weight.dtype.itemsize, cut.lanes.width
    rows = [
        (offset, block.lane * by_made * itemsize, block.active, block.vectors * width)
        for offset, block in zip(offsets, grid.blocks, strict=True)
    ]
    return np.array(rows, np.int64)


def _taps(grid: Grid) -> int:
    return prod(map(len, _axes(grid)))


def _steps(grid: Grid) -> list[int]:
    """Return each axis's stride, in taps, if all the grid's taps are adjacent."""
    counts = [len(axis) for axis in _axes(grid)]
    return [prod(counts[i + 1 :]) for i in range(len(counts))]


def _axes(grid: Grid) -> list[list[int]]:
    """Return the kernel indices along each axis of a grid whose phase group has one phase."""
    (taps,) = grid.phase_group.taps
    return [[tap.index for tap in p.taps] for p in grid.outer] + [
        [taps[e] for e in grid.phase_group.shifts]
    ]
