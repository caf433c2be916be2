"""Steps of pooling, padding, resampling and pixel shuffle; those of moves come from moves.py.

Each is a few tables for the code of engines/jit/windows.py. Along an axis, `Taps` say which
positions of the input make each position of the result; the tables of several axes are products.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engines.jit.cpu import Cpu
from ..engines.jit.moves import IMAGE, ROW, TAP
from ..engines.jit.packing import Numbers
from ..engines.jit.steps import Step
from ..engines.jit.values import BYTES, LINE
from ..engines.jit.windows import Line, line_code, points_code
from ..problem import DataLayout
from .graph import Array, Concat, Operation, Pad, PixelShuffle, Pool, Resample, Slice
from .matrices import image_stride, position_stride
from .moves import channel_copies, split
from .tables import PART_BYTES, StepTables, elements, images, job_parts, records

Windows = Pad | PixelShuffle | Pool | Resample
_INTERLEAVED = 16  # phases that code interleaves: it grows with their square
_STRIDE = 8  # positions from window to window, of which shuffles of so many vectors take one


class Taps(NamedTuple):
    """Which positions make each position of a result along an axis, of shape (out, taps): bytes of
    the input, weights, and which are there."""

    offsets: NDArray[np.int64]
    weights: NDArray[np.float64]
    real: NDArray[np.bool_]


def steps(
    operation: Operation,
    outputs: Sequence[Array],
    inputs: Sequence[Array],
    layout: DataLayout,
    threads: int,
    cpu: Cpu,
) -> list[Step]:
    """The native steps of an operation that moves or combines positions."""
    if not outputs[0].size:
        return []
    if isinstance(operation, Concat | Slice):
        return channel_copies(operation, outputs, inputs, layout, threads, cpu)
    assert isinstance(operation, (Pad, PixelShuffle, Pool, Resample))  # noqa: S101 - our own invariant
    if layout is DataLayout.NCX:
        if isinstance(operation, (PixelShuffle, Resample)) and operation.factors[-1] > _INTERLEAVED:
            return [_one_by_one(operation, outputs[0], inputs[0], layout, threads, cpu)]
        return [_channels_first(operation, outputs[0], inputs[0], threads, cpu)]
    if isinstance(operation, PixelShuffle) and prod(operation.factors) > _INTERLEAVED:
        return [_one_by_one(operation, outputs[0], inputs[0], layout, threads, cpu)]
    if isinstance(operation, PixelShuffle):
        return [split(operation, outputs[0], inputs[0], threads, cpu)]
    return [_channels_last(operation, outputs[0], inputs[0], threads, cpu)]


# Taps ---------------------------------------------------------------------------------------------


def _taps(operation: Windows, axis: int, size: int, step: int, channel: int) -> Taps:
    """The taps along one axis of `size` positions, `step` bytes apart; channels are `channel` bytes
    apart."""
    if isinstance(operation, Pool):
        return _pool_taps(operation, axis, size, step)
    if isinstance(operation, Pad):
        index = _padded(operation, axis, size)
        return Taps(index * step, np.ones(index.shape), index >= 0)
    factor = operation.factors[axis]
    out: Numbers = np.arange(size * factor)[:, None]
    real = np.ones(out.shape, bool)
    if isinstance(operation, PixelShuffle):
        channels = out % factor * prod(operation.factors[axis + 1 :])
        return Taps(out // factor * step + channels * channel, np.ones(out.shape), real)
    if operation.mode == "nearest":
        return Taps(out // factor * step, np.ones(out.shape), real)
    position = np.clip((out + 0.5) / factor - 0.5, 0, size - 1)
    left = position.astype(np.int64)
    index, share = np.hstack((left, np.minimum(left + 1, size - 1))), position - left
    return Taps(index * step, np.hstack((1 - share, share)), np.ones(index.shape, bool))


def _pool_taps(operation: Pool, axis: int, size: int, step: int) -> Taps:
    """The taps of windows; weights are those of an average."""
    kernel, stride = operation.kernel[axis], operation.stride[axis]
    begin, end = operation.padding[axis]
    out = (size + begin + end - kernel) // stride + 1
    index: Numbers = np.arange(out)[:, None] * stride - begin + np.arange(kernel)
    real = (index >= 0) & (index < size)
    count = real.sum(1, keepdims=True)
    if operation.count_padding:
        count = np.full_like(count, kernel)
    return Taps(index * step, 1 / np.maximum(count, 1) * np.ones(index.shape), real)


def _padded(operation: Pad, axis: int, size: int) -> Numbers:
    """The position of the input at each position of the result, -1 where there is none."""
    begin, end = operation.amounts[axis]
    kept = np.arange(size)[max(0, -begin) : size - max(0, -end)]
    widths = max(0, begin), max(0, end)
    if operation.mode == "constant":
        return np.pad(kept, widths, constant_values=-1)[:, None]
    return np.pad(kept, widths, "edge" if operation.mode == "replicate" else "reflect")[:, None]


def _product(axes: Sequence[Taps]) -> Taps:
    """The taps of all combinations of positions."""
    result = Taps(np.zeros((1, 1), np.int64), np.ones((1, 1)), np.ones((1, 1), bool))

    def pairs(a: Any, b: Any, combine: Any) -> Any:
        shape = len(a) * len(b), a.shape[1] * b.shape[1]
        return combine(a[:, None, :, None], b[None, :, None, :]).reshape(shape)

    for taps in axes:
        result = Taps(
            pairs(result.offsets, taps.offsets, np.add),
            pairs(result.weights, taps.weights, np.multiply),
            pairs(result.real, taps.real, np.logical_and),
        )
    return result


def _tables(taps: Taps, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Taps as records; results are `step` bytes apart."""
    counts = taps.real.sum(1)
    first = np.cumsum(counts) - counts
    rows = records(ROW, len(counts), to=np.arange(len(counts)) * step, tap=first, taps=counts)
    # One more, as a job may look at the first of none.
    listed = records(TAP, int(counts.sum()) + 1)
    listed["offset"][:-1], listed["weight"][:-1] = taps.offsets[taps.real], taps.weights[taps.real]
    return rows, listed


# Steps --------------------------------------------------------------------------------------------


def _channels_first(operation: Windows, out: Array, x: Array, threads: int, cpu: Cpu) -> Step:
    """Rows are of positions; the last axis is combined by code of its own."""
    batch, channels, *size = out.shape
    *outer_sizes, width = x.shape[2:]
    item = x.itemsize
    channel = prod(x.shape[2:]) * item
    strides = [prod(x.shape[3 + i :]) * item for i in range(len(size))]
    axes = [
        _taps(operation, i, n, step, channel)
        for i, (n, step) in enumerate(zip(outer_sizes, strides, strict=False))
    ]
    reduce, last, factor, edge, begin, kernel = _last_axis(operation)
    stored, computed = elements(x, reduce)
    if last == "shuffle":  # the last axis takes one row of each of some channels
        every = np.arange(factor)[None] * channel
        axes.append(Taps(every, np.ones(every.shape), np.ones(every.shape, bool)))
    taps = _product(axes)
    if last == "copy" and begin < 0:
        taps = taps._replace(offsets=taps.offsets - begin * item)
    rows, listed = _tables(taps, size[-1] * item)
    if isinstance(operation, Pad):
        width -= sum(max(0, -amount) for amount in operation.amounts[-1])
        begin = max(0, begin)
    stride, alone = factor, last == "pool" and (factor > _STRIDE or size[-1] == 1)
    if alone:  # each job computes one window of every row
        factor, parts = 1, job_parts(len(rows), size[-1], 1, PART_BYTES)
    else:
        parts = job_parts(len(rows), size[-1], 64 * factor if last in _UP else 64, item)
    first, count = parts["column"] - begin, parts["columns"].copy()
    if last == "pool":
        first, count = parts["column"] * stride - begin, (count - 1) * stride + kernel
    elif last in _UP:
        first, count = parts["column"] // factor, count // factor
        if last == "linear":
            first, count = first - 1, count + 2
    parts["first"], parts["count"] = first, count
    lanes = cpu.lanes(BYTES[computed])
    line = int(count.max()) + 2 * lanes * (factor + 1)  # vectors may begin at the last positions
    segment = -(-line * BYTES[computed] // LINE) * LINE
    tables = StepTables(out, x)
    tables.add(rows=rows, taps=listed)
    if last == "pool":
        scale = _taps(operation, len(size) - 1, width, item, 0).weights[:, 0]
        tables.add(scale=scale.astype(f"f{BYTES[computed]}"))
    tables.values |= {"width": width, "kernel": kernel, "segment": segment}
    n, c = (axis.ravel() for axis in np.mgrid[0:batch, 0:channels])
    per = x.shape[1] // channels * channel
    image_table = records(IMAGE, len(n), src=n * image_stride(x) + c * per,
                     dst=n * image_stride(out) + c * prod(size) * item)  # fmt: skip
    code = line_code(Line(reduce, last, factor, edge, stored, computed), cpu)
    part = LINE + segment * (factor if last == "shuffle" else 1)
    return tables.step(code, "windows", parts, image_table, threads, cpu, part=part)


_UP = ("nearest", "linear", "shuffle")


def _last_axis(operation: Windows) -> tuple[str, str, int, str, int, int]:
    """What `Line` wants to know of the last axis, the positions added in front, and the kernel."""
    if isinstance(operation, Pool):
        reduce = "max" if operation.mode == "max" else "sum"
        begin, _ = operation.padding[-1]
        return reduce, "pool", operation.stride[-1], "fill", begin, operation.kernel[-1]
    if isinstance(operation, Pad):
        edge = "fill" if operation.mode == "constant" else operation.mode
        return "pick", "copy", 1, edge, operation.amounts[-1][0], 1
    factor = operation.factors[-1]
    if isinstance(operation, PixelShuffle):
        return "pick", "shuffle", factor, "fill", 0, 1
    if operation.mode == "linear":
        return "sum", "linear", factor, "replicate", 0, 1
    return "pick", "nearest", factor, "fill", 0, 1


def _one_by_one(
    operation: Windows, out: Array, x: Array, layout: DataLayout, threads: int, cpu: Cpu
) -> Step:
    """One channel of one position at a time, for factors that no code is made for."""
    axes = layout.to_ncx(x.ndim - 2)
    x, out = x.transpose(axes), out.transpose(axes)
    channels, *size = out.shape[1:]
    channel, to_channel = (a[0, 0].size * a.itemsize for a in (x, out))
    step = to = x.itemsize
    if layout is DataLayout.NXC:
        step, to = (position_stride(a.transpose(np.argsort(axes))) for a in (x, out))
        channel = to_channel = x.itemsize
    *outer, last = (
        _taps(operation, i, n, prod(x.shape[3 + i :]) * step, channel)
        for i, n in enumerate(x.shape[2:])
    )
    rows, taps = _tables(_product(outer), size[-1] * to)
    line_rows, line_taps = _tables(last, to)
    tables = StepTables(out, x)
    tables.add(rows=rows, taps=taps, line_rows=line_rows, line_taps=line_taps)
    tables.values["channels"] = 1
    n, c = (axis.ravel() for axis in np.mgrid[0 : len(x), 0:channels])
    per = x.shape[1] // channels * channel
    image_table = records(IMAGE, len(n), src=n * image_stride(x) + c * per,
                          dst=n * image_stride(out) + c * to_channel)  # fmt: skip
    reduce = _last_axis(operation)[0]
    code = points_code(reduce, *elements(x, reduce), cpu)
    parts = job_parts(len(rows), size[-1], 1, x.itemsize)
    return tables.step(code, "points", parts, image_table, threads, cpu)


def _channels_last(operation: Windows, out: Array, x: Array, threads: int, cpu: Cpu) -> Step:
    """Positions are vectors of channels, and all axes have tables."""
    *size, channels = out.shape[1:]
    step, to = position_stride(x), position_stride(out)
    *outer, last = (
        _taps(operation, i, n, prod(x.shape[2 + i : -1]) * step, 0)
        for i, n in enumerate(x.shape[1:-1])
    )
    tables = StepTables(out, x)
    rows, taps = _tables(_product(outer), size[-1] * to)
    line_rows, line_taps = _tables(last, to)
    tables.add(rows=rows, taps=taps, line_rows=line_rows, line_taps=line_taps)
    tables.values["channels"] = channels
    parts = job_parts(len(rows), size[-1], 1, channels * x.itemsize)
    reduce = _last_axis(operation)[0]
    code = points_code(reduce, *elements(x, reduce), cpu)
    return tables.step(code, "points", parts, images(out, x), threads, cpu)
