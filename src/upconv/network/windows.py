"""Steps of pooling, padding, resampling and pixel shuffle; those of moves come from moves.py.

Each is a few tables for the code of engines/jit/windows.py. Along an axis, `Taps` say which
positions of the input make each position of the result; the tables of several axes are products.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..engines.jit.cpu import Cpu
from ..engines.jit.moves import IMAGE
from ..engines.jit.steps import Step
from ..engines.jit.values import BYTES, LINE
from ..engines.jit.windows import Line, line_code, points_code
from ..problem import DataLayout
from .graph import Array, ChannelPool, Concat, Operation, Pad, PixelShuffle, Pool, Resample, Slice
from .matrices import image_stride, position_stride
from .moves import channel_copies, split
from .tables import PART_BYTES, StepTables, elements, images, job_parts, records
from .taps import Taps, Windows, product, tap_tables, taps_along

OPERATIONS = (ChannelPool, Concat, Pad, PixelShuffle, Pool, Resample, Slice)
_ROW = 1024  # positions of a row, where all of them are pooled
_SHARE = 64  # channels that a job computes at least
_INTERLEAVED = 16  # phases that code interleaves: it grows with their square
_STRIDE = 8  # positions from window to window, of which shuffles of so many vectors take one


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
    if isinstance(operation, ChannelPool):
        return [_of_channels(operation, outputs[0], inputs[0], layout, threads, cpu)]
    assert isinstance(operation, (Pad, PixelShuffle, Pool, Resample))  # noqa: S101 - our own invariant
    if isinstance(operation, Pool):
        return [_pool(operation, outputs[0], inputs[0], layout, threads, cpu)]
    if layout is DataLayout.NCX:
        if isinstance(operation, (PixelShuffle, Resample)) and operation.factors[-1] > _INTERLEAVED:
            return [_one_by_one(operation, outputs[0], inputs[0], layout, threads, cpu)]
        return [_channels_first(operation, outputs[0], inputs[0], threads, cpu)]
    if isinstance(operation, PixelShuffle) and prod(operation.factors) > _INTERLEAVED:
        return [_one_by_one(operation, outputs[0], inputs[0], layout, threads, cpu)]
    if isinstance(operation, PixelShuffle):
        return [split(operation, outputs[0], inputs[0], threads, cpu)]
    return [_channels_last(operation, outputs[0], inputs[0], threads, cpu)]


def _pool(
    operation: Pool, out: Array, x: Array, layout: DataLayout, threads: int, cpu: Cpu
) -> Step:
    """The step of a pool; that of all positions sums rows of some, in any rank."""
    first = layout is DataLayout.NCX
    size = x.shape[2:] if first else x.shape[1:-1]
    operation = operation.at(size)
    if operation.kernel == size == operation.stride:
        count = prod(size)
        length = max(n for n in range(1, min(count, _ROW) + 1) if count % n == 0)
        shape = (count // length, length) if length >= _ROW // 16 else (1, count)
        operation = _over(operation.mode, shape)
        batch, channels = len(x), x.shape[1 if first else -1]
        x = x.reshape(layout.shape(batch, channels, shape))
        out = out.reshape(layout.shape(batch, channels, (1, 1)))
    make = _channels_first if first else _channels_last
    return make(operation, out, x, threads, cpu)


def _of_channels(
    operation: ChannelPool, out: Array, x: Array, layout: DataLayout, threads: int, cpu: Cpu
) -> Step:
    """The step of a pool whose windows are all channels: these are taken for a spatial axis."""
    batch, channels = len(x), x.shape[layout.to_ncx(x.ndim - 2)[1]]
    if layout is DataLayout.NCX:
        x, out = x.reshape(batch, 1, channels, -1), out.reshape(batch, 1, 1, -1)
        kernel = channels, 1
    else:
        x, out = x.reshape(batch, 1, -1, channels), out.reshape(batch, 1, -1, 1)
        kernel = 1, channels
    return _channels_first(_over(operation.mode, kernel), out, x, threads, cpu)


def _over(mode: str, kernel: tuple[int, int]) -> Pool:
    """A pool of windows side by side."""
    return Pool(mode, kernel, kernel, ((0, 0), (0, 0)), dilation=(1, 1))


def _channels_first(operation: Windows, out: Array, x: Array, threads: int, cpu: Cpu) -> Step:
    """Rows are of positions; the last axis is combined by code of its own."""
    batch, channels, *size = out.shape
    *outer_sizes, width = x.shape[2:]
    item = x.itemsize
    channel = prod(x.shape[2:]) * item
    axes = [
        taps_along(operation, i, n, step, channel)
        for i, (n, step) in enumerate(zip(outer_sizes, x.strides[2:], strict=False))
    ]
    reduce, last, factor, edge, begin, kernel = _last_axis(operation)
    stored, computed = elements(x, reduce)
    if last == "shuffle":  # the last axis takes one row of each of some channels
        every = np.arange(factor)[None] * channel
        axes.append(Taps(every, np.ones(every.shape), np.ones(every.shape, bool)))
    taps = product(axes)
    if last == "copy" and begin < 0:
        taps = taps._replace(offsets=taps.offsets - begin * item)
    rows, listed = tap_tables(taps, out.strides[-2])
    if isinstance(operation, Pad):
        width -= sum(max(0, -amount) for amount in operation.amounts[-1])
        begin = max(0, begin)
    dilation = operation.dilation[-1] if isinstance(operation, Pool) else 1
    parts = _jobs(last, factor, len(rows), size[-1], begin, kernel, taps.offsets.shape[1], item)
    if _alone(last, factor, size[-1]):
        last, factor = "window" if dilation == 1 else last, 1
    lanes = cpu.lanes(BYTES[computed])
    # Vectors may begin at the last positions.
    line = int(parts["count"].max()) + 2 * lanes * (factor + 1)
    segment = -(-line * BYTES[computed] // LINE) * LINE
    tables = StepTables(out, x)
    tables.add(rows=rows, taps=listed)
    if last in ("pool", "window"):
        scale = taps_along(operation, len(size) - 1, width, item, 0).weights[:, 0]
        tables.add(scale=scale.astype(f"f{BYTES[computed]}"))
    tables.values |= {"width": width, "kernel": kernel, "dilation": dilation, "segment": segment}
    n, c = (axis.ravel() for axis in np.mgrid[0:batch, 0:channels])
    per = x.shape[1] // channels * channel
    image_table = records(IMAGE, len(n), src=n * image_stride(x) + c * per,
                     dst=n * image_stride(out) + c * prod(size) * item)  # fmt: skip
    code = line_code(Line(reduce, last, factor, edge, stored, computed), cpu)
    part = LINE + segment * (factor if last == "shuffle" else 1)
    return tables.step(code, "windows", parts, image_table, threads, cpu, part=part)


def _alone(last: str, stride: int, width: int) -> bool:
    """Whether each job computes one window of a row."""
    return last == "pool" and (stride > _STRIDE or width == 1)


def _jobs(
    last: str, factor: int, rows: int, width: int, begin: int, kernel: int, taps: int, item: int
) -> Array:
    """The jobs of a result's rows, and the positions that they need from an input's row.

    taps, item: rows that make a line, and bytes of an element.
    """
    if _alone(last, factor, width):  # one window of all rows, or of some where there is no other
        size = PART_BYTES if width > 1 else max(1, kernel * taps * item)
        parts = job_parts(rows, width, 1, size)
    else:
        parts = job_parts(rows, width, 64 * factor if last in _UP else 64, item * max(1, taps // 4))
    first, count = parts["column"] - begin, parts["columns"].copy()
    if last == "pool":
        first, count = parts["column"] * factor - begin, (count - 1) * factor + kernel
    elif last in _UP:
        first, count = parts["column"] // factor, count // factor
        if last == "linear":
            first, count = first - 1, count + 2
    parts["first"], parts["count"] = first, count
    return parts


_UP = ("nearest", "linear", "shuffle")


def _last_axis(operation: Windows) -> tuple[str, str, int, str, int, int]:
    """What `Line` wants to know of the last axis, the positions added in front, and the extent of
    a window."""
    if isinstance(operation, Pool):
        reduce = "max" if operation.mode == "max" else "sum"
        begin, _ = operation.padding[-1]
        span = operation.dilation[-1] * (operation.kernel[-1] - 1) + 1
        return reduce, "pool", operation.stride[-1], "fill", begin, span
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
        taps_along(operation, i, n, prod(x.shape[3 + i :]) * step, channel)
        for i, n in enumerate(x.shape[2:])
    )
    rows, taps = tap_tables(product(outer), size[-1] * to)
    line_rows, line_taps = tap_tables(last, to)
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
        taps_along(operation, i, n, prod(x.shape[2 + i : -1]) * step, 0)
        for i, n in enumerate(x.shape[1:-1])
    )
    tables = StepTables(out, x)
    rows, taps = tap_tables(product(outer), size[-1] * to)
    line_rows, line_taps = tap_tables(last, to)
    tables.add(rows=rows, taps=taps, line_rows=line_rows, line_taps=line_taps)
    parts = job_parts(len(rows), size[-1], 1, channels * x.itemsize)
    shares = 1  # of the channels, where there are few positions
    while len(parts) * len(x) * shares < 4 * threads and channels % (2 * shares * _SHARE) == 0:
        shares *= 2
    tables.values["channels"] = channels // shares
    listed = images(out, x).repeat(shares)
    for name in ("src", "dst"):
        listed[name] += np.tile(np.arange(shares), len(x)) * (channels // shares) * x.itemsize
    reduce = _last_axis(operation)[0]
    code = points_code(reduce, *elements(x, reduce), cpu)
    return tables.step(code, "points", parts, listed, threads, cpu)
