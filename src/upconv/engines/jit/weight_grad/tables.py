"""A weight gradient's tables, which driver.py walks.

A *segment* is the start of a row along the last axis in both panels, for a tap of the outer axes. A
*run* is a range of positions in a row, for some taps of the last axis. All rows in a spatial block
have the same runs, and all runs have the same segments. So a tile takes one outer tap's segments
and one run. Likewise, a job takes a row of the jobs table and a row of the sets table.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....problem import DataLayout
from ..correlation import Reads, reads_of, weight_strides
from ..packing import Numbers
from .schedule import Plan

JOB = ("units", "count")
SET = ("works", "count", "sums")
WORK = ("key", "outer", "runs", "run_count", "rows", "rows_count", "lanes", "lanes_count")
"""A spatial block: its key, its first outer tap and run, and the stretches that it packs for each
side."""
OUTER = ("segments", "count")
RUN = ("row", "lane", "positions", "tap", "single")
UNIT = ("blocks", "count", "rows", "rows_count", "lanes", "lanes_count")  # rows, lanes: panels
PANEL = ("channel", "active")
STRETCH = ("image", "position", "length", "before")  # before: earlier positions in the panel
BLOCK = (
    "sums", "panel", "tap", "count", "entries", "entry_count", "active_rows", "active_lanes", "dw",
)  # fmt: skip
"""Channels on both sides and some taps: the sums' offset, the panel of rows within the unit, taps,
pairs of an outer tap and a run, active channels, and the offset in dw."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables by name, and the bytes per panel of rows and per panel of lanes."""

    arrays: dict[str, Numbers]
    panel_bytes: tuple[int, int]

    @classmethod
    def of(cls, plan: Plan) -> Tables:
        """Return a schedule's tables."""
        arrays, panel_bytes = _works(plan)
        starts = np.arange(0, plan.units, plan.units_of_job)
        works = [plan.spatial_blocks_of(number) for number in range(plan.sets)]
        sets = [(work.start, len(work), n * plan.all_bytes) for n, work in enumerate(works)]
        arrays |= {
            "jobs": _table(starts, np.minimum(plan.units_of_job, plan.units - starts)),
            "sets": np.array(sets, np.int64), **_units(plan), **_panels(plan),
        }  # fmt: skip
        return cls(arrays, panel_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for array in self.arrays.values())


def _table(*columns: Numbers | int) -> Numbers:
    return np.stack(np.broadcast_arrays(*columns), -1)


# Channels -----------------------------------------------------------------------------------------


def _units(plan: Plan) -> dict[str, Numbers]:
    """Return the units and their blocks."""
    sides, tile, parts = plan.sides, plan.sides.tile, -(-plan.taps // plan.part)
    shape = sides.groups, sides.lane_blocks, parts, sides.row_blocks
    group, lane, part, row = np.indices(shape).reshape(4, -1)
    tap, r, v = part * plan.part, row * tile.rows, lane * tile.width
    count, lanes = np.minimum(plan.part, plan.taps - tap), group * sides.lane_blocks + lane
    by_group, item = weight_strides(plan.problem, forward=True)[0], plan.problem.dtype.itemsize
    dw = group * by_group + r * sides.by_row + v * sides.by_lane + tap * sides.by_tap
    sums = ((lanes * sides.row_blocks + row) * plan.taps + tap) * plan.block_bytes
    runs = 1 if tile.taps == 1 else 2 * tile.taps + 1  # for the taps of one tile
    active = np.minimum(tile.rows, sides.rows - r), np.minimum(tile.width, sides.lanes - v)
    entries = tap // tile.taps * runs, count // tile.taps * runs
    first = np.arange(0, len(row), sides.row_blocks)
    rows = lanes if tile.depthwise else group * sides.row_blocks
    return {
        "units": _table(first, sides.row_blocks, rows[first], sides.row_blocks, lanes[first], 1),
        "blocks": _table(sums, row, tap, count, *entries, *active, dw * item),
    }


def _panels(plan: Plan) -> dict[str, Numbers]:
    """Return each panel's first channel and number of channels."""
    tables = []
    for channels, width, blocks in zip(plan.channels, plan.widths, plan.blocks, strict=True):
        count = channels // plan.sides.groups
        group, block = np.indices((plan.sides.groups, blocks)).reshape(2, -1)
        first = block * width
        tables.append(_table(group * count + first, np.minimum(width, count - first)))
    return dict(zip(("rows_panels", "lanes_panels"), plan.sided(*tables), strict=True))


# Positions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand: the packed rows in each range of rows, and a panel's positions in each range of
    the last axis.

    `rows` are the packed rows' numbers, ordered by range, and `starts` each range's first one.
    `segments` are the segments' rows, counted within their panels. `begin` and `length` are the
    panels' first positions and lengths.
    """

    rows: Numbers
    starts: Numbers
    segments: Numbers
    begin: Numbers
    length: Numbers


def _works(plan: Plan) -> tuple[dict[str, Numbers], tuple[int, int]]:
    """Return the tables of spatial blocks, and the bytes per panel of rows and of lanes. A panel
    has an extra cache line, because the last position may be stored past the end."""
    meetings, *operands = _operands(plan)
    ranges, taps = meetings.shape
    x, g = operands
    # Panels of equal lengths have the same segments: all panels except those at rows' ends.
    lengths, kind = np.unique(np.array([x.length, g.length]), axis=1, return_inverse=True)
    offsets = (
        operand.segments * length[:, None] * stride
        for operand, length, stride in zip(operands, lengths, plan.position_strides, strict=True)
    )
    segments = _table(*plan.sided(*offsets)).reshape(-1, 2)
    counts = np.tile(meetings.ravel(), lengths.shape[1])
    runs, first_run = _runs(plan, x.begin, g.begin)
    stretches, listed, sizes = 0, [], []
    packs: list[list[Numbers]] = []
    for n, operand in enumerate(operands):
        table, firsts = _stretches(plan, n, operand)
        number = np.arange(len(plan.columns)) * table.shape[1] + stretches
        packs.append([firsts[:-1, None] + number, np.diff(firsts)[:, None]])
        stretches += table.shape[0] * table.shape[1]
        listed.append(table.reshape(-1, len(STRETCH)))
        longest = operand.length.max() * plan.position_strides[n]
        sizes.append(-(-int(np.diff(operand.starts).max() * longest) // 64) * 64 + 64)
    rows, lanes = plan.sided(*packs)
    numbers = np.arange(ranges * len(plan.columns)).reshape(ranges, -1)
    outer = (kind.reshape(-1) * ranges + np.arange(ranges)[:, None]) * taps
    keys = key(numbers, plan.sides.groups * max(plan.blocks))
    works = _table(keys, outer, first_run, runs.shape[1], *rows, *lanes)
    return {
        "works": works.reshape(-1, len(WORK)), "outer": _table(counts.cumsum() - counts, counts),
        "segments": np.append(segments, [[0, 0]], 0),  # never empty
        "runs": runs.reshape(-1, len(RUN)), "stretches": np.concatenate(listed),
    }, plan.sided(*sizes)  # fmt: skip


def key(number: Numbers, panels: int) -> Numbers:
    """Return the key of panels in a thread's memory, before the first panel's number is added. A
    key of 0 means no panel."""
    return 1 + number * panels


def _operands(plan: Plan) -> tuple[Numbers, _Operand, _Operand]:
    """Return segment counts by range of rows and outer tap, and the operands x and g."""
    axis, reached, count = plan.problem.axes[-1], _reached(plan), plan.rows_together
    ranges = -(-reached.shape[1] // count)
    padded = np.full((len(reached), ranges * count), -1)
    padded[:, : reached.shape[1]] = reached
    padded = padded.reshape(len(reached), ranges, count).swapaxes(0, 1)
    number, tap, x_row = (padded >= 0).nonzero()
    g_row, outputs = padded[number, tap, x_row], reached.max(initial=0) + 1
    packed, rank = np.unique(number * outputs + g_row, return_inverse=True)
    g_starts = packed.searchsorted(np.arange(ranges + 1) * outputs)
    x_starts = np.minimum(np.arange(ranges + 1) * count, reached.shape[1])
    start, stop = np.array([(column.start, column.stop) for column in plan.columns]).T
    low = (axis.stride * start - axis.crop_begin).clip(0, axis.out)
    high = axis.stride * (stop - 1) + axis.extent - axis.crop_begin
    operands = [
        _Operand(np.arange(reached.shape[1]), x_starts, x_row, start, stop - start),
        _Operand(packed % outputs, g_starts, rank - g_starts[number], low,
                 np.maximum(high.clip(0, axis.out) - low, 0)),
    ]  # fmt: skip
    rows, sizes = (number * count + x_row, g_row), (axis.size, axis.out)
    for n, size in enumerate(sizes):
        if plan.in_place[n]:  # nothing is packed: count rows from the operand's first row
            zeros = np.zeros_like(start)
            operands[n] = _Operand(
                rows[n][:0], np.zeros(ranges + 1, np.int64), rows[n], zeros, zeros + size
            )
    return (padded >= 0).sum(2), *operands


def _reached(plan: Plan) -> Numbers:
    """Return the row of g for each outer tap (first index) and row of x, or -1."""
    problem = plan.problem
    axes = [
        Reads(
            axis.size, axis.stride, axis.out,
            [axis.crop_begin - axis.dilation * tap for tap in range(axis.kernel)],
        )
        for axis in problem.axes[:-1]
    ]  # fmt: skip
    return reads_of([Reads(problem.batch, 1, problem.batch, [0]), *axes])


def _stretches(plan: Plan, of_g: int, operand: _Operand) -> tuple[Numbers, Numbers]:
    """Return the stretches of packed rows, by range of positions (first index), and each range of
    rows' first stretch.

    With channels first, adjacent full rows of a plane are one stretch, which is transposed in
    squares. With channels last they are separate, because all of a row's panels are packed while it
    is in a cache.
    """
    *outer, last = (axis.out if of_g else axis.size for axis in plan.problem.axes)
    image, row = np.divmod(operand.rows, prod(outer))
    begins = np.diff(operand.rows, prepend=-2) != 1
    begins[operand.starts[:-1][operand.starts[:-1] < len(begins)]] = True
    if operand.length.min() < last or plan.problem.layout is DataLayout.NXC:
        begins[:] = True
    first = np.flatnonzero(begins | (row == 0))
    count = np.diff(first, append=len(row))
    before = first - operand.starts[operand.starts.searchsorted(first, side="right") - 1]
    begin, length = operand.begin[:, None], operand.length[:, None]
    stretches = _table(image[first], row[first] * last + begin, count * length, before * length)
    return stretches, first.searchsorted(operand.starts)


def _runs(plan: Plan, x_begin: Numbers, g_begin: Numbers) -> tuple[Numbers, Numbers]:
    """Return the runs of the last axis's taps, and each range of positions' first run.

    A tile takes all its taps together at positions where all of them meet an output. Before and
    after that range it takes each tap separately.
    """
    axis, together = plan.problem.axes[-1], plan.sides.tile.taps
    taps = np.arange(axis.kernel).reshape(-1, together)
    begin, end = np.array([(column.start, column.stop) for column in plan.columns]).T[
        :, :, None, None
    ]
    shift = axis.crop_begin - axis.dilation * taps
    start = np.maximum(begin, -(-shift // axis.stride))
    stop = np.maximum(start, np.minimum(end, (axis.out - 1 + shift) // axis.stride + 1))
    if together == 1:
        tap = taps
    else:
        first, last = start.max(2, keepdims=True), stop.min(2, keepdims=True)
        first, last = (np.where(first < last, n, end) for n in (first, last))
        start = np.concatenate([first, start, np.maximum(start, last)], 2)
        stop = np.concatenate([last, np.minimum(stop, first), stop], 2)
        tap = np.hstack([taps[:, :1], taps, taps])
    count = np.maximum(stop - start, 0)
    output = axis.stride * start + axis.dilation * tap - axis.crop_begin
    x, g = (
        np.where(count > 0, (n - origin[:, None, None]) * stride, 0)
        for n, origin, stride in zip(
            (start, output), (x_begin, g_begin), plan.position_strides, strict=True
        )
    )
    single = (np.arange(tap.shape[1]) > 0).astype(np.int64)
    table = _table(*plan.sided(x, g), count, tap, single).reshape(len(x_begin), -1, len(RUN))
    known: dict[bytes, int] = {}
    kind = np.array([known.setdefault(runs.tobytes(), len(known)) for runs in table])
    _, firsts = np.unique(kind, return_index=True)
    return table[firsts], kind * table.shape[1]
