"""How a weight gradient is computed, as plain data: its tile, slabs, jobs, and their tables.

    dw[c, f, t]  =  sum over images n and positions i of  x[n, c, i] * g[n, f, s*i + d*t - p]

For one tap this is a product of matrices whose inner dimension is the positions i at which
s*i + d*t - p is an output. One side's channels are the *rows* of a tile, the other's run along its
*lanes*; both sides are packed into panels, [block of channels][position][channel], a *slab* of
positions at a time, such that two panels stay in the second-level cache. A *segment* is what a tap
does with one row of the last axis: where it begins in both panels. How many positions it has, and
which rows have one at all, is counted exactly, so that nothing outside is multiplied.

A job owns a block of dw, some taps of it, so that sums are made in the same order for any number of
threads. Where there are fewer blocks than threads could use, slabs are dealt out to some *sets*,
whose sums are added up in order at the end: how many depends on the problem alone.

All that is decided here is a table; weight_grad_code.py has what walks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod
from typing import Any, TypeVar

import numpy as np

from ...problem import Problem
from .correlation import weight_strides
from .cpu import Cpu
from .values import BYTES
from .weight_grad_tile import sides_of

T = TypeVar("T")
Numbers = np.ndarray[Any, np.dtype[np.int64]]

PACK = ("to", "width", "live", "rows", "count", "length", "of_g", "channel", "position")
BLOCK = (
    "to", "rows", "lanes", "entries", "entry_count", "tap", "count", "fresh",
    "live_rows", "live_lanes", "dst",
)  # fmt: skip
RECORD = 2 + len(BLOCK)  # the function, the jobs that must be over, its fields
ENTRY = ("segments", "count", "row", "lane", "positions", "tap", "single")
_JOBS = 8  # that there should be at a time
_PANELS = 4 << 20  # bytes of all panels of a slab
_ENTRIES = 1 << 16  # that a table should have: taps of all slabs
_LEAST = 32  # positions of a slab, whatever memory they take


@dataclass(frozen=True, slots=True)
class Slab:
    """Rows of x, counted over images and outer axes, and positions [start, stop) of each."""

    rows: range
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Work:
    """What is packed for a slab, of x and of g: positions of the last axis, and how many rows of
    it; the first of these rows in the table of places, and the slab's first entry."""

    spans: tuple[range, range]
    rows: tuple[int, int]
    places: int
    entries: int


class Plan:
    """Tables of one problem: slabs, what is packed for each, and what a job does with it."""

    def __init__(self, problem: Problem, cpu: Cpu) -> None:
        self.problem, self.sides = problem, sides_of(problem, cpu)
        tile = self.sides.tile
        self.element = BYTES[tile.element]
        self.taps = prod(axis.kernel for axis in problem.axes)
        blocks = self.sides.row_blocks, self.sides.lane_blocks
        # Of x and of g.
        self.widths, self.in_place = self.sides.widths, self.sides.in_place(problem)
        self.blocks = (blocks[1],) * 2 if tile.own else self._sides(*blocks)
        self.channels = problem.in_channels, problem.out_channels
        both = zip(self.in_place, self.channels, self.widths, strict=True)
        self.pitches = tuple((n if own else width) * self.element for own, n, width in both)
        if tile.taps > 1:
            step = problem.axes[-1].dilation * self._sides(*self.pitches)[0]
            self.sides = replace(self.sides, tile=replace(tile, step=step))
        self.block_bytes = tile.rows * tile.width * self.element  # of one tap
        self._every = self.sides.groups * self.sides.row_blocks * self.sides.lane_blocks
        parts = max(ceil(_JOBS / self._every), ceil(self.taps * self.block_bytes / (cpu.l2 // 4)))
        units = self.taps // tile.taps
        self.part = ceil(units / min(parts, units)) * tile.taps  # taps of a job
        jobs = self._every * ceil(self.taps / self.part)
        self.slabs = tuple(self._cut(cpu, jobs))
        self.sets = min(len(self.slabs), ceil(_JOBS / jobs))
        self.set_bytes = self._every * self.taps * self.block_bytes
        self._lay_out()

    def _cut(self, cpu: Cpu, jobs: int) -> Iterator[Slab]:
        """Slabs: whole rows where some fit, as rows share what they need of g."""
        problem, last = self.problem, self.problem.axes[-1]
        more = prod(axis.stride for axis in problem.axes)
        near = (self.widths[0] + self.widths[1] * more) * self.element
        every = (problem.in_channels + problem.out_channels * more) * self.element
        room = max(_LEAST, min(cpu.l2 // 2 // near, _PANELS // every))
        rows = problem.batch * prod(axis.size for axis in problem.axes[:-1])
        if jobs < _JOBS:
            room = max(_LEAST, min(room, rows * last.size // ceil(_JOBS / jobs)))
        room = max(room, rows * last.size * self.taps // _ENTRIES)
        reach = prod(ceil(axis.extent / axis.stride) for axis in problem.axes[:-1])
        length = min(last.size, max(room // min(rows, 4 * reach), ceil(last.extent / last.stride)))
        length = ceil(last.size / ceil(last.size / max(1, length)))
        some = max(1, min(rows, room // length))
        some = ceil(rows / ceil(rows / some))
        for row, start in product(range(0, rows, some), range(0, last.size, length)):
            stop = min(last.size, start + length)
            yield Slab(range(row, min(rows, row + some)), start, stop)

    def __str__(self) -> str:
        return f"weight gradient: {self.sides}, {len(self.slabs)} slabs, {self.part} taps to a job"

    # Tables ---------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """All tables, and what they need of memory."""
        reached = self._reached()
        places: list[Numbers] = []
        entries: list[Numbers] = []
        segments: list[Numbers] = []
        self._work: list[_Work] = []
        row_count = segment_count = 0
        for slab in self.slabs:
            outer, meeting = _meeting(reached, slab.rows)
            spans, rows = self._spans(slab), (np.array(slab.rows), np.unique(meeting[1]))
            counts = (
                0 if self.in_place[0] else len(rows[0]),
                0 if self.in_place[1] else len(rows[1]),
            )
            offsets = [
                (meeting[n] if self.in_place[n] else np.searchsorted(rows[n], meeting[n]))
                * (len(spans[n]) * self.pitches[n])
                for n in (0, 1)
            ]
            self._work.append(_Work(spans, counts, row_count, sum(map(len, entries))))
            places += [self._places(n, rows[n][: counts[n]]) for n in (0, 1)]
            entries.append(self._entries_of(slab, spans, outer, segment_count))
            segments.append(np.stack(self._sides(*offsets), -1))
            row_count += sum(counts)
            segment_count += len(meeting[0])
        self.places, self.entries = np.concatenate(places), np.concatenate(entries)
        self.segments = np.concatenate([*segments, np.zeros((1, 2), np.int64)])

    def _sides(self, x: T, g: T) -> tuple[T, T]:
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

    def _span(self, tap: int, slab: Slab) -> tuple[int, int]:
        """The positions of a slab at which a tap of the last axis meets an output."""
        axis = self.problem.axes[-1]
        shift = axis.crop_begin - axis.dilation * tap
        start = max(slab.start, ceil(shift / axis.stride))
        stop = min(slab.stop, (axis.out - 1 + shift) // axis.stride + 1)
        return start, max(start, stop)

    def _spans(self, slab: Slab) -> tuple[range, range]:
        """The positions of the last axis that a panel has of x, and those of g."""
        axis = self.problem.axes[-1]
        low = axis.stride * slab.start - axis.crop_begin
        high = axis.stride * (slab.stop - 1) + axis.extent - axis.crop_begin
        outputs = range(min(max(0, low), axis.out), max(0, min(axis.out, high)))
        x, g = self.in_place
        return (
            range(axis.size) if x else range(slab.start, slab.stop),
            range(axis.out) if g else outputs,
        )

    def _entries_of(
        self, slab: Slab, spans: tuple[range, range], outer: list[tuple[int, int]], first: int
    ) -> Numbers:
        """What tiles do in a slab: for each outer tap, for each run of taps that a tile has."""
        kernel, many = self.problem.axes[-1].kernel, self.sides.tile.taps
        runs = [self._run(tap, slab, spans) for tap in range(0, kernel, many)]
        records = [
            (first + start, count, *entry[:3], number * kernel + entry[3], entry[4])
            for number, (start, count) in enumerate(outer)
            for run in runs
            for entry in run
        ]
        return np.array(records, np.int64)

    def _run(self, tap: int, slab: Slab, spans: tuple[range, range]) -> list[tuple[int, ...]]:
        """Some taps together where all of them meet an output, and each alone beside that."""
        many = self.sides.tile.taps
        each = [self._span(tap + i, slab) for i in range(many)]
        start, stop = max(span[0] for span in each), min(span[1] for span in each)
        if start >= stop:
            start = stop = slab.stop
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
        x, g = (n * pitch for n, pitch in zip(both, self.pitches, strict=True))
        return *self._sides(x, g), stop - start, tap, single

    def _places(self, of_g: int, numbers: Numbers) -> Numbers:
        """The image of each row, and the positions of that image before it."""
        axes = self.problem.axes
        sizes = [axis.out if of_g else axis.size for axis in axes]
        each = prod(sizes[:-1])
        return np.stack([numbers // each, numbers % each * sizes[-1]], -1)

    # Jobs -----------------------------------------------------------------------------------------

    @property
    def single(self) -> bool:
        """Whether one slab is all: then no sums are kept from slab to slab."""
        return len(self.slabs) == 1

    @property
    def panel_bytes(self) -> tuple[int, int]:
        """Bytes of a panel of x and of g, in whole lines."""
        x, g = (
            max(-(-work.rows[n] * len(work.spans[n]) * pitch // 64) for work in self._work)
            for n, pitch in enumerate(self.pitches)
        )
        return 64 * x, 64 * g

    @property
    def slab_bytes(self) -> int:
        """Bytes of all panels of a slab."""
        x, g = self.panel_bytes
        return self.sides.groups * (self.blocks[0] * x + self.blocks[1] * g)

    def records(self, pack: int, block: int, finish: int) -> Numbers:
        """All jobs in order, from the addresses of the functions that do them.

        While blocks of some slabs are computed the panels of the next ones are packed.
        """
        template, found, over = self._template(), [], 0
        turns = [
            range(i, min(len(self.slabs), i + self.sets))
            for i in range(0, len(self.slabs), self.sets)
        ]
        for number in range(len(turns) + 1):
            now: list[Numbers] = []
            for at, i in enumerate(turns[number - 1] if number else ()):
                now.append(self._blocks_of(template, i, at, (number - 1) % 2, block))
            for at, i in enumerate(turns[number] if number < len(turns) else ()):
                now.append(self._packs_of(i, at, number % 2, pack))
            found += self._after(now, over)
            over += sum(map(len, now))
        if not self.single:
            last = template.copy()
            last[:, 0] = finish
            found += self._after([last], over)
        return np.concatenate(found)

    @staticmethod
    def _after(some: list[Numbers], over: int) -> list[Numbers]:
        for records in some:
            records[:, 1] = over
        return some

    def _template(self) -> Numbers:
        """A record for each block, of no slab yet."""
        sides, item = self.sides, self.problem.dtype.itemsize
        by_group, tile = weight_strides(self.problem, forward=True)[0], sides.tile
        per = 1 if tile.taps == 1 else 2 * tile.taps + 1  # entries of a run of taps
        records = []
        for group, lane, row, tap in product(
            range(sides.groups), range(sides.lane_blocks), range(sides.row_blocks),
            range(0, self.taps, self.part),
        ):  # fmt: skip
            r, v = row * tile.rows, lane * tile.width
            dst = group * by_group + r * sides.by_row + v * sides.by_lane + tap * sides.by_tap
            number = (group * sides.lane_blocks + lane) * sides.row_blocks + row
            lanes = group * sides.lane_blocks + lane
            rows = lanes if tile.own else group * sides.row_blocks + row
            count = min(self.part, self.taps - tap)
            records.append(
                (
                    0, 0, (number * self.taps + tap) * self.block_bytes, rows, lanes,
                    tap // tile.taps * per, count // tile.taps * per, tap, count, 0,
                    min(tile.rows, sides.rows - r), min(tile.width, sides.lanes - v), dst * item,
                )
            )  # fmt: skip
        return np.array(records, np.int64)

    def _blocks_of(self, template: Numbers, i: int, at: int, buffer: int, code: int) -> Numbers:
        """The jobs that compute the blocks of one slab; `at` is its set."""
        records = template.copy()
        field = {name: 2 + n for n, name in enumerate(BLOCK)}
        x, g = self._panels(at, buffer)
        for name, (start, size) in zip(("rows", "lanes"), self._sides(x, g), strict=True):
            records[:, field[name]] = start + records[:, field[name]] * size
        records[:, field["entries"]] += self._work[i].entries
        records[:, field["fresh"]] = i < self.sets
        records[:, 0] = code
        if self.single:
            records[:, field["to"]] = -1
        else:
            records[:, field["to"]] += at * self.set_bytes
            records[:, field["dst"]] = -1
        return records

    def _packs_of(self, i: int, at: int, buffer: int, code: int) -> Numbers:
        """The jobs that pack a slab's panels."""
        work, records = self._work[i], []
        first = work.places
        for n, channels in enumerate(self.channels):
            (place, size), width = self._panels(at, buffer)[n], self.widths[n]
            own, length = channels // self.sides.groups, len(work.spans[n])
            some = max(1, (1 << 15) // max(1, length * width))
            for group, b, row in product(
                range(self.sides.groups), range(self.blocks[n]), range(0, work.rows[n], some)
            ):
                panel = place + (group * self.blocks[n] + b) * size
                records.append(
                    (
                        code, 0, panel + row * length * width * self.element, width,
                        min(width, own - b * width), first + row, min(some, work.rows[n] - row),
                        length, n, group * own + b * width, work.spans[n].start, 0, 0,
                    )
                )  # fmt: skip
            first += work.rows[n]
        return np.array(records, np.int64).reshape(-1, RECORD)

    def _panels(self, at: int, buffer: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where x's and g's panels begin, and how far apart they lie."""
        x, g = self.panel_bytes
        first = (buffer * self.sets + at) * self.slab_bytes
        second = first + self.sides.groups * self.blocks[0] * x
        inside = [width * self.element for width in self.widths]
        return (
            (0, inside[0]) if self.in_place[0] else (first, x),
            (0, inside[1]) if self.in_place[1] else (second, g),
        )


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
