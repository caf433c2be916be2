"""Blocks of tiles along an axis, and the memory in which a thread computes a block."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ....problem import DataLayout
from ..correlation import Correlation, Line
from ..values import LINE, whole_lines
from .schedule import Form, Schedule, shares_sets
from .transforms import Transform
from .window import Window


class AxisBlocks(NamedTuple):
    """Blocks of `box` groups of tiles along one axis: a record that native code reads.

    A group has `apart` tiles, with `makes` results per phase. Pieces read `behind` more groups. The
    first block reads operands from `first` on. Each block reads `tail` operands in addition to
    `reads` per group. The first result has the number `base`.
    """

    box: int = 1
    groups: int = 1
    blocks: int = 1
    behind: int = 0
    apart: int = 1
    makes: int = 1
    reads: int = 1  # operands from one group to the next
    writes: int = 1  # results in all phases from one group to the next
    tail: int = 0
    first: int = 0
    size: int = 1
    base: int = 0
    out: int = 1
    step: int = 1
    stride: int = 1
    x: int = 0
    """Bytes from one operand to the next; then the same for packed operands, results and staged
    results. The stage has one phase of the outer axes, and all phases of the last axis."""
    packed: int = 0
    y: int = 0
    stage: int = 0

    @classmethod
    def of(cls, window: Window, line: Line, transform: Transform, box: int) -> AxisBlocks:
        """Return an axis's blocks, without bytes."""
        groups, makes = window.groups(transform, line), window.apart * transform.m
        reads, tail = window.step * makes, window.step * window.apart * (transform.r - 1)
        return cls(
            box, groups, -(-groups // box), transform.pieces - 1, window.apart, makes, reads,
            window.stride * makes, tail, window.step * window.low + window.start, line.size,
            window.base, line.out, window.step, window.stride,
        )  # fmt: skip

    @property
    def rest(self) -> int:
        """Number of groups in the last block."""
        return self.groups - (self.blocks - 1) * self.box

    @property
    def span(self) -> int:
        """Number of operands of a full block."""
        return self.tail + self.reads * self.box


class Memory:
    """A thread's memory, in bytes: packed operands, V, Z, the stage, and transposed results.

    `arguments` are the driver's arguments.
    """

    def __init__(self, correlation: Correlation, plan: Schedule) -> None:
        form, item = plan.form, plan.form.item
        boxes = zip(form.windows, correlation.lines, form.transforms, plan.box[1:], strict=True)
        axes = [AxisBlocks.of(*parts) for parts in boxes]
        first, second, last = [AxisBlocks()] * (3 - len(axes)) + axes
        self.images, wide, position = plan.box[0], form.chunk * item, form.padded * item
        last_is_channel = correlation.layout is DataLayout.NXC
        stored = correlation.dtype.itemsize
        x, y = (
            stored * n if last_is_channel else stored
            for n in (correlation.reduced, correlation.made)
        )
        last = last._replace(x=x, packed=wide, y=y, stage=position)
        second = second._replace(
            x=x * last.size, packed=wide * last.span,
            y=y * last.out, stage=position * last.writes * last.box,
        )  # fmt: skip
        first = first._replace(
            x=second.x * second.size, packed=second.packed * second.span,
            y=second.y * second.out, stage=second.stage * second.makes * second.box,
        )  # fmt: skip
        self.axes = first, second, last
        image, stage_image = first.packed * first.span, first.stage * first.makes * first.box
        # Register tiles may extend beyond the last tile, and pieces read beyond them.
        self.tiles = self.images * prod([(n.box + n.behind) * n.apart for n in self.axes])
        rows = self.tiles + form.rows
        self.v_row, self.z_row = v_row_of(form), z_row_of(form)
        v_point, z_point = _odd(rows * self.v_row), _odd(rows * self.z_row)
        # Rows are transposed for `finish` if it applies an epilogue, or if rows of y share sets.
        epilogue = correlation.epilogue
        finishes = epilogue.residual or epilogue.has_second or correlation.accumulate
        finishes |= shares_sets(correlation, form.cpu)
        self.transposed = form.channels * last.writes * last.box * item if finishes else 0
        v_at = whole_lines(self.images * image)
        z_at = v_at + form.points * v_point
        stage_at = z_at + form.points * z_point
        transposed_at = stage_at + whole_lines(self.images * stage_image)
        # Parts that are multiples of a page would all begin in the same cache sets.
        self.part = whole_lines(transposed_at + self.transposed + 4096) + 64
        self.arguments = {
            "box": self.images, "part": self.part, "image": image, "stage_image": stage_image,
            "v_at": v_at, "z_at": z_at, "stage_at": stage_at, "transposed_at": transposed_at,
            "v_point": v_point, "z_point": z_point, "transposed": self.transposed,
            # Bytes between operands of a window, and between results of a tile.
            "x_step_0": first.step * first.apart * first.packed,
            "x_step_1": second.step * second.apart * second.packed,
            "y_step_0": first.apart * first.stage, "y_step_1": second.apart * second.stage,
            "y_step_2": last.apart * last.stride * position,
        }  # fmt: skip


def v_row_of(form: Form) -> int:
    """Return the bytes from one tile to the next in V.

    The number of lines is odd, so that rows are not all in the same cache set.
    """
    return _odd((-(-form.reduction // form.lanes) + 1) * form.lanes * form.item)


def z_row_of(form: Form) -> int:
    """Return the bytes from one tile to the next in Z."""
    return _odd(form.columns * form.item)


def _odd(nbytes: int) -> int:
    return (-(-nbytes // LINE) | 1) * LINE
