"""The im2col matrix, and the padded output that im2col reads and col2im adds into.

A padded output is (N, G, F, *length), its columns for a box of inputs are (G, F, *taps, N,
*inputs). On every axis tap t of input i lies at position origin + s*i + d*t of the padded output,
so for conflict-free taps and inputs (`index_sets.ConflictFree`) the columns are one strided view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from .base import Array
from .index_sets import ConflictFree, IndexSet

Box = tuple[slice, ...]
"""A box of inputs: one interval per spatial axis."""


def box_size(box: Box) -> tuple[int, ...]:
    """The spatial size of a box.

    >>> box_size((slice(2, 5), slice(0, 7)))
    (3, 7)
    """
    return tuple(part.stop - part.start for part in box)


@dataclass(frozen=True, slots=True)
class Im2col:
    """The columns of boxes of inputs of a padded output with one index set per axis."""

    index_sets: tuple[IndexSet, ...]

    def shape(self, counts: tuple[int, int, int], box: Box) -> tuple[int, ...]:
        """The shape of a box's columns; `counts` are those of N, G and F."""
        items, groups, channels = counts
        taps = (index_set.kernel for index_set in self.index_sets)
        return (groups, channels, *taps, items, *box_size(box))

    def views(self, padded: Array, columns: Array, box: Box) -> Iterator[tuple[Array, Array]]:
        """For every conflict-free set: where it lies in the padded output, and its columns.

        Both are views of shape (G, F, *taps, N, *inputs); together they are all the columns.
        """
        sizes = box_size(box)
        each = (
            index_set.conflict_free(size)
            for index_set, size in zip(self.index_sets, sizes, strict=True)
        )
        for sets in _combinations(each):
            taps, inputs = (one.taps for one in sets), (one.inputs for one in sets)
            part: Any = (slice(None), slice(None), *taps, slice(None), *inputs)
            yield self._view(padded, sets, box), columns[part]

    def _view(self, padded: Array, sets: tuple[ConflictFree, ...], box: Box) -> Array:
        """The padded output seen as the columns of one set per axis."""
        starts, taps, inputs, tap_strides, input_strides = [], [], [], [], []
        for i, (index_set, one) in enumerate(zip(self.index_sets, sets, strict=True)):
            first = box[i].start + one.inputs.start
            start = (
                index_set.origin + index_set.stride * first + index_set.dilation * one.taps.start
            )
            starts.append(slice(start, None))
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


def _combinations(each: Iterable[Iterable[ConflictFree]]) -> Iterator[tuple[ConflictFree, ...]]:
    """itertools.product, but the first iterator, which may be long, is not made into a list."""
    first, *rest = each
    later = [tuple(sets) for sets in rest]
    for one in first:
        for others in product(*later):
            yield (one, *others)
