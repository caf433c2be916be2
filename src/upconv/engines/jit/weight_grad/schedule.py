"""How a weight gradient is computed, as plain data: its tile, spatial blocks, jobs, and their
tables.

docs/jit.md explains it. One side's channels are the *rows* of a tile, the other's run along its
*lanes*. A *segment* is what a tap does with one row of the last axis: where it begins in both
panels. A job packs what it needs into memory of its thread: what another core has packed may be far
away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod
from typing import TypeVar

import numpy as np

from ....problem import Problem
from ..cpu import Cpu
from ..packing import Numbers
from ..values import BYTES
from .tile import sides_of

T = TypeVar("T")

ENTRY = ("segments", "count", "row", "lane", "positions", "tap", "single")
HEAD = 64  # bytes before a panel, which say what is in it
_JOBS = 8  # that there should be
_PANELS = 2 << 20  # bytes of the panels of a thread
_SUMS = 8 << 20  # bytes of the sums of all sets, as far as there are several
_ENTRIES = 1 << 16  # that a table should have: taps of all spatial blocks
_SPATIAL_BLOCKS = 1 << 10  # at most: preparing one takes a tenth of a millisecond
_LEAST = 32  # positions of a spatial block, whatever memory they take


@dataclass(frozen=True, slots=True)
class SpatialBlock:
    """Rows of x, counted over images and outer axes, and positions [start, stop) of each."""

    rows: range
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Work:
    """What is packed for a spatial block, of x and of g: positions of the last axis, and how many
    rows of it; the first of these rows in the table of places, and the spatial block's first
    entry."""

    spans: tuple[range, range]
    rows: tuple[int, int]
    places: int
    entries: int


class Plan:
    """Tables of one problem: spatial blocks, what is packed for each, and what a job does with
    it."""

    def __init__(self, problem: Problem, cpu: Cpu) -> None:
        self.problem, self.sides = problem, sides_of(problem, cpu)
        tile = self.sides.tile
        self.element = BYTES[tile.element]
        self.taps = prod(axis.kernel for axis in problem.axes)
        blocks = self.sides.row_blocks, self.sides.lane_blocks
        # Of x and of g.
        self.widths, self.in_place = self.sides.widths, self.sides.in_place(problem)
        self.blocks = (blocks[1],) * 2 if tile.depthwise else self.sided(*blocks)
        self.channels = problem.in_channels, problem.out_channels
        both = zip(self.in_place, self.channels, self.widths, strict=True)
        self.position_strides = tuple((n if own else w) * self.element for own, n, w in both)
        if tile.taps > 1:
            step = problem.axes[-1].dilation * self.sided(*self.position_strides)[0]
            self.sides = replace(self.sides, tile=replace(tile, step=step))
        self.block_bytes = tile.rows * tile.width * self.element  # of one tap
        self.all_bytes = self.taps * self.block_bytes * self.lanes * self.sides.row_blocks
        self.spatial_blocks = tuple(self._cut(cpu))
        self.sets = self._sets(len(self.spatial_blocks))
        self._share(cpu)
        self._lay_out()
        self.panel_bytes = self._panel_bytes()

    @property
    def lanes(self) -> int:
        """Blocks of lanes of all groups."""
        return self.sides.groups * self.sides.lane_blocks

    def _sets(self, spatial_blocks: int) -> int:
        """How many sets so many spatial blocks are dealt out to."""
        return max(1, min(_JOBS, spatial_blocks, _SUMS // self.all_bytes))

    def _cut(self, cpu: Cpu) -> Iterator[SpatialBlock]:
        """Spatial blocks: whole rows where some fit, as rows share what they need of g."""
        problem, last = self.problem, self.problem.axes[-1]
        more = prod(axis.stride for axis in problem.axes)
        near, mine = (
            (x * self.widths[0] + g * self.widths[1] * more) * self.element
            for x, g in ((1, 1), self.held)
        )
        rows = problem.batch * prod(axis.size for axis in problem.axes[:-1])
        total = rows * last.size
        room = max(_LEAST, min(cpu.l2 // 2 // near, _PANELS // max(1, mine)))
        room = max(room, total // _SPATIAL_BLOCKS, total * self.taps // _ENTRIES)
        count = ceil(total / room)
        if self.lanes < _JOBS:
            count = max(count, min(ceil(_JOBS / self.lanes), total // _LEAST))
        sets = self._sets(count)
        room = max(1, total // (ceil(count / sets) * sets))
        reach = prod(ceil(axis.extent / axis.stride) for axis in problem.axes[:-1])
        length = min(last.size, max(room // min(rows, 4 * reach), ceil(last.extent / last.stride)))
        length = ceil(last.size / ceil(last.size / max(1, length)))
        some = max(1, min(rows, room // length))
        some = ceil(rows / ceil(rows / some))
        for row, start in product(range(0, rows, some), range(0, last.size, length)):
            stop = min(last.size, start + length)
            yield SpatialBlock(range(row, min(rows, row + some)), start, stop)

    @property
    def held(self) -> tuple[int, int]:
        """How many panels of x, and of g, a thread holds: those of all rows, one of lanes."""
        x, g = self.sided(1 if self.sides.tile.depthwise else self.sides.row_blocks, 1)
        return 0 if self.in_place[0] else x, 0 if self.in_place[1] else g

    def _share(self, cpu: Cpu) -> None:
        """Taps of a unit of work, and how many units a job of each set has."""
        taps, many = self.taps, self.sides.tile.taps
        wanted = ceil(_JOBS / self.sets)
        parts = ceil(taps * self.block_bytes / (cpu.l2 // 4))
        if len(self.spatial_blocks) == self.sets:
            # A thread that has packed a spatial block goes on with other taps of it.
            parts = max(parts, ceil(wanted / self.lanes))
        self.part = ceil(taps // many / min(parts, taps // many)) * many
        self.units = self.lanes * ceil(taps / self.part)
        self.units_of_job = ceil(self.units / min(wanted, self.units))

    def __str__(self) -> str:
        blocks = f"{len(self.spatial_blocks)} spatial blocks"
        return f"weight gradient: {self.sides}, {blocks}, {self.part} taps to a job"

    # Tables ---------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """All tables, and what they need of memory."""
        reached = self._reached()
        places: list[Numbers] = []
        entries: list[Numbers] = []
        segments: list[Numbers] = []
        self.work: list[_Work] = []
        row_count = entry_count = segment_count = 0
        for spatial_block in self.spatial_blocks:
            outer, meeting = _meeting(reached, spatial_block.rows)
            spans = self._spans(spatial_block)
            rows = np.array(spatial_block.rows), np.unique(meeting[1])
            counts = (
                0 if self.in_place[0] else len(rows[0]),
                0 if self.in_place[1] else len(rows[1]),
            )
            offsets = [
                (meeting[n] if self.in_place[n] else np.searchsorted(rows[n], meeting[n]))
                * (len(spans[n]) * self.position_strides[n])
                for n in (0, 1)
            ]
            self.work.append(_Work(spans, counts, row_count, entry_count))
            places += [self._places(n, rows[n][: counts[n]]) for n in (0, 1)]
            entries.append(self._entries_of(spatial_block, spans, outer, segment_count))
            segments.append(np.stack(self.sided(*offsets), -1))
            row_count += sum(counts)
            entry_count += len(entries[-1])
            segment_count += len(meeting[0])
        self.places, self.entries = np.concatenate(places), np.concatenate(entries)
        self.segments = np.concatenate([*segments, np.zeros((1, 2), np.int64)])

    def sided(self, x: T, g: T) -> tuple[T, T]:
        """What belongs to the rows, and what to the lanes."""
        return (x, g) if self.sides.lanes_of_g else (g, x)

    def _reached(self) -> Numbers:
        """For each tap of the outer axes (first index) and row of x the row of g, or -1."""
        problem, outer = self.problem, self.problem.axes[:-1]
        image, *places = np.indices((problem.batch, *(axis.size for axis in outer))).reshape(
            len(outer) + 1, -1
        )
        found = []
        for taps in product(*(range(axis.kernel) for axis in outer)):
            number, inside = image, np.ones(len(image), bool)
            for axis, tap, i in zip(outer, taps, places, strict=True):
                o = axis.stride * i + axis.dilation * tap - axis.crop_begin
                inside &= (o >= 0) & (o < axis.out)
                number = number * axis.out + o
            found.append(np.where(inside, number, -1))
        return np.array(found)

    def _span(self, tap: int, spatial_block: SpatialBlock) -> tuple[int, int]:
        """The positions of a spatial block at which a tap of the last axis meets an output."""
        axis = self.problem.axes[-1]
        shift = axis.crop_begin - axis.dilation * tap
        start = max(spatial_block.start, ceil(shift / axis.stride))
        stop = min(spatial_block.stop, (axis.out - 1 + shift) // axis.stride + 1)
        return start, max(start, stop)

    def _spans(self, spatial_block: SpatialBlock) -> tuple[range, range]:
        """The positions of the last axis that a panel has of x, and those of g."""
        axis = self.problem.axes[-1]
        low = axis.stride * spatial_block.start - axis.crop_begin
        high = axis.stride * (spatial_block.stop - 1) + axis.extent - axis.crop_begin
        outputs = range(min(max(0, low), axis.out), max(0, min(axis.out, high)))
        x, g = self.in_place
        return (
            range(axis.size) if x else range(spatial_block.start, spatial_block.stop),
            range(axis.out) if g else outputs,
        )

    def _entries_of(
        self,
        spatial_block: SpatialBlock,
        spans: tuple[range, range],
        outer: list[tuple[int, int]],
        first: int,
    ) -> Numbers:
        """What tiles do in a spatial block: for each outer tap, for each run of taps that a tile
        has."""
        kernel, many = self.problem.axes[-1].kernel, self.sides.tile.taps
        runs = [self._run(tap, spatial_block, spans) for tap in range(0, kernel, many)]
        records = [
            (first + start, count, *entry[:3], number * kernel + entry[3], entry[4])
            for number, (start, count) in enumerate(outer)
            for run in runs
            for entry in run
        ]
        return np.array(records, np.int64)

    def _run(
        self, tap: int, spatial_block: SpatialBlock, spans: tuple[range, range]
    ) -> list[tuple[int, ...]]:
        """Some taps together where all of them meet an output, and each alone beside that."""
        many = self.sides.tile.taps
        each = [self._span(tap + i, spatial_block) for i in range(many)]
        start, stop = max(span[0] for span in each), min(span[1] for span in each)
        if start >= stop:
            start = stop = spatial_block.stop
        found = [self._entry(tap, spans, start, stop, 0)]
        for i, (first, last) in enumerate(each if many > 1 else ()):
            found.append(self._entry(tap + i, spans, first, min(last, start), 1))
            found.append(self._entry(tap + i, spans, max(first, stop), last, 1))
        return found

    def _entry(
        self, tap: int, spans: tuple[range, range], start: int, stop: int, single: int
    ) -> tuple[int, ...]:
        """Where positions [start, stop) of a tap begin in both panels, and how many they are."""
        axis = self.problem.axes[-1]
        if start >= stop:
            return (0, 0, 0, tap, single)
        output = axis.stride * start + axis.dilation * tap - axis.crop_begin
        both = start - spans[0].start, output - spans[1].start
        x, g = (n * stride for n, stride in zip(both, self.position_strides, strict=True))
        return *self.sided(x, g), stop - start, tap, single

    def _places(self, of_g: int, numbers: Numbers) -> Numbers:
        """The image of each row, and the positions of that image before it."""
        axes = self.problem.axes
        sizes = [axis.out if of_g else axis.size for axis in axes]
        each = prod(sizes[:-1])
        return np.stack([numbers // each, numbers % each * sizes[-1]], -1)

    # Jobs -----------------------------------------------------------------------------------------

    @property
    def single(self) -> bool:
        """Whether one spatial block is all: then no sums are kept from spatial block to spatial
        block."""
        return len(self.spatial_blocks) == 1

    def _panel_bytes(self) -> tuple[int, int]:
        """Bytes of a panel of x and of g, in whole lines, with what says what is in it."""
        x, g = (
            max(-(-work.rows[n] * len(work.spans[n]) * position_stride // 64) for work in self.work)
            for n, position_stride in enumerate(self.position_strides)
        )
        return 64 * x + HEAD, 64 * g + HEAD

    @property
    def held_bytes(self) -> int:
        """Bytes of the panels of a thread."""
        return sum(n * size for n, size in zip(self.held, self.panel_bytes, strict=True))


def _meeting(
    reached: Numbers, rows: range
) -> tuple[list[tuple[int, int]], tuple[Numbers, Numbers]]:
    """Of some rows of x: for each outer tap its first segment and how many it has; and for each
    segment its row of x and the row of g that it meets."""
    some = reached[:, rows.start : rows.stop]
    taps, found = np.nonzero(some >= 0)
    counts = np.bincount(taps, minlength=len(some))
    starts = np.cumsum(counts) - counts
    outer = list(zip(starts.tolist(), counts.tolist(), strict=True))
    return outer, (found + rows.start, some[taps, found])
