"""The cost model of a weight gradient, which chooses the operand along the lanes, the operands to
pack, and the tile.

A channels-last operand can be read in place. A block of channels is then a few cache lines in each
pixel, one pixel apart, which has two costs in the model:

1. Each line that a tile reads waits for the second-level cache, because no prefetcher follows lines
   that are a pixel apart. A panel, in contrast, is read sequentially.
2. Lines a power of two apart share few sets of a cache. In a cache of any size, lines S bytes apart
   take as much space as if each were as long as the largest power of two that divides S.

So an operand that is read often is packed, on every processor. An operand that is read once or
twice is not, because packing also reads it once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, inf, prod
from typing import Any, NamedTuple

import numpy as np

from ....problem import DataLayout, Problem
from ..correlation import weight_strides
from ..cpu import Cpu
from ..sum_type import computed
from ..values import BYTES, LINE, whole_lines
from .tile import Tile

Figures = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Sides:
    """The operand along the lanes, the layout of blocks in dw, the tile, and whether x and g are
    read `in_place`."""

    lanes_of_g: bool
    tile: Tile
    groups: int
    rows: int  # channels in a group
    lanes: int
    by_row: int  # elements of dw from one channel to the next
    by_lane: int
    by_tap: int
    cycles: float = 0.0
    in_place: tuple[bool, bool] = (False, False)

    @property
    def row_blocks(self) -> int:
        """Number of blocks of rows in a group."""
        return ceil(self.rows / self.tile.rows)

    @property
    def lane_blocks(self) -> int:
        """Number of blocks of lanes in a group."""
        return ceil(self.lanes / self.tile.width)

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers of channels in a panel of x and in a panel of g."""
        rows, lanes = self.tile.width if self.tile.depthwise else self.tile.rows, self.tile.width
        return (rows, lanes) if self.lanes_of_g else (lanes, rows)

    @property
    def transposed(self) -> bool:
        """Whether lanes are not adjacent in dw."""
        return self.by_lane != 1 and self.lanes > 1

    @property
    def taps_inside(self) -> bool:
        """Whether a row's taps are adjacent in dw, rather than a tap's rows."""
        return self.by_tap == 1

    def __str__(self) -> str:
        tile, side = self.tile, "output" if self.lanes_of_g else "input"
        taps = f"{tile.taps} taps x " if tile.taps > 1 else ""
        rows = "" if tile.depthwise else f"{tile.rows} channels x "
        packed = [name for name, unpacked in zip("xg", self.in_place, strict=True) if not unpacked]
        reading = f"{' and '.join(packed) or 'nothing'} packed"
        return f"tiles of {taps}{rows}{tile.vectors} vectors of {side} channels, {reading}"


def footprint(width: int, pixel: int) -> int:
    """Return the cache bytes used by `width` bytes out of every `pixel` bytes, with aliasing."""
    return width if width >= pixel else max(whole_lines(width), pixel & -pixel)


@lru_cache(maxsize=64)
def sides_of(problem: Problem, cpu: Cpu, dots: bool) -> Sides:
    """Return the cheapest choice of lanes, tile (with or without `dots`), and operands to pack."""
    strides = weight_strides(problem, forward=True)
    channels = problem.in_channels, problem.out_channels, problem.groups
    element, kernel = computed(problem.dtype), problem.axes[-1].kernel
    options = _options(element, channels, kernel, strides, cpu.dots if dots else 0.0, cpu)
    cycles = _cycles(problem, options)
    best = options.sides[0]
    least = inf
    for number in np.argsort(cycles, kind="stable").tolist():
        if cycles[number] >= least:
            break  # reading operands only adds cycles
        sides = options.sides[number]
        (x, reading_x), (g, reading_g) = (_reading(problem, sides, of_g) for of_g in (0, 1))
        total = float(cycles[number]) + (reading_x + reading_g)
        if total < least:
            best, least = replace(sides, cycles=total, in_place=(x, g)), total
    return best


class _Options(NamedTuple):
    """The tiles for a class of layers, with arrays for the model: taps, cycles per position, cycles
    per position for a single tap, cycles to finish a block's tap, and number of blocks."""

    sides: tuple[Sides, ...]
    taps: Figures
    cycles: Figures
    single: Figures
    results: Figures
    blocks: Figures


@lru_cache(maxsize=64)
def _options(
    element: str, channels: tuple[int, int, int], kernel: int, strides: tuple[int, ...],
    dots: float, cpu: Cpu,
) -> _Options:  # fmt: skip
    """Return all tiles whose sums fit in registers; `kernel` counts taps along the last axis."""
    width = cpu.lanes(BYTES[element])
    in_channels, out_channels, groups = channels
    x, g = in_channels // groups, out_channels // groups
    depthwise = x == g == 1 and groups > 1
    by_group, by_x, by_g, *_, by_tap = strides
    either = (
        [(False, 1, groups, 0, by_group)]
        if depthwise
        else [(True, x, g, by_x, by_g), (False, g, x, by_g, by_x)]
    )
    listed = []
    for lanes_of_g, rows, lanes, by_row, by_lane in either:
        together = [n for n in range(1, 17) if kernel % n == 0 and (n == 1 or not lanes_of_g)]
        most = range(1, min(8, ceil(lanes / width)) + 1), range(1, min(14, rows) + 1)
        for taps, vectors, count in product(together, *most):
            tile = Tile(element, width, taps, count, vectors, depthwise, dots=dots)
            if tile.accumulators <= cpu.sums(vectors):
                form = lanes_of_g, tile, 1 if depthwise else groups, rows, lanes
                listed.append(Sides(*form, by_row, by_lane, by_tap))
    costs = listed[0].tile.costs.weight_grad
    figures = [
        (
            sides.tile.taps, sides.tile.cycles, sides.tile.single.cycles,
            (costs.result_transposed if sides.transposed else costs.result)
            * sides.tile.rows * sides.tile.width,
            sides.groups * sides.row_blocks * sides.lane_blocks,
        )
        for sides in listed
    ]  # fmt: skip
    return _Options(tuple(listed), *np.array(figures).T)


def _cycles(problem: Problem, options: _Options) -> Figures:
    """Return each option's cycles on one thread, without reading or packing operands."""
    last, costs = problem.axes[-1], options.sides[0].tile.costs.weight_grad
    size, taps = max(1, last.size), options.taps
    positions = problem.batch * prod(axis.size for axis in problem.axes)
    edge = np.minimum(1.0, (taps - 1) * last.dilation / last.stride / size)
    per_position = (1 - edge) * options.cycles / taps + edge * options.single
    per_position += costs.segment / size * np.where(taps == 1, 1, 1 / taps + 2)
    kernel = prod(axis.kernel for axis in problem.axes)
    cycles: Figures = options.blocks * kernel * (positions * per_position + options.results)
    return cycles


def _reading(problem: Problem, sides: Sides, of_g: int) -> tuple[bool, float]:
    """Return whether an operand is read in place, and the cycles that reading or packing takes."""
    tile, layout, size = sides.tile, problem.layout, BYTES[sides.tile.element]
    channels = problem.out_channels if of_g else problem.in_channels
    numbers = prod(problem.y_shape if of_g else problem.x_shape)
    width, costs = sides.widths[of_g], tile.costs.weight_grad
    pack_last = costs.pack_row / width + costs.pack_last
    packing = numbers * (pack_last if layout is DataLayout.NXC else costs.pack)
    possible = problem.dtype.itemsize == size and not tile.dots
    possible = possible and (layout is DataLayout.NXC or channels == 1)
    if not possible or channels // sides.groups % width:
        return False, packing
    if width == channels or channels * size <= costs.pair:
        return True, 0.0
    reads = prod(axis.kernel for axis in problem.axes) / tile.taps
    if of_g:
        # A tile of several taps reads the numbers between two positions only once.
        steps = [axis.stride for axis in problem.axes]
        reads *= min(tile.taps, steps[-1]) / prod(steps)
    if not tile.depthwise:
        reads *= sides.row_blocks if of_g == sides.lanes_of_g else sides.lane_blocks
    in_place = costs.apart * reads * numbers / width * (whole_lines(width * size) // LINE)
    return (True, in_place) if in_place <= packing else (False, packing)
