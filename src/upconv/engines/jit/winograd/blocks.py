"""Blocks of tiles along an axis, and the memory in which a thread computes a block."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from ..correlation import Correlation, Line
from .schedule import Form, Schedule, shares_sets
from .transforms import Transform
from .window import Window


class AxisBlocks(NamedTuple):
    """Blocks of `box` groups of tiles along one axis.

    A group are `apart` tiles, with `makes` results of each phase. Pieces read `behind` groups more.
    The first block reads operands from `first` on, any block `tail` operands beside those of its
    groups. Results begin with `base`.
    """

    box: int = 1
    groups: int = 1
    behind: int = 0
    apart: int = 1
    makes: int = 1
    step: int = 1
    tail: int = 0
    first: int = 0
    size: int = 1
    stride: int = 1
    base: int = 0
    out: int = 1

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.groups // self.box)

    @property
    def reads(self) -> int:
        """Operands from one block to the next."""
        return self.step * self.makes * self.box

    @property
    def writes(self) -> int:
        """Results from one block to the next."""
        return self.stride * self.makes * self.box

    @property
    def rest(self) -> int:
        """Groups of the last block."""
        return self.groups - (self.blocks - 1) * self.box

    def ends(self) -> tuple[int, int]:
        """The first block that nothing clips, and the first block of the other end."""
        last = self.blocks - 1
        low = min(last, max(-(self.first // self.reads), int(self.base < 0), 0))
        high = (self.size - self.tail - self.reads - self.first) // self.reads + 1
        return low, max(low + 1, min(high, last))

    def kinds(self) -> Iterator[tuple[int, ...]]:
        """Yield a record of each kind of block: whether it has fewer groups, its operands and those
        inside the array, its results inside the array."""
        low, high = self.ends()
        for block in (*range(low + 1), *range(high, self.blocks)):
            count = min(self.box, self.groups - block * self.box)
            operands = self.tail + self.step * self.makes * count
            read = _inside(self.first + block * self.reads, operands, self.size)
            results = self.stride * self.makes * count
            written = _inside(self.base + block * self.writes, results, self.out)
            yield int(count < self.box), operands, *read, *written


def _inside(first: int, count: int, size: int) -> tuple[int, int]:
    """The first of `count` positions from `first` on that the array has, and the end of these."""
    begin = min(count, max(0, -first))
    return begin, max(begin, min(count, size - first))


def _axis(window: Window, line: Line, transform: Transform, box: int) -> AxisBlocks:
    makes, span = window.apart * transform.m, window.span(transform, box)
    return AxisBlocks(
        box, window.groups(transform, line), transform.pieces - 1, window.apart, makes, window.step,
        span - window.step * makes * box, window.step * window.low + window.start, line.size,
        line.stride, window.base, line.out,
    )  # fmt: skip


class Memory:
    """The memory of a thread, in bytes: packed rows, V, Z, results and room to transpose them.

    `arguments` are those of the driver.
    """

    def __init__(self, correlation: Correlation, plan: Schedule) -> None:
        form, item = plan.form, plan.form.item
        boxes = zip(form.windows, correlation.lines, form.transforms, plan.box[1:], strict=True)
        axes = [_axis(*parts) for parts in boxes]
        self.axes = first, second, last = [AxisBlocks()] * (3 - len(axes)) + axes
        self.images, wide, position = plan.box[0], form.chunk * item, form.padded * item
        # Of operands that are packed: bytes along each axis, and of an image.
        line = (last.tail + last.reads) * wide
        plane = (second.tail + second.reads) * line
        self.packed = plane, line, wide
        image = (first.tail + first.reads) * plane
        # The same of results: of all phases of the last axis, and of one phase of the others.
        line = last.writes * position
        plane = second.makes * second.box * line
        self.stage = plane, line, position
        stage_image = first.makes * first.box * plane
        # Register tiles may reach behind the last tile, and pieces read behind that.
        self.tiles = self.images * prod([(n.box + n.behind) * n.apart for n in self.axes])
        rows = self.tiles + form.rows
        self.v_row, self.z_row = v_row_of(form), z_row_of(form)
        v_point, z_point = _odd(rows * self.v_row), _odd(rows * self.z_row)
        # Rows of results are transposed apart from y to add a residual, too.
        set_bytes = form.cpu.costs.winograd.set_bytes
        apart = correlation.epilogue.residual or shares_sets(correlation, set_bytes)
        self.transposed = form.channels * last.writes * item if apart else 0
        v_at = _lines(self.images * image)
        z_at = v_at + form.points * v_point
        stage_at = z_at + form.points * z_point
        transposed_at = stage_at + _lines(self.images * stage_image)
        # Parts of whole pages would all begin in the same sets.
        self.part = _lines(transposed_at + self.transposed + 4096) + 64
        self.arguments = {
            "box": self.images,
            "part": self.part, "image": image, "stage_image": stage_image, "v_at": v_at,
            "z_at": z_at, "stage_at": stage_at, "transposed_at": transposed_at,
            "v_point": v_point, "z_point": z_point, "transposed": self.transposed,
            # Between operands of a window, and between results of a tile.
            "x_step_0": first.step * first.apart * self.packed[0],
            "x_step_1": second.step * second.apart * self.packed[1],
            "y_step_0": first.apart * self.stage[0], "y_step_1": second.apart * self.stage[1],
            "y_step_2": last.apart * last.stride * position,
        }  # fmt: skip


def v_row_of(form: Form) -> int:
    """Bytes from a tile to the next in V.

    An odd number of lines, so that rows are not all in one set of the cache.
    """
    return _odd((-(-form.reduction // form.lanes) + 1) * form.lanes * form.item)


def z_row_of(form: Form) -> int:
    """Bytes from a tile to the next in Z."""
    return _odd(form.columns * form.item)


def _lines(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _odd(nbytes: int) -> int:
    return (-(-nbytes // 64) | 1) * 64
