"""Placement tables: the positions of input rows, and the positions where tiles read and write.

A layer's records, with what each stands for:

    BLOCK, PHASE_TUPLE, JOB     blocks of channels; phases of the outer axes; parts of the channels
    CACHE_BLOCK                 cache blocks, or parts of the shared packing
    SEGMENT                     input rows; rows at equal steps share a record
    SPAN                        runs of tiles that repeat every few rows; `tiles` are their records
    TILES, PIECE                adjacent tiles; pieces of a staged tile that are outputs

A cache block has spans for each *class* of outputs: a class of rows (equally many positions along
each outer axis) and a class of phases (equally many phases and positions along the last axis). So
no table grows with rows times blocks. Tiles read at `x` bytes from their span, which begins `x`
bytes from its cache block. They write at `y` bytes and `image` images from their span's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ..correlation import Correlation
from ..kernel_arguments import Table, filled, record
from ..packing import Numbers
from ..values import BYTES
from .schedule import Schedule

BLOCK = record("main tail w w_tap y channel active phases piece")
"""Tile code, bytes to the first weight and from tap to tap, bytes to the first phase, channel in
its group and active channels, class of phases, bytes per position in the stage."""
PHASE_TUPLE = record("tap taps y rows")
"""First outer tap and the number of taps, bytes to the first position's output, class of rows."""
JOB = record("channel channels w made block blocks")
"""A group's input channels, bytes to its weights, its first output channel; a run of blocks."""
CACHE_BLOCK = record("x segment segments spans", "image in_place")
"""Bytes to its first position in the buffer, or in an image if it is read in place; the segments
that fill it; its row of `ranges`."""
SEGMENT = record("to x count zeros", "image rows")
"""A copy into the buffer at `to`, from an image at `x`: `count` elements, then zeros, for `rows`
rows."""
SPAN = record("x y", "image count tiles tile_count")
TILES = record("x y", "image count tail pieces piece_count")
"""`count` main or tail tiles, which store directly to y if they have no pieces."""
PIECE = record("y", "image stage runs length")
"""A copy from the stage to y: `runs` runs of `length` elements each."""


def split(
    low: Numbers, high: Numbers, size: int | Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Cut intervals at multiples of a size. Return each part's interval, multiple, low and high."""
    first = low // size
    count = np.maximum(-(-high // size) - first, 0)
    interval = np.arange(len(low)).repeat(count)
    number = np.arange(len(interval)) + (first - count.cumsum() + count)[interval]
    step = size if isinstance(size, int) else size[interval]
    start = number * step
    return (
        interval, number,
        np.maximum(low[interval], start), np.minimum(high[interval], start + step),
    )  # fmt: skip


# Packing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputRows:
    """Input rows in the padded positions, merged if there are no zeros between them.

    A row takes `stride` positions, of which the first `width` exist in the input. The next row is
    `x_row` bytes and `image_row` images further.
    """

    padded: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    batch: int
    itemsize: int
    stride: int
    width: int
    x_row: int
    image_row: int

    @classmethod
    def of(cls, correlation: Correlation, plan: Schedule) -> InputRows:
        """Return a layer's input rows."""
        padded, sizes = plan.padded.sizes, correlation.operand_size
        itemsize, outer = correlation.dtype.itemsize, len(sizes) - 1
        while outer and padded[outer] == sizes[outer]:
            outer -= 1
        steps = tuple(prod(sizes[i + 1 :]) * itemsize for i in range(outer))
        stride, width = prod(padded[outer:]), prod(sizes[outer:])
        form = padded[:outer], sizes[:outer], steps, correlation.batch, itemsize, stride, width
        x_row, image_row = (steps[-1], 0) if steps else (0, 1)
        return cls(*form, x_row, image_row)

    def segments(self, low: Numbers, high: Numbers, element: int) -> tuple[Table, Numbers]:
        """Return segments that fill positions [low, high) of parts, and each part's first one."""
        part, row, start, stop = split(low, high, self.stride)
        image, x, valid = row, np.zeros_like(row), np.ones(len(row), bool)
        for padded, size, step in reversed(
            [*zip(self.padded, self.sizes, self.steps, strict=True)]
        ):
            image, index = np.divmod(image, padded)
            x, valid = x + index * step, valid & (index < size)
        begin = start - row * self.stride
        count = np.maximum(np.minimum(stop - row * self.stride, self.width) - begin, 0)
        count *= valid & (image >= 0) & (image < self.batch)
        x, image = np.where(count, (x + begin * self.itemsize, image), 0)
        zeros = stop - start - count
        # Rows share a record if they follow at the usual step or are all zeros.
        listed = np.array((part, count, zeros, begin, x, image))
        change = listed[:, 1:] - listed[:, :-1]
        steady = (change[4] == self.x_row) & (change[5] == self.image_row)
        new = np.ones(len(part), bool)
        new[1:] = change[:4].any(0) | (begin[1:] != 0) | ~(steady | (count[1:] == 0))
        (first,) = new.nonzero()
        rows = np.append(first[1:], len(part)) - first
        segments = filled(
            SEGMENT, len(first), to=((start - low[part]) * element)[first], x=x[first],
            count=count[first], zeros=zeros[first], image=image[first], rows=rows,
        )  # fmt: skip
        return segments, part[first].searchsorted(np.arange(len(low) + 1))


# Jobs ---------------------------------------------------------------------------------------------


def packing_tables(correlation: Correlation, plan: Schedule, element: int) -> dict[str, Table]:
    """Return the segments and what they fill: `cache_blocks`, or `parts` of the buffer that threads
    share. `packing` lists a part's channels."""
    starts, step = np.arange(plan.cache_blocks) * plan.cache_block, plan.cache_block
    blocks = filled(CACHE_BLOCK, len(starts), x=starts * element if plan.shared else 0)
    tables, parts, halo = {"cache_blocks": blocks}, blocks, plan.halo_before + plan.halo_after
    if plan.shared:
        channels, jobs = correlation.reduced // correlation.groups, 4 * plan.threads
        size = max(1, min(channels, -(-correlation.reduced // jobs)))
        step, halo = plan.buffer_positions, 0
        if size == 1:  # there are so few channels that positions are divided as well
            step = max(4096, -(-step * correlation.reduced // jobs))
        starts = np.arange(0, plan.buffer_positions, step)
        parts = filled(CACHE_BLOCK, len(starts), x=starts * element)
        tables |= {"parts": parts, "packing": _shares(correlation, channels, size)}
    low = starts - plan.halo_before
    high = np.minimum(low + (step + halo), plan.padded.total + plan.halo_after)
    in_place, rows = plan.in_place, InputRows.of(correlation, plan)
    image, position = np.divmod(low[in_place], plan.padded.row_stride)
    parts["in_place"][in_place], parts["image"][in_place] = 1, image
    parts["x"][in_place] = position * correlation.dtype.itemsize
    packed = np.delete(np.arange(len(parts)), in_place)
    tables["segments"], bounds = rows.segments(low[packed], high[packed], element)
    parts["segment"][packed], parts["segments"][packed] = bounds[:-1], np.diff(bounds)
    return tables


def _shares(correlation: Correlation, count: int, size: int) -> Table:
    """Return jobs with at most `size` of each group's `count` input channels."""
    first, groups = np.arange(0, count, size), np.arange(correlation.groups)[:, None]
    return filled(
        JOB, (len(groups), len(first)),
        channel=groups * count + first, channels=np.minimum(size, count - first),
    ).ravel()  # fmt: skip


def job_table(correlation: Correlation, plan: Schedule, group_bytes: int) -> Table:
    """Return the jobs of a cache block, each a group and a run of blocks."""
    channels, result_channels = (
        total // correlation.groups for total in (correlation.reduced, correlation.made)
    )
    first = np.arange(0, len(plan.blocks), plan.block_run)
    groups = np.arange(correlation.groups)[:, None]
    return filled(
        JOB, (len(groups), len(first)), channel=groups * channels, channels=channels,
        w=groups * group_bytes, made=groups * result_channels,
        block=first, blocks=np.minimum(plan.block_run, len(plan.blocks) - first),
    ).ravel()  # fmt: skip


def block_table(plan: Schedule, classes: list[int], itemsize: int) -> Table:
    """Return a group's blocks, with their classes of phases but without code and weights. An
    element takes `itemsize` bytes in y."""
    blocks, tiles = plan.blocks, [plan.tiles[block.kind] for block in plan.blocks]
    return filled(
        BLOCK, len(blocks), y=[block.phase * itemsize for block in blocks], phases=classes,
        piece=[tile.phases * BYTES[tile.stored] for tile in tiles],
        channel=[block.channel for block in blocks], active=[block.active for block in blocks],
    )  # fmt: skip


def tap_table(plan: Schedule, element: int) -> Numbers:
    """Return the byte offsets of all outer taps, ordered by phase tuple."""
    padded = plan.padded
    rows = [
        sum(tap.shift * step for tap, step in zip(taps, padded.steps, strict=True))
        for phases in padded.phase_tuples()
        for taps in product(*(phase.taps for phase in phases))
    ]
    return (plan.halo_before - np.array(rows, np.int64) * padded.row_stride) * element
