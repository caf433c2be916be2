"""The tables that the channel-vectorised kernel's driver reads: points, blocks, taps, tiles.

Bytes here are of channels-last data: the caller's, or the scratch that channels-first data is
transposed into. What the numbers of a record are is said in driver.py.
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
from .driver import ALL, ARRAYS, BLOCK, PAD
from .lanes import Lanes
from .schedule import Block, Grid, Schedule, merged_taps
from .tile import CROSSING, OUTER, ChannelTile
from .weights import ChannelPacking, taps_of_lanes, uses


@dataclass(frozen=True, slots=True)
class Plan:
    """A correlation with all that was decided about it.

    `before` is the input of the first axis that its first outputs, in a spatial block, are counted
    from.
    """

    correlation: Correlation
    schedule: Schedule
    lanes: Lanes
    packing: ChannelPacking
    codes: Codes
    before: int = 0

    @property
    def transposed(self) -> bool:
        """Whether data is transposed into channels-last order before, and back after."""
        return self.correlation.layout is DataLayout.NCX

    @property
    def element(self) -> int:
        """Bytes of an element of computing."""
        return BYTES[self.correlation.element]

    @property
    def x_bytes(self) -> int:
        """Bytes of an element of channels-last input, which is transposed as it is for dot
        products."""
        transposed = self.transposed and not self.lanes.dots
        return self.element if transposed else self.correlation.dtype.itemsize

    @property
    def y_bytes(self) -> int:
        """Bytes of an element of channels-last output."""
        return self.element if self.transposed else self.correlation.dtype.itemsize

    @property
    def groups(self) -> int:
        """Groups that are computed one by one."""
        return 1 if self.schedule.cut.depthwise else self.correlation.groups

    @property
    def channels(self) -> int:
        """Input channels that a lane sums over."""
        return 1 if self.schedule.cut.depthwise else self.correlation.reduced // self.groups

    @property
    def out_channels(self) -> int:
        """Output channels of a group."""
        return self.correlation.made // self.groups

    @property
    def widest(self) -> int:
        """Lanes of the widest block."""
        return max((b.vectors for b in self.schedule.blocks), default=1) * self.lanes.width

    @property
    def x_steps(self) -> list[int]:
        """Bytes from one image of channels-last input to the next, and along each axis."""
        return _steps(self.correlation.operand_size, self.correlation.reduced * self.x_bytes)

    @property
    def y_steps(self) -> list[int]:
        """The same of the output."""
        return _steps(self.correlation.result_size, self.correlation.made * self.y_bytes)

    def room(self, grid: Grid) -> int:
        """Lanes from a grid's first to the end of the output, at the last point of a row."""
        last = self.correlation.lines[-1]
        group = grid.phase_group
        start = last.stride * group.unroll * (grid.counts[-1] - 1) + group.start
        return (last.out - start) * self.out_channels


def _steps(size: tuple[int, ...], first: int) -> list[int]:
    return [first * prod(size[i:]) for i in range(len(size) + 1)]


class Tables:
    """The tables of one plan, each a list of numbers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.blocks: list[int] = []
        self.taps: list[int] = [0]
        self.tiles: list[int] = [0]
        self._points: dict[bytes, int] = {}
        self._entries: dict[tuple[ChannelTile, int], int] = {}
        places, end = iter(plan.packing.places), 0
        for grid in plan.schedule.cut.grids:
            points = _points(plan, grid).tobytes()  # of many phases the same
            start = self._points.setdefault(points, end)
            end = max(end, start + len(points))
            for block in grid.blocks:
                self._add_block(start, grid, block, next(places))

    def arrays(self) -> dict[str, Numbers]:
        """The tables by name, as memory."""
        named = {n: np.array(getattr(self, n), np.int64) for n in ("blocks", "taps", "tiles")}
        return named | {"points": np.frombuffer(b"".join(self._points), np.int64)}

    def _add_block(self, points: int, grid: Grid, block: Block, place: int) -> None:
        plan, tile = self._plan, self._tile(block)
        offsets = [*(phase.offset for phase in grid.outer), grid.phase_group.start]
        y = sum(o * s for o, s in zip(offsets, plan.y_steps[1:], strict=True))
        start, ntaps = len(self.taps) * 8, self._add_taps(grid, block, tile)
        tap_bytes = plan.packing.row_channels * tile.width * plan.packing.itemsize
        parts = -(-tap_bytes // plan.schedule.chunk_bytes)
        chunk_channels = -(-plan.channels // parts)
        merged = self._merged(block, plan.schedule.chunk_bytes // tap_bytes)
        chunk_taps = max(1, plan.schedule.chunk_bytes // (merged * tap_bytes)) * merged
        self.blocks += _record(
            BLOCK,
            total=plan.correlation.batch * prod(grid.counts),
            points=points,
            lane=block.lane,
            active=block.active,
            width=tile.width,
            y_lane=y + block.lane * plan.y_bytes,
            x_lane=block.lane // tile.multiplier * plan.x_bytes if tile.depthwise else 0,
            tiles=self._tiles(tile, plan.correlation.batch * prod(grid.counts)),
            most=block.points,
            taps=start,
            ntaps=ntaps,
            merged=merged,
            record=(1 + tile.masks + plan.correlation.rank) * 8,
            w=place,
            chunk_taps=chunk_taps,
            chunk_channels=chunk_channels + chunk_channels % 2,  # no pass begins within a pair
            bias=block.lane % plan.out_channels * plan.element,
            clip=max(0, min(block.active, plan.room(grid) - block.lane)),
        )

    def _merged(self, block: Block, most: int) -> int:
        """Taps that are one: as many as can be, which a pass of `most` has a multiple of."""
        merged = merged_taps(self._plan.lanes, block)
        return max((n for n in range(1, merged + 1) if merged % n == 0 and n <= most), default=1)

    def _tile(self, block: Block) -> ChannelTile:
        plan, cut, element = self._plan, self._plan.schedule.cut, self._plan.correlation.element
        stored = element if plan.x_bytes == plan.element else STORED[plan.correlation.dtype]
        width = plan.lanes.width
        masked = block.active < block.vectors * width if cut.depthwise else block.masked
        sizes = width, block.points, block.vectors
        return ChannelTile(stored, element, *sizes, masked, cut.depthwise, cut.multiplier, cut.dots)

    def _tiles(self, tile: ChannelTile, points: int) -> int:
        """Where the addresses of a tile's code are, by the number of points.

        Among many points a rest is computed by a whole tile, which repeats the last one: it costs
        little, and saves compiling another tile.
        """
        rest = points % tile.points if points < 16 * tile.points else 0
        if (tile, rest) not in self._entries:
            self._entries[tile, rest] = len(self.tiles)
            self.tiles += self._plan.codes.tiles(tile, rest)
        return self._entries[tile, rest]

    def _add_taps(self, grid: Grid, block: Block, tile: ChannelTile) -> int:
        """Add the records of a block's taps; returns how many."""
        count, masks = 0, dict[int, list[int]]()
        for use in uses(grid, block):
            shift = use.shifts[-1]
            if tile.masks and shift not in masks:
                used = taps_of_lanes(self._plan.lanes, use) >= 0
                bits = used.reshape(tile.vectors, -1) @ (1 << np.arange(tile.lanes))
                masks[shift] = [int(b) for b in bits]
            moved = -sum(e * s for e, s in zip(use.shifts, self._plan.x_steps[1:], strict=True))
            self.taps += [moved, *masks.get(shift, []), *use.shifts]
            count += 1
        return count


# Points -------------------------------------------------------------------------------------------


def points_in(step: int) -> int:
    """Numbers of each array of a run's points, so that each array begins with a cache line."""
    return -(-(step + PAD) // 16) * 16


def _points(plan: Plan, grid: Grid) -> Numbers:
    """Where the points of a grid lie: (runs, `ARRAYS` and a coordinate per axis, points)."""
    correlation, step, count = plan.correlation, plan.schedule.step, points_in(plan.schedule.step)
    dims: list[dict[str | int, Numbers]] = []
    for i, line in enumerate(correlation.lines):
        unroll = grid.phase_group.unroll if i == correlation.rank - 1 else 1
        j, shifts = np.arange(grid.counts[i]) * unroll, _shifts(grid, i)
        inputs, outputs = line.step * j, line.stride * j
        place = inputs + (0 if i else plan.before)
        outside = (place < max(shifts, default=0)) | (place >= line.size + min(shifts, default=0))
        edge = CROSSING if i == correlation.rank - 1 else OUTER
        x, y = inputs * plan.x_steps[i + 1], outputs * plan.y_steps[i + 1]
        dims.append({"x": x, "y": y, "edges": outside * edge, i: place})
    phases, room = grid.phase_group.stop - grid.phase_group.start, plan.room(grid)
    lanes = phases * plan.out_channels
    if room < lanes:  # where the output ends, in the last of a row
        dims[-1]["lanes"] = (np.arange(grid.counts[-1]) == grid.counts[-1] - 1) * (room - ALL)
    images = np.arange(correlation.batch)
    outermost = len(dims) if plan.schedule.images_inside else 0
    dims.insert(outermost, {"x": images * plan.x_steps[0], "y": images * plan.y_steps[0]})
    arrays = []
    for name in (*ARRAYS, *range(correlation.rank)):
        total = np.full(1, ALL if name == "lanes" else 0)
        for dim in dims:  # the last one is the innermost
            total = np.add.outer(total, dim.get(name, np.zeros_like(dim["x"]))).ravel()
        arrays.append(total)
    if not len(arrays[0]):
        return np.zeros((plan.schedule.runs, len(arrays), count), np.int64)
    number, columns = len(arrays[0]), np.arange(count)
    first = np.arange(plan.schedule.runs)[:, None] * step
    counts = np.clip(number - first, 0, step)
    index = np.minimum(first + np.minimum(columns, step - 1), number - 1)
    if any(merged_taps(plan.lanes, block) > 1 for block in grid.blocks):
        # Tiles whose windows cross the end of a row are slow: their points come last, by position.
        crossing = np.where(arrays[ARRAYS.index("edges")] >= CROSSING, arrays[-1] + 1, 0)
        order = np.where(columns < counts, crossing[index], 1 << 40).argsort(1, kind="stable")
        index = np.take_along_axis(index, order, 1)
    last = np.take_along_axis(index, np.maximum(counts - 1, 0), 1)
    index = np.where(columns < counts, index, last)
    return np.stack([array[index] for array in arrays], 1)


def _shifts(grid: Grid, axis: int) -> list[int]:
    """The shifts of a grid's taps along an axis."""
    if axis < len(grid.outer):
        return [tap.shift for tap in grid.outer[axis].taps]
    return [shift for block in grid.blocks for shift in block.shifts]


def _record(names: tuple[str, ...], **numbers: int) -> list[int]:
    return [numbers[name] for name in names]
