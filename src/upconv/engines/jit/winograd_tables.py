"""The tables of a correlation by Winograd's algorithm: blocks, rows, tiles; and its weight's order.

NumPy decides here what lies where; winograd_code.py walks the tables. Rows of the operand and of
results lie in a thread's memory as in the largest block, whatever a block has of them.
"""

from __future__ import annotations

from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np

from ... import memory
from ..base import Array
from .correlation import Correlation
from .packing import aligned
from .winograd import Transform
from .winograd_plan import Schedule, Window, boxes, chunk_of, depth_of

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_PART = 1 << 18  # numbers of the transformed weight that are made at once


class Tables:
    """What `run` reads; `spans` are positions of a block's operand along each axis, and `results`
    those of its results, for the largest block."""

    def __init__(self, correlation: Correlation, schedule: Schedule) -> None:
        self._schedule = schedule
        pairs = list(zip(schedule.windows, schedule.transforms, strict=True))
        tiles = schedule.box[1:]
        self.spans = tuple(w.span(t, n) for (w, t), n in zip(pairs, tiles, strict=True))
        self.steps = tuple(t.m * n for (_, t), n in zip(pairs, tiles, strict=True))
        self.line = self.steps[-1] * schedule.windows[-1].line.stride
        self.phases = list(product(*(range(w.line.stride) for w in schedule.windows[:-1])))
        self._tile_places: dict[tuple[int, ...], int] = {}
        rows: list[Numbers] = []
        results: list[Numbers] = []
        tables: list[Numbers] = []
        blocks = []
        row_count = result_count = 0
        for box in boxes(schedule, correlation.batch):
            if tuple(map(len, box)) not in self._tile_places:
                self._tile_places[tuple(map(len, box))] = sum(map(len, tables))
                tables.append(self._tiles(tuple(map(len, box))))
            rows.append(self._rows(box))
            fields = [row_count, len(rows[-1]), *self._column(box)]
            fields += [self._tile_places[tuple(map(len, box))], prod(map(len, box))]
            row_count += len(rows[-1])
            last, step = schedule.windows[-1], schedule.transforms[-1].m
            start = last.line.stride * step * box[-1].start + last.base
            stop = min(last.line.out, start + last.line.stride * step * len(box[-1]))
            fields += [stop - max(0, start), max(0, -start)]
            for phase in self.phases:
                results.append(self._results(box, phase, max(0, start)))
                fields += [result_count, len(results[-1])]
                result_count += len(results[-1])
            blocks.append(fields)
        self.block = np.array(blocks, np.int64)
        self.phase = self._operand_phases()
        self.row, self.tile = np.concatenate(rows), np.concatenate(tables)
        self.result = np.concatenate(results)

    def _tiles(self, counts: tuple[int, ...]) -> Numbers:
        """Where each tile of a box of so many has its operand and its results."""
        image, *places = np.indices(counts).reshape(len(counts), -1)
        schedule = self._schedule
        ms = [t.m for t in schedule.transforms]
        stride = schedule.windows[-1].line.stride
        operand, result = image, image
        for place, m, window, span, step in zip(
            places, ms, schedule.windows, self.spans, self.steps, strict=True
        ):
            operand = operand * span + window.line.step * m * place
            result = result * step + m * place
        return np.stack([operand, result * stride], -1)

    def _operand_phases(self) -> Numbers:
        """Where in a block's operand each combination of phases begins."""
        found = np.zeros((), np.int64)
        for window, span in zip(self._schedule.windows, self.spans, strict=True):
            found = found[..., None] * span + np.arange(window.line.step)
        return found.ravel()

    def _rows(self, box: tuple[range, ...]) -> Numbers:
        """The rows of the operand that a block reads: where each goes, and its image (or -1) and
        first position."""
        schedule = self._schedule
        axes = list(zip(schedule.windows, schedule.transforms, box[1:], strict=True))[:-1]
        counts = [window.span(t, len(tiles)) for window, t, tiles in axes]
        image, *places = np.indices((len(box[0]), *counts)).reshape(len(axes) + 1, -1)
        row, position, inside = image, np.zeros_like(image), np.ones(len(image), bool)
        for (window, t, tiles), place, span in zip(axes, places, self.spans, strict=False):
            i = place + window.first(t, tiles)
            inside &= (i >= 0) & (i < window.line.size)
            row, position = row * span + place, position * window.line.size + i
        last = schedule.windows[-1].line.size
        found = np.where(inside, image + box[0].start, -1)
        return np.stack([row * self.spans[-1], found, position * last], -1)

    def _column(self, box: tuple[range, ...]) -> tuple[int, int, int]:
        """Positions of a row that are before the operand, those inside, and where these begin."""
        schedule, tiles = self._schedule, box[-1]
        t, window = schedule.transforms[-1], schedule.windows[-1]
        start = window.first(t, tiles)
        stop = start + window.span(t, len(tiles))
        before = min(max(0, -start), stop - start)
        count = max(0, min(stop, window.line.size) - max(0, start))
        return before, count, min(max(0, start), window.line.size)

    def _results(self, box: tuple[range, ...], phase: tuple[int, ...], column: int) -> Numbers:
        """The rows of the result that a block makes of one combination of outer phases."""
        schedule = self._schedule
        axes = list(zip(schedule.windows, schedule.transforms, box[1:], strict=True))[:-1]
        counts = [t.m * len(tiles) for _, t, tiles in axes]
        image, *places = np.indices((len(box[0]), *counts)).reshape(len(axes) + 1, -1)
        row, position, inside = image, np.zeros_like(image), np.ones(len(image), bool)
        for (window, t, tiles), place, step, g in zip(
            axes, places, self.steps, phase, strict=False
        ):
            o = window.line.stride * (place + t.m * tiles.start) + window.base + g
            inside &= (o >= 0) & (o < window.line.out)
            row, position = row * step + place, position * window.line.out + o
        last = schedule.windows[-1].line.out
        found = [row * self.line, image + box[0].start, position * last + column]
        return np.stack(found, -1)[inside]


class Weights:
    """The order of a transformed weight: [group][unit][point][panel][depth][panel's columns], where
    depth is [chunk][phase of operands][reduced channel of the chunk]."""

    def __init__(self, correlation: Correlation, schedule: Schedule, lanes: int) -> None:
        self._correlation, self._schedule = correlation, schedule
        self._dtype = correlation.dtype.numpy
        self.reduced, self.depth = correlation.reduced // correlation.groups, depth_of(correlation)
        self.chunk = chunk_of(self.reduced, lanes)
        self._made = correlation.made // correlation.groups
        self.chunks = ceil(self._made / schedule.channels)
        self._panel = schedule.vectors * lanes
        pairs = zip(schedule.windows, schedule.transforms, strict=True)
        self._matrices = [_matrix(window, transform) for window, transform in pairs]
        self._outer = prod(w.line.stride for w in schedule.windows[:-1])
        self.units = self.chunks * self._outer
        self.point_bytes = self.depth * schedule.columns * self._dtype.itemsize
        self.unit_bytes = schedule.points * self.point_bytes
        self.nbytes = correlation.groups * self.units * self.unit_bytes

    def pack(self, weight: Array) -> Array:
        """The transform of a weight of the correlation's shape: in float64, then rounded once."""
        memory.require(self.nbytes + 16 * _PART, "the transformed weight")
        correlation, schedule, phases = (
            self._correlation,
            self._schedule,
            self.depth // self.reduced,
        )
        weight = np.ascontiguousarray(weight)
        by_group, by_reduced, by_made, *by_tap = correlation.weight_strides
        strides = [n * weight.itemsize for n in (by_group, by_reduced, by_made, *by_tap)]
        kernel = [matrix.shape[-1] for matrix in self._matrices]
        shape = (correlation.groups, self.reduced, self._made, *kernel)
        given = np.lib.stride_tricks.as_strided(weight, shape, strides, writeable=False)
        count, across = self.nbytes // self._dtype.itemsize, schedule.columns // self._panel
        flat = aligned(count, self._dtype)
        packed = flat.reshape(
            correlation.groups, self._outer, self.chunks, schedule.points, across, self.depth,
            self._panel,
        )  # fmt: skip
        part = max(1, _PART * self.depth // count)
        for group, first in product(range(correlation.groups), range(0, self.reduced, self.chunk)):
            live = min(self.chunk, self.reduced - first)
            rows = packed[group, ..., first * phases : (first + live) * phases, :]
            rows = rows.reshape(*rows.shape[:-2], phases, live, self._panel)
            for start in range(0, live, part):
                stop = min(live, start + part)
                rows[..., start:stop, :] = self._columns(given[group, first + start : first + stop])
        return flat

    def _columns(self, weight: Array) -> Array:
        """(reduced, made, *kernel) -> (outer phases, chunks, points, panels, operand's phases,
        reduced, panel's columns)."""
        schedule, made = self._schedule, self._transformed(weight)
        spread = np.zeros((*made.shape[:-1], self.chunks, schedule.padded), self._dtype)
        for chunk in range(self.chunks):
            mine = made[..., chunk * schedule.channels : (chunk + 1) * schedule.channels]
            spread[..., chunk, : mine.shape[-1]] = mine
        points, outer, _, phases, reduced, *_ = spread.shape
        columns = spread.transpose(1, 5, 0, 3, 4, 2, 6).reshape(
            outer, self.chunks, points, phases, reduced, -1, self._panel
        )
        return np.moveaxis(columns, -2, 3)

    def _transformed(self, weight: Array) -> Array:
        """(reduced, made, *kernel) -> (points, outer phases, last phase, operand's phases, reduced,
        made)."""
        rank = len(self._matrices)
        planes = weight.transpose(*range(2, 2 + rank), 0, 1).astype(np.float64)
        planes = planes.reshape(1, *planes.shape)
        for matrix in self._matrices:
            # The first kernel axis goes, its points and phases come before the others.
            found = np.zeros((len(planes), *matrix.shape[:3], *planes.shape[2:]))
            for p, g, h, tap in np.argwhere(matrix).tolist():
                found[:, p, g, h] += matrix[p, g, h, tap] * planes[:, tap]
            planes = found.reshape(-1, *planes.shape[2:])
        sizes = [n for matrix in self._matrices for n in matrix.shape[:3]]
        order = [*range(0, 3 * rank, 3), *range(1, 3 * rank, 3), *range(2, 3 * rank, 3)]
        ordered = planes.reshape(*sizes, *planes.shape[-2:]).transpose(*order, -2, -1)
        return ordered.reshape(
            prod(sizes[::3]), self._outer, sizes[-2], prod(sizes[2::3]), *planes.shape[-2:]
        )


def _matrix(window: Window, transform: Transform) -> Array:
    """What a point, a phase of results and one of operands have of each tap along an axis."""
    kernel = 1 + max((index for _, _, _, index in window.taps), default=0)
    found = np.zeros((transform.points, window.line.stride, window.line.step, kernel))
    for g, h, place, index in window.taps:
        found[:, g, h, index] += [float(row[place]) for row in transform.g]
    return found
