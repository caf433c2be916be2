"""Cutting a problem into blocks whose columns and padded output stay in cache.

A block is some batch items, some groups, and some output channels of each of them; its inputs are
taken box by box. The bounds are of the size of a core's share of the last-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from .im2col import Box

_COLUMNS_BYTES = 4 << 20  # the columns of a block
_MOST_COLUMNS_BYTES = 64 << 20  # ... and what they may grow to under a long kernel
_PADDED_BYTES = 8 << 20
_LIGHT_BYTES = 1 << 20  # a block is worth its Python only from about here
_ENOUGH_POSITIONS = 512  # fewer columns than this starve a matrix product: take more items, rows
_ENOUGH_ROWS = 256  # and likewise its rows: take more channels


@dataclass(frozen=True, slots=True)
class Block:
    """Batch items, groups and output channels (of every group in the block) computed together."""

    items: slice
    groups: slice
    channels: slice

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many of each."""
        return count(self.items), count(self.groups), count(self.channels)


@dataclass(frozen=True, slots=True)
class Blocking:
    """How many items, groups and channels there are, how many a block has, and boxes likewise.

    >>> Blocking.of((1, 1, 64), size=(32, 32), taps=16, padded_bytes=17_000, width=4).channels()[:2]
    [slice(0, 64, None)]
    """

    totals: tuple[int, int, int]
    steps: tuple[int, int, int]
    size: tuple[int, ...]
    box: tuple[int, ...]

    @classmethod
    def of(
        cls,
        totals: tuple[int, int, int],
        *,
        size: tuple[int, ...],
        taps: int,
        padded_bytes: int,
        width: int,
    ) -> Blocking:
        """`padded_bytes` is of one channel of one item, `width` the bytes of a number."""
        batch, groups, channels = totals
        positions, padded = prod(size), max(1, padded_bytes)
        per_item = max(1, width * taps * positions)  # the columns of one channel
        enough = -(-_ENOUGH_POSITIONS // max(1, positions))
        light = _LIGHT_BYTES // (per_item * channels)
        items = _within(batch, max(enough, light), _PADDED_BYTES // padded)
        wanted = max(_COLUMNS_BYTES // (per_item * items), -(-_ENOUGH_ROWS // taps))
        some_channels = _within(channels, wanted, _PADDED_BYTES // (padded * items))
        some_groups, block = 1, some_channels * items
        if some_channels == channels:
            wanted = _COLUMNS_BYTES // (per_item * block)
            some_groups = _within(groups, wanted, _PADDED_BYTES // (padded * block))
        box = _box(size, width * taps * block * some_groups)
        return cls(totals, (items, some_groups, some_channels), size, box)

    def items(self) -> list[slice]:
        """The batch items of each block, in order."""
        return slices(self.totals[0], self.steps[0])

    def groups(self) -> list[slice]:
        """The groups of each block, in order."""
        return slices(self.totals[1], self.steps[1])

    def channels(self) -> list[slice]:
        """The output channels of each block, in order."""
        return slices(self.totals[2], self.steps[2])

    def blocks(self) -> Iterator[Block]:
        """Blocks that together are the whole problem."""
        for items, groups, channels in product(self.items(), self.groups(), self.channels()):
            yield Block(items, groups, channels)

    def boxes(self) -> Iterator[Box]:
        """Boxes that together are all inputs; none at all when there is no input position."""
        return product(*(slices(n, step) for n, step in zip(self.size, self.box, strict=True)))


def _box(size: tuple[int, ...], per_position: int) -> tuple[int, ...]:
    """The size of boxes whose columns, `per_position` bytes for each input, stay in cache.

    The last axes are kept whole as long as that goes, so that positions lie in a row. A box costs
    a step of Python for every run of taps, so that under a long kernel it may be larger.
    """
    long_kernel = min(_ENOUGH_POSITIONS, _MOST_COLUMNS_BYTES // per_position)
    left = max(1, _COLUMNS_BYTES // per_position, long_kernel)
    box: list[int] = []
    for extent in reversed(size):
        box.insert(0, _within(extent, extent, left))
        left //= box[0]
    return tuple(box)


def _within(total: int, wanted: int, allowed: int) -> int:
    """A part of `total`, near min(wanted, allowed) and at least 1, that cuts it evenly."""
    most = max(1, min(total, wanted, allowed))
    return max(1, -(-total // -(-total // most))) if total else 1


def count(part: slice) -> int:
    """How many indices a slice with a start and a stop has."""
    return int(part.stop - part.start)


def slices(total: int, step: int) -> list[slice]:
    """`total` indices in slices of `step`.

    >>> slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]
