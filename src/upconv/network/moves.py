"""Steps of concatenation, slices, conversions, and pixel shuffle for channels last."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..engines.jit.moves import ROW, TAP, TURN, split_code, transpose_columns_code, turn_code
from ..engines.jit.steps import Step
from ..engines.jit.transpose import transpose_code, transpose_few_code
from ..problem import DataLayout
from . import pointwise
from .graph import Array, Concat, PixelShuffle, Slice
from .matrices import position_stride
from .tables import Arrays, StepTables, Target, elements, images, job_parts, records, stored_type

_TRANSPOSE_BYTES = 32 << 10
_FEW = {True: 12, False: 8}  # maximum channels that vector code interleaves (True) or separates


def channel_copies(
    operation: Concat | Slice, outputs: Arrays, inputs: Arrays, target: Target
) -> list[Step]:
    """Return steps that copy channels: chains without operations."""
    axis = target.layout.to_ncx(inputs[0].ndim - 2)[1]
    if isinstance(operation, Slice):
        _, part, _ = np.split(inputs[0], [operation.start, operation.stop], axis)
        return pointwise.steps(pointwise.COPY, outputs, [part], target)
    return _side_by_side(outputs[0], inputs, axis, target)


def position_copies(axis: int, output: Array, inputs: Arrays, target: Target) -> list[Step]:
    """Return steps that concatenate arrays along an axis, in rows that are contiguous in both."""
    result, by_rows = [], target._replace(layout=DataLayout.NXC)
    for arrays in zip(output, *inputs, strict=True):
        rows, *parts = (image.reshape(1, prod(image.shape[: axis - 1]), -1) for image in arrays)
        result += _side_by_side(rows, parts, 2, by_rows)
    return result


def _side_by_side(output: Array, inputs: Arrays, axis: int, target: Target) -> list[Step]:
    """Return steps that copy arrays into consecutive parts of another array along an axis."""
    cuts = np.cumsum([array.shape[axis] for array in inputs])[:-1]
    result = []
    for part, x in zip(np.split(output, cuts, axis), inputs, strict=True):
        result += pointwise.steps(pointwise.COPY, [part], [x], target)
    return result


def conversion(output: Array, x: Array, source: DataLayout, target: Target) -> list[Step]:
    """Return the steps that convert an array to another layout or dtype."""
    if source is target.layout:
        return pointwise.steps(pointwise.COPY, [output], [x], target)
    forward = source is DataLayout.NCX
    channels = x.shape[1] if forward else x.shape[-1]
    positions = x[0].size // channels
    count = max(64, _TRANSPOSE_BYTES // (channels * x.itemsize) // 64 * 64)
    first = np.arange(0, positions, count)
    many = np.minimum(count, positions - first)
    if forward:
        row, dst_row = positions * x.itemsize, position_stride(output)
        tiles = records(TURN, len(first), src=first * x.itemsize, dst=first * dst_row,
                        rows=channels, columns=many, src_row=row, dst_row=dst_row)  # fmt: skip
    else:
        src_row, row = position_stride(x), positions * output.itemsize
        tiles = records(TURN, len(first), src=first * src_row, dst=first * output.itemsize,
                        rows=many, columns=channels, src_row=src_row, dst_row=row)  # fmt: skip
    move_only = x.dtype == output.dtype
    types = elements(x, "pick") if move_only else (stored_type(x), stored_type(output))
    last = output if forward else x  # the array whose channels are adjacent
    if channels <= _FEW[forward] and position_stride(last) == channels * last.itemsize:
        make = transpose_few_code if forward else transpose_columns_code
        move = make(*types, channels, target.cpu)
    else:
        move = transpose_code(*types, target.cpu)
    tables = StepTables(output, x)
    tables.values["code"] = move.addresses["transpose"]
    code = turn_code(target.cpu)
    return [tables.step(code, "turn", tiles, images(output, x), target, move)]


def split(operation: PixelShuffle, out: Array, x: Array, target: Target) -> Step:
    """Return the step of a pixel shuffle: a position's channels become positions of the result."""
    *size, channels = out.shape[1:]
    step, to, factors = position_stride(x), position_stride(out), operation.factors
    sizes = x.shape[1:-1]
    # Offsets of the input's rows, and of their first positions in the result.
    src = sums(np.arange(n) * step * prod(sizes[i + 1 :]) for i, n in enumerate(sizes[:-1]))
    strides = [to * prod(size[i + 1 :]) for i in range(len(size))]
    axes = zip(sizes[:-1], factors, strides, strict=False)
    dst = sums(np.arange(n) * factor * stride for n, factor, stride in axes)
    offsets = sums(np.arange(n) * stride for n, stride in zip(factors, strides, strict=True))
    rows = records(ROW, len(src), to=dst, tap=np.arange(len(src)), taps=1)
    tables = StepTables(out, x)
    tables.add(rows=rows, taps=records(TAP, len(src), offset=src), parts=offsets)
    tables.values |= {"channels": channels, "x_step": step, "y_step": to * factors[-1]}
    listed = job_parts(len(rows), sizes[-1], 1, x.shape[-1] * x.itemsize)
    code = split_code(prod(factors), elements(x, "pick")[0], target.cpu)
    return tables.step(code, "split", listed, images(out, x), target)


def sums(axes: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return all sums of one number from each array, in order."""
    return reduce(np.add.outer, axes, np.zeros(1, np.int64)).ravel()
