"""The tables that the channels kernel's driver reads: grids, dims, blocks, taps, tiles.

Bytes here are of channels-last data: the caller's, or the scratch that channels-first data is
turned into. What the numbers of a record are is said in channel_points.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...problem import DataLayout
from .channel_code import Codes
from .channel_lanes import Lanes, element_of
from .channel_points import ALL, BLOCK, DIM, GRID
from .channel_schedule import Block, Grid, Schedule
from .channel_tile import ChannelTile
from .channel_weights import ChannelPacking, taps_of_lanes, uses
from .correlation import Correlation
from .values import BYTES, STORED

_ANY = 1 << 60


@dataclass(frozen=True, slots=True)
class Plan:
    """A correlation with all that was decided about it.

    `lead` is the input of the first axis that its first outputs, in a slab, are counted from.
    """

    correlation: Correlation
    schedule: Schedule
    lanes: Lanes
    packing: ChannelPacking
    codes: Codes
    lead: int = 0

    @property
    def turned(self) -> bool:
        """Whether data is turned into channels-last order before, and back after."""
        return self.correlation.layout is DataLayout.NCX

    @property
    def element(self) -> int:
        """Bytes of an element of computing."""
        return BYTES[element_of(self.correlation)]

    @property
    def x_bytes(self) -> int:
        """Bytes of an element of channels-last input, which is turned as it is for dot products."""
        turned = self.turned and not self.lanes.dots
        return self.element if turned else self.correlation.dtype.itemsize

    @property
    def y_bytes(self) -> int:
        """Bytes of an element of channels-last output."""
        return self.element if self.turned else self.correlation.dtype.itemsize

    @property
    def groups(self) -> int:
        """Groups that are computed one by one."""
        return 1 if self.schedule.cut.own else self.correlation.groups

    @property
    def channels(self) -> int:
        """Input channels that a lane sums over."""
        return 1 if self.schedule.cut.own else self.correlation.reduced // self.groups

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
        """Bytes from one input to the next along each axis."""
        return _steps(self.correlation.operand_size, self.correlation.reduced * self.x_bytes)

    @property
    def y_steps(self) -> list[int]:
        """Bytes from one output to the next along each axis."""
        return _steps(self.correlation.result_size, self.correlation.made * self.y_bytes)

    def room(self, grid: Grid) -> int:
        """Lanes from a grid's first to the end of the output, at the last point of a row."""
        last = self.correlation.lines[-1]
        start = last.stride * grid.bundle.joined * (grid.counts[-1] - 1) + grid.bundle.start
        return (last.out - start) * self.out_channels


def _steps(size: tuple[int, ...], first: int) -> list[int]:
    return [first * prod(size[i + 1 :]) for i in range(len(size))]


class Tables:
    """The tables of one plan, each a list of numbers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.grids: list[int] = []
        self.dims: list[int] = []
        self.blocks: list[int] = []
        self.taps: list[int] = [0]
        self.tiles: list[int] = [0]
        self._entries: dict[tuple[ChannelTile, int], int] = {}
        places = iter(plan.packing.places)
        for number, grid in enumerate(plan.schedule.cut.grids):
            self._add_grid(grid)
            for block in grid.blocks:
                self._add_block(number, grid, block, next(places))

    def arrays(self) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
        """The tables by name, as memory."""
        named = {n: getattr(self, n) for n in ("grids", "dims", "blocks", "taps", "tiles")}
        return {name: np.array(numbers, np.int64) for name, numbers in named.items()}

    def _add_grid(self, grid: Grid) -> None:
        plan, correlation, joined = self._plan, self._plan.correlation, grid.bundle.joined
        lanes = (grid.bundle.stop - grid.bundle.start) * plan.out_channels
        room = plan.room(grid)
        self.grids += _record(
            GRID,
            total=correlation.batch * prod(grid.counts),
            dims=len(self.dims),
            last=correlation.lines[-1].step * joined * (grid.counts[-1] - 1)
            + (plan.lead if correlation.rank == 1 else 0),
            limit=room if room < lanes else ALL,
        )
        dims = []
        for i, line in enumerate(correlation.lines):
            positions = joined if i == correlation.rank - 1 else 1
            inputs = line.step * positions
            shifts = _shifts(grid, i)
            dims.append(
                _record(
                    DIM,
                    count=grid.counts[i],
                    x_step=plan.x_steps[i] * inputs,
                    y_step=plan.y_steps[i] * line.stride * positions,
                    axis=i,
                    inputs=inputs,
                    lead=0 if i else plan.lead,
                    low=max(shifts, default=0),
                    high=line.size + min(shifts, default=0),
                )
            )
        image = _record(
            DIM, count=correlation.batch, x_step=0, y_step=0, axis=-1, inputs=0, lead=0,
            low=-_ANY, high=_ANY,
        )  # fmt: skip
        outward = [image, *dims[::-1]] if plan.schedule.images_inside else [*dims[::-1], image]
        self.dims += [number for dim in outward for number in dim]

    def _add_block(self, number: int, grid: Grid, block: Block, place: int) -> None:
        plan, tile = self._plan, self._tile(block)
        offsets = [*(phase.offset for phase in grid.outer), grid.bundle.start]
        y = sum(o * s for o, s in zip(offsets, plan.y_steps, strict=True))
        start, ntaps = len(self.taps) * 8, self._add_taps(grid, block, tile)
        tap_bytes = plan.packing.row_channels * tile.width * plan.packing.itemsize
        parts = -(-tap_bytes // plan.schedule.chunk_bytes)
        chunk_channels = -(-plan.channels // parts)
        self.blocks += _record(
            BLOCK,
            grid=number,
            lane=block.lane,
            live=block.live,
            width=tile.width,
            y_lane=y + block.lane * plan.y_bytes,
            x_lane=block.lane // tile.spread * plan.x_bytes if tile.own else 0,
            tiles=self._tiles(tile, plan.correlation.batch * prod(grid.counts)),
            most=block.points,
            taps=start,
            ntaps=ntaps,
            record=(1 + tile.masks + plan.correlation.rank) * 8,
            w=place,
            chunk_taps=max(1, plan.schedule.chunk_bytes // tap_bytes),
            chunk_channels=chunk_channels + chunk_channels % 2,  # no pass begins within a pair
            bias=block.lane % plan.out_channels * plan.element,
            clip=max(0, min(block.live, plan.room(grid) - block.lane)),
        )

    def _tile(self, block: Block) -> ChannelTile:
        plan, own = self._plan, self._plan.schedule.cut.own
        element = element_of(plan.correlation)
        width = plan.lanes.width
        return ChannelTile(
            element if plan.x_bytes == plan.element else STORED[plan.correlation.dtype],
            element,
            width,
            block.points,
            block.vectors,
            block.live < block.vectors * width if own else block.masked,
            own,
            plan.schedule.cut.spread,
            plan.schedule.cut.dots,
        )

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
            moved = -sum(e * s for e, s in zip(use.shifts, self._plan.x_steps, strict=True))
            self.taps += [moved, *masks.get(shift, []), *use.shifts]
            count += 1
        return count


def _shifts(grid: Grid, axis: int) -> list[int]:
    """The shifts of a grid's taps along an axis."""
    if axis < len(grid.outer):
        return [tap.shift for tap in grid.outer[axis].taps]
    return [shift for block in grid.blocks for shift in block.shifts]


def _record(names: tuple[str, ...], **numbers: int) -> list[int]:
    return [numbers[name] for name in names]
