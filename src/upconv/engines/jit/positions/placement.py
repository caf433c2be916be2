"""Placement of tiles, also at the ragged end of a row: their spans, and the pieces of tiles that
are not entirely outputs in one row.

A *class* of outputs is a class of rows and a class of phases. A class's rows have equally many
positions along each outer axis; its phases have equally many along the last axis. Outputs in one
class differ by an offset.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ....properties import cached_property
from ..correlation import Correlation
from ..kernel_arguments import Table, filled, offsets
from ..packing import Numbers
from ..values import BYTES
from .schedule import Schedule
from .tables import PHASE_TUPLE, PIECE, SPAN, TILES, split
from .tiling import stores


class PhaseClass(NamedTuple):
    """A block's outputs along the last axis: `phases` phases of each of a row's first `positions`
    positions, and `rest` phases of the next position, which the row's end cuts."""

    phases: int
    positions: int
    rest: int

    @classmethod
    def of(cls, plan: Schedule, phase: int, phases: int) -> PhaseClass:
        """Return the class of `phases` phases from `phase` on."""
        last = plan.padded.last
        positions = max(0, (last.out - phase - phases + last.stride) // last.stride)
        rest = last.out - phase - positions * last.stride
        return cls(phases, positions, min(max(rest, 0), phases))


class Placement:
    """A layer's spans, tiles and pieces. `ranges[cache block, class of rows, class of phases]` is
    the first span and the number of spans."""

    def __init__(self, correlation: Correlation, plan: Schedule) -> None:
        self._plan, self._tile, padded = plan, plan.tiles[0], plan.padded
        self._direct = stores(correlation)
        self._element, self._staged = BYTES[correlation.element], BYTES[plan.tiles[0].stored]
        self._position = padded.last.stride * correlation.dtype.itemsize
        out, outer = correlation.result_size, padded.outer
        by_axis = [prod(out[i + 1 :]) * correlation.dtype.itemsize for i in range(len(outer))]
        # The steps of images and of each outer axis, in positions, images and bytes of y.
        along_y = [n * line.stride for n, line in zip(by_axis, outer, strict=True)]
        positions = [n * padded.row_stride for n in (padded.rows, *padded.steps)]
        self._steps = np.array([positions, [1, *[0] * len(outer)], [0, *along_y]])
        _, self.span_image, self.span_y = (self._steps[:, -1] * plan.span_rows).tolist()
        self._tables: dict[str, list[Table]] = {"spans": [], "tiles": [], "pieces": []}
        self._patterns: dict[tuple[int, PhaseClass], tuple[int, int]] = {}
        tuples = list(padded.phase_tuples())
        lengths = [tuple(phase.length for phase in phases) for phases in tuples]
        rows = list(dict.fromkeys(lengths))
        chunks = [(block.phase, plan.tiles[block.kind].phases) for block in plan.blocks]
        by_chunk = {chunk: PhaseClass.of(plan, *chunk) for chunk in dict.fromkeys(chunks)}
        numbers = {phases: i for i, phases in enumerate(dict.fromkeys(by_chunk.values()))}
        self.classes = [numbers[by_chunk[chunk]] for chunk in chunks]
        taps = [prod(len(phase.taps) for phase in phases) for phases in tuples]
        self.phase_tuples = filled(
            PHASE_TUPLE, len(tuples), tap=np.cumsum(taps) - taps, taps=taps,
            y=[
                sum(phase.offset * n for phase, n in zip(phases, by_axis, strict=True))
                for phases in tuples
            ],
            rows=[rows.index(counts) * len(numbers) for counts in lengths],
        )  # fmt: skip
        self.ranges = np.zeros((plan.cache_blocks, len(rows), len(numbers), 2), np.int64)
        add_spans = self._by_rows if plan.span_rows else self._across_rows
        for (i, counts), (phases, k) in product(enumerate(rows), numbers.items()):
            add_spans((correlation.batch, *counts), phases, self.ranges[:, i, k])

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The spans, tiles and pieces."""
        records = {"spans": SPAN, "tiles": TILES, "pieces": PIECE}
        return {name: _joined(records[name], parts) for name, parts in self._tables.items()}

    def _add(self, name: str, table: Table) -> int:
        """Append to a table, and return the number of the first new record."""
        parts = self._tables[name]
        parts.append(table)
        return sum(map(len, parts[:-1]))

    # Spans ----------------------------------------------------------------------------------------

    def _across_rows(self, counts: tuple[int, ...], phases: PhaseClass, ranges: Numbers) -> None:
        """Add one span for each cache block, with tiles that continue across rows."""
        plan, blocks = self._plan, np.arange(len(ranges) + 1)
        first, of_block = self._add_tiles(
            phases, offsets(counts, *self._steps), plan.padded.total, plan.cache_block
        )
        bounds = of_block.searchsorted(blocks)
        tiles, count = first + bounds[:-1], np.diff(bounds)
        spans = filled(SPAN, len(ranges), count=1, tiles=tiles, tile_count=count)
        ranges[:, 0], ranges[:, 1] = self._add("spans", spans) + blocks[:-1], 1

    def _by_rows(self, counts: tuple[int, ...], phases: PhaseClass, ranges: Numbers) -> None:
        """Add spans of `span_rows` rows, and of a plane's remaining rows, for each part of a plane
        in a cache block."""
        stride, size = self._plan.padded.row_stride, self._plan.span_rows
        start, image, y = offsets(counts[:-1], *self._steps[:, :-1])
        _, image_step, y_step = self._steps[:, -1]
        start //= stride
        plane, block, low, high = split(start, start + counts[-1], self._plan.cache_block // stride)
        repeats, rest = np.divmod(high - low, size)
        parts = []
        for rows in (size, *np.unique(rest).tolist()):
            chosen = np.flatnonzero(repeats > 0 if rows == size else rest == rows)
            if not rows or not len(chosen):
                continue
            begin = low + (0 if rows == size else repeats * size)
            index, (tiles, tile_count) = begin - start[plane], self._pattern(rows, phases)
            spans = filled(
                SPAN, len(low), x=(begin * stride - block * self._plan.cache_block) * self._element,
                y=y[plane] + index * y_step, image=image[plane] + index * image_step,
                count=repeats if rows == size else 1, tiles=tiles, tile_count=tile_count,
            )  # fmt: skip
            parts.append((block[chosen], spans[chosen]))
        if parts:
            blocks = np.concatenate([blocks for blocks, _ in parts])
            table, order = _joined(SPAN, [table for _, table in parts]), np.argsort(blocks)
            first = self._add("spans", table[order])
            bounds = np.searchsorted(blocks[order], np.arange(len(ranges) + 1))
            ranges[:, 0], ranges[:, 1] = first + bounds[:-1], np.diff(bounds)

    def _pattern(self, rows: int, phases: PhaseClass) -> tuple[int, int]:
        """Return the first tile record of `rows` adjacent rows, and the number of records."""
        if (rows, phases) not in self._patterns:
            padded = self._plan.padded
            total = (rows - 1) * padded.row_stride + padded.last.phases[0].length
            neighbours = offsets((rows,), *self._steps[:, -1:])
            first, blocks = self._add_tiles(phases, neighbours, total, total)
            self._patterns[rows, phases] = first, len(blocks)
        return self._patterns[rows, phases]

    # Tiles ----------------------------------------------------------------------------------------

    def _add_tiles(
        self, phases: PhaseClass, rows: Numbers, total: int, cache_block: int
    ) -> tuple[int, Numbers]:
        """Add tiles for `total` positions, with one record for adjacent tiles in a row. Return the
        first record's number, and the cache block of each record."""
        start, image, y = rows
        low, high, elements = start, start + phases.positions, np.array([phases.phases])
        if phases.rest:  # each row has complete positions, and one that the row's end cuts
            low, high = (np.stack(both, 1).ravel() for both in ((low, high), (high, high + 1)))
            start, image, y = rows.repeat(2, 1)
            elements = np.array([phases.phases, phases.rest])
        interval, begin, low, high, width = self._parts(low, high, total, cache_block)
        if not len(begin):
            return 0, begin
        elements, positions = elements[interval % len(elements)], high - low
        complete = elements == phases.phases
        full = complete & (positions >= width)
        count, positions = np.where(full, positions // width, 1), np.minimum(positions, width)
        image, y = image[interval], y[interval] + (low - start[interval]) * self._position
        new = np.ones(len(begin), bool)
        new[1:] = begin[1:] != begin[:-1]
        direct = full & self._direct
        staged, runs = ~direct, np.where(complete, positions, 1)
        dense = phases.phases == self._plan.padded.last.stride
        pieces = filled(
            PIECE, len(y), y=y, image=image, stage=(low - begin) * (phases.phases * self._staged),
            runs=1 if dense else runs, length=elements * runs if dense else elements,
        )[staged]  # fmt: skip
        (firsts,), before = new.nonzero(), staged.cumsum()
        lasts = np.append(firsts[1:], len(new)) - 1
        first_piece = before[firsts] - staged[firsts]
        block = begin[firsts] // cache_block
        table = filled(
            TILES, len(firsts), x=(begin[firsts] - block * cache_block) * self._element,
            y=(y * direct)[firsts], image=(image * direct)[firsts], count=count[firsts],
            tail=width[firsts] < self._tile.width,
            pieces=self._add("pieces", pieces) + first_piece,
            piece_count=before[lasts] - first_piece,
        )  # fmt: skip
        return self._add("tiles", table), block

    def _parts(self, low: Numbers, high: Numbers, total: int, cache_block: int) -> list[Numbers]:
        """Cut intervals of positions, in order, into runs of full tiles and parts of tiles.

        Return each part's interval, the start of its first tile, low, high, and a tile's width.
        """
        tile, begin = self._tile, (total - 1) // cache_block * cache_block
        middle = begin + (total - begin) // tile.width * tile.width
        vectors = -(-(total - middle) // tile.lanes)
        # A remainder of nearly a full tile is cheaper as one tile than as single vectors.
        nearly = vectors > tile.tail_vectors
        behind = tile.width if nearly else vectors * tile.lanes
        # The last tiles end at the last position and compute some results again, which avoids
        # staging results beyond the end. If results are added to y, none may be computed twice.
        early = max(min(middle, total - behind), begin) if self._direct else middle
        interval, _, low_main, high_main = split(low, np.minimum(high, middle), cache_block)
        tail = np.arange(high.searchsorted(early, side="right"), len(high))
        interval = np.append(interval, tail)
        low = np.append(low_main, np.maximum(low[tail], early))
        high = np.append(high_main, high[tail])
        origin, width = np.zeros_like(low), np.full_like(low, tile.width)
        origin[len(low_main) :] = early
        width[len(low_main) :] = tile.width if nearly else tile.lanes
        first = origin - (origin - low) // width * width
        last = (high - origin) // width * width + origin
        first = np.minimum(first, high)
        edges = np.array([low, first, np.maximum(first, last), high]).T
        row, part = (edges[:, 1:] > edges[:, :-1]).nonzero()
        low, high, width, origin = edges[row, part], edges[row, part + 1], width[row], origin[row]
        return [interval[row], low - (low - origin) % width, low, high, width]


def _joined(kind: np.dtype[Any], parts: list[Table]) -> Table:
    """Concatenate tables of one kind; NumPy's function is slow because it compares their types."""
    if len(parts) == 1:
        return parts[0]
    table, first = np.empty(sum(map(len, parts)), kind), 0
    for part in parts:
        table[first : first + len(part)] = part
        first += len(part)
    return table
