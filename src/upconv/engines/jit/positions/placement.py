"""Where tiles lie: spans of tiles, and the pieces of tiles that are not wholly outputs of one row.

A *class* of outputs is a class of rows, as many along each outer axis, and a class of phases, as
many, and as many positions, along the last axis. Outputs of one class differ by an offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..correlation import Correlation
from ..kernel_arguments import Table, filled
from ..packing import Numbers
from .schedule import Schedule, most_tail_vectors
from .tables import PHASE_TUPLE, PIECE, SPAN, TILES, split
from .tiling import Block, finish_of


@dataclass(frozen=True, slots=True)
class PhaseClass:
    """Outputs of a block along the last axis: `phases` of each of the first `positions` positions
    of a row, and `rest` of the next, which the row's end cuts."""

    phases: int
    positions: int
    rest: int

    @classmethod
    def of(cls, plan: Schedule, block: Block) -> PhaseClass:
        """The class of a block's phases."""
        last, phases = plan.padded.last, plan.tiles[block.kind].phases
        positions = max(0, (last.out - block.phase - phases + last.stride) // last.stride)
        rest = last.out - block.phase - positions * last.stride
        return cls(phases, positions, min(max(rest, 0), phases))


class Placement:
    """The spans, tiles and pieces of a layer; `ranges[cache block, class of rows, class of phases]`
    are the first span and their count."""

    def __init__(self, correlation: Correlation, plan: Schedule) -> None:
        self._plan, self._tile, padded = plan, plan.tiles[0], plan.padded
        self._direct = finish_of(correlation).is_plain
        self._element = correlation.dtype.accumulator.numpy.itemsize
        self._position = padded.last.stride * correlation.dtype.itemsize
        out, outer = correlation.result_size, padded.outer
        by_axis = [prod(out[i + 1 :]) * correlation.dtype.itemsize for i in range(len(outer))]
        # Of the images and each outer axis: positions, images and bytes of y to the next.
        self._steps = np.array(
            [
                [n * padded.row_stride for n in (padded.rows, *padded.steps)],
                [1] + [0] * len(outer),
                [0, *(n * line.stride for n, line in zip(by_axis, outer, strict=True))],
            ]
        )
        _, self.span_image, self.span_y = (self._steps[:, -1] * plan.span_rows).tolist()
        self._tables: dict[str, list[Table]] = {"spans": [], "tiles": [], "pieces": []}
        self._patterns: dict[tuple[int, PhaseClass], tuple[int, int]] = {}
        tuples = list(padded.phase_tuples())
        lengths = [tuple(phase.length for phase in phases) for phases in tuples]
        rows = list(dict.fromkeys(lengths))
        every = [PhaseClass.of(plan, block) for block in plan.blocks]
        classes = list(dict.fromkeys(every))
        self.classes = [classes.index(phases) for phases in every]
        taps = np.array([prod(len(phase.taps) for phase in phases) for phases in tuples])
        firsts = [[phase.offset for phase in phases] for phases in tuples]
        self.phase_tuples = filled(
            PHASE_TUPLE, len(tuples), tap=np.cumsum(taps) - taps, taps=taps,
            y=np.dot(firsts, by_axis),
            rows=[rows.index(counts) * len(classes) for counts in lengths],
        )  # fmt: skip
        self.ranges = np.zeros((plan.cache_blocks, len(rows), len(classes), 2), np.int64)
        add_spans = self._by_rows if plan.span_rows else self._across_rows
        for (i, counts), (k, phases) in product(enumerate(rows), enumerate(classes)):
            add_spans((correlation.batch, *counts), phases, self.ranges[:, i, k])

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The spans, tiles and pieces."""
        records = {"spans": SPAN, "tiles": TILES, "pieces": PIECE}
        return {name: _joined(records[name], parts) for name, parts in self._tables.items()}

    def _add(self, name: str, table: Table) -> int:
        """Append to a table, and return the number of the first record."""
        parts = self._tables[name]
        parts.append(table)
        return sum(map(len, parts[:-1]))

    # Spans ----------------------------------------------------------------------------------------

    def _across_rows(self, counts: tuple[int, ...], phases: PhaseClass, ranges: Numbers) -> None:
        """One span for each cache block, of tiles that run on across rows."""
        total, size, blocks = (
            self._plan.padded.total,
            self._plan.cache_block,
            np.arange(len(ranges)),
        )
        first, of_block = self._add_tiles(phases, _sums(counts, self._steps), total, size)
        bounds = np.searchsorted(of_block, np.append(blocks, len(ranges)))
        spans = filled(
            SPAN, len(ranges), count=1, tiles=first + bounds[:-1], tile_count=np.diff(bounds)
        )
        ranges[:, 0], ranges[:, 1] = self._add("spans", spans) + blocks, 1

    def _by_rows(self, counts: tuple[int, ...], phases: PhaseClass, ranges: Numbers) -> None:
        """Spans of `span_rows` rows each, and of the rows that remain of a plane, for each part of
        a plane in a cache block."""
        stride, size = self._plan.padded.row_stride, self._plan.span_rows
        start, image, y = _sums(counts[:-1], self._steps[:, :-1])
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
        """The first tile record of so many neighbouring rows, and their count."""
        if (rows, phases) not in self._patterns:
            padded = self._plan.padded
            total = (rows - 1) * padded.row_stride + padded.last.phases[0].length
            neighbours = _sums((rows,), self._steps[:, -1:])
            first, blocks = self._add_tiles(phases, neighbours, total, total)
            self._patterns[rows, phases] = first, len(blocks)
        return self._patterns[rows, phases]

    # Tiles ----------------------------------------------------------------------------------------

    def _add_tiles(
        self, phases: PhaseClass, rows: Numbers, total: int, cache_block: int
    ) -> tuple[int, Numbers]:
        """Add the tiles of `total` positions, neighbours of one row as one record; the number of
        the first record, and the cache block of each."""
        intervals = self._with_tail(_intervals(phases, rows, self._position), total, cache_block)
        low, high, origin, width = intervals[:4]
        number, tile, start, stop = split(low - origin, high - origin, width)
        if not len(tile):
            return 0, tile
        _, _, origin, width, elements, image, y = intervals[:, number]
        within, positions, begin = start - tile * width, stop - start, origin + tile * width
        y += (begin + within) * self._position
        block = begin // cache_block
        whole = elements == phases.phases
        full = whole & (positions == width)
        alike = full[1:] & full[:-1] & (number[1:] == number[:-1]) & (block[1:] == block[:-1])
        new = np.ones(len(tile), bool)
        new[1:] = ~alike & (begin[1:] != begin[:-1])
        direct = full & self._direct
        staged = (new | ~full) & ~direct  # of tiles that are alike, the first one's
        dense = phases.phases == self._plan.padded.last.stride
        pieces = filled(
            PIECE, len(y), y=y, image=image, stage=within * phases.phases * self._element,
            runs=1 if dense else np.where(whole, positions, 1),
            length=elements * np.where(whole, positions, 1) if dense else elements,
        )[staged]  # fmt: skip
        (firsts,) = new.nonzero()
        lasts, before = np.empty_like(firsts), staged.cumsum()
        lasts[:-1], lasts[-1] = firsts[1:] - 1, len(new) - 1
        first_piece = before[firsts] - staged[firsts]
        y[~direct] = image[~direct] = 0
        x = (begin - block * cache_block) * self._element
        table = filled(
            TILES, len(firsts), x=x[firsts], y=y[firsts], image=image[firsts],
            count=tile[lasts] - tile[firsts] + 1, tail=width[firsts] < self._tile.width,
            pieces=self._add("pieces", pieces) + first_piece,
            piece_count=before[lasts] - first_piece,
        )  # fmt: skip
        return self._add("tiles", table), block[firsts]

    def _with_tail(self, intervals: Numbers, total: int, cache_block: int) -> Numbers:
        """Intervals as main tiles divide them, and those that tail tiles, of the last cache block,
        divide."""
        tile, begin = self._tile, (total - 1) // cache_block * cache_block
        middle = begin + (total - begin) // tile.width * tile.width
        vectors = -(-(total - middle) // tile.lanes)
        # A rest of nearly a whole tile is cheaper as one than in single vectors.
        nearly = vectors > most_tail_vectors(tile)
        behind = tile.width if nearly else vectors * tile.lanes
        # The last tiles end where the positions do, and compute some results again, rather than
        # store what lies behind by way of the stage; but where they are added, only once.
        early = max(min(middle, total - behind), begin) if self._direct else middle
        tail = intervals[:, np.searchsorted(intervals[1], early, side="right") :].copy()
        tail[0], tail[2] = np.maximum(tail[0], early), early
        tail[3] = tile.width if nearly else tile.lanes
        intervals[1], intervals[3] = np.minimum(intervals[1], middle), tile.width
        return np.concatenate([intervals, tail], 1)


def _joined(kind: np.dtype[Any], parts: list[Table]) -> Table:
    """Tables of one kind as one; NumPy takes long to find out that they are."""
    table, first = np.empty(sum(map(len, parts)), kind), 0
    for part in parts:
        table[first : first + len(part)] = part
        first += len(part)
    return table


def _intervals(phases: PhaseClass, rows: Numbers, position: int) -> Numbers:
    """Intervals of outputs of rows whose starts, images and offsets in y are listed. Their columns:
    first position, the one behind the last, where tiles begin, positions of a tile, elements of a
    position, image, and the offset in y of position 0 if it were of this row."""
    start, image, y = rows
    table = np.zeros((7, len(start)), np.int64)
    table[0], table[1], table[4] = start, start + phases.positions, phases.phases
    table[5], table[6] = image, y - start * position
    if not phases.rest:
        return table
    cut = table.copy()
    cut[0], cut[1], cut[4] = table[1], table[1] + 1, phases.rest
    return np.stack([table, cut], 2).reshape(7, -1)


def _sums(counts: tuple[int, ...], steps: Numbers) -> Numbers:
    """The sums of index times step over the axes, for all indices, of each row of steps."""
    total = np.zeros((len(steps), 1), np.int64)
    for count, step in zip(counts, steps.T, strict=True):
        along = np.arange(count) * step[:, None]
        total = (total[:, :, None] + along[:, None]).reshape(len(steps), -1)
    return total
