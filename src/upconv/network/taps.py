"""Taps: the input positions that each result position reads, per axis and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engines.jit.moves import ROW, TAP
from ..engines.jit.packing import Numbers
from .graph import Pad, PixelShuffle, Pool, Resample
from .tables import records

Windows = Pad | PixelShuffle | Pool | Resample


class Taps(NamedTuple):
    """The taps of each position of a result along an axis, as arrays of shape (out, taps).

    offsets: bytes in the input. real: whether the tap is inside the input.
    """

    offsets: NDArray[np.int64]
    weights: NDArray[np.float64]
    real: NDArray[np.bool_]


def taps_along(operation: Windows, axis: int, size: int, step: int, channel: int) -> Taps:
    """Return the taps along an axis of `size` positions. Positions are `step` bytes apart, channels
    `channel` bytes."""
    if isinstance(operation, Pool):
        return _pool_taps(operation, axis, size, step)
    if isinstance(operation, Pad):
        index = _padded(operation, axis, size)
        return Taps(index * step, np.ones(index.shape), index >= 0)
    if isinstance(operation, Resample):
        return _resampled(operation, axis, size, step)
    factor = operation.factors[axis]
    out: Numbers = np.arange(size * factor)[:, None]
    real = np.ones(out.shape, bool)
    channels = out % factor * prod(operation.factors[axis + 1 :])
    return Taps(out // factor * step + channels * channel, np.ones(out.shape), real)


def _resampled(operation: Resample, axis: int, size: int, step: int) -> Taps:
    after = operation.sizes[axis] if operation.sizes else size * operation.factors[axis]
    out: Numbers = np.arange(after)[:, None]
    if operation.mode == "nearest":
        return Taps(out * size // after * step, np.ones(out.shape), np.ones(out.shape, bool))
    position = (out + 0.5) * size / after - 0.5
    if operation.aligned:
        position = out * (size - 1) / max(1, after - 1)
    position = np.clip(position, 0, size - 1)
    left = position.astype(np.int64)
    index, share = np.hstack((left, np.minimum(left + 1, size - 1))), position - left
    return Taps(index * step, np.hstack((1 - share, share)), np.ones(index.shape, bool))


def _pool_taps(operation: Pool, axis: int, size: int, step: int) -> Taps:
    """Return the taps of pooling windows; their weights give an average."""
    stride, (begin, end) = operation.stride[axis], operation.padding[axis]
    taps = np.arange(operation.kernel[axis]) * operation.dilation[axis]
    out = np.arange(operation.count(axis, size))[:, None]
    index: Numbers = out * stride - begin + taps
    real = (index >= 0) & (index < size)
    counted = index < size + end if operation.count_padding else real
    count = counted.sum(1, keepdims=True)
    return Taps(index * step, 1 / np.maximum(count, 1) * np.ones(index.shape), real)


def _padded(operation: Pad, axis: int, size: int) -> Numbers:
    """Return the input position of each result position, or -1 if there is none."""
    begin, end = operation.amounts[axis]
    kept = np.arange(size)[max(0, -begin) : size - max(0, -end)]
    widths = max(0, begin), max(0, end)
    if operation.mode == "constant":
        return np.pad(kept, widths, constant_values=-1)[:, None]
    return np.pad(kept, widths, "edge" if operation.mode == "replicate" else "reflect")[:, None]


def product(axes: Sequence[Taps]) -> Taps:
    """Return the taps of all combinations of the axes' positions."""
    result = Taps(np.zeros((1, 1), np.int64), np.ones((1, 1)), np.ones((1, 1), bool))

    def pairs(a: Any, b: Any, combine: Any) -> Any:
        shape = len(a) * len(b), a.shape[1] * b.shape[1]
        return combine(a[:, None, :, None], b[None, :, None, :]).reshape(shape)

    for taps in axes:
        result = Taps(*map(pairs, result, taps, (np.add, np.multiply, np.logical_and)))
    return result


def tap_tables(taps: Taps, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return taps as tables of positions and of taps; results are `step` bytes apart."""
    counts = taps.real.sum(1)
    first = np.cumsum(counts) - counts
    rows = records(ROW, len(counts), to=np.arange(len(counts)) * step, tap=first, taps=counts)
    # There is one extra record, since a job may read the first record of an empty list.
    listed = records(TAP, int(counts.sum()) + 1)
    listed["offset"][:-1], listed["weight"][:-1] = taps.offsets[taps.real], taps.weights[taps.real]
    return rows, listed
