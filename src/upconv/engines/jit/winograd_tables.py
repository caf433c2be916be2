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
from .winograd_plan import Schedule, Window, boxes

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_PART = 1 << 18  # numbers of the transformed weight that are made at once


class Tables:
    """What `run` reads; `spans` are positions of a block's operand along each axis, and `results`
    those of its results, for the largest block."""

    def __init__(self, correlation: Correlation, schedule: Schedule) -> None:
        self._schedule = schedule
        pairs = list(zip(schedule.windows, schedule.transforms, strict=True))
        tiles = schedule.box[1:]
        self.spans = tuple(t.m * n + t.r - 1 for (_, t), n in zip(pairs, tiles, strict=True))
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
        self.row, self.tile = np.concatenate(rows), np.concatenate(tables)
        self.result = np.concatenate(results)

    def _tiles(self, counts: tuple[int, ...]) -> Numbers:
        """Where each tile of a box of so many has its operand and its results."""
        image, *places = np.indices(counts).reshape(len(counts), -1)
        ms = [t.m for t in self._schedule.transforms]
        stride = self._schedule.windows[-1].line.stride
        operand, result = image, image
        for place, m, span, step in zip(places, ms, self.spans, self.steps, strict=True):
            operand, result = operand * span + m * place, result * step + m * place
        return np.stack([operand, result * stride], -1)

    def _rows(self, box: tuple[range, ...]) -> Numbers:
        """The rows of the operand that a block reads: where each goes, and its image (or -1) and
        first position."""
        schedule = self._schedule
        axes = list(zip(schedule.windows, schedule.transforms, box[1:], strict=True))[:-1]
        counts = [t.m * len(tiles) + t.r - 1 for _, t, tiles in axes]
        image, *places = np.indices((len(box[0]), *counts)).reshape(len(axes) + 1, -1)
        row, position, inside = image, np.zeros_like(image), np.ones(len(image), bool)
        for (window, t, tiles), place, span in zip(axes, places, self.spans, strict=False):
            i = place + _first(window, t, tiles)
            inside &= (i >= 0) & (i < window.line.size)
            row, position = row * span + place, position * window.line.size + i
        last = schedule.windows[-1].line.size
        found = np.where(inside, image + box[0].start, -1)
        return np.stack([row * self.spans[-1], found, position * last], -1)

    def _column(self, box: tuple[range, ...]) -> tuple[int, int, int]:
        """Positions of a row that are before the operand, those inside, and where these begin."""
        schedule, tiles = self._schedule, box[-1]
        t, window = schedule.transforms[-1], schedule.windows[-1]
        start = _first(window, t, tiles)
        stop = start + t.m * len(tiles) + t.r - 1
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


def _first(window: Window, transform: Transform, tiles: range) -> int:
    """The first position of the operand that some tiles read."""
    return transform.m * tiles.start - window.low - (transform.r - 1)


class Weights:
    """The order of a transformed weight: [group][unit][point][panel][reduced][panel's columns]."""

    def __init__(self, correlation: Correlation, schedule: Schedule, lanes: int) -> None:
        self._correlation, self._schedule = correlation, schedule
        self._dtype = correlation.dtype.numpy
        self.reduced = correlation.reduced // correlation.groups
        self._made = correlation.made // correlation.groups
        self.chunks = ceil(self._made / schedule.channels)
        self._panel = schedule.vectors * lanes
        pairs = zip(schedule.windows, schedule.transforms, strict=True)
        self._matrices = [_matrix(window, transform) for window, transform in pairs]
        self.units = self.chunks * prod(w.line.stride for w in schedule.windows[:-1])
        self.point_bytes = self.reduced * schedule.columns * self._dtype.itemsize
        self.unit_bytes = schedule.points * self.point_bytes
        self.nbytes = correlation.groups * self.units * self.unit_bytes

    def pack(self, weight: Array) -> Array:
        """The transform of a weight of the correlation's shape: in float64, then rounded once."""
        memory.require(self.nbytes + 16 * _PART, "the transformed weight")
        correlation, schedule = self._correlation, self._schedule
        weight = np.ascontiguousarray(weight)
        by_group, by_reduced, by_made, *by_tap = correlation.weight_strides
        kernel = [matrix.shape[-1] for matrix in self._matrices]
        strides = [n * weight.itemsize for n in (by_group, by_reduced, by_made, *by_tap)]
        shape = (correlation.groups, self.reduced, self._made, *kernel)
        given = np.lib.stride_tricks.as_strided(weight, shape, strides, writeable=False)
        across = schedule.columns // self._panel
        outer = [window.line.stride for window in schedule.windows[:-1]]
        last = schedule.windows[-1].line.stride
        flat = aligned(self.nbytes // self._dtype.itemsize + 64, self._dtype)
        flat[self.nbytes // self._dtype.itemsize :] = 0
        packed = flat[: self.nbytes // self._dtype.itemsize].reshape(
            correlation.groups, prod(outer), self.chunks, schedule.points, across,
            self.reduced, self._panel,
        )  # fmt: skip
        padded = self.chunks * schedule.padded
        per = schedule.points * prod(outer) * last * padded
        part = max(1, _PART // per)
        for group, start in product(range(correlation.groups), range(0, self.reduced, part)):
            some = self._transformed(given[group, start : start + part])
            # (points, outer phases, last phase, reduced, made) -> (..., chunks, padded)
            spread = np.zeros((*some.shape[:-1], self.chunks, schedule.padded), self._dtype)
            for chunk in range(self.chunks):
                mine = some[..., chunk * schedule.channels : (chunk + 1) * schedule.channels]
                spread[..., chunk, : mine.shape[-1]] = mine
            columns = spread.transpose(1, 4, 0, 3, 2, 5).reshape(
                prod(outer), self.chunks, schedule.points, -1, across, self._panel
            )
            packed[group, ..., start : start + part, :] = columns.transpose(0, 1, 2, 4, 3, 5)
        return flat

    def _transformed(self, weight: Array) -> Array:
        """(reduced, made, *kernel) -> (points, outer phases, last phase, reduced, made)."""
        reduced, made, *kernel = weight.shape
        rank = len(kernel)
        planes = weight.transpose(*range(2, 2 + rank), 0, 1).astype(np.float64)
        planes = planes.reshape(1, *planes.shape)
        for matrix in self._matrices:
            # The first kernel axis goes, its points and phases come before the others.
            points, phases, _ = matrix.shape
            found = np.zeros((len(planes), points, phases, *planes.shape[2:]))
            for p, g, tap in np.argwhere(matrix).tolist():
                found[:, p, g] += matrix[p, g, tap] * planes[:, tap]
            planes = found.reshape(-1, *planes.shape[2:])
        sizes = [n for matrix in self._matrices for n in matrix.shape[:2]]
        order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), 2 * rank, 2 * rank + 1]
        points, phases = prod(sizes[::2]), prod(sizes[1:-1:2])
        ordered = planes.reshape(*sizes, reduced, made).transpose(order)
        return ordered.reshape(points, phases, sizes[-1], reduced, made)


def _matrix(window: Window, transform: Transform) -> Array:
    """What a point and a phase have of each tap of the kernel along one axis."""
    kernel = 1 + max((index for _, _, index in window.taps), default=0)
    found = np.zeros((transform.points, window.line.stride, kernel))
    for g, place, index in window.taps:
        found[:, g, index] += [float(row[place]) for row in transform.g]
    return found
