"""The passes of a correlation and the taps that they read, as records of driver.py.

They are those of the whole correlation, at no point in particular: points.py has the points. So no
table grows with points times blocks of lanes.

Bytes here are of channels-last data: the caller's, or the scratch that channels-first data is
transposed into.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....problem import DataLayout
from ..correlation import Correlation
from ..packing import Numbers
from ..values import BYTES, STORED
from .code import Codes
from .driver import PASS, ROW, SPAN, Pass, Records
from .lanes import Lanes
from .schedule import Block, Cut, Grid, Schedule, merged_taps
from .tile import ChannelTile
from .weights import ChannelPacking, taps_of_lanes, uses

PAD = 16  # points repeated after the last, the same result twice: the most a tile has


class ChannelsLast:
    """Where the data of a correlation lies, if channels are its last axis.

    `transposed` says that it is transposed into this order before, and back after; `element`,
    `x_bytes` and `y_bytes` are bytes of a number of computing, of the input and of the output;
    `x_steps` and `y_steps` bytes from one image to the next, and along each axis.
    """

    def __init__(self, correlation: Correlation, lanes: Lanes) -> None:
        self.correlation, self.lanes = correlation, lanes
        self.transposed = correlation.layout is DataLayout.NCX
        self.groups = 1 if lanes.depthwise else correlation.groups  # computed one by one
        self.element, stored = BYTES[correlation.element], correlation.dtype.itemsize
        # For dot products the input is transposed as it is.
        self.x_bytes = self.element if self.transposed and not lanes.dots else stored
        self.y_bytes = self.element if self.transposed else stored
        self.x_steps = _steps(correlation.operand_size, correlation.reduced * self.x_bytes)
        self.y_steps = _steps(correlation.result_size, correlation.made * self.y_bytes)

    def missing(self, grid: Grid) -> int:
        """Lanes of a grid that do not exist at the last point of a row."""
        last, group = self.correlation.lines[-1], grid.phase_group
        start = last.stride * group.unroll * (grid.counts[-1] - 1) + group.start
        phases = group.stop - group.start
        return max(0, phases - (last.out - start)) * self.lanes.channels


def _steps(size: tuple[int, ...], position: int) -> list[int]:
    return [position * prod(size[i:]) for i in range(len(size) + 1)]


@dataclass(frozen=True, slots=True)
class PointSet:
    """Points that passes share: those of grid number `grid`, in tiles of `most` points. They are
    stored `directly`; where the grid is `clipped`, only those that have all lanes."""

    grid: int
    most: int
    directly: bool
    clipped: bool


class Passes:
    """The passes of a correlation's blocks, and their taps.

    `single`: there is one spatial block, whose number of points is that of the correlation.
    """

    def __init__(
        self,
        data: ChannelsLast,
        schedule: Schedule,
        packing: ChannelPacking,
        codes: Codes,
        *,
        single: bool,
    ) -> None:
        self.data, self.schedule, self.codes = data, schedule, codes
        self.widest = max((b.vectors for b in schedule.blocks), default=1) * data.lanes.width
        self._packing, self._single = packing, single
        self.sets: dict[PointSet, int] = {}
        self._numbers: dict[object, int] = {}
        self._taps: list[int] = [0]
        self._tap_places: dict[object, int] = {}
        self._widths: list[int] = []
        records: list[Pass] = []
        starts, offsets = [0], iter(packing.places)
        for number, grid in enumerate(schedule.cut.grids):
            alike, first = self._alike(number, grid), self._first(grid)
            for block in grid.blocks:
                records += self._passes(alike, grid, first, block, next(offsets))
                starts.append(len(records))
        self.starts, self.records = np.array(starts), np.array(records, PASS)
        self.taps = np.array(self._taps, np.int64)
        widths = np.array(self._widths or [0], np.int64)[:, None]
        self.outs = (widths * np.arange(PAD) * data.element).ravel()

    @property
    def resident_bytes(self) -> int:
        """Bytes of these tables."""
        return int(self.records.nbytes + self.taps.nbytes + self.outs.nbytes)

    def bias_order(self) -> Numbers:
        """A group's biases around and around, so that any block finds its own in a row."""
        channels = self.data.lanes.channels
        numbers = np.arange(channels + self.widest) % channels
        return (np.arange(self.data.groups)[:, None] * channels + numbers).ravel()

    def rows(self, block_run: int) -> Records:
        """For each group, runs of so many blocks."""
        data, lanes, packing = self.data, self.data.lanes, self._packing
        count = len(self.starts) - 1
        first = np.arange(0, max(1, count), block_run)
        group = np.arange(data.groups)[:, None]
        rows = np.zeros((data.groups, len(first)), ROW)
        rows["start"] = self.starts[first] * PASS.itemsize
        rows["stop"] = self.starts[np.minimum(first + block_run, count)] * PASS.itemsize
        rows["x"] = group * lanes.reduction * data.x_bytes
        rows["y"] = group * lanes.channels * data.y_bytes
        rows["w"] = group * packing.group_bytes
        rows["bias"] = group * (lanes.channels + self.widest) * data.element
        return rows.ravel()

    def _passes(self, alike: int, grid: Grid, first: int, block: Block, weights: int) -> list[Pass]:
        """The passes of a block: all taps that fit the cache, or some channels of each."""
        data, lanes, codes = self.data, self.data.lanes, self.codes
        tile = _tile_of(data, self.schedule.cut, block)
        w_row = tile.width * self._packing.itemsize
        w_tap = w_row * self._packing.row_channels
        chunk = self.schedule.chunk_bytes
        merged = self._merged(block, chunk // w_tap)
        ntaps, taps = self._taps_of(grid, block, tile)
        chunk_taps = max(1, chunk // (merged * w_tap)) * merged
        chunk_channels = -(-lanes.reduction // -(-w_tap // chunk))
        chunk_channels += chunk_channels % 2  # no pass begins within a pair
        starts = [
            (tap, channel)
            for tap in range(0, max(1, ntaps), chunk_taps)
            for channel in range(0, lanes.reduction, chunk_channels)
        ]
        single, record = len(starts) == 1, (1 + tile.masks + data.correlation.rank) * 8
        directly = (data.transposed or codes.plain) and (block.active == tile.width or single)
        end = (grid.phase_group.stop - grid.phase_group.start) * lanes.channels
        clip = max(0, min(block.active, end - data.missing(grid) - block.lane))
        points = PointSet(alike, tile.points, directly, clip < block.active)
        span = self.sets.setdefault(points, len(self.sets)) * SPAN.itemsize
        code, rest_code = codes.tiles(tile, self._rest(grid, tile))
        if tile.width not in self._widths:
            self._widths.append(tile.width)
        row, outs = tile.width * data.element, self._widths.index(tile.width) * PAD * 8
        lane = block.lane // tile.multiplier if tile.depthwise else 0
        passes: list[Pass] = []
        for tap, channel in starts:
            count = min(chunk_taps, ntaps - tap)
            channels = min(chunk_channels, lanes.reduction - channel)
            last = (tap, channel) == starts[-1]
            # The weights of the next pass lie behind those of this one.
            ahead = (0, 0) if last else (w_row * channels * count, 32 if lanes.dots else 64)
            w = weights + tap * w_tap + channel * w_row
            passes.append(
                Pass(
                    code, rest_code, tile.points, span, taps + tap * record, count, record, merged,
                    (lane + channel) * data.x_bytes, channels, w, w_tap, *ahead,
                    block.lane % lanes.channels * data.element, len(passes) > 0,
                    first + block.lane * data.y_bytes, block.active, clip,
                    row, 0 if single else row, outs, last,
                )
            )  # fmt: skip
        return passes

    def _merged(self, block: Block, most: int) -> int:
        """Taps that are one: as many as can be, which a pass of `most` has a multiple of."""
        merged = merged_taps(self.data.lanes, block)
        return max((n for n in range(1, merged + 1) if merged % n == 0 and n <= most), default=1)

    def _rest(self, grid: Grid, tile: ChannelTile) -> int:
        """Points of the last tile that are computed by a tile for so many.

        Among many points a rest is computed by a whole tile, which repeats the last one: it costs
        little, and saves compiling another tile.
        """
        points = self.data.correlation.batch * prod(grid.counts)
        return points % tile.points if self._single and points < 16 * tile.points else 0

    def _alike(self, number: int, grid: Grid) -> int:
        """The number of the first grid whose points lie alike."""
        limits = tuple((min(s, default=0), max(s, default=0)) for s in shifts_along(grid))
        more = self.data.missing(grid) > 0, merges(self.data.lanes, grid)
        key = grid.counts, grid.phase_group.unroll, limits, *more
        return self._numbers.setdefault(key, number)

    def _first(self, grid: Grid) -> int:
        """The offset of a grid's first output."""
        offsets = [*(phase.offset for phase in grid.outer), grid.phase_group.start]
        return sum(o * s for o, s in zip(offsets, self.data.y_steps[1:], strict=True))

    def _taps_of(self, grid: Grid, block: Block, tile: ChannelTile) -> tuple[int, int]:
        """How many taps a block has, and the offset of their records, which blocks may share."""
        rows, masks = [], dict[int, list[int]]()
        key = (grid.outer, block.shifts, (grid.phase_group, block.lane) if tile.masks else None)
        count = prod(len(phase.taps) for phase in grid.outer) * len(block.shifts)
        if key in self._tap_places:
            return count, self._tap_places[key]
        self._tap_places[key] = place = len(self._taps) * 8
        for _, shifts in uses(grid, block):
            shift = shifts[-1]
            if tile.masks and shift not in masks:
                used = taps_of_lanes(self.data.lanes, grid, block, shift) >= 0
                bits = used.reshape(tile.vectors, -1) @ (1 << np.arange(tile.lanes))
                masks[shift] = [int(b) for b in bits]
            moved = -sum(e * s for e, s in zip(shifts, self.data.x_steps[1:], strict=True))
            rows += [moved, *masks.get(shift, []), *shifts]
        self._taps += rows
        return count, place


def _tile_of(data: ChannelsLast, cut: Cut, block: Block) -> ChannelTile:
    element = data.correlation.element
    stored = element if data.x_bytes == data.element else STORED[data.correlation.dtype]
    width = data.lanes.width
    masked = block.active < block.vectors * width if cut.depthwise else block.masked
    sizes = width, block.points, block.vectors
    return ChannelTile(stored, element, *sizes, masked, cut.depthwise, cut.multiplier, cut.dots)


def shifts_along(grid: Grid) -> list[list[int]]:
    """The shifts of a grid's taps along each axis."""
    last = [shift for block in grid.blocks for shift in block.shifts]
    return [*([tap.shift for tap in phase.taps] for phase in grid.outer), last]


def merges(lanes: Lanes, grid: Grid) -> bool:
    """Whether some block of a grid takes neighbouring taps as one."""
    return any(merged_taps(lanes, block) > 1 for block in grid.blocks)
