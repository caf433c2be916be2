"""The weight of a correlation as Winograd's algorithm reads it: transformed, in order of use."""

from __future__ import annotations

from itertools import product
from math import ceil, prod

import numpy as np

from ... import memory
from ..base import Array
from .correlation import Correlation
from .packing import aligned
from .winograd import Transform
from .winograd_plan import Schedule, chunk_of, depth_of
from .winograd_window import Window

_PART = 1 << 18  # numbers of the transformed weight that are made at once


class Weights:
    """The order of a transformed weight: [group][unit][point][panel][piece][depth][panel's
    columns], where depth is [chunk][phase of operands][reduced channel of the chunk]."""

    def __init__(self, correlation: Correlation, schedule: Schedule, lanes: int) -> None:
        self._correlation, self._schedule = correlation, schedule
        self._dtype = correlation.dtype.numpy
        self.reduced, self.depth = correlation.reduced // correlation.groups, depth_of(correlation)
        self.chunk = chunk_of(self.reduced, lanes)
        self._made = correlation.made // correlation.groups
        self.chunks = ceil(self._made / schedule.channels)
        self._panel = schedule.vectors * lanes
        self.pieces = prod(transform.pieces for transform in schedule.transforms)
        self.units = self.chunks * prod(w.line.stride for w in schedule.windows[:-1])
        self.point_bytes = self.pieces * self.depth * schedule.columns * self._dtype.itemsize
        self.unit_bytes = schedule.points * self.point_bytes
        self.nbytes = correlation.groups * self.units * self.unit_bytes

    def pack(self, weight: Array) -> Array:
        """The transform of a weight of the correlation's shape: in float64, then rounded once."""
        memory.require(self.nbytes + 32 * _PART, "the transformed weight")
        correlation, schedule = self._correlation, self._schedule
        phases, count = self.depth // self.reduced, self.nbytes // self._dtype.itemsize
        weight = np.ascontiguousarray(weight)
        by_group, by_reduced, by_made, *by_tap = correlation.weight_strides
        strides = [n * weight.itemsize for n in (by_group, *by_tap, by_reduced, by_made)]
        axes = [_matrix(*pair) for pair in zip(schedule.windows, schedule.transforms, strict=True)]
        kernel = [matrix.shape[-1] for matrix in axes]
        shape = (correlation.groups, *kernel, self.reduced, self._made)
        given = np.lib.stride_tricks.as_strided(weight, shape, strides, writeable=False)
        flat = aligned(count, self._dtype)
        outer = self.units // self.chunks
        packed = flat.reshape(
            correlation.groups, outer, self.chunks, schedule.points, -1, self.pieces, self.depth,
            self._panel,
        )  # fmt: skip
        matrices = _phases(axes)
        part = max(1, _PART * self.depth * outer // count)
        for group, first in product(range(correlation.groups), range(0, self.reduced, self.chunk)):
            live = min(self.chunk, self.reduced - first)
            for start in range(0, live, part):
                stop = min(live, start + part)
                taps = self._taps(given[group, ..., first + start : first + stop, :])
                for g, h in np.ndindex(outer, phases):
                    place = first * phases + h * live
                    made = self._columns(matrices[g, :, h], taps)
                    packed[group, g, ..., place + start : place + stop, :] = made
        return flat

    def _taps(self, weight: Array) -> Array:
        """(*kernel, reduced, made) -> (reduced, chunks, taps, channels of a unit)."""
        *kernel, reduced, made = weight.shape
        each = self._schedule.channels
        taps = np.zeros((reduced, prod(kernel), self.chunks * each))
        taps[..., :made] = np.moveaxis(weight.reshape(-1, reduced, made), 0, 1)
        return np.moveaxis(taps.reshape(reduced, -1, self.chunks, each), 2, 1)

    def _columns(self, matrices: Array, taps: Array) -> Array:
        """`_taps` by the matrix of each phase of the last axis: (chunks, points, panels, pieces,
        reduced, panel's columns). Many small products: BLAS gives large ones to threads, which wait
        for each other where others compute."""
        schedule, last = self._schedule, len(matrices)
        shape = (*taps.shape[:2], schedule.points, self.pieces)
        spread = np.zeros((*shape, last, schedule.padded), self._dtype)
        for g, matrix in enumerate(matrices):
            used = matrix.any(0)
            found = matrix[:, used] @ taps[:, :, used]
            spread[..., g, : schedule.channels] = found.reshape(*shape, schedule.channels)
        return spread.reshape(*shape, -1, self._panel).transpose(1, 2, 4, 3, 0, 5)


def _matrix(window: Window, transform: Transform) -> Array:
    """What a phase of results, one of operands, a point and a piece have of each tap of an axis."""
    kernel = 1 + max((index for _, _, _, index in window.taps), default=0)
    line = window.line
    found = np.zeros((line.stride, line.step, transform.points, transform.pieces, kernel))
    for g, h, place, index in window.taps:
        piece, tap = divmod(place, transform.r // transform.pieces)
        found[g, h, :, piece, index] += [float(row[tap]) for row in transform.g]
    return found


def _phases(axes: list[Array]) -> Array:
    """The matrices of all axes as one of all taps: (phase of results of the outer axes, of the
    last, phase of operands, points * pieces, taps)."""
    whole, *more = axes
    for matrix in more:
        whole = np.einsum("abcde,fghij->afbgchdiej", whole, matrix)
        n = whole.shape
        whole = whole.reshape([n[i] * n[i + 1] for i in range(0, 10, 2)])
    results, operands, points, pieces, taps = whole.shape
    last = axes[-1].shape[0]
    return whole.reshape(results // last, last, operands, points * pieces, taps)
