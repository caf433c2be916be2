"""Slabs: the parts of channels-first data that are turned and computed one after another.

Turned data is scratch. Of a slab it stays in the second-level caches until it is turned back, and
takes little memory. A slab is some whole images, or part of one image along the first axis; its
outputs begin at a multiple of the stride, so that phases, blocks and packed weights are those of
the whole problem.

What lives here: Slab, and how a problem is cut into them. Nothing here touches an array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ...problem import Problem
from ..base import Array
from .channel_schedule import Cut, Grid

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Kind:
    """What tables depend on: slabs of one kind share them. `lead` is as in channel_tables.py."""

    problem: Problem
    cut: Cut
    lead: int


@dataclass(frozen=True, slots=True)
class Slab:
    """Some images, and of the first axis some outputs with the inputs that they need."""

    kind: Kind
    images: slice
    outputs: slice
    inputs: slice

    def of(self, y: Array) -> Array:
        """This part of a channels-first output; a slab of whole images is of any order's."""
        return y[self.images] if self.outputs == _ALL else y[self.images, :, self.outputs]

    def of_inputs(self, x: Array) -> Array:
        """This part of the input."""
        return x[self.images] if self.inputs == _ALL else x[self.images, :, self.inputs]


def slabs(problem: Problem, cut: Cut, room: int, element: int) -> tuple[Slab, ...]:
    """A problem as slabs whose turned data takes about `room` bytes, if one position does.

    `element` is the bytes of an element of turned data.
    """
    each = image_bytes(problem, element)
    positions = _positions(problem, cut)
    if each <= room or positions < 2:
        images = _even(problem.batch, max(1, room // max(1, each)))
        return tuple(
            _slab(problem, cut, range(start, min(start + images, problem.batch)), None)
            for start in range(0, problem.batch, images)
        )
    step = _even(positions, max(1, positions * room // each))
    return tuple(
        _slab(problem, cut, range(image, image + 1), range(start, min(start + step, positions)))
        for image in range(problem.batch)
        for start in range(0, positions, step)
    )


def _even(total: int, most: int) -> int:
    """How many at a time, at most so many, so that the last are about as many."""
    return -(-total // -(-total // most))


def image_bytes(problem: Problem, element: int) -> int:
    """Bytes of one image's input and output, turned."""
    inputs = problem.in_channels * prod(problem.size)
    return (inputs + problem.out_channels * prod(problem.out_size)) * element


def least_bytes(problem: Problem, element: int) -> int:
    """About what a small slab takes: outputs of two positions, and the inputs they need."""
    axis = problem.axes[0]
    inputs = min(axis.size, 2 + axis.extent // axis.stride)
    outputs = min(axis.out, 2 * axis.stride)
    x = problem.in_channels * inputs * prod(problem.size[1:])
    return (x + problem.out_channels * outputs * prod(problem.out_size[1:])) * element


def _joined(problem: Problem, cut: Cut) -> int:
    """Positions along the first axis that a slab has a multiple of."""
    if problem.rank > 1:
        return 1
    return max((grid.bundle.joined for grid in cut.grids), default=1)


def _positions(problem: Problem, cut: Cut) -> int:
    """Of how many positions j, or joined ones, the first axis is."""
    axis = problem.axes[0]
    return -(-axis.out // (axis.stride * _joined(problem, cut)))


def _slab(problem: Problem, cut: Cut, images: range, positions: range | None) -> Slab:
    batch = problem.replace(batch=len(images))
    taken = slice(images.start, images.stop)
    if positions is None:
        return Slab(Kind(batch, cut, 0), taken, _ALL, _ALL)
    axis, joined = problem.axes[0], _joined(problem, cut)
    low = positions.start * joined * axis.stride
    high = min(axis.out, positions.stop * joined * axis.stride)
    own, inputs = axis.part(low, high)
    part = batch.replace(axes=(own, *problem.axes[1:]))
    grids = tuple(_grid(grid, positions) for grid in cut.grids)
    lead = low // axis.stride - inputs.start
    kind = Kind(part, replace(cut, grids=grids), lead)
    return Slab(kind, taken, slice(low, high), slice(inputs.start, inputs.stop))


def _grid(grid: Grid, positions: range) -> Grid:
    """The points of a grid at some positions."""
    first, *others = grid.counts
    count = len(range(positions.start, min(positions.stop, first)))
    return replace(grid, counts=(count, *others))
