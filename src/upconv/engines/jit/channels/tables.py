"""The passes of a correlation and the taps that they read, as records of driver.py.

They are at no point in particular: points.py has the points. So no table grows with points times
blocks of lanes, and the sizes of a layer share all but a few numbers of each record.

Bytes here are of channels-last data: the caller's, or the scratch that channels-first data is
transposed into.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....problem import DataLayout, Epilogue
from ..correlation import Correlation, WeightForm
from ..cpu import Cpu
from ..packing import Numbers, shared
from ..values import BYTES, STORED
from .code import Codes
from .driver import PASS, ROW, SPAN, Pass, Records
from .lanes import Lanes
from .schedule import Block, Cut, Grid, merged_taps
from .tile import ChannelTile
from .weights import ChannelPacking, taps_of_lanes, uses

PAD = 16  # points repeated after the last, the same result twice: the most a tile has


@dataclass(frozen=True, slots=True)
class Form:
    """What no size says anything about: channels and their types, and the cut into grids. `points`
    are those of each block's tile; `merges` says for each grid whether some block takes
    neighbouring taps as one."""

    weight: WeightForm
    layout: DataLayout
    epilogue: Epilogue
    accumulate: bool
    cut: Cut
    points: tuple[int, ...]
    merges: tuple[bool, ...]
    cpu: Cpu

    @classmethod
    def of(cls, correlation: Correlation, cut: Cut, cpu: Cpu) -> Form:
        """The form of a correlation."""
        kind = correlation.layout, correlation.epilogue, correlation.accumulate
        points = tuple([block.points for block in cut.blocks])
        merges = tuple(
            [any(merged_taps(cut.lanes, block) > 1 for block in grid.blocks) for grid in cut.grids]
        )
        return cls(correlation.weight, *kind, cut, points, merges, cpu)

    @property
    def transposed(self) -> bool:
        """Whether data is transposed into this order before, and back after."""
        return self.layout is DataLayout.NCX

    @property
    def groups(self) -> int:
        """Groups that are computed one by one."""
        return 1 if self.cut.lanes.depthwise else self.weight.groups

    @property
    def element(self) -> int:
        """Bytes of a number of computing."""
        return BYTES[self.weight.element]

    @property
    def x_bytes(self) -> int:
        """Bytes of a number of the input: for dot products it is transposed as it is."""
        plain = not self.transposed or self.cut.lanes.dots
        return self.weight.dtype.itemsize if plain else self.element

    @property
    def y_bytes(self) -> int:
        """Bytes of a number of the output."""
        return self.element if self.transposed else self.weight.dtype.itemsize


class ChannelsLast:
    """Where the data of a correlation, or of a spatial block, lies if channels are its last axis.

    `x_steps` and `y_steps` are bytes from one image to the next, and along each axis; `counts` are
    the points of each grid along each axis, and `missing` the lanes of each that do not exist at
    the last point of a row.
    """

    def __init__(self, correlation: Correlation, form: Form) -> None:
        self.correlation, self.form, cut = correlation, form, form.cut
        self.x_steps = _steps(correlation.operand_size, correlation.reduced * form.x_bytes)
        self.y_steps = _steps(correlation.result_size, correlation.made * form.y_bytes)
        self.counts = cut.counts(correlation.result_size)
        ends = self.counts[:, -1] * cut.steps[-1] + cut.offsets[:, -1] - correlation.lines[-1].out
        phases = np.array([len(grid.phase_group.taps) for grid in cut.grids]) - cut.steps[-1]
        self.missing = np.maximum(0, ends + phases) * cut.lanes.channels


def _steps(size: tuple[int, ...], position: int) -> Numbers:
    return np.array([position * prod(size[i:]) for i in range(len(size) + 1)], np.int64)


@dataclass(frozen=True, slots=True)
class PointSet:
    """Points that passes share: those of grid number `grid`, in tiles of `most` points. They are
    stored `directly`; where the grid is `clipped`, only those that have all lanes."""

    grid: int
    most: int
    directly: bool
    clipped: bool


def passes_of(data: ChannelsLast, *, single: bool) -> Passes:
    """The passes of a correlation. `single`: there is one spatial block, whose number of points is
    that of the correlation."""
    totals = (data.counts.prod(1) * data.correlation.batch).tolist()
    counts, missing = data.counts.tolist(), tuple(data.missing.tolist())
    numbers: dict[object, int] = {}
    keys = zip(map(tuple, counts), missing, data.form.merges, strict=True)
    alike = tuple(numbers.setdefault(key, i) for i, key in enumerate(keys))
    # Among many points a rest is computed by a full tile, which repeats the last one: it costs
    # little, and saves compiling another tile.
    few = tuple(n if single and n < 16 * PAD else 0 for n in totals)
    return shared(Passes, data.form, alike, missing, few)


class Passes:
    """The passes of all blocks, and their taps, in grids whose points are those of `alike` ones.

    `missing` are lanes at the end of a row, and `few` the points of grids that have few.
    """

    def __init__(
        self, form: Form, alike: tuple[int, ...], missing: tuple[int, ...], few: tuple[int, ...]
    ) -> None:
        self.form, cut, lanes = form, form.cut, form.cut.lanes
        self.codes = Codes(
            form.weight, form.layout, form.epilogue, form.accumulate, lanes, form.cpu
        )
        self.packing = shared(ChannelPacking, form.weight, cut, form.cpu)
        self.widest = max((block.vectors for block in cut.blocks), default=1) * lanes.width
        self.sets: dict[PointSet, int] = {}
        self._taps = _Taps(lanes)
        self._widths: list[int] = []
        records: list[Pass] = []
        starts, numbers, offsets = [0], list[int](), iter(self.packing.places)
        for number, grid in enumerate(cut.grids):
            for block in grid.blocks:
                points = alike[number], missing[number], few[number]
                records += self._passes(grid, block, next(offsets), *points)
                starts.append(len(records))
            numbers += [number] * (len(records) - len(numbers))
        self.starts, self.records = np.array(starts), np.array(records, PASS)
        self._grids = np.array(numbers, np.int64)
        widths = np.array(self._widths or [0], np.int64)[:, None]
        self.outs = (widths * np.arange(PAD) * form.element).ravel()

    def placed(self, data: ChannelsLast) -> dict[str, Records]:
        """The tables for data of a size."""
        records, taps = self.records.copy(), self._taps.placed(data.x_steps[1:])
        records["y"] += (self.form.cut.offsets @ data.y_steps[1:])[self._grids]
        return {"passes": records, "taps": taps, "outs": self.outs}

    def bias_order(self) -> Numbers:
        """A group's biases around and around, so that any block finds its own in a row."""
        channels = self.form.cut.lanes.channels
        numbers = np.arange(channels + self.widest) % channels
        return (np.arange(self.form.groups)[:, None] * channels + numbers).ravel()

    def rows(self, block_run: int) -> Records:
        """For each group, runs of so many blocks."""
        form, lanes = self.form, self.form.cut.lanes
        count = len(self.starts) - 1
        first = np.arange(0, max(1, count), block_run)
        group = np.arange(form.groups)[:, None]
        rows = np.zeros((form.groups, len(first)), ROW)
        rows["start"] = self.starts[first] * PASS.itemsize
        rows["stop"] = self.starts[np.minimum(first + block_run, count)] * PASS.itemsize
        rows["x"] = group * lanes.reduction * form.x_bytes
        rows["y"] = group * lanes.channels * form.y_bytes
        rows["w"] = group * self.packing.group_bytes
        rows["bias"] = group * (lanes.channels + self.widest) * form.element
        return rows.ravel()

    def _passes(
        self, grid: Grid, block: Block, weights: int, alike: int, missing: int, few: int
    ) -> list[Pass]:
        """The passes of a block: all taps that fit the cache, or some channels of each."""
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
        directly = (form.transposed or codes.plain) and (block.active == tile.width or single)
        end = len(grid.phase_group.taps) * lanes.channels
        clip = max(0, min(block.active, end - missing - block.lane))
        points = PointSet(alike, tile.points, directly, clip < block.active)
        span = self.sets.setdefault(points, len(self.sets)) * SPAN.itemsize
        code, rest_code = codes.tiles(tile, few % tile.points)
        if tile.width not in self._widths:
            self._widths.append(tile.width)
        row, outs = tile.width * form.element, self._widths.index(tile.width) * PAD * 8
        lane = block.lane // lanes.multiplier if lanes.depthwise else 0
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
                    code, rest_code, tile.points, span, taps + tap * record, count, record,
                    merged, (lane + channel) * form.x_bytes, channels, w, w_tap, *ahead,
                    block.lane % lanes.channels * form.element, len(passes) > 0,
                    block.lane * form.y_bytes, block.active, clip,
                    row, 0 if single else row, outs, last,
                )
            )  # fmt: skip
        return passes

    def _tile(self, block: Block) -> ChannelTile:
        form, lanes = self.form, self.form.cut.lanes
        element = form.weight.element
        stored = element if form.x_bytes == form.element else STORED[form.weight.dtype]
        masked = block.active < block.vectors * lanes.width if lanes.depthwise else block.masked
        sizes = lanes.width, block.points, block.vectors
        kind = lanes.depthwise, lanes.multiplier, lanes.dots > 0
        return ChannelTile(stored, element, *sizes, masked, *kind)


def _merged(lanes: Lanes, block: Block, most: int) -> int:
    """Taps that are one: as many as can be, which a pass of `most` has a multiple of."""
    merged = merged_taps(lanes, block)
    return max((n for n in range(1, merged + 1) if merged % n == 0 and n <= most), default=1)


class _Taps:
    """Records of taps: an offset that depends on sizes, masks, and the shift along each axis."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._starts: dict[object, int] = {}
        self._numbers, self._offsets, self._shifts = [0], list[int](), list[tuple[int, ...]]()

    def of(self, grid: Grid, block: Block, masks: int) -> tuple[int, int]:
        """How many taps a block has, and where their records begin, which blocks may share."""
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
        """The records for data with such steps along its axes."""
        numbers, shifts = np.array(self._numbers, np.int64), np.array(self._shifts, np.int64)
        numbers[self._offsets] = -(shifts.reshape(-1, len(x_steps)) @ x_steps)
        return numbers

    def _masks_of(self, grid: Grid, block: Block, shift: int) -> list[int]:
        """For each vector which lanes use a tap, as bits."""
        used = taps_of_lanes(self._lanes, grid, block, shift) >= 0
        bits = used.reshape(block.vectors, -1) @ (1 << np.arange(self._lanes.width))
        return [int(b) for b in bits]
