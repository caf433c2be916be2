"""Blocks of tiles along an axis, and the memory in which a thread computes a block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from ..correlation import Correlation, Line
from ..costs import costs_of
from ..values import BYTES
from .schedule import Schedule, chunk_of, reduction_of, shares_sets
from .transforms import Transform
from .window import Window


@dataclass(frozen=True)  # without slots, for what is cached
class AxisBlocks:
    """Blocks of `box` groups of tiles, along one axis.

    A group are `apart` tiles, with `makes` results of a phase and operands of one; pieces read
    `behind` groups more. The first block reads operands from `first` on, any block `tail` of them
    beside those of its groups; results begin with `base`.
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

    @cached_property
    def blocks(self) -> int:
        """How many blocks there are."""
        return ceil(self.groups / self.box)

    @cached_property
    def reads(self) -> int:
        """Operands from one block to the next."""
        return self.step * self.makes * self.box

    @property
    def writes(self) -> int:
        """Results from one block to the next."""
        return self.stride * self.makes * self.box

    @property
    def span(self) -> int:
        """Operands of a block at most."""
        return self.tail + self.reads

    @property
    def stage(self) -> int:
        """Results of a phase of a block at most."""
        return self.makes * self.box

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The first block of which nothing is clipped, and the first of the other end."""
        last = self.blocks - 1
        low = min(last, max(ceil(-self.first / self.reads), int(self.base < 0), 0))
        high = (self.size - self.span - self.first) // self.reads + 1
        return low, max(low + 1, min(high, last))

    @cached_property
    def kinds(self) -> list[int]:
        """The number of one block of each kind."""
        low, high = self.ends
        return [*range(low + 1), *range(high, self.blocks)]

    def count(self, block: int) -> int:
        """Groups of a block."""
        return min(self.box, self.groups - block * self.box)

    def operands(self, block: int) -> tuple[int, range]:
        """How many operands a block reads, and which of them are there."""
        count = self.tail + self.step * self.makes * self.count(block)
        return count, _inside(self.first + block * self.reads, 1, count, self.size)

    def results(self, block: int, phase: int) -> range:
        """Which results of a phase are there."""
        first, count = self.base + phase + block * self.writes, self.makes * self.count(block)
        return _inside(first, self.stride, count, self.out)

    def line(self, block: int) -> range:
        """Which results of all phases are there."""
        first, count = self.base + block * self.writes, self.makes * self.count(block)
        return _inside(first, 1, self.stride * count, self.out)

    def tiles(self, count: int) -> tuple[list[int], list[int]]:
        """Of all tiles of `count` groups, their number and the number of their first result."""
        residues = range(self.apart)
        numbers, starts = (
            [group * step + residue for group in range(count) for residue in residues]
            for step in (self.apart, self.makes)
        )
        return numbers, starts


def _inside(first: int, step: int, count: int, size: int) -> range:
    """Which of `count` places of an axis are there: first, first + step, and so on."""
    start = min(count, max(0, ceil(-first / step)))
    return range(start, max(start, min(count, ceil((size - first) / step))))


def _axis(window: Window, line: Line, transform: Transform, box: int) -> AxisBlocks:
    makes, span = window.apart * transform.m, window.span(transform, box)
    return AxisBlocks(
        box, window.groups(transform, line), transform.pieces - 1, window.apart, makes, window.step,
        span - window.step * makes * box, window.step * window.low + window.start, line.size,
        line.stride, window.base, line.out,
    )  # fmt: skip


class Memory:
    """The memory of a thread, in bytes: packed rows, V, Z, results and room to transpose them; and
    the steps in it."""

    def __init__(self, correlation: Correlation, plan: Schedule, lanes: int) -> None:
        boxes = zip(plan.windows, correlation.lines, plan.transforms, plan.box[1:], strict=True)
        axes = [_axis(*parts) for parts in boxes]
        self.images, self.item = plan.box[0], BYTES[correlation.element]
        self.axes = first, second, last = [AxisBlocks()] * (3 - correlation.rank) + axes
        self.tiles = self.images * prod((n.box + n.behind) * n.apart for n in self.axes)
        # Register tiles may reach behind the last tile, and pieces read behind that.
        rows = self.tiles + plan.rows
        chunk = chunk_of(correlation.reduced // correlation.groups, lanes)
        self.wide, self.position = chunk * self.item, plan.padded * self.item
        # Of operands that are packed: bytes along each axis, and of an image.
        line = last.span * self.wide
        self.packed_steps = second.span * line, line, self.wide
        self.image = first.span * second.span * line
        # An odd number of lines apart, so that points are not all in one set of the cache.
        self.v_row = _odd((ceil(reduction_of(correlation) / lanes) + 1) * lanes * self.item)
        self.v_point = _odd(rows * self.v_row)
        self.z_row = _odd(plan.columns * self.item)
        self.z_point = _odd(rows * self.z_row)
        # The same of results: of all phases of the last axis, and of one phase of the others.
        count = last.stage * last.stride
        line = count * self.position
        self.stage_steps = second.stage * line, line, self.position
        self.stage_image = first.stage * second.stage * line
        # Rows of results are transposed apart from y to add a residual, too.
        costs = costs_of(lanes * self.item).winograd
        transposed = correlation.epilogue.residual or shares_sets(correlation, costs)
        self.transposed = plan.channels * count * self.item if transposed else 0
        self.v_at = _lines(self.images * self.image)
        self.z_at = self.v_at + plan.points * self.v_point
        self.stage_at = self.z_at + plan.points * self.z_point
        self.transposed_at = self.stage_at + _lines(self.images * self.stage_image)
        # Parts of whole pages would all begin in the same sets.
        self.part = _lines(self.transposed_at + self.transposed + 4096) + 64

    def window_steps(self) -> dict[str, int]:
        """Bytes between operands of a window along the outer axes, and between results of a tile
        along all of them."""
        x = [
            axis.step * axis.apart * n for axis, n in zip(self.axes, self.packed_steps, strict=True)
        ]
        y = [axis.apart * n for axis, n in zip(self.axes, self.stage_steps, strict=True)]
        y[2] *= self.axes[2].stride
        steps = {f"x_step_{i}": n for i, n in enumerate(x[:2])}
        return steps | {f"y_step_{i}": n for i, n in enumerate(y)}


def _lines(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _odd(nbytes: int) -> int:
    return (-(-nbytes // 64) | 1) * 64
