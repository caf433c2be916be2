"""Steps of pooling, padding, resampling and pixel shuffle; steps that only copy are in moves.py.

A step consists of tables for the native code of engines/jit/windows.py. Along an axis, `Taps` list
the input positions that each result position reads; tables for several axes are products.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..engines.jit.steps import Step
from ..problem import DataLayout
from . import graph as ir
from .graph import Array
from .lines import Windows, channels_first, channels_last, one_by_one
from .moves import channel_copies, position_copies, split, sums
from .tables import Arrays, Target

_Selection = ir.Permute | ir.PixelUnshuffle
_MAX_ROW = 1024  # positions per row in a pool over all positions
_MAX_INTERLEAVED = 16  # phases, since the code's size grows with their square


def steps(operation: ir.Operation, outputs: Arrays, inputs: Arrays, target: Target) -> list[Step]:
    """Return the native steps of an operation that moves or combines positions."""
    layout = target.layout
    if isinstance(operation, ir.Concat) and operation.axis > 1:
        axis = layout.to_ncx(outputs[0].ndim - 2)[operation.axis]
        return position_copies(axis, outputs[0], inputs, target)
    if isinstance(operation, ir.Concat | ir.Slice):
        return channel_copies(operation, outputs, inputs, target)
    if isinstance(operation, ir.ChannelPool):
        return [_of_channels(operation, outputs[0], inputs[0], target)]
    if isinstance(operation, ir.Pool):
        return [_pool(operation, outputs[0], inputs[0], target)]
    if isinstance(operation, _Selection):
        return [_selection(operation, outputs[0], inputs[0], target)]
    assert isinstance(operation, (ir.Pad, ir.PixelShuffle, ir.Pool, ir.Resample))  # noqa: S101 - our own invariant
    if isinstance(operation, ir.Resample):
        size = tuple(inputs[0].shape[axis] for axis in layout.to_ncx(inputs[0].ndim - 2))[2:]
        operation = operation.at(size)
    if layout is DataLayout.NCX:
        if isinstance(operation, (ir.PixelShuffle, ir.Resample)) and (
            not operation.factors or operation.factors[-1] > _MAX_INTERLEAVED
        ):
            return [one_by_one(operation, outputs[0], inputs[0], target)]
        return [channels_first(operation, outputs[0], inputs[0], target)]
    if isinstance(operation, ir.PixelShuffle) and prod(operation.factors) > _MAX_INTERLEAVED:
        return [one_by_one(operation, outputs[0], inputs[0], target)]
    if isinstance(operation, ir.PixelShuffle):
        return [split(operation, outputs[0], inputs[0], target)]
    return [channels_last(operation, outputs[0], inputs[0], target)]


def _pool(operation: ir.Pool, out: Array, x: Array, target: Target) -> Step:
    """Return the step of a pool; a pool over all positions uses two axes for any rank."""
    layout = target.layout
    first = layout is DataLayout.NCX
    size = x.shape[2:] if first else x.shape[1:-1]
    operation = operation.at(size)
    side_by_side = not any(map(any, operation.padding)) and set(operation.dilation) <= {1}
    if operation.kernel == size == operation.stride and side_by_side:
        count = prod(size)
        length = max(n for n in range(1, min(count, _MAX_ROW) + 1) if count % n == 0)
        shape = (count // length, length) if length >= _MAX_ROW // 16 else (1, count)
        operation = _adjacent_windows(operation.mode, shape)
        batch, channels = len(x), x.shape[1 if first else -1]
        x = x.reshape(layout.shape(batch, channels, shape))
        out = out.reshape(layout.shape(batch, channels, (1, 1)))
    make = channels_first if first else channels_last
    return make(operation, out, x, target)


def _of_channels(operation: ir.ChannelPool, out: Array, x: Array, target: Target) -> Step:
    """Return the step of a pool over all channels, which become a spatial axis."""
    batch, channels = len(x), x.shape[target.layout.to_ncx(x.ndim - 2)[1]]
    if target.layout is DataLayout.NCX:
        x, out = x.reshape(batch, 1, channels, -1), out.reshape(batch, 1, 1, -1)
        kernel = channels, 1
    else:
        x, out = x.reshape(batch, 1, -1, channels), out.reshape(batch, 1, -1, 1)
        kernel = 1, channels
    return channels_first(_adjacent_windows(operation.mode, kernel), out, x, target)


def _selection(operation: _Selection, out: Array, x: Array, target: Target) -> Step:
    """Return the step that copies channels of x, or every n-th position of each channel."""
    layout = target.layout
    axes = layout.to_ncx(x.ndim - 2)
    strides = [x.strides[axis] for axis in axes[2:]]
    size = [x.shape[axis] for axis in axes[2:]]
    channel = prod(size) * x.itemsize if layout is DataLayout.NCX else x.itemsize
    ends = ((0, 0),) * len(size)
    plain: Windows = ir.Pad(ends)
    if isinstance(operation, ir.Permute):
        sources = np.array(operation.order) * channel
    else:
        factors = operation.factors
        first = sums(np.arange(f) * stride for f, stride in zip(factors, strides, strict=True))
        sources = (np.arange(x.shape[axes[1]])[:, None] * channel + first).ravel()
        plain = ir.Pool("max", (1,) * len(size), factors, ends, dilation=(1,) * len(size))
    if layout is DataLayout.NCX:
        return channels_first(plain, out, x, target, sources)
    return one_by_one(plain, out, x, target, sources)


def _adjacent_windows(mode: str, kernel: tuple[int, int]) -> ir.Pool:
    """Return a pool whose windows are adjacent."""
    return ir.Pool(mode, kernel, kernel, ((0, 0), (0, 0)), dilation=(1, 1))
