"""The tables of a weight gradient, which driver.py walks.

A *segment* is what a tap does with one row of the last axis: where that begins in both panels. What
the taps of the last axis do with a row, the *runs*, is the same for all rows of a spatial block,
and what the taps of the outer axes do is the same for all of its runs: a tile takes a row of each
table. In the same way a job takes a row of the jobs and a row of the sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....geometry import Axis
from ....problem import DataLayout
from ..correlation import Reads, reads_of, weight_strides
from ..packing import Numbers
from .schedule import Plan, SpatialBlock

JOB = ("units", "count")
SET = ("works", "count", "sums")
WORK = ("key", "outer", "runs", "run_count", "rows", "rows_count", "lanes", "lanes_count")
"""A spatial block: what tells it from others, its first outer tap and run, and the places that it
packs, of both sides."""
OUTER = ("segments", "count")
RUN = ("row", "lane", "positions", "tap", "single")
UNIT = ("blocks", "count", "rows", "rows_count", "lanes", "lanes_count")  # the latter are panels
PANEL = ("channel", "active")
PLACE = ("image", "position", "length", "before")  # the latter are positions of the panel
BLOCK = (
    "sums", "panel", "tap", "count", "entries", "entry_count", "active_rows", "active_lanes", "dw",
)  # fmt: skip
"""Channels of both sides and some taps: where sums lie, the panel of rows counted from the unit's,
taps, pairs of an outer tap and a run, and where in dw it begins."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables by name, and bytes of a panel of rows and of one of lanes."""

    arrays: dict[str, Numbers]
    panel_bytes: tuple[int, int]

    @classmethod
    def of(cls, plan: Plan) -> Tables:
        """The tables of a schedule."""
        arrays, panel_bytes = _works(plan)
        starts = np.arange(0, plan.units, plan.units_of_job)
        works = [plan.spatial_blocks_of(number) for number in range(plan.sets)]
        sets = [(some.start, len(some), n * plan.all_bytes) for n, some in enumerate(works)]
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
    """The units and their blocks."""
    sides, tile, parts = plan.sides, plan.sides.tile, -(-plan.taps // plan.part)
    shape = sides.groups, sides.lane_blocks, parts, sides.row_blocks
    group, lane, part, row = np.indices(shape).reshape(4, -1)
    tap, r, v = part * plan.part, row * tile.rows, lane * tile.width
    count, lanes = np.minimum(plan.part, plan.taps - tap), group * sides.lane_blocks + lane
    by_group, item = weight_strides(plan.problem, forward=True)[0], plan.problem.dtype.itemsize
    dw = group * by_group + r * sides.by_row + v * sides.by_lane + tap * sides.by_tap
    sums = ((lanes * sides.row_blocks + row) * plan.taps + tap) * plan.block_bytes
    runs = 1 if tile.taps == 1 else 2 * tile.taps + 1  # of as many taps as a tile has
    active = np.minimum(tile.rows, sides.rows - r), np.minimum(tile.width, sides.lanes - v)
    entries = tap // tile.taps * runs, count // tile.taps * runs
    first = np.arange(0, len(row), sides.row_blocks)
    rows = lanes if tile.depthwise else group * sides.row_blocks
    return {
        "units": _table(first, sides.row_blocks, rows[first], sides.row_blocks, lanes[first], 1),
        "blocks": _table(sums, row, tap, count, *entries, *active, dw * item),
    }


def _panels(plan: Plan) -> dict[str, Numbers]:
    """The first channel of each panel, and how many it has."""
    tables = []
    for channels, width, blocks in zip(plan.channels, plan.widths, plan.blocks, strict=True):
        count = channels // plan.sides.groups
        group, block = np.indices((plan.sides.groups, blocks)).reshape(2, -1)
        first = block * width
        tables.append(_table(group * count + first, np.minimum(width, count - first)))
    return dict(zip(("rows_panels", "lanes_panels"), plan.sided(*tables), strict=True))


# Positions ----------------------------------------------------------------------------------------


def _works(plan: Plan) -> tuple[dict[str, Numbers], tuple[int, int]]:
    """The tables of spatial blocks, and bytes of a panel of the rows and of the lanes: whole lines,
    and one that the last position may be stored beyond it."""
    reached, panels = _reached(plan), plan.sides.groups * max(plan.blocks)
    listed: dict[str, list[Numbers]] = {"places": [], "segments": [], "outer": [], "runs": []}
    counts, known = dict.fromkeys(listed, 0), dict[bytes, int]()
    works, sizes = list[tuple[int, ...]](), [0, 0]

    def append(name: str, table: Numbers) -> int:
        listed[name].append(table)
        counts[name] += len(table)
        return counts[name] - len(table)

    for number, block in enumerate(plan.spatial_blocks):
        meetings, *meeting = _meeting(reached, block.rows)
        spans, used = spans_of(plan, block), (np.array(block.rows), np.unique(meeting[1]))
        offsets, packs = [], []
        for n in (0, 1):
            stride, packed = len(spans[n]) * plan.position_strides[n], used[n]
            rows = meeting[n]
            if plan.in_place[n]:
                packed = packed[:0]
            else:
                rows = np.searchsorted(packed, rows)
            offsets.append(rows * stride)
            places = _places(plan, n, packed, spans[n])
            packs += [append("places", places), len(places)]
            sizes[n] = max(sizes[n], len(packed) * stride)
        # Blocks that are not at the ends of a row mostly have the same runs.
        runs = _runs(plan, block, spans)
        start = known.setdefault(runs.tobytes(), counts["runs"])
        if start == counts["runs"]:
            append("runs", runs)
        segments = append("segments", _table(*plan.sided(*offsets)))
        outer = append("outer", _table(segments + np.cumsum(meetings) - meetings, meetings))
        rows_packs, lanes_packs = plan.sided(packs[:2], packs[2:])
        works.append((key(number, panels), outer, start, len(runs), *rows_packs, *lanes_packs))
    append("segments", np.zeros((1, 2), np.int64))  # where none are
    arrays = {name: np.concatenate(tables) for name, tables in listed.items()}
    rows_size, lanes_size = plan.sided(*(-(-size // 64) * 64 + 64 for size in sizes))
    return arrays | {"works": np.array(works, np.int64)}, (rows_size, lanes_size)


def key(number: int, panels: int) -> int:
    """What a thread notes of panels that it has packed, with the number of the first one added;
    nothing is noted as 0."""
    return 1 + number * panels


def _reached(plan: Plan) -> Numbers:
    """For each tap of the outer axes (first index) and row of x the row of g, or -1."""
    problem = plan.problem
    axes = [
        Reads(
            axis.size, axis.stride, axis.out,
            [axis.crop_begin - axis.dilation * tap for tap in range(axis.kernel)],
        )
        for axis in problem.axes[:-1]
    ]  # fmt: skip
    return reads_of([Reads(problem.batch, 1, problem.batch, [0]), *axes])


def _meeting(reached: Numbers, rows: range) -> tuple[Numbers, Numbers, Numbers]:
    """Of some rows of x: how many segments each outer tap has; and for each segment its row of x
    and the row of g that it meets."""
    some = reached[:, rows.start : rows.stop]
    taps, row = np.nonzero(some >= 0)
    return np.bincount(taps, minlength=len(some)), row + rows.start, some[taps, row]


def _places(plan: Plan, of_g: int, numbers: Numbers, span: range) -> Numbers:
    """Where some rows lie, by their numbers: whole rows of a plane of channels, one after another,
    are one place, as squares of them are transposed; those of channels that lie last are not, as
    all panels of a row are packed while it is in a cache."""
    *outer, last = (axis.out if of_g else axis.size for axis in plan.problem.axes)
    image, row = np.divmod(numbers, prod(outer))
    begins = np.diff(numbers, prepend=-2) != 1
    if len(span) < last or plan.problem.layout is DataLayout.NXC:
        begins[:] = True
    first = np.flatnonzero(begins | (row == 0))
    count = np.diff(first, append=len(numbers))
    position = row[first] * last + span.start
    return _table(image[first], position, count * len(span), first * len(span))


def spans_of(plan: Plan, block: SpatialBlock) -> tuple[range, range]:
    """The positions of the last axis that a panel has of x, and those of g."""
    axis = plan.problem.axes[-1]
    low = axis.stride * block.start - axis.crop_begin
    high = axis.stride * (block.stop - 1) + axis.extent - axis.crop_begin
    outputs = range(min(max(0, low), axis.out), max(0, min(axis.out, high)))
    x, g = plan.in_place
    return (
        range(axis.size) if x else range(block.start, block.stop),
        range(axis.out) if g else outputs,
    )


def _runs(plan: Plan, block: SpatialBlock, spans: tuple[range, range]) -> Numbers:
    """What the taps of the last axis do: as many together as a tile has where all of them meet an
    output, then each alone before that, and each alone behind it."""
    axis, many = plan.problem.axes[-1], plan.sides.tile.taps
    taps = np.arange(axis.kernel).reshape(-1, many)
    start, stop = span(axis, taps, block)
    first, last = start.max(1, keepdims=True), stop.min(1, keepdims=True)
    first, last = (np.where(first < last, n, block.stop) for n in (first, last))
    start = np.hstack([first, start, np.maximum(start, last)])
    stop = np.hstack([last, np.minimum(stop, first), stop])
    start, stop, tap = (
        n[:, : 2 * many + 1 if many > 1 else 1]
        for n in (start, stop, np.hstack([taps[:, :1], taps, taps]))
    )
    count = np.maximum(stop - start, 0)
    output = axis.stride * start + axis.dilation * tap - axis.crop_begin
    x, g = (
        np.where(count > 0, (n - span.start) * stride, 0)
        for n, span, stride in zip((start, output), spans, plan.position_strides, strict=True)
    )
    alone = (np.arange(tap.shape[1]) > 0).astype(np.int64)
    return _table(*plan.sided(x, g), count, tap, alone).reshape(-1, len(RUN))


def span(axis: Axis, taps: Numbers, block: SpatialBlock) -> tuple[Numbers, Numbers]:
    """The positions of a spatial block at which taps of the last axis meet an output."""
    shift = axis.crop_begin - axis.dilation * taps
    start = np.maximum(block.start, -(-shift // axis.stride))
    stop = np.minimum(block.stop, (axis.out - 1 + shift) // axis.stride + 1)
    return start, np.maximum(start, stop)
