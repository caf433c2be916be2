"""The table of operations, with the name and the shape rule of each.

A shape rule maps the shapes of a node's inputs to the shapes of its outputs. An open extent is
None. While a network is being built, often only its channels are known, and the rule checks only
those. It runs again when all extents are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from ..arrays import Operand, described
from ..errors import ArgumentError, ShapeError
from ..shapes import Signature, convolution, transposed
from . import graph as ir

OpenShape = tuple[int | None, ...]
"""(N, C, *size), with None for an open extent."""
Shapes = tuple[OpenShape, ...]

_OPEN = 1 << 40  # stands for an open extent where sizes are computed
_FLOAT32 = np.dtype(np.float32)


class Kind(NamedTuple):
    """One row of the table."""

    name: str
    shapes: Callable[[Any, Shapes], Shapes]


def output_shapes(operation: ir.Operation, inputs: Shapes) -> Shapes:
    """Return an operation's output shapes; raise `ShapeError` if the input shapes do not fit."""
    outputs = KINDS[type(operation)].shapes(operation, inputs)
    for shape in outputs:
        if any(extent is not None and extent < 1 for extent in shape):
            got, expected = described_shape(shape), "at least 1 position along every axis"
            remedy = "Use a larger input, crop less or reduce the stride."
            raise ShapeError("the result's shape", got, expected, remedy)
    return outputs


def described_shape(shape: Sequence[object]) -> str:
    """Describe a shape: "(1, 80, ?)" if the last extent is open."""
    return "(" + ", ".join("?" if extent is None else str(extent) for extent in shape) + ")"


def located(node: ir.Node) -> str:
    """Name a node's operation and the line that added it, for an error message."""
    return KINDS[type(node.operation)].name + (f" at {node.line}" if node.line else "")


def _convolution(operation: ir.Convolution, shapes: Shapes) -> Shapes:
    x, weight = shapes[0], operation.weight.shape
    if len(weight) != len(x):
        expected = f"{len(x)} axes, like x {described_shape(x)}"
        raise ShapeError("weight.shape", str(weight), expected)
    size = tuple(_OPEN if extent is None else extent for extent in x)
    try:
        result = signature_of(operation, size).shape
    except ArgumentError as error:
        # A network fixes the order of a weight's axes, so `weight_layout` is no remedy.
        swapped = "weight_layout=" in error.remedy
        remedy = "Axes I and O look swapped: transpose the weight." if swapped else error.remedy
        parts = (error.argument, error.got, error.expected, remedy)
        raise type(error)(*(part.replace(str(_OPEN), "?") for part in parts)) from None
    known = (None if before is None else after for before, after in zip(x, result, strict=True))
    return _chain(operation.epilogue, tuple(known), shapes)


def signature_of(operation: ir.Convolution, shape: ir.Shape) -> Signature:
    """Return a convolution's signature for a float32 input of a shape, without the epilogue."""
    rule = transposed if operation.transposed else convolution
    x, weight = Operand(shape, _FLOAT32), Operand(operation.weight.shape, _FLOAT32)
    return rule(x, weight, described(operation.bias), None, operation.keywords, None)


def _chain(chain: ir.Chain, shape: OpenShape, shapes: Shapes) -> Shapes:
    """Return the shapes of a chain's stored values and of its last value."""
    stored = []
    for op in chain:
        if op.name == "store":
            stored.append(shape)
        elif isinstance(op.operand, ir.Input):
            other = shapes[op.operand.number]
            shape = _common(
                shape, _broadcast(other, shape) if op.operand.broadcast else other, op.name
            )
        elif isinstance(op.operand, np.ndarray) and op.operand.shape != (shape[1],):
            expected = f"({shape[1]},), one number per channel of {described_shape(shape)}"
            raise ShapeError(f"the array of {op.name}", str(op.operand.shape), expected)
    return (*stored, shape)


def _broadcast(shape: OpenShape, to: OpenShape) -> OpenShape:
    """Replace a shape's extents of 1 by those of another shape."""
    return tuple(b if a == 1 else a for a, b in zip(shape, to, strict=True))


def _common(first: OpenShape, second: OpenShape, name: str) -> OpenShape:
    """Return the common shape of two values, which may have open extents."""
    if not agree(first, second):
        got, expected = described_shape(second), f"{described_shape(first)}, the first value's"
        remedy = "Pad, crop or resample one of them."
        if name in ir.EXCHANGED:
            remedy += " Values with one channel, or with one position, are broadcast."
        raise ShapeError(f"the second value's shape in {name}", got, expected, remedy)
    return tuple(b if a is None else a for a, b in zip(first, second, strict=True))


def agree(first: Sequence[object], second: Sequence[object]) -> bool:
    """Return whether two shapes can be equal; None stands for any extent."""
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(a == b or None in (a, b) for a, b in pairs)


def _concat(operation: ir.Concat, shapes: Shapes) -> Shapes:
    """Add the extents along the axis; all other extents must agree."""
    axis, result = operation.axis, shapes[0]
    name = f"concat (except {'channels' if axis == 1 else f'spatial axis {axis - 2}'})"
    for shape in shapes[1:]:
        aligned = (*shape[:axis], *result[axis : axis + 1], *shape[axis + 1 :])
        result = _common(result, aligned, name)
    extents = [shape[axis] for shape in shapes]
    total = None if None in extents else sum(cast(list[int], extents))
    return ((*result[:axis], total, *result[axis + 1 :]),)


def _slice(operation: ir.Slice, shapes: Shapes) -> Shapes:
    batch, channels, *size = shapes[0]
    if not 0 <= operation.start < operation.stop <= (channels or 0):
        got = f"{operation.start} to {operation.stop}"
        expected = f"0 <= start < stop <= {channels}, the channels of x"
        raise ShapeError("the slice of channels", got, expected)
    return ((batch, operation.stop - operation.start, *size),)


def _pad(operation: ir.Pad, shapes: Shapes) -> Shapes:
    sizes = list(shapes[0][:2])
    for axis, (size, ends) in enumerate(zip(shapes[0][2:], operation.amounts, strict=True)):
        kept = None if size is None else size + sum(min(0, amount) for amount in ends)
        if kept is not None and operation.mode == "reflect" and 0 < kept <= max(ends):
            expected = f"at most {kept - 1}, as there are {kept} positions to reflect"
            raise ShapeError(f"spatial axis {axis}: amounts", str(ends), expected, "Pad less.")
        nothing = kept is not None and kept < 1  # no position to reflect, replicate or surround
        sizes.append(kept if nothing or size is None else size + sum(ends))
    return (tuple(sizes),)


def _norm(operation: ir.Norm, shapes: Shapes) -> Shapes:
    _divide("groups", operation.groups, shapes[0])
    return _chain(operation.epilogue, shapes[0], shapes)


def _divide(argument: str, number: int, shape: OpenShape) -> int:
    """Divide the number of channels by a number; raise `ShapeError` if a remainder is left."""
    if (shape[1] or 0) % number:
        raise ShapeError(argument, str(number), f"a divisor of the {shape[1]} channels of x")
    return (shape[1] or 0) // number


def _pixel_shuffle(operation: ir.PixelShuffle, shapes: Shapes) -> Shapes:
    channels = _divide("the product of the factors", prod(operation.factors), shapes[0])
    return _multiplied(operation, ((shapes[0][0], channels, *shapes[0][2:]),))


def _pixel_unshuffle(operation: ir.PixelUnshuffle, shapes: Shapes) -> Shapes:
    sizes = []
    for axis, (size, factor) in enumerate(zip(shapes[0][2:], operation.factors, strict=True)):
        if size is not None and size % factor:
            name, expected = f"spatial axis {axis}: factor", f"a divisor of {size} positions"
            raise ShapeError(name, str(factor), expected, "Pad x first.")
        sizes.append(None if size is None else size // factor)
    return ((shapes[0][0], (shapes[0][1] or 0) * prod(operation.factors), *sizes),)


def _permute(operation: ir.Permute, shapes: Shapes) -> Shapes:
    batch, channels, *size = shapes[0]
    wrong = [c for c in operation.order if not 0 <= c < (channels or 0)]
    if wrong:
        raise ShapeError("order", str(wrong[0]), f"channels of x, from 0 to {(channels or 0) - 1}")
    return ((batch, len(operation.order), *size),)


def _resample(operation: ir.Resample, shapes: Shapes) -> Shapes:
    if operation.sizes:
        return ((*shapes[0][:2], *operation.sizes),)
    return _multiplied(operation, shapes)


def _multiplied(operation: ir.Resample | ir.PixelShuffle, shapes: Shapes) -> Shapes:
    """Multiply the spatial extents by the factors."""
    extents = zip(shapes[0][2:], operation.factors, strict=True)
    return ((*shapes[0][:2], *(None if size is None else size * f for size, f in extents)),)


def _pool(operation: ir.Pool, shapes: Shapes) -> Shapes:
    batch, channels, *size = shapes[0]
    if operation.windows:
        for axis, (extent, count) in enumerate(zip(size, operation.windows, strict=True)):
            if extent is not None and extent % count:
                name, expected = f"spatial axis {axis}: windows", f"a divisor of {extent} positions"
                raise ShapeError(name, str(count), expected, "Pad or resample x first.")
        return ((batch, channels, *operation.windows),)
    pool, sizes = operation.at(()), []
    for axis, extent in enumerate(size):
        try:
            sizes.append(None if extent is None else pool.count(axis, extent))
        except ShapeError as error:
            name = f"spatial axis {axis}: {error.argument}"
            expected = error.expected.replace("dilated kernel", "window")
            raise ShapeError(name, error.got, expected, "Pad more, or shrink the window.") from None
    return ((batch, channels, *sizes),)


def _lstm(operation: ir.Lstm, shapes: Shapes) -> Shapes:
    """Return the shape with the channels of h and the cell; the state may have any size."""
    batch, channels, *size = shapes[0]
    if len(size) > 1:
        expected = "(N, C, positions), one spatial axis"
        raise ShapeError("x.shape", described_shape(shapes[0]), expected)
    if channels != 4 * operation.channels:
        expected = f"{4 * operation.channels} channels, four gates of {operation.channels}"
        raise ShapeError("x.shape", described_shape(shapes[0]), expected)
    return ((batch, 2 * operation.channels, *size),)


KINDS: dict[type[ir.Operation], Kind] = {
    ir.Convolution: Kind("convolution", _convolution),
    ir.Pointwise: Kind("pointwise", lambda op, shapes: _chain(op.chain, shapes[0], shapes)),
    ir.Concat: Kind("concat", _concat),
    ir.Slice: Kind("slice", _slice),
    ir.Pad: Kind("pad", _pad),
    ir.Norm: Kind("norm", _norm),
    ir.Lstm: Kind("lstm", _lstm),
    ir.Resample: Kind("resample", _resample),
    ir.Pool: Kind("pool", _pool),
    ir.ChannelPool: Kind("pool of channels", lambda _, s: ((s[0][0], 1, *s[0][2:]),)),
    ir.PixelShuffle: Kind("pixel shuffle", _pixel_shuffle),
    ir.PixelUnshuffle: Kind("pixel unshuffle", _pixel_unshuffle),
    ir.Permute: Kind("permute", _permute),
    ir.Convert: Kind("convert", lambda _, shapes: shapes),
}
