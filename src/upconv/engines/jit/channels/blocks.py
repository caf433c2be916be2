"""Spatial blocks: the parts of data that are computed one after another.

Channels-first data is transposed into scratch: of a spatial block it stays in the second-level
caches until it is transposed back, and takes little memory. Spatial blocks of channels-last data
keep tables small. A spatial block is some whole images, or part of one image along the first axis;
its outputs begin at a multiple of the stride, so that phases, blocks and packed weights are those
of the whole correlation.

Nothing here touches an array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ....problem import DataLayout
from ...base import Array
from ..correlation import Correlation
from .schedule import Cut, Grid

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Kind:
    """What tables depend on: spatial blocks of one kind share them. `before` is as in
    tables.py."""

    correlation: Correlation
    cut: Cut
    before: int


@dataclass(frozen=True, slots=True)
class SpatialBlock:
    """Some images, and of the first axis some outputs with the inputs that they need."""

    kind: Kind
    images: slice
    outputs: slice
    inputs: slice

    def of(self, y: Array) -> Array:
        """This part of an output."""
        return self._part(y, self.outputs)

    def of_inputs(self, x: Array) -> Array:
        """This part of the input."""
        return self._part(x, self.inputs)

    def _part(self, array: Array, positions: slice) -> Array:
        first = self.kind.correlation.layout is DataLayout.NCX
        return array[self.images, :, positions] if first else array[self.images, positions]


def spatial_blocks(
    correlation: Correlation, cut: Cut, room: int, element: int
) -> tuple[SpatialBlock, ...]:
    """A correlation as spatial blocks whose data takes about `room` bytes, if one position does.

    `element` is the bytes of an element of transposed data.
    """
    each = image_bytes(correlation, element)
    positions = _positions(correlation, cut)
    if each <= room or positions < 2:
        images = _even(correlation.batch, max(1, room // max(1, each)))
        return tuple(
            _spatial_block(
                correlation, cut, range(start, min(start + images, correlation.batch)), None
            )
            for start in range(0, correlation.batch, images)
        )
    step = _even(positions, max(1, positions * room // each))
    return tuple(
        _spatial_block(
            correlation, cut, range(image, image + 1), range(start, min(start + step, positions))
        )
        for image in range(correlation.batch)
        for start in range(0, positions, step)
    )


def _even(total: int, most: int) -> int:
    """How many at a time, at most so many, so that the last are about as many."""
    return -(-total // -(-total // most))


def image_bytes(correlation: Correlation, element: int) -> int:
    """Bytes of one image's input and output, transposed."""
    inputs = correlation.reduced * prod(correlation.operand_size)
    return (inputs + correlation.made * prod(correlation.result_size)) * element


def halo_bytes(correlation: Correlation, element: int) -> int:
    """Bytes of the operand that two neighbouring spatial blocks both turn."""
    line = correlation.lines[0]
    inputs = correlation.reduced * prod(correlation.operand_size[1:])
    return min(line.size, line.high - line.low) * inputs * element


def least_bytes(correlation: Correlation, element: int) -> int:
    """About what a small spatial block takes: outputs of two positions, and the inputs they
    need."""
    line = correlation.lines[0]
    inputs = min(line.size, line.step + line.high - line.low + 1)
    outputs = min(line.out, 2 * line.stride)
    x = correlation.reduced * inputs * prod(correlation.operand_size[1:])
    return (x + correlation.made * outputs * prod(correlation.result_size[1:])) * element


def _unroll(correlation: Correlation, cut: Cut) -> int:
    """Positions along the first axis that a spatial block has a multiple of."""
    if correlation.rank > 1:
        return 1
    return max((grid.phase_group.unroll for grid in cut.grids), default=1)


def _positions(correlation: Correlation, cut: Cut) -> int:
    """Of how many positions j, or joined ones, the first axis is."""
    line = correlation.lines[0]
    return -(-line.out // (line.stride * _unroll(correlation, cut)))


def _spatial_block(
    correlation: Correlation, cut: Cut, images: range, positions: range | None
) -> SpatialBlock:
    batch = replace(correlation, batch=len(images))
    taken = slice(images.start, images.stop)
    if positions is None:
        return SpatialBlock(Kind(batch, cut, 0), taken, _ALL, _ALL)
    line, unroll = correlation.lines[0], _unroll(correlation, cut)
    low = positions.start * unroll * line.stride
    high = min(line.out, positions.stop * unroll * line.stride)
    own, inputs = line.part(low, high)
    part = replace(batch, lines=(own, *correlation.lines[1:]))
    grids = tuple(_grid(grid, positions) for grid in cut.grids)
    before = line.step * (low // line.stride) - inputs.start
    kind = Kind(part, replace(cut, grids=grids), before)
    return SpatialBlock(kind, taken, slice(low, high), slice(inputs.start, inputs.stop))


def _grid(grid: Grid, positions: range) -> Grid:
    """The points of a grid at some positions."""
    first, *others = grid.counts
    count = len(range(positions.start, min(positions.stop, first)))
    return replace(grid, counts=(count, *others))
