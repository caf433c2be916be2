"""Positions of inputs and taps in a padded output, and conflict-free sets of them.

On every axis, tap t of input i is at position origin + s*i + d*t of the padded output (N, G, F,
*length). For conflict-free taps and inputs (`ConflictFree`), the columns (G, F, *taps, N,
*inputs) are therefore a single strided view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import gcd
from typing import Any

import numpy as np

from ..geometry import Axis
from .base import Array

Sets = tuple["ConflictFree", ...]
"""One conflict-free set per axis."""


def combined(index_sets: Sequence[IndexSet]) -> Iterator[Sets]:
    """Yield sets that together contain every pair of taps and inputs once."""
    first, *rest = (index_set.conflict_free(index_set.size) for index_set in index_sets)
    later = [tuple(sets) for sets in rest]
    for one in first:
        for others in product(*later):
            yield (one, *others)


def columns_of(padded: Array, index_sets: Sequence[IndexSet], sets: Sets) -> Array:
    """Return the columns of one set per axis, a view of a padded output."""
    starts, taps, inputs, tap_strides, input_strides = [], [], [], [], []
    for i, (index_set, one) in enumerate(zip(index_sets, sets, strict=True)):
        first = index_set.stride * one.inputs.start + index_set.dilation * one.taps.start
        starts.append(slice(index_set.origin + first, None))
        taps.append(one.taps.stop - one.taps.start)
        inputs.append(one.inputs.stop - one.inputs.start)
        tap_strides.append(index_set.dilation * padded.strides[3 + i])
        input_strides.append(index_set.stride * padded.strides[3 + i])
    items, groups, channels = padded.shape[:3]
    by_item, by_group, by_channel = padded.strides[:3]
    corner: Any = (..., *starts)
    return np.lib.stride_tricks.as_strided(
        padded[corner],
        (groups, channels, *taps, items, *inputs),
        (by_group, by_channel, *tap_strides, by_item, *input_strides),
    )


@dataclass(frozen=True, slots=True)
class ConflictFree:
    """A set of taps and inputs whose positions in the padded output are pairwise different."""

    taps: slice
    inputs: slice


@dataclass(frozen=True, slots=True)
class IndexSet:
    """Positions of an axis's inputs and taps in its *padded output*, for engines that fill one.

    The padded output is the full result, extended where a crop is negative; the outputs are its
    `window`. Tap t of input i is at position origin + stride*i + dilation*t. Only the slices
    `inputs` (`size` inputs) and `taps` (`kernel` taps) reach the window.

    >>> index_set = IndexSet.of(Axis(size=3, kernel=5, stride=2, crop_begin=1, crop_end=-1))
    >>> index_set.length, index_set.window
    (10, slice(1, 10, None))
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    length: int
    origin: int
    window: slice
    inputs: slice
    taps: slice

    @classmethod
    def of(cls, axis: Axis, *, reached: bool = True) -> IndexSet:
        """Return an axis's index set; `reached` keeps only inputs and taps that reach outputs."""
        inputs, taps = range(axis.size), range(axis.kernel)
        if reached:
            trimmed = axis.trimmed()
            axis, inputs, taps = trimmed.axis, trimmed.inputs, trimmed.taps
        begin, crop_end = axis.crop_begin, axis.crop_end
        start = max(0, begin) if axis.size else 0
        return cls(
            size=axis.size,
            kernel=axis.kernel,
            stride=axis.stride,
            dilation=axis.dilation,
            length=axis.full + max(0, -begin) + max(0, -crop_end) if axis.size else axis.out,
            origin=max(0, -begin),
            window=slice(start, start + axis.out),
            inputs=slice(inputs.start, inputs.stop),
            taps=slice(taps.start, taps.stop),
        )

    @property
    def is_tiled(self) -> bool:
        """Whether one set covers the padded output exactly, each position once."""
        single = sum(1 for _ in islice(self.conflict_free(self.size), 2)) == 1
        return single and self.length == self.size * self.kernel

    def conflict_free(self, inputs: int) -> Iterator[ConflictFree]:
        """Yield sets that together contain every pair of a tap and one of `inputs` inputs once.

        Positions s*i + d*t are pairwise different for all inputs and s / gcd(s, d) consecutive
        taps, and for all taps and d / gcd(s, d) consecutive inputs. The function makes the cut
        that gives fewer sets.

        >>> index_set = IndexSet.of(Axis(size=3, kernel=5, stride=2))
        >>> [each.taps for each in index_set.conflict_free(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
        """
        common = gcd(self.stride, self.dilation)
        taps, rows = self.stride // common, self.dilation // common
        if -(-self.kernel // taps) <= -(-inputs // rows):
            for start in range(0, self.kernel, taps):
                yield ConflictFree(slice(start, min(start + taps, self.kernel)), slice(0, inputs))
        else:
            for start in range(0, inputs, rows):
                yield ConflictFree(slice(0, self.kernel), slice(start, min(start + rows, inputs)))
