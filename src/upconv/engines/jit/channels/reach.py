"""Which taps the tiles of few points can skip: those that are outside the input for all points of a
tile. How many they are depends on the points of a tile, so it is counted, where points are few
enough for it to matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

POINTS = (1, 2, 3, 4, 6, 8, 12)  # points of tiles: few, so that little is compiled
STEP = 24  # a multiple of all of these


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

    def reached(self, scale: int = 1) -> list[tuple[int, int]]:
        """The points from which some tap reads inputs, for each tap that there are such points of;
        `scale` points lie at each place."""
        runs = [
            (max(0, -(-e // self.step)), min(self.count, -(-(self.size + e) // self.step)))
            for e in self.shifts
        ]
        return [(start * scale, stop * scale) for start, stop in runs if start < stop]


@dataclass(frozen=True, slots=True)
class Reach:
    """The number of a grid's points, and the part of the taps that tiles of each size in POINTS
    cannot skip."""

    points: int
    parts: tuple[float, ...]


MANY = Reach(960, (1.0,) * len(POINTS))
"""What stands for all grids of so many points that their number does not matter to tiles."""


def reach(axes: Sequence[Along], images: int, *, inside: bool) -> Reach:
    """Count a grid's points and taps, of images that are the innermost dimension if `inside`.

    Points are rows of the last axis, so the points that need a tap are runs, one of each row that
    the outer taps reach. Neighbouring runs may meet in a tile.
    """
    scale = images if inside else 1
    outer = [Along(images // scale, images // scale, 1, (0,)), *axes[:-1]]
    shape = [axis.count for axis in outer]
    row, points = axes[-1].count * scale, images * prod(axis.count for axis in axes)
    taps = prod(len(axis.shifts) for axis in axes)
    if not points * taps:
        return Reach(points, MANY.parts)
    runs = np.array(axes[-1].reached(scale), np.int64).reshape(-1, 2)
    tiles = np.array(POINTS, np.int64)[:, None, None]
    rows = np.arange(prod(shape))[:, None] * row
    first, last = (rows + runs[:, 0]) // tiles, (rows + runs[:, 1] - 1) // tiles
    numbers, needed = np.arange(prod(shape)).reshape(shape), np.zeros(len(POINTS), np.int64)
    for spans in product(*(axis.reached() for axis in outer)):
        reached = numbers[tuple(slice(*span) for span in spans)].ravel()
        begin, end = first[:, reached], last[:, reached]
        needed += (end - begin + 1).sum((1, 2)) - (begin[:, 1:] == end[:, :-1]).sum((1, 2))
    parts = needed / (-(-points // tiles.ravel()) * taps)
    return Reach(points, tuple(parts.round(3).tolist()))
