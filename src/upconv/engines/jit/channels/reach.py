"""Counts of the taps that tiles skip, because they are outside the input for all points of a tile.

The number depends on the points of a tile. Where points are few, it matters to the choice of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod
from typing import Any

import numpy as np

from ..correlation import Line

POINTS = (1, 2, 3, 4, 6, 8, 12)  # points of tiles: few, so that little is compiled
STEP = 24  # a multiple of all of these
_COUNTED = 1 << 17  # points times taps

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def fitting(rest: int) -> int:
    """The smallest tile for so many points."""
    return next(points for points in POINTS if points >= rest)


@dataclass(frozen=True, slots=True)
class Along:
    """One axis of a grid: inputs, points, inputs from one point to the next, shifts of the taps."""

    size: int
    count: int
    step: int
    shifts: tuple[int, ...]

    def inside(self) -> Flags:
        """Whether each tap reads an input that exists, for each point, as (points, taps)."""
        inputs = np.arange(self.count)[:, None] * self.step - np.array(self.shifts, np.int64)
        flags: Flags = (inputs >= 0) & (inputs < self.size)
        return flags


@dataclass(frozen=True, slots=True)
class Reach:
    """The points of a grid, and the share of taps that tiles of each size in POINTS cannot skip."""

    points: int
    parts: tuple[float, ...]


MANY = Reach(960, (1.0,) * len(POINTS))
"""The reach of all grids of many points: their number does not matter to the choice of tiles."""


@lru_cache(maxsize=256)  # phases of equal shifts reach the same
def reach(axes: tuple[Along, ...], images: int, *, inside: bool) -> Reach:
    """Count a grid's points and taps, of images that are the innermost dimension if `inside`."""
    points = images * prod(axis.count for axis in axes)
    taps = prod(len(axis.shifts) for axis in axes)
    if not 0 < points * taps <= _COUNTED:
        return Reach(points, MANY.parts)
    image = reduce(np.kron, (axis.inside() for axis in axes))
    flags = np.repeat(image, images, axis=0) if inside else np.tile(image, (images, 1))
    tiles = (np.logical_or.reduceat(flags, np.arange(0, points, n)) for n in POINTS)
    return Reach(points, tuple(round(float(needed.mean()), 3) for needed in tiles))


def part_inside(line: Line) -> float:
    """The share of the taps along an axis that read an existing input, over all points."""
    taps = inside = 0
    for phase in line.phases:
        for tap in phase.taps:
            first = max(0, -(-tap.shift // line.step))
            stop = min(phase.length, -(-(line.size + tap.shift) // line.step))
            taps, inside = taps + phase.length, inside + max(0, stop - first)
    return inside / max(1, taps)
