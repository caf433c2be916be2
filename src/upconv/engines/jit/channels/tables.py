"""A correlation's passes and the taps that they read, as records of driver.py.

They do not depend on points, which points.py lists. So no table grows with points times blocks, and
all sizes of a layer share all but one number in each record.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..kernel_arguments import Table, filled
from ..packing import Numbers, shared
from .code import Codes
from .driver import PASS, ROW, SPAN, Pass
from .form import ChannelsLast, Form
from .lanes import Lanes
from .reach import POINTS
from .schedule import Block, Grid, merged_taps
from .tile import ChannelTile
from .weights import ChannelPacking, taps_of_lanes, uses

PAD = 16  # copies of the last point after it: the maximum points that a tile reads at once


def passes_of(data: ChannelsLast, *, single: bool) -> Passes:
    """Return a correlation's passes; `single`: one spatial block has all of its points."""
    totals = (data.counts.prod(1) * data.correlation.batch).tolist()
    missing, numbers = tuple(data.missing.tolist()), dict[object, int]()
    keys = zip(map(tuple, data.counts.tolist()), missing, data.form.merges, strict=True)
    alike = tuple(numbers.setdefault(key, i) for i, key in enumerate(keys))
    # With many points, a full tile computes the rest and repeats the last point. This takes little
    # time and needs no other compiled tile.
    few = tuple(n if single and n < 16 * POINTS[-1] else 0 for n in totals)
    return shared(Passes, data.form, alike, missing, few)


class Passes:
    """All blocks' passes, and their taps.

    For each grid, `alike` is the first grid with the same points, `missing` the number of lanes
    that do not exist at a row's end, and `few` the number of points, or 0 if there are many.
    `points` lists the grids that have tables of points.
    """

    def __init__(
        self, form: Form, alike: tuple[int, ...], missing: tuple[int, ...], few: tuple[int, ...]
    ) -> None:
        self.form, cut, lanes = form, form.cut, form.cut.lanes
        self.codes, self.points = Codes(form), list(dict.fromkeys(alike))
        self.packing = shared(ChannelPacking, form.weight, cut, form.cpu)
        self.widest = max((block.vectors for block in cut.blocks), default=1) * lanes.width
        self.point_bytes = self.widest * form.element  # in the stage
        self._taps = _Taps(lanes)
        records: list[Pass] = []
        starts, numbers, offsets = [0], list[int](), iter(self.packing.offsets)
        for number, grid in enumerate(cut.grids):
            for piece, block in enumerate(grid.blocks):
                points = alike[number], missing[number], few[number]
                records += self._passes(grid, block, piece, next(offsets), *points)
                starts.append(len(records))
            numbers += [number] * (len(records) - len(numbers))
        self.starts, self.records = np.array(starts), np.array(records, PASS)
        self._grids = np.array(numbers, np.int64)

    def placed(self, data: ChannelsLast) -> dict[str, Table]:
        """Return the tables for data of one size."""
        records = self.records.copy()
        taps = self._taps.placed(data.x_steps[1:] // self.form.x_bytes)
        records["y"] += (self.form.cut.offsets @ data.y_steps[1:])[self._grids]
        window = int(records["merged"].max(initial=1)) * self.form.cut.lanes.reduction
        zeros, outs = np.zeros(max(window, self.widest)), np.arange(PAD) * self.point_bytes
        return {"passes": records, "taps": taps, "outs": outs, "zeros": zeros}

    def bias_order(self) -> Numbers:
        """Return the order of biases; a group's are repeated, so that any block's are adjacent."""
        channels = self.form.cut.lanes.channels
        numbers = np.arange(channels + self.widest) % channels
        return (np.arange(self.form.groups)[:, None] * channels + numbers).ravel()

    def rows(self, block_run: int) -> Table:
        """Return each group's runs of `block_run` blocks."""
        form, lanes = self.form, self.form.cut.lanes
        count = len(self.starts) - 1
        first = np.arange(0, max(1, count), block_run)
        group = np.arange(form.groups)[:, None]
        stop = np.minimum(first + block_run, count)
        return filled(
            ROW, (form.groups, len(first)), group=group,
            start=self.starts[first] * PASS.itemsize, stop=self.starts[stop] * PASS.itemsize,
            x=group * lanes.reduction * form.x_bytes, y=group * lanes.channels * form.y_bytes,
            w=group * self.packing.group_bytes,
            bias=group * (lanes.channels + self.widest) * form.element,
        ).ravel()  # fmt: skip

    def _passes(
        self, grid: Grid, block: Block, piece: int, weights: int,
        alike: int, missing: int, few: int,
    ) -> list[Pass]:  # fmt: skip
        """Return a block's passes: over taps that fit in cache, or some channels of one tap."""
        form, lanes, codes, tile = self.form, self.form.cut.lanes, self.codes, self._tile(block)
        w_row = tile.width * self.packing.itemsize
        w_tap = w_row * self.packing.row_channels
        chunk = int(form.cpu.l2 * form.cpu.costs.channels.l2_weights)
        merged = _merged(lanes, block, chunk // w_tap)
        ntaps, taps = self._taps.of(grid, block, tile.masks)
        chunk_taps = max(1, chunk // (merged * w_tap)) * merged
        chunk_channels = -(-lanes.reduction // -(-w_tap // chunk))
        chunk_channels += chunk_channels % 2  # no pass begins within a pair
        starts = [
            (tap, channel)
            for tap in range(0, max(1, ntaps), chunk_taps)
            for channel in range(0, lanes.reduction, chunk_channels)
        ]
        single, record = len(starts) == 1, (1 + tile.masks + len(grid.outer) + 1) * 8
        # Earlier passes' sums are in the output if that has their type.
        directly = form.transposed or form.finish.is_plain or tile.finish is not None
        directly &= single or (block.active == tile.width and form.y_bytes == form.element)
        phase_lanes = len(grid.phase_group.taps) * lanes.channels
        clip = max(0, min(block.active, phase_lanes - missing - block.lane))
        span = self.points.index(alike) * SPAN.itemsize
        code, rest_code = codes.tiles(tile, few % tile.points if few < 16 * tile.points else 0)
        lane = block.lane // lanes.multiplier * lanes.reduction if lanes.depthwise else 0
        passes: list[Pass] = []
        for tap, channel in starts:
            count = min(chunk_taps, ntaps - tap)
            channels = min(chunk_channels, lanes.reduction - channel)
            last, ahead = (tap, channel) == starts[-1], w_row * channels * count
            w = weights + tap * w_tap + channel * w_row
            passes.append(
                Pass(
                    code, rest_code, tile.points, span, directly, taps + tap * record, count,
                    record, merged, (lane + channel) * form.x_bytes, channels, w, w_tap, ahead,
                    block.lane % lanes.channels * form.element, len(passes) > 0,
                    block.lane * form.y_bytes, block.active, clip,
                    0 if single else self.point_bytes, last, piece,
                )
            )  # fmt: skip
        return passes

    def _tile(self, block: Block) -> ChannelTile:
        form, lanes = self.form, self.form.cut.lanes
        element, masked = form.weight.element, block.masked
        if lanes.depthwise:
            masked = block.active < block.vectors * lanes.width
        finish = None if form.transposed or form.finish.is_plain else form.finish
        # Accumulation would read what a repeated last point has written.
        if finish and (finish.accumulate or not finish.epilogue.is_cheap):
            finish = None
        return ChannelTile(
            form.read, element, lanes.width, block.points, block.vectors, masked, lanes.depthwise,
            lanes.multiplier, lanes.reduction if lanes.depthwise else 1, lanes.dots > 0, finish,
            block.active < block.vectors * lanes.width,
        )  # fmt: skip


def _merged(lanes: Lanes, block: Block, most: int) -> int:
    """Return how many neighbouring taps a pass merges: a divisor of their number up to `most`."""
    merged = merged_taps(lanes, block)
    return max((n for n in range(1, merged + 1) if merged % n == 0 and n <= most), default=1)


class _Taps:
    """The table of taps, each with an offset that depends on sizes, masks, and a shift per axis."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._starts: dict[object, int] = {}
        self._numbers, self._offsets, self._shifts = [0], list[int](), list[tuple[int, ...]]()

    def of(self, grid: Grid, block: Block, masks: int) -> tuple[int, int]:
        """Return a block's number of taps, and the offset of their records, which blocks share."""
        key = grid.outer, block.shifts, (grid.phase_group, block.lane) if masks else None
        count = prod(len(phase.taps) for phase in grid.outer) * len(block.shifts)
        if key in self._starts:
            return count, self._starts[key]
        self._starts[key] = start = len(self._numbers) * 8
        bits = {e: self._masks_of(grid, block, e) if masks else [] for e in block.shifts}
        for _, shifts in uses(grid, block):
            self._offsets.append(len(self._numbers))
            self._shifts.append(shifts)
            self._numbers += [0, *bits[shifts[-1]], *shifts]
        return count, start

    def placed(self, x_steps: Numbers) -> Numbers:
        """Return the records for data with `x_steps` elements between positions on each axis."""
        numbers, shifts = np.array(self._numbers, np.int64), np.array(self._shifts, np.int64)
        numbers[self._offsets] = -(shifts.reshape(-1, len(x_steps)) @ x_steps)
        return numbers

    def _masks_of(self, grid: Grid, block: Block, shift: int) -> list[int]:
        """Return the bits of the lanes that use a tap, one number per vector."""
        used = taps_of_lanes(self._lanes, grid, block, shift) >= 0
        bits = used.reshape(block.vectors, -1) @ (1 << np.arange(self._lanes.width))
        return [int(b) for b in bits]
