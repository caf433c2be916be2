"""The tables of a weight gradient, which driver.py walks.

A *segment* is what a tap does with one row of the last axis: where that begins in both panels. What
the taps of the last axis do with a row, the *runs*, is the same for all rows of a spatial block,
and what the taps of the outer axes do is the same for all of its runs: a tile takes a row of each
table. In the same way a job takes a row of the jobs and a row of the sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

import numpy as np

from ..correlation import weight_strides
from ..packing import Numbers
from .schedule import Plan, SpatialBlock

JOB = ("units", "count")
SET = ("works", "count", "sums")
WORK = (
    "key", "outer", "runs", "run_count",
    "rows_places", "rows_count", "rows_length", "rows_start",
    "lanes_places", "lanes_count", "lanes_length", "lanes_start",
)  # fmt: skip
"""A spatial block: what no other packs, its first outer tap and run, and what it packs."""
OUTER = ("segments", "count")
RUN = ("row", "lane", "positions", "tap", "single")
UNIT = ("blocks", "count", "rows", "rows_count", "lanes", "lanes_count")  # the latter are panels
PANEL = ("channel", "active")
PLACE = ("image", "position")
BLOCK = (
    "sums", "panel", "tap", "count", "entries", "entry_count", "active_rows", "active_lanes", "dw",
)  # fmt: skip
"""Channels of both sides and some taps: where sums lie, the panel of rows counted from the unit's,
taps, pairs of an outer tap and a run, and where in dw it begins."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables by name, and bytes of a panel of the rows and of one of the lanes."""

    arrays: dict[str, Numbers]
    panel_bytes: tuple[int, int]

    @classmethod
    def of(cls, plan: Plan) -> Tables:
        """The tables of a schedule."""
        units, blocks = _units(plan)
        arrays, panel_bytes = _works(plan)
        starts = range(0, plan.units, plan.units_of_job)
        jobs = [(n, min(plan.units_of_job, plan.units - n)) for n in starts]
        sets = [
            (works.start, len(works), number * plan.all_bytes)
            for number in range(plan.sets)
            for works in [plan.spatial_blocks_of(number)]
        ]
        arrays |= {
            "jobs": _table(jobs), "sets": _table(sets), "units": _table(units),
            "blocks": _table(blocks), **_panels(plan),
        }  # fmt: skip
        return cls(arrays, panel_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for array in self.arrays.values())


def _table(rows: Sequence[Sequence[int]]) -> Numbers:
    return np.array(rows, np.int64)


# Channels -----------------------------------------------------------------------------------------


def _units(plan: Plan) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The units and their blocks."""
    sides, tile, item = plan.sides, plan.sides.tile, plan.problem.dtype.itemsize
    by_group = weight_strides(plan.problem, forward=True)[0]
    pairs = 1 if tile.taps == 1 else 2 * tile.taps + 1  # runs of as many taps as a tile has
    units, blocks = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for group, lane, tap in product(
        range(sides.groups), range(sides.lane_blocks), range(0, plan.taps, plan.part)
    ):
        lanes, v = group * sides.lane_blocks + lane, lane * tile.width
        rows = (lanes, 1) if tile.depthwise else (group * sides.row_blocks, sides.row_blocks)
        units.append((len(blocks), sides.row_blocks, *rows, lanes, 1))
        count = min(plan.part, plan.taps - tap)
        for row in range(sides.row_blocks):
            r, number = row * tile.rows, lanes * sides.row_blocks + row
            dw = group * by_group + r * sides.by_row + v * sides.by_lane + tap * sides.by_tap
            blocks.append(
                (
                    (number * plan.taps + tap) * plan.block_bytes, row, tap, count,
                    tap // tile.taps * pairs, count // tile.taps * pairs,
                    min(tile.rows, sides.rows - r), min(tile.width, sides.lanes - v), dw * item,
                )
            )  # fmt: skip
    return units, blocks


def _panels(plan: Plan) -> dict[str, Numbers]:
    """The first channel of each panel, and how many it has."""
    tables = []
    for channels, width, blocks in zip(plan.channels, plan.widths, plan.blocks, strict=True):
        count = channels // plan.sides.groups
        tables.append(
            [
                (group * count + block * width, min(width, count - block * width))
                for group in range(plan.sides.groups)
                for block in range(blocks)
            ]
        )
    rows, lanes = plan.sided(*tables)
    return {"rows_panels": _table(rows), "lanes_panels": _table(lanes)}


# Positions ----------------------------------------------------------------------------------------


def _works(plan: Plan) -> tuple[dict[str, Numbers], tuple[int, int]]:
    """The tables of spatial blocks, and bytes of a panel of the rows and of the lanes: whole lines,
    and one that the last position may be stored beyond it."""
    reached = _reached(plan)
    places, segments, outer = list[Numbers](), list[Numbers](), list[tuple[int, int]]()
    runs, first_run = list[tuple[int, ...]](), dict[tuple[tuple[int, ...], ...], int]()
    works, sizes = list[tuple[int, ...]](), [0, 0]
    row_count = segment_count = 0
    panels = plan.sides.groups * max(plan.blocks)
    for number, block in enumerate(plan.spatial_blocks):
        counts, meeting = _meeting(reached, block.rows)
        spans = spans_of(plan, block)
        used = np.array(block.rows), np.unique(meeting[1])
        offsets, packs = [], []
        for n in (0, 1):
            stride, stays = len(spans[n]) * plan.position_strides[n], plan.in_place[n]
            rows = meeting[n] if stays else np.searchsorted(used[n], meeting[n])
            offsets.append(rows * stride)
            count = 0 if stays else len(used[n])
            packs.append((row_count, count, len(spans[n]), spans[n].start))
            places.append(_places(plan, n, used[n][:count]))
            sizes[n] = max(sizes[n], count * stride)
            row_count += count
        # Blocks that are not at the ends of a row mostly have the same runs.
        listed = tuple(_runs(plan, block, spans))
        start = first_run.setdefault(listed, len(runs))
        runs += listed if start == len(runs) else ()
        rows_pack, lanes_pack = plan.sided(*packs)
        works.append((key(number, panels), len(outer), start, len(listed), *rows_pack, *lanes_pack))
        starts = segment_count + np.cumsum(counts) - counts
        outer += zip(starts.tolist(), counts.tolist(), strict=True)
        segments.append(np.stack(plan.sided(*offsets), -1))
        segment_count += len(meeting[0])
    arrays = {
        "works": _table(works), "outer": _table(outer), "runs": _table(runs),
        "places": np.concatenate(places),
        "segments": np.concatenate([*segments, np.zeros((1, 2), np.int64)]),
    }  # fmt: skip
    rows_size, lanes_size = plan.sided(*(-(-size // 64) * 64 + 64 for size in sizes))
    return arrays, (rows_size, lanes_size)


def key(number: int, panels: int) -> int:
    """What a thread notes of panels that it has packed, with the number of the first one added;
    nothing is noted as 0."""
    return 1 + number * panels


def _reached(plan: Plan) -> Numbers:
    """For each tap of the outer axes (first index) and row of x the row of g, or -1."""
    problem, outer = plan.problem, plan.problem.axes[:-1]
    image, *places = np.indices((problem.batch, *(axis.size for axis in outer))).reshape(
        len(outer) + 1, -1
    )
    rows = []
    for taps in product(*(range(axis.kernel) for axis in outer)):
        number, inside = image, np.ones(len(image), bool)
        for axis, tap, i in zip(outer, taps, places, strict=True):
            o = axis.stride * i + axis.dilation * tap - axis.crop_begin
            inside &= (o >= 0) & (o < axis.out)
            number = number * axis.out + o
        rows.append(np.where(inside, number, -1))
    return np.array(rows)


def _meeting(reached: Numbers, rows: range) -> tuple[Numbers, tuple[Numbers, Numbers]]:
    """Of some rows of x: for each outer tap its segments; and for each segment its row of x and the
    row of g that it meets."""
    some = reached[:, rows.start : rows.stop]
    taps, row = np.nonzero(some >= 0)
    return np.bincount(taps, minlength=len(some)), (row + rows.start, some[taps, row])


def _places(plan: Plan, of_g: int, numbers: Numbers) -> Numbers:
    """The image of each row, and the positions of that image before it."""
    sizes = [axis.out if of_g else axis.size for axis in plan.problem.axes]
    rows = prod(sizes[:-1])
    return np.stack([numbers // rows, numbers % rows * sizes[-1]], -1)


def span(plan: Plan, tap: int, block: SpatialBlock) -> tuple[int, int]:
    """The positions of a spatial block at which a tap of the last axis meets an output."""
    axis = plan.problem.axes[-1]
    shift = axis.crop_begin - axis.dilation * tap
    start = max(block.start, ceil(shift / axis.stride))
    stop = min(block.stop, (axis.out - 1 + shift) // axis.stride + 1)
    return start, max(start, stop)


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


def _runs(plan: Plan, block: SpatialBlock, spans: tuple[range, range]) -> Iterable[tuple[int, ...]]:
    """What the taps of the last axis do: as many together as a tile has where all of them meet an
    output, and each alone beside that."""
    many = plan.sides.tile.taps
    for tap in range(0, plan.problem.axes[-1].kernel, many):
        each = [span(plan, tap + i, block) for i in range(many)]
        start, stop = max(span[0] for span in each), min(span[1] for span in each)
        if start >= stop:
            start = stop = block.stop
        yield _run(plan, tap, spans, range(start, stop), 0)
        for i, (first, last) in enumerate(each if many > 1 else ()):
            yield _run(plan, tap + i, spans, range(first, min(last, start)), 1)
            yield _run(plan, tap + i, spans, range(max(first, stop), last), 1)


def _run(
    plan: Plan, tap: int, spans: tuple[range, range], positions: range, single: int
) -> tuple[int, ...]:
    """Where some positions of a tap begin in both panels, and how many they are."""
    axis, start = plan.problem.axes[-1], positions.start
    if not positions:
        return (0, 0, 0, tap, single)
    output = axis.stride * start + axis.dilation * tap - axis.crop_begin
    both = start - spans[0].start, output - spans[1].start
    x, g = (n * stride for n, stride in zip(both, plan.position_strides, strict=True))
    return *plan.sided(x, g), len(positions), tap, single
