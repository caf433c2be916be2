"""The share of taps that tiles compute: a tile skips taps that read no input at any of its points.

The share depends on a tile's points. In grids with few points it affects the choice of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod
from typing import Any

import numpy as np

from ..correlation import Line

POINTS = (1, 2, 3, 4, 6, 8, 12)  # points per tile: few choices, so that little is compiled
STEP = 24  # a multiple of every number of POINTS
_MAX_COUNTED = 1 << 17  # points times taps; with more, no tap counts as skipped

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def fitting(rest: int) -> int:
    """Return the size of the smallest tile with room for `rest` points."""
    return next(points for points in POINTS if points >= rest)


@dataclass(frozen=True, slots=True)
class Along:
    """A grid's axis: numbers of inputs and points, inputs from point to point, taps' shifts."""

    size: int
    count: int
    step: int
    shifts: tuple[int, ...]

    def inside(self) -> Flags:
        """Return whether each tap of each point reads an existing input, as (points, taps)."""
        inputs = np.arange(self.count)[:, None] * self.step - np.array(self.shifts, np.int64)
        flags: Flags = (inputs >= 0) & (inputs < self.size)
        return flags


@dataclass(frozen=True, slots=True)
class Reach:
    """A grid's number of points, and the share of taps that tiles of each size compute."""

    points: int
    parts: tuple[float, ...]


MANY = Reach(960, (1.0,) * len(POINTS))
"""The reach of grids with so many points that their number does not affect the choice of tiles."""


@lru_cache(maxsize=256)  # phases with equal shifts have the same reach
def reach(axes: tuple[Along, ...], images: int, *, inside: bool) -> Reach:
    """Return a grid's reach. If `inside`, images are the innermost dimension of its points."""
    points = images * prod(axis.count for axis in axes)
    taps = prod(len(axis.shifts) for axis in axes)
    if not 0 < points * taps <= _MAX_COUNTED:
        return Reach(points, MANY.parts)
    image = reduce(np.kron, (axis.inside() for axis in axes))
    flags = np.repeat(image, images, axis=0) if inside else np.tile(image, (images, 1))
    tiles = (np.logical_or.reduceat(flags, np.arange(0, points, n)) for n in POINTS)
    return Reach(points, tuple(round(float(needed.mean()), 3) for needed in tiles))


def part_inside(line: Line) -> float:
    """Return the share of taps along an axis that read an existing input, over all points."""
    taps = inside = 0
    for phase in line.phases:
        for tap in phase.taps:
            first = max(0, -(-tap.shift // line.step))
            stop = min(phase.length, -(-(line.size + tap.shift) // line.step))
            taps, inside = taps + phase.length, inside + max(0, stop - first)
    return inside / max(1, taps)
