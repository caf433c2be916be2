"""Columns and canvas: which element of the one lies where on the other, for im2col and col2im.

A canvas is (N, G, F, *length), its columns for a slab of inputs are (G, F, *taps, N, *inputs). On
every axis tap t of input i lies at canvas position origin + s*i + d*t, so for a run of taps and
inputs (`geometry.Run`) the columns are one strided view of the canvas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..geometry import Lattice, Run
from .base import Array


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of slabs of inputs, a slab being some rows of the axis `slab_axis`."""

    lattices: tuple[Lattice, ...]
    slab_axis: int

    def shape(self, counts: tuple[int, int, int], slab: slice) -> tuple[int, ...]:
        """The shape of a slab's columns; `counts` are those of N, G and F."""
        items, groups, channels = counts
        taps = (lattice.kernel for lattice in self.lattices)
        return (groups, channels, *taps, items, *self.slab_size(slab))

    def slab_size(self, slab: slice) -> tuple[int, ...]:
        """The spatial size of a slab of inputs."""
        rows = slab.stop - slab.start
        sizes = (lattice.size for lattice in self.lattices)
        return tuple(rows if i == self.slab_axis else size for i, size in enumerate(sizes))

    def slab_index(self, slab: slice) -> Any:
        """The index that takes a slab out of an array's spatial axes."""
        rank = len(self.lattices)
        return tuple(slab if i == self.slab_axis else slice(None) for i in range(rank))

    def runs(self, canvas: Array, columns: Array, slab: slice) -> Iterator[tuple[Array, Array]]:
        """For every run of taps and inputs: where it lies on the canvas, and its columns.

        Both are views of shape (G, F, *taps, N, *inputs); together the runs are all the columns.
        """
        sizes = self.slab_size(slab)
        each = (lattice.runs(size) for lattice, size in zip(self.lattices, sizes, strict=True))
        for runs in _combinations(each):
            taps, inputs = (run.taps for run in runs), (run.inputs for run in runs)
            part: Any = (slice(None), slice(None), *taps, slice(None), *inputs)
            yield self._view(canvas, runs, slab.start), columns[part]

    def _view(self, canvas: Array, runs: tuple[Run, ...], slab_start: int) -> Array:
        """The canvas seen as the columns of one run per axis."""
        starts, taps, inputs, tap_strides, input_strides = [], [], [], [], []
        for i, (lattice, run) in enumerate(zip(self.lattices, runs, strict=True)):
            first = run.inputs.start + (slab_start if i == self.slab_axis else 0)
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
