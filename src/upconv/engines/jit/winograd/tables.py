"""The tables of a correlation by Winograd's algorithm: blocks, tiles, units.

Blocks along an axis differ at its ends alone, where windows reach beyond the operand or results
end. A *kind* is a block of the one end, a block that stands for all between, or one of the other
end. The last block of an axis may have fewer groups: a *shape* says of each axis whether it has.
Records hold bytes from where a block begins, which is its number along each axis times a step. So
tables grow with kinds and shapes, not with blocks.

There are always three axes and the images; of fewer axes, the first ones have one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, chain, product
from math import prod
from typing import Any

import numpy as np

from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array
from ..correlation import Correlation
from ..packing import Numbers
from .blocks import Memory
from .schedule import Form, Schedule

FIELDS: dict[str, tuple[str, ...]] = {
    # Of each axis: its blocks, the block that stands for all up to `high`, its first kind, and
    # bytes of x and y from one block, and from one position, to the next.
    "axes": (
        "blocks", "low", "high", "kinds", "x_block", "y_block", "x", "packed", "y", "stage",
        "stride",
    ),
    # Operands of a block, those inside x, and its results of all phases inside y.
    "kinds": ("fewer", "operands", "begin", "end", "first", "stop"),
    # Windows of all tiles, then tiles that have results; how far pieces read; rows to leave out.
    "shapes": ("windows", "window_count", "tiles", "tile_count", "shifts", "behind"),
    "windows": ("packed",),
    # Where the products and the results of a tile begin.
    "tiles": ("product", "stage"),
    "shifts": ("v",),
    # Channels that are packed and transformed together.
    "chunks": ("channel", "active", "missing", "vectors"),
    # Of each chunk and phase of operands: the phase of each axis, and the first column of V.
    "inputs": ("phase_0", "phase_1", "phase_2", "v"),
    # The pieces of each point, and their numbers.
    "points": ("pieces", "piece_count"),
    "pieces": ("number",),
    "units": ("weights", "bias", "phase_0", "phase_1", "channel", "active"),
    # The units of a job, and the first channel of the operand.
    "runs": ("channel", "first", "count"),
}  # fmt: skip
"""The fields of the records of each table, 64-bit integers."""


@cache
def kind_of(table: str) -> np.dtype[Any]:
    """The type of a table's records."""
    return np.dtype([(name, np.int64) for name in FIELDS[table]])


class Buffer:
    """Tables one behind the other, and the `addresses` of their first records."""

    def __init__(self, tables: dict[str, Sequence[Numbers]]) -> None:
        self._numbers = np.concatenate([*chain.from_iterable(tables.values())], dtype=np.int64)
        counts = [sum(map(len, parts)) for parts in tables.values()]
        stops = list(accumulate(counts))
        self._ends = dict(zip(tables, zip((0, *stops), stops, strict=False), strict=True))
        self.nbytes, first = self._numbers.nbytes, address_of(self._numbers)
        self.addresses = {name: first + 8 * start for name, (start, _) in self._ends.items()}

    def __getitem__(self, table: str) -> Array:
        start, stop = self._ends[table]
        return self._numbers[start:stop].view(kind_of(table))


class Tables:
    """The tables that depend on sizes."""

    def __init__(self, correlation: Correlation, plan: Schedule) -> None:
        self.memory = memory = Memory(correlation, plan)
        axes, item = memory.axes, plan.form.item
        last = correlation.layout is DataLayout.NXC
        x_item, y_item = (
            n * item if last else item for n in (correlation.reduced, correlation.made)
        )
        x = _steps([axis.size for axis in axes], x_item)
        y = _steps([axis.out for axis in axes], y_item)
        records, kinds = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for axis, *steps in zip(axes, x, memory.packed, y, memory.stage, strict=True):
            low, high = axis.ends()
            places = len(kinds), axis.reads * steps[0], axis.writes * steps[2]
            records.append((axis.blocks, low, high - 1, *places, *steps, axis.stride))
            kinds += axis.kinds()
        self._buffer = Buffer(
            {"axes": [_flat(records)], "kinds": [_flat(kinds)], **self._shapes(plan.form)}
        )
        batches = -(-correlation.batch // memory.images)
        self.blocks = batches * prod([axis.blocks for axis in axes])
        self.arguments = {
            **memory.arguments, **self._buffer.addresses,
            "x_first": sum([axis.first * step for axis, step in zip(axes, x, strict=True)]),
            "y_first": sum([axis.base * step for axis, step in zip(axes, y, strict=True)]),
        }  # fmt: skip

    def __getitem__(self, table: str) -> Array:
        return self._buffer[table]

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return self._buffer.nbytes

    def _shapes(self, form: Form) -> dict[str, Sequence[Numbers]]:
        """Shapes, by one bit for each axis, and the tables of tiles that they point to."""
        shapes, by_counts = list[tuple[int, ...]](), dict[tuple[int, ...], tuple[int, ...]]()
        windows, tiles, shifts = list[Numbers](), list[Numbers](), list[Numbers]()
        first = [0, 0, 0]
        for counts in product(*((axis.box, axis.rest) for axis in self.memory.axes)):
            if counts not in by_counts:
                parts = self._tiles(counts, form)
                numbers = [
                    len(parts[0]),
                    len(parts[1]) // 2,
                    int(parts[2][-1]) // self.memory.v_row,
                ]
                by_counts[counts] = first[0], numbers[0], first[1], numbers[1], first[2], numbers[2]
                for table, part in zip((windows, tiles, shifts), parts, strict=True):
                    table.append(part)
                first = [first[0] + numbers[0], first[1] + numbers[1], first[2] + len(parts[2])]
            shapes.append(by_counts[counts])
        return {"shapes": [_flat(shapes)], "windows": windows, "tiles": tiles, "shifts": shifts}

    def _tiles(self, counts: tuple[int, ...], form: Form) -> tuple[Numbers, Numbers, Numbers]:
        """The windows of an image's tiles in a block of so many groups along each axis and of those
        behind it, the block's own tiles, and how far behind a tile each piece reads."""
        memory, axes = self.memory, [*zip(self.memory.axes, counts, strict=True)]
        steps = _steps([(n + axis.behind) * axis.apart for axis, n in axes], 1)
        windows, rows, stage, shifts = list[_Side](), list[_Side](), list[_Side](), list[_Side]()
        for (axis, n), step, packed, to in zip(
            axes, steps, memory.packed, memory.stage, strict=True
        ):
            operand, result = axis.step * packed, to
            if axis is memory.axes[2]:
                result *= axis.stride
            windows += (n + axis.behind, axis.makes * operand), (axis.apart, operand)
            rows.append((n * axis.apart, step * memory.z_row))
            stage += (n, axis.makes * result), (axis.apart, result)
            shifts.append((axis.behind + 1, axis.apart * step * memory.v_row))
        tiles = np.stack([_sums(rows), _sums(stage)], 1)
        return _sums(windows), tiles.ravel(), _sums(shifts)


def tables_of_class(form: Form) -> Buffer:
    """The tables that no size changes."""
    tables = {"chunks": _chunks(form), "inputs": _inputs(form), "units": _units(form)}
    return Buffer({name: [_flat(records)] for name, records in (tables | _points(form)).items()})


def _chunks(form: Form) -> list[tuple[int, ...]]:
    counts = [(n, min(form.chunk, form.reduced - n)) for n in range(0, form.reduced, form.chunk)]
    return [(first, n, form.chunk - n, -(-n // form.lanes)) for first, n in counts]


def _inputs(form: Form) -> list[tuple[int, ...]]:
    steps = [1] * (3 - len(form.windows)) + [window.step for window in form.windows]
    phases = [*product(*map(range, steps))]
    return [
        (*phase, (channel * len(phases) + number * active) * form.item)
        for channel, active, *_ in _chunks(form)
        for number, phase in enumerate(phases)
    ]


def _units(form: Form) -> list[tuple[int, ...]]:
    strides = [1] * (3 - len(form.windows)) + [window.stride for window in form.windows]
    made = form.weight.made // form.weight.groups
    return [
        (
            ((group * strides[0] + g) * strides[1] + h) * form.chunks * form.unit_bytes
            + chunk * form.unit_bytes,
            (group * form.chunks + chunk) * form.columns * form.item,
            g,
            h,
            group * made + chunk * form.channels,
            min(form.channels, made - chunk * form.channels),
        )
        for group, g, h, chunk in product(
            range(form.weight.groups), *map(range, strides[:2]), range(form.chunks)
        )
    ]


def _points(form: Form) -> dict[str, list[tuple[int, ...]]]:
    """For each point the first of its pieces and how many they are; and the numbers of these."""
    counts = [t.pieces for t in form.transforms]
    numbers = np.arange(prod(counts)).reshape(counts)
    pieces = [numbers[tuple(map(slice, of_point))].ravel().tolist() for of_point in form.pieces]
    firsts = accumulate(map(len, pieces), initial=0)
    points: list[tuple[int, ...]] = [
        (first, len(part)) for first, part in zip(firsts, pieces, strict=False)
    ]
    return {"points": points, "pieces": [(n,) for part in pieces for n in part]}


def runs_of(form: Form, units: int) -> Array:
    """The table of jobs beside blocks, each of so many units of a group."""
    records = [
        (group * form.reduced, group * form.units + first, min(units, form.units - first))
        for group in range(form.weight.groups)
        for first in range(0, form.units, units)
    ]
    return np.array(records, kind_of("runs"))


_Side = tuple[int, int]
"""How many numbers, and the step from one to the next."""


def _sums(sides: Sequence[_Side]) -> Numbers:
    """The sums of a number of each side, the last one fastest."""
    sums = np.zeros(1, np.int64)
    for count, step in sides:
        if count > 1:
            terms = np.arange(0, count * step, step)
            sums = terms if len(sums) == 1 else np.add.outer(sums, terms).ravel()
    return sums


def _flat(records: Sequence[tuple[int, ...]]) -> Numbers:
    return np.array([*chain.from_iterable(records)], np.int64)


def _steps(sizes: Sequence[int], last: int) -> list[int]:
    """The steps of a contiguous array along its axes, `last` along the last one."""
    second = last * sizes[2]
    return [second * sizes[1], second, last]
