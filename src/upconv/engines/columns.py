"""Columns and canvas: which element of the one lies where on the other, for im2col and col2im.

A canvas is (N, G, F, *length), its columns for a box of inputs are (G, F, *taps, N, *inputs). On
every axis tap t of input i lies at canvas position origin + s*i + d*t, so for a run of taps and
inputs (`geometry.Run`) the columns are one strided view of the canvas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from .base import Array
from .lattice import Lattice, Run

Box = tuple[slice, ...]
"""A box of inputs: one interval per spatial axis."""


def box_size(box: Box) -> tuple[int, ...]:
    """The spatial size of a box.

    >>> box_size((slice(2, 5), slice(0, 7)))
    (3, 7)
    """
    return tuple(part.stop - part.start for part in box)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of boxes of inputs on a canvas with one lattice per axis."""

    lattices: tuple[Lattice, ...]

    def shape(self, counts: tuple[int, int, int], box: Box) -> tuple[int, ...]:
        """The shape of a box's columns; `counts` are those of N, G and F."""
        items, groups, channels = counts
        taps = (lattice.kernel for lattice in self.lattices)
        return (groups, channels, *taps, items, *box_size(box))

    def runs(self, canvas: Array, columns: Array, box: Box) -> Iterator[tuple[Array, Array]]:
        """For every run of taps and inputs: where it lies on the canvas, and its columns.

        Both are views of shape (G, F, *taps, N, *inputs); together the runs are all the columns.
        """
        sizes = box_size(box)
        each = (lattice.runs(size) for lattice, size in zip(self.lattices, sizes, strict=True))
        for runs in _combinations(each):
            taps, inputs = (run.taps for run in runs), (run.inputs for run in runs)
            part: Any = (slice(None), slice(None), *taps, slice(None), *inputs)
            yield self._view(canvas, runs, box), columns[part]

    def _view(self, canvas: Array, runs: tuple[Run, ...], box: Box) -> Array:
        """The canvas seen as the columns of one run per axis."""
        starts, taps, inputs, tap_strides, input_strides = [], [], [], [], []
        for i, (lattice, run) in enumerate(zip(self.lattices, runs, strict=True)):
            first = box[i].start + run.inputs.start
            start = lattice.origin + lattice.stride * first + lattice.dilation * run.taps.start
            starts.append(slice(start, None))
            taps.append(run.taps.stop - run.taps.start)
            inputs.append(run.inputs.stop - run.inputs.start)
            tap_strides.append(lattice.dilation * canvas.strides[3 + i])
            input_strides.append(lattice.stride * canvas.strides[3 + i])
        items, groups, channels = canvas.shape[:3]
        by_item, by_group, by_channel = canvas.strides[:3]
        corner: Any = (..., *starts)
        return np.lib.stride_tricks.as_strided(
            canvas[corner],
            (groups, channels, *taps, items, *inputs),
            (by_group, by_channel, *tap_strides, by_item, *input_strides),
        )


def _combinations(each: Iterable[Iterable[Run]]) -> Iterator[tuple[Run, ...]]:
    """itertools.product, but the first iterator, which may be long, is not made into a list."""
    first, *rest = each
    later = [tuple(runs) for runs in rest]
    for run in first:
        for others in product(*later):
            yield (run, *others)
