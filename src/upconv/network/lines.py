"""Steps of window operations, and their tables of taps: the inputs that each result reads.

Steps compute lines for channels first, otherwise vectors of channels or single elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engines.jit.moves import ROW, TAP
from ..engines.jit.packing import Numbers
from ..engines.jit.steps import Step
from ..engines.jit.values import BYTES, LINE
from ..engines.jit.windows import Line, line_code, points_code
from ..problem import DataLayout
from .graph import Array, Pad, PixelShuffle, Pool, Resample
from .matrices import position_stride
from .tables import PART_BYTES, StepTables, Target, elements, images, job_parts, records

_MIN_CHANNELS = 64  # per job
_STRIDE = 8  # the largest window stride that vector shuffles support
Windows = Pad | PixelShuffle | Pool | Resample


class Taps(NamedTuple):
    """The taps of each result position along an axis, as arrays of shape (out, taps).

    offsets: in the input, in bytes. real: whether the tap is inside the input.
    """

    offsets: NDArray[np.int64]
    weights: NDArray[np.float64]
    real: NDArray[np.bool_]


def taps_along(operation: Windows, axis: int, size: int, step: int, channel: int) -> Taps:
    """Return the taps along an axis of `size` positions, which are `step` bytes apart; channels are
    `channel` bytes apart."""
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
    """Convert taps to a table of positions and a table of taps; results are `step` bytes apart."""
    counts = taps.real.sum(1)
    first = np.cumsum(counts) - counts
    rows = records(ROW, len(counts), to=np.arange(len(counts)) * step, tap=first, taps=counts)
    # There is one extra record, since a job may read the first record of an empty list.
    listed = records(TAP, int(counts.sum()) + 1)
    listed["offset"][:-1], listed["weight"][:-1] = taps.offsets[taps.real], taps.weights[taps.real]
    return rows, listed


def channels_first(
    operation: Windows, out: Array, x: Array, target: Target, sources: Array | None = None
) -> Step:
    """Return the step for channels first, by rows of positions; the last axis has its own code.

    sources: the byte offset of each channel in an image of x.
    """
    size = out.shape[2:]
    *outer_sizes, width = x.shape[2:]
    item = x.itemsize
    channel = prod(x.shape[2:]) * item
    axes = [
        taps_along(operation, i, n, step, channel)
        for i, (n, step) in enumerate(zip(outer_sizes, x.strides[2:], strict=False))
    ]
    reduce, last, factor, edge, begin, kernel = _last_axis(operation)
    stored, computed = elements(x, reduce)
    if last == "shuffle":  # the last axis reads one row from each of several channels
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
    lanes = target.cpu.lanes(BYTES[computed])
    # A vector may begin at one of the last positions and extend beyond them.
    line = int(parts["count"].max()) + 2 * lanes * (factor + 1)
    segment = -(-line * BYTES[computed] // LINE) * LINE
    tables = _tables(operation, out, x)
    tables.add(rows=rows, taps=listed)
    if last in ("pool", "window"):
        scale = taps_along(operation, len(size) - 1, width, item, 0).weights[:, 0]
        tables.add(scale=scale.astype(f"f{BYTES[computed]}"))
    tables.values |= {"width": width, "kernel": kernel, "dilation": dilation, "segment": segment}
    if sources is None:
        sources = np.arange(out.shape[1]) * (x.shape[1] // out.shape[1] * channel)
    image_table = images(out, x, sources, prod(size) * item)
    code = line_code(Line(reduce, last, factor, edge, stored, computed), target.cpu)
    part = LINE + segment * (factor if last == "shuffle" else 1)
    return tables.step(code, "windows", parts, image_table, target, part=part)


def _tables(operation: Windows, out: Array, x: Array) -> StepTables:
    """Return tables that hold only the value of positions outside the input."""
    tables = StepTables(out, x)
    value = operation.value if isinstance(operation, Pad) else 0
    tables.add(fill=np.full(1, value, x.dtype))
    return tables


def _points(operation: Windows, out: Array, x: Array, axes: list[Taps], to: int) -> StepTables:
    """Return tables for code that works position by position; results are `to` bytes apart."""
    rows, taps = tap_tables(product(axes[:-1]), len(axes[-1].offsets) * to)
    line_rows, line_taps = tap_tables(axes[-1], to)
    tables = _tables(operation, out, x)
    tables.add(rows=rows, taps=taps, line_rows=line_rows, line_taps=line_taps)
    return tables


def _alone(last: str, stride: int, width: int) -> bool:
    """Return whether each job computes a single window of a row."""
    return last == "pool" and (stride > _STRIDE or width == 1)


def _jobs(
    last: str, factor: int, rows: int, width: int, begin: int, kernel: int, taps: int, item: int
) -> Array:
    """Divide a result's rows into jobs, each with the positions that it needs of an input row.

    taps: the number of input rows per line. item: the bytes of an element.
    """
    if _alone(last, factor, width):  # one window per job; if each row has only one, of some rows
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


def _reduce(operation: Windows) -> str:
    """Return the reduction over a position's taps."""
    if isinstance(operation, Pool):
        return "max" if operation.mode == "max" else "sum"
    return "sum" if isinstance(operation, Resample) and operation.mode == "linear" else "pick"


def _last_axis(operation: Windows) -> tuple[str, str, int, str, int, int]:
    """Return the last axis's properties that `Line` needs, its padding at the beginning, and the
    extent of a window."""
    reduce = _reduce(operation)
    if isinstance(operation, Pool):
        begin, _ = operation.padding[-1]
        span = operation.dilation[-1] * (operation.kernel[-1] - 1) + 1
        return reduce, "pool", operation.stride[-1], "fill", begin, span
    if isinstance(operation, Pad):
        edge = "fill" if operation.mode == "constant" else operation.mode
        return reduce, "copy", 1, edge, operation.amounts[-1][0], 1
    last = "shuffle" if isinstance(operation, PixelShuffle) else operation.mode
    edge = "replicate" if last == "linear" else "fill"
    return reduce, last, operation.factors[-1], edge, 0, 1


def one_by_one(
    operation: Windows, out: Array, x: Array, target: Target, sources: Array | None = None
) -> Step:
    """Return the step for all other cases, by single channels of single positions."""
    step = to = channel = to_channel = x.itemsize
    if target.layout is DataLayout.NXC:
        step, to = position_stride(x), position_stride(out)
    axes = target.layout.to_ncx(x.ndim - 2)
    x, out = x.transpose(axes), out.transpose(axes)
    *outer, width = out.shape[2:]
    if target.layout is DataLayout.NCX:
        channel, to_channel = (a[0, 0].nbytes for a in (x, out))
    taps = [
        taps_along(operation, i, n, prod(x.shape[3 + i :]) * step, channel)
        for i, n in enumerate(x.shape[2:])
    ]
    tables = _points(operation, out, x, taps, to)
    tables.values["channels"] = 1
    if sources is None:
        sources = np.arange(out.shape[1]) * (x.shape[1] // out.shape[1] * channel)
    image_table = images(out, x, sources, to_channel)
    reduce = _reduce(operation)
    code = points_code(reduce, *elements(x, reduce), target.cpu)
    parts = job_parts(prod(outer), width, 1, x.itemsize)
    return tables.step(code, "points", parts, image_table, target)


def channels_last(operation: Windows, out: Array, x: Array, target: Target) -> Step:
    """Return the step for channels last, by vectors of channels, with tables for all axes."""
    *outer, width, channels = out.shape[1:]
    step, item = position_stride(x), x.itemsize
    taps = [
        taps_along(operation, i, n, prod(x.shape[2 + i : -1]) * step, 0)
        for i, n in enumerate(x.shape[1:-1])
    ]
    tables = _points(operation, out, x, taps, position_stride(out))
    parts = job_parts(prod(outer), width, 1, channels * item)
    shares = 1  # parts of the channels, more than one if there are few positions
    jobs = len(parts) * len(x)
    while jobs * shares < 4 * target.threads and channels % (2 * shares * _MIN_CHANNELS) == 0:
        shares *= 2
    tables.values["channels"] = share = channels // shares
    listed = images(out, x, np.arange(shares) * share * item, share * item)
    reduce = _reduce(operation)
    code = points_code(reduce, *elements(x, reduce), target.cpu)
    return tables.step(code, "points", parts, listed, target)
