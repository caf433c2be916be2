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
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np

from ...problem import Problem
from .correlation import weight_strides
from .cpu import Cpu
from .values import BYTES
from .weight_grad_tile import sides_of

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


class Plan:
    """Tables of one problem: slabs, what is packed for each, and what a job does with it."""

    def __init__(self, problem: Problem, cpu: Cpu) -> None:
        self.problem, self.sides = problem, sides_of(problem, cpu)
        tile = self.sides.tile
        self.element = BYTES[tile.element]
        self.taps = prod(axis.kernel for axis in problem.axes)
        blocks = self.sides.row_blocks, self.sides.lane_blocks
        widths = tile.rows, tile.width
        if tile.own:
            blocks, widths = (self.sides.lane_blocks,) * 2, (tile.width,) * 2
        # Of x and of g.
        self.widths = widths if self.sides.lanes_of_g else widths[::-1]
        self.blocks = blocks if self.sides.lanes_of_g else blocks[::-1]
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
        rows: list[Numbers] = []
        entries: list[Numbers] = []
        segments: list[Numbers] = []
        self._row_count = self._entry_count = self._segment_count = 0
        work = []
        for slab in self.slabs:
            outputs, g_rows, own = _segments(reached[:, slab.rows.start : slab.rows.stop])
            span = self._outputs(slab)
            sizes = (len(slab.rows) * (slab.stop - slab.start), len(g_rows) * len(span))
            first = self._row_count
            rows += [self._places(0, np.array(slab.rows)), self._places(1, g_rows)]
            work.append((slab, span, first, len(g_rows), sizes, self._entry_count))
            entries.append(self._entries_of(slab, span, outputs))
            lengths = ((slab.stop - slab.start), len(span))
            order = (0, 1) if self.sides.lanes_of_g else (1, 0)
            segments.append(
                np.stack([own[i] * lengths[i] * self.widths[i] for i in order], -1) * self.element
            )
            self._row_count += len(slab.rows) + len(g_rows)
            self._entry_count += len(entries[-1])
            self._segment_count += len(own[0])
        self.rows, self.entries = np.concatenate(rows), np.concatenate(entries)
        self.segments = np.concatenate([*segments, np.zeros((1, 2), np.int64)])
        self._panel_sizes = [max(size) for size in zip(*(w[4] for w in work), strict=True)]
        self._work = work

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

    def _outputs(self, slab: Slab) -> range:
        """The outputs of the last axis that a slab meets."""
        axis = self.problem.axes[-1]
        low = axis.stride * slab.start - axis.crop_begin
        high = axis.stride * (slab.stop - 1) + axis.extent - axis.crop_begin
        return range(min(max(0, low), axis.out), max(0, min(axis.out, high)))

    def _entries_of(self, slab: Slab, span: range, outer: list[tuple[int, int]]) -> Numbers:
        """What tiles do in a slab: for each outer tap, for each run of taps that a tile has."""
        kernel, many = self.problem.axes[-1].kernel, self.sides.tile.taps
        runs = [self._run(tap, slab, span) for tap in range(0, kernel, many)]
        first = self._segment_count
        records = [
            (first + start, count, *entry[:3], number * kernel + entry[3], entry[4])
            for number, (start, count) in enumerate(outer)
            for run in runs
            for entry in run
        ]
        return np.array(records, np.int64)

    def _run(self, tap: int, slab: Slab, span: range) -> list[tuple[int, ...]]:
        """Some taps together where all of them meet an output, and each alone beside that."""
        many = self.sides.tile.taps
        spans = [self._span(tap + i, slab) for i in range(many)]
        start, stop = max(span[0] for span in spans), min(span[1] for span in spans)
        if start >= stop:
            start = stop = slab.stop
        found = [self._entry(tap, slab, span, start, stop, 0)]
        for i, (first, last) in enumerate(spans if many > 1 else ()):
            found.append(self._entry(tap + i, slab, span, first, min(last, start), 1))
            found.append(self._entry(tap + i, slab, span, max(first, stop), last, 1))
        return found

    def _entry(
        self, tap: int, slab: Slab, span: range, start: int, stop: int, single: int
    ) -> tuple[int, ...]:
        """Where positions [start, stop) of a tap begin in both panels, and how many they are."""
        axis = self.problem.axes[-1]
        if start >= stop:
            return (0, 0, 0, tap, single)
        output = axis.stride * start + axis.dilation * tap - axis.crop_begin
        both = start - slab.start, output - span.start
        x, g = (n * width * self.element for n, width in zip(both, self.widths, strict=True))
        row, lane = (x, g) if self.sides.lanes_of_g else (g, x)
        return row, lane, stop - start, tap, single

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
            -(-size * width * self.element // 64) * 64
            for size, width in zip(self._panel_sizes, self.widths, strict=True)
        )
        return x, g

    @property
    def slab_bytes(self) -> int:
        """Bytes of all panels of a slab."""
        both = zip(self.blocks, self.panel_bytes, strict=True)
        return self.sides.groups * sum(count * size for count, size in both)

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
        row, lane = (x, g) if self.sides.lanes_of_g else (g, x)
        for name, (start, size) in (("rows", row), ("lanes", lane)):
            records[:, field[name]] = start + records[:, field[name]] * size
        records[:, field["entries"]] += self._work[i][5]
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
        slab, span, first, g_rows, _, _ = self._work[i]
        problem, records = self.problem, []
        for of_g, rows, length, start in (
            (0, len(slab.rows), slab.stop - slab.start, slab.start),
            (1, g_rows, len(span), span.start),
        ):
            place, size = self._panels(at, buffer)[of_g]
            width, channels = (
                self.widths[of_g],
                problem.out_channels if of_g else problem.in_channels,
            )
            own = channels // self.sides.groups
            some = max(1, (1 << 15) // max(1, length * width))
            for group, b, row in product(
                range(self.sides.groups), range(self.blocks[of_g]), range(0, rows, some)
            ):
                panel = place + (group * self.blocks[of_g] + b) * size
                records.append(
                    (
                        code, 0, panel + row * length * width * self.element, width,
                        min(width, own - b * width), first + of_g * len(slab.rows) + row,
                        min(some, rows - row), length, of_g, group * own + b * width, start, 0, 0,
                    )
                )  # fmt: skip
        return np.array(records, np.int64)

    def _panels(self, at: int, buffer: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where x's and g's panels begin, and how far apart they lie."""
        x, g = self.panel_bytes
        first = (buffer * self.sets + at) * self.slab_bytes
        return (first, x), (first + self.sides.groups * self.blocks[0] * x, g)


def _segments(reached: Numbers) -> tuple[list[tuple[int, int]], Numbers, tuple[Numbers, Numbers]]:
    """Of some rows of x: for each outer tap its first segment and how many it has; the rows of g;
    and for each segment the numbers of its row among these rows of x and of g."""
    g_rows = np.unique(reached[reached >= 0])
    taps, rows = np.nonzero(reached >= 0)
    counts = np.bincount(taps, minlength=len(reached))
    starts = np.cumsum(counts) - counts
    own = rows, np.searchsorted(g_rows, reached[taps, rows])
    return list(zip(starts.tolist(), counts.tolist(), strict=True)), g_rows, own
