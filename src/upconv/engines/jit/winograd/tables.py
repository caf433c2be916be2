"""The tables of a correlation by Winograd's algorithm: blocks, rows to pack, tiles, results.

Blocks along an axis differ at its ends alone, where windows reach beyond the operand or results
end. A *kind* is a block of the one end, a block that stands for all between, or one of the other
end; a *shape* is a kind for each axis. Records of a shape hold bytes from where its block begins,
which is the block's number along each axis times a step. So tables grow with the kinds, not with
the blocks. Records of shapes that agree are kept once.

There are always three axes and the images; of fewer axes, the first ones have one position.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain, product, repeat
from math import ceil, prod
from operator import mul
from typing import Any

import numpy as np

from ....problem import DataLayout
from ...base import Array
from ..correlation import Correlation
from .blocks import AxisBlocks, Memory
from .schedule import Order, Schedule
from .tile import GROUPS, POINT, TILE, group_table
from .weights import Weights

AXIS = ("blocks", "low", "high", "kinds", "x_step", "y_step")
"""Of each axis, the last one first, then of the images: blocks, the block that stands for all up to
`high`, and bytes of x and y from one block to the next."""
SHAPE = (
    "images", "zeros", "zero_count", "rows", "row_count", "windows", "window_count",
    "tiles", "tile_count", "shifts", "deliveries", *GROUPS,
)  # fmt: skip
"""Records of a shape in the other tables, and how many groups of each number of tiles there are."""
ZERO = ("packed", "nbytes")
ROW = ("packed", "source", "count")
"""A row of operands to pack: where it goes, where it begins in x, and its positions."""
DELIVERY = ("first", "count")
"""Rows of results of a tuple of outer phases."""
RESULT = ("stage", "y", "count")
"""A row of results: where it is staged, where it begins in y, and its positions."""
CHUNK = ("channel", "active", "missing", "vectors")
"""Channels that are packed and transformed together."""
INPUT = ("packed", "v")
"""Of each chunk and phase of operands, the first operand and the first column of V."""
UNIT = ("weights", "bias", "phase", "y", "channel", "active")
RUN = ("channel", "first", "count")
"""The units of a job, and the first channel of the operand."""

_POOLED: dict[str, tuple[str, ...]] = {
    "zeros": ZERO, "rows": ROW, "windows": ("packed",), "tiles": TILE, "shifts": ("v",),
    "deliveries": DELIVERY, "results": RESULT,
}  # fmt: skip
_LISTED: dict[str, tuple[str, ...]] = {
    "axes": AXIS, "shapes": SHAPE, "chunks": CHUNK, "inputs": INPUT, "points": POINT,
    "pieces": ("number",), "units": UNIT, "runs": RUN,
}  # fmt: skip
FIELDS = _POOLED | _LISTED
"""The fields of the records of each table."""


class Tables:
    """The tables, as structured `arrays` by name."""

    def __init__(self, correlation: Correlation, plan: Schedule, weights: Weights) -> None:
        self._plan, self.memory = plan, Memory(correlation, plan, weights.lanes)
        axes = self.memory.axes
        batch = correlation.batch
        images = AxisBlocks(self.memory.images, batch, size=batch, out=batch)
        last = correlation.layout is DataLayout.NXC
        channels = (correlation.reduced, correlation.made) if last else (1, 1)
        self._x = _steps([axis.size for axis in axes], channels[0] * self.memory.item)
        self._y = _steps([axis.out for axis in axes], channels[1] * self.memory.item)
        self._pools = {name: _Pool(fields) for name, fields in _POOLED.items()}
        self._tiles: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.blocks = prod(axis.blocks for axis in (images, *axes))
        # In the number of a block the last axis varies fastest, in that of a shape slowest.
        shapes = product(*(axis.kinds for axis in (*reversed(axes), images)))
        listed: dict[str, Iterable[tuple[int, ...]]] = {
            "axes": self._axes(images),
            "shapes": [self._shape(images.count(kind), kinds[::-1]) for *kinds, kind in shapes],
            "chunks": _chunks(weights.chunk, weights.reduced, weights.lanes),
            "inputs": self._inputs(weights),
            "points": self._points(weights),
            "pieces": [(int(number),) for number in _pieces(plan.order)[1]],
            "units": self._units(correlation, weights),
            "runs": _runs(correlation, plan, weights),
        }
        self.arrays = {name: pool.array() for name, pool in self._pools.items()}
        for name, records in listed.items():
            self.arrays[name] = np.array([*records], _kind(_LISTED[name]))

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for array in self.arrays.values())

    def _axes(self, images: AxisBlocks) -> Iterator[tuple[int, ...]]:
        steps = [
            (axis, axis.reads * x, axis.writes * y)
            for axis, x, y in zip(self.memory.axes, self._x, self._y, strict=True)
        ]
        for axis, x, y in [*reversed(steps), (images, 0, 0)]:
            low, high = axis.ends
            yield axis.blocks, low, high - 1, len(axis.kinds), x, y

    def _shape(self, images: int, kinds: list[int]) -> tuple[int, ...]:
        """The record of a shape, whose kind along each axis a block stands for."""
        axes = zip(self.memory.axes, kinds, strict=True)
        counts = images, *(axis.count(block) for axis, block in axes)
        tiles = self._tiles.get(counts) or self._tiles.setdefault(counts, self._add_tiles(*counts))
        return images, *self._add_rows(kinds), *tiles[:5], self._add_deliveries(kinds), *tiles[5:]

    def _add_rows(self, kinds: list[int]) -> tuple[int, ...]:
        """Add what to clear and what to copy, to pack an image; return where both are."""
        packed, source, zeros, positions = [0], [0], list[tuple[int, int]](), 1
        axes = zip(self.memory.axes, kinds, self.memory.packed_steps, self._x, strict=True)
        for number, (axis, block, step, x_step) in enumerate(axes):
            count, inside = axis.operands(block)
            ends = (0, inside.start), (inside.stop, count - inside.stop)
            zeros += [
                (start + first * step, length * step)
                for first, length in ends
                if length
                for start in packed
            ]
            if number == 2:
                positions, inside = len(inside), inside[:1]
            packed = _sums((packed, inside), (1, step))
            source = _sums((source, [axis.first + i for i in inside]), (1, x_step))
        rows = zip(packed, source, repeat(positions))
        return *self._pools["zeros"].add(zeros), *self._pools["rows"].add(rows)

    def _add_tiles(self, images: int, *counts: int) -> tuple[int, ...]:
        """Add tiles of a block of so many groups along each axis, and the tiles behind them that
        are transformed only; return where they are, and groups of each number of tiles."""
        memory, axes, plan, every = self.memory, self.memory.axes, self._plan, range(images)
        pairs = [*zip(axes, counts, strict=True)]
        all_tiles, all_starts = zip(
            *(axis.tiles(n + axis.behind) for axis, n in pairs), strict=True
        )
        tiles, starts = zip(*(axis.tiles(count) for axis, count in pairs), strict=True)
        steps = _steps([len(numbers) for numbers in all_tiles], 1)
        x = [axis.step * step for axis, step in zip(axes, memory.packed_steps, strict=True)]
        *y, last = memory.stage_steps
        windows = _sums((every, *all_starts), (memory.image, *x))
        rows = _sums((every, *tiles), (len(all_tiles[0]) * steps[0], *steps))
        rows = [row * memory.z_row for row in rows]
        stage = _sums((every, *starts), (memory.stage_image, *y, last * axes[2].stride))
        apart = [axis.apart * step for axis, step in zip(axes, steps, strict=True)]
        shifts = _sums([range(axis.behind + 1) for axis in axes], apart)
        groups = group_table(plan.sizes, plan.vectors, 1 << memory.tiles.bit_length())
        return (
            *self._pools["windows"].add(zip(windows, strict=True)),
            *self._pools["tiles"].add(zip(rows, stage, strict=True)),
            self._pools["shifts"].add((row * memory.v_row,) for row in shifts)[0],
            *groups[len(windows) - shifts[-1]].tolist(), *[0] * (len(GROUPS) - len(plan.sizes)),
        )  # fmt: skip

    def _add_deliveries(self, kinds: list[int]) -> int:
        """Add the rows of results of an image for all outer phases; return where they begin."""
        first, second, last = self.memory.axes
        line = last.line(kinds[2])
        rows = [
            [axis.results(block, phase) for phase in range(axis.stride)]
            for axis, block in zip((first, second), kinds, strict=False)
        ]
        # Most phases have the same rows.
        phases = [*product(*rows)]
        by_row = {ranges: self._rows_of_results(*ranges, line) for ranges in dict.fromkeys(phases)}
        records = [by_row[ranges] for ranges in phases]
        return self._pools["deliveries"].add(records)[0]

    def _rows_of_results(self, *ranges: range) -> tuple[int, int]:
        """Add the rows of results of some planes, rows and positions."""
        axes, (*outer, last) = self.memory.axes, ranges
        numbers = [(axis.stride, axis.base, n) for axis, n in zip(axes, outer, strict=False)]
        numbers.append((1, axes[2].base, last[:1]))
        stage = _sums([n for _, _, n in numbers], self.memory.stage_steps)
        y = _sums([[base + stride * i for i in n] for stride, base, n in numbers], self._y)
        return self._pools["results"].add(zip(stage, y, repeat(len(last))))

    def _inputs(self, weights: Weights) -> Iterator[tuple[int, ...]]:
        packed = _sums([range(axis.step) for axis in self.memory.axes], self.memory.packed_steps)
        for channel, active, *_ in _chunks(weights.chunk, weights.reduced, weights.lanes):
            for phase, first in enumerate(packed):
                yield first, (channel * len(packed) + phase * active) * self.memory.item

    def _points(self, weights: Weights) -> Iterator[tuple[int, ...]]:
        steps = self.memory.v_point, weights.point_bytes, self.memory.z_point
        for point, pieces in enumerate(_pieces(self._plan.order)[0]):
            yield *(point * step for step in steps), *pieces

    def _units(self, correlation: Correlation, weights: Weights) -> Iterator[tuple[int, ...]]:
        plan, made, item = self._plan, correlation.made // correlation.groups, self.memory.item
        for number in range(correlation.groups * weights.units):
            group, unit = divmod(number, weights.units)
            phase, chunk = divmod(unit, weights.chunks)
            first = chunk * plan.channels
            offsets = divmod(phase, self.memory.axes[1].stride)
            yield (
                number * weights.unit_bytes,
                (group * weights.chunks + chunk) * plan.columns * item,
                phase,
                sum(map(mul, offsets, self._y)),
                group * made + first,
                min(plan.channels, made - first),
            )


def _runs(correlation: Correlation, plan: Schedule, weights: Weights) -> Iterator[tuple[int, ...]]:
    for group in range(correlation.groups):
        for first in range(0, weights.units, plan.units):
            count = min(plan.units, weights.units - first)
            yield group * weights.reduced, group * weights.units + first, count


@lru_cache(maxsize=256)
def _chunks(chunk: int, reduced: int, lanes: int) -> list[tuple[int, ...]]:
    counts = [(first, min(chunk, reduced - first)) for first in range(0, reduced, chunk)]
    return [(first, n, chunk - n, ceil(n / lanes)) for first, n in counts]


@lru_cache(maxsize=256)
def _pieces(order: Order) -> tuple[list[tuple[int, int]], list[int]]:
    """For each point the first of its pieces and how many they are; and the numbers of these."""
    numbers = np.arange(prod(t.pieces for t in order.transforms))
    numbers = numbers.reshape([t.pieces for t in order.transforms])
    of_point = [numbers[tuple(map(slice, counts))].ravel().tolist() for counts in order.pieces]
    counts = [len(each) for each in of_point]
    firsts = accumulate(counts[:-1], initial=0)
    return [*zip(firsts, counts, strict=True)], [n for each in of_point for n in each]


class _Pool:
    """A table of pieces, of which equal ones are kept once."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._kind, self._pieces, self._count = _kind(fields), dict[bytes, int](), 0

    def add(self, records: Iterable[tuple[int, ...]]) -> tuple[int, int]:
        """Add records; return the first one and how many they are."""
        data = array("q", chain.from_iterable(records)).tobytes()
        first, count = self._pieces.setdefault(data, self._count), len(data) // self._kind.itemsize
        self._count += count * (first == self._count)
        return first, count

    def array(self) -> Array:
        """All records, and one more if there is none: it has an address."""
        return np.frombuffer(b"".join(self._pieces) or bytes(self._kind.itemsize), self._kind)


@cache
def _kind(fields: tuple[str, ...]) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in fields])


def _steps(sizes: Sequence[int], last: int) -> list[int]:
    """The steps of a contiguous array along its axes, `last` along the last one."""
    steps = [last]
    for size in sizes[:0:-1]:
        steps.append(steps[-1] * size)
    return steps[::-1]


def _sums(axes: Sequence[Iterable[int]], steps: Sequence[int]) -> list[int]:
    """The sums of a number of each axis times its step, the last axis fastest."""
    sums = [0]
    for numbers, step in zip(axes, steps, strict=True):
        terms = [number * step for number in numbers]
        if sums == [0]:
            sums = terms
        elif terms != [0]:  # as those of axes that are not there
            sums = [total + term for total in sums for term in terms]
    return sums
