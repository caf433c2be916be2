"""Which points of a grid reach inputs, as far as the choice of tiles depends on it.

A tap that is outside the input for all points of a tile is skipped. How many that are depends on
how many points a tile has, so it is counted, where points are few enough for it to matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

POINTS = (1, 2, 3, 4, 6, 8, 12)  # points of tiles: few, so that little is compiled
_PARENTS = {2: 1, 3: 1, 4: 2, 6: 3, 8: 4, 12: 6}  # of whose tiles those of a size are made
_SMALL = 1 << 17  # points times taps up to which taps that are skipped are counted
_MANY = 960  # points from which on their number does not matter to the choice of tiles
_WORD = 8  # bytes

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Along:
    """One axis of a grid: inputs, points, inputs from one point to the next, shifts of the taps."""

    size: int
    count: int
    step: int
    shifts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """How many points a grid has, and the part of the taps that tiles of each size in POINTS cannot
    skip."""

    points: int
    taps: int
    parts: tuple[float, ...]


@lru_cache(maxsize=1024)
def reach(axes: tuple[Along, ...], images: int, inside: bool) -> Reach:
    """Of a grid's points, for `images` images, which are the innermost dim if `inside`."""
    taps = prod(len(axis.shifts) for axis in axes)
    points = images * prod(axis.count for axis in axes)
    if not 0 < points * taps <= _SMALL:
        return Reach(min(points, _MANY), taps, (1.0,) * len(POINTS))
    whole = np.ones((1, 1), bool)
    for axis in axes:
        each = _valid(axis)
        both = whole[:, None, :, None] & each[None, :, None, :]
        whole = both.reshape(len(whole) * len(each), -1)
    whole = np.repeat(whole, images, axis=0) if inside else np.tile(whole, (images, 1))
    return Reach(points, taps, _parts(whole))


def _valid(axis: Along) -> Flags:
    """Which taps read an input that exists, for each point along an axis, as (points, taps)."""
    inputs = np.arange(axis.count)[:, None] * axis.step - np.array(axis.shifts, np.int64)
    found: Flags = (inputs >= 0) & (inputs < axis.size)
    return found


def _parts(whole: Flags) -> tuple[float, ...]:
    """The part of the taps that some point of a tile needs, for each size of tiles."""
    points, taps = whole.shape
    padded = np.zeros((points, -(-taps // _WORD) * _WORD), bool)
    padded[:, :taps] = whole
    tiles = {1: padded.view(np.uint64)}  # eight taps at a time
    for size, parent in _PARENTS.items():
        tiles[size] = _together(tiles[parent], size // parent)
    counts = ((int(np.count_nonzero(tiles[p].view(bool))), len(tiles[p])) for p in POINTS)
    return tuple(round(count / (number * taps), 3) for count, number in counts)


def _together(rows: Any, count: int) -> Any:
    """Each `count` rows, and those that are left, as one: what any of them has."""
    whole = len(rows) // count * count
    merged = np.zeros((-(-len(rows) // count), rows.shape[1]), rows.dtype)
    for i in range(count):
        merged[: whole // count] |= rows[i:whole:count]
    for row in rows[whole:]:
        merged[-1] |= row
    return merged
