"""The tables for a correlation by Winograd's algorithm: axes, shapes of blocks, tiles, jobs.

An axis's record says where its blocks are in x and y; native code clips a block at the ends of
both. An axis's last block may have fewer groups of tiles. A *shape* says for each axis whether a
block has fewer. Tiles' records count bytes from the beginning of a block. So tables grow with
shapes, not with blocks.

There are always three axes and the images; missing axes come first, with one position each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise, product
from math import prod
from typing import Any

import numpy as np

from ...addresses import address_of
from ...base import Array
from ..correlation import Correlation
from ..kernel_arguments import record
from ..packing import Numbers
from .blocks import AxisBlocks, Memory
from .schedule import Schedule

KINDS: dict[str, np.dtype[Any]] = {
    "axes": record(" ".join(AxisBlocks._fields)),
    # All tiles' windows; tiles with results; pieces' offsets; last rows without products.
    "shapes": record("windows window_count tiles tile_count shifts behind"),
    "windows": record("packed"),
    # Offsets of a tile's products and results.
    "tiles": record("product stage"),
    "shifts": record("v"),
    # A job's units, all in one group.
    "runs": record("group first count"),
}
"""Each table's record type."""


class Tables:
    """A schedule's tables, one after another, and the `arguments` that depend on sizes."""

    def __init__(self, correlation: Correlation, plan: Schedule) -> None:
        self.memory = memory = Memory(correlation, plan)
        runs = plan.form.weight.groups, plan.form.units, plan.units
        self._numbers, self._ends = _listed(memory.axes, memory.v_row, memory.z_row, runs)
        first, self.nbytes = address_of(self._numbers), self._numbers.nbytes
        self.arguments = {name: first + 8 * start for name, (start, _) in self._ends.items()}
        self.arguments |= memory.arguments
        images = -(-correlation.batch // memory.images)
        self.blocks = images * prod([axis.blocks for axis in memory.axes])

    def __getitem__(self, table: str) -> Array:
        start, stop = self._ends[table]
        return self._numbers[start:stop].view(KINDS[table])


Axes = tuple[AxisBlocks, ...]


@lru_cache(maxsize=128)  # a model's layers may differ only in their epilogues
def _listed(
    axes: Axes, v_row: int, z_row: int, runs: tuple[int, int, int]
) -> tuple[Numbers, dict[str, tuple[int, int]]]:
    """Return all tables, one after another, and where each begins and ends."""
    tables = {"axes": [np.array(axes)], **_shapes(axes, v_row, z_row), "runs": [_runs(*runs)]}
    stops = [
        *accumulate((sum(part.size for part in parts) for parts in tables.values()), initial=0)
    ]
    numbers = np.concatenate([*chain.from_iterable(tables.values())], axis=None)
    return numbers, dict(zip(tables, pairwise(stops), strict=True))


def _shapes(axes: Axes, v_row: int, z_row: int) -> dict[str, list[Numbers]]:
    """Return the shapes, numbered by a bit per axis, and the tables of their tiles."""
    parts: dict[str, list[Numbers]] = {"windows": [], "tiles": [], "shifts": []}
    shapes, by_counts = list[tuple[int, ...]](), dict[tuple[int, ...], tuple[int, ...]]()
    firsts = 0, 0, 0
    for counts in product(*((axis.box, axis.rest) for axis in axes)):
        if counts not in by_counts:
            windows, tiles, shifts = _tiles(axes, counts, v_row, z_row)
            numbers, behind = (len(windows), len(tiles) // 2), int(shifts[-1])
            window, tile, shift = firsts
            by_counts[counts] = (window, numbers[0], tile, numbers[1], shift, behind // v_row)
            firsts = window + numbers[0], tile + numbers[1], shift + len(shifts)
            for table, part in zip(parts.values(), (windows, tiles, shifts), strict=True):
                table.append(part)
        shapes.append(by_counts[counts])
    return {"shapes": [np.array(shapes)], **parts}


def _tiles(
    axes: Axes, counts: Sequence[int], v_row: int, z_row: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the tables of a block of `counts` groups: windows of an image's tiles, including those
    beyond the block that pieces read; its tiles' products and results; pieces' offsets."""
    pairs = [*zip(axes, counts, strict=True)]
    _, second, last = ((count + axis.behind) * axis.apart for axis, count in pairs)
    tile_steps = second * last, last, 1
    windows, products, results, shifts = (list[tuple[int, int]]() for _ in range(4))
    for (axis, count), step in zip(pairs, tile_steps, strict=True):
        operand, result = axis.step * axis.packed, axis.stage
        if axis is axes[2]:
            result *= axis.stride
        windows += (count + axis.behind, axis.makes * operand), (axis.apart, operand)
        products.append((count * axis.apart, step * z_row))
        results += (count, axis.makes * result), (axis.apart, result)
        shifts.append((axis.behind + 1, axis.apart * step * v_row))
    tiles = np.stack([_sums(products), _sums(results)], 1)
    return _sums(windows), tiles.ravel(), _sums(shifts)


def _runs(groups: int, count: int, units: int) -> Numbers:
    """Return runs of at most `units` of each group's `count` units."""
    group, first = (side.ravel() for side in np.mgrid[0:groups, 0:count:units])
    return np.stack([group, first, np.minimum(units, count - first)], 1)


def _sums(sides: Sequence[tuple[int, int]]) -> Numbers:
    """Return the sums of arithmetic sequences (count, step); the last one varies fastest."""
    sums = np.zeros(1, np.int64)
    for count, step in sides:
        if count > 1:
            terms = np.arange(0, count * step, step)
            sums = terms if len(sums) == 1 else np.add.outer(sums, terms).ravel()
    return sums
