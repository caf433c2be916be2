"""The table of operations: name, shape rule, definition and native steps of each.

A shape rule takes the shapes of a node's inputs and returns those of its outputs. An extent is None
where it is open: while a network is built only channels are known, and the rule checks what it
can. The same rule runs again with all extents known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Operand, described
from ..errors import ArgumentError, ShapeError
from ..geometry import convolved
from ..shapes import convolution, transposed
from .definitions import DEFINITIONS, Arrays
from .graph import (
    Chain,
    Concat,
    Convert,
    Convolution,
    Input,
    Norm,
    Operation,
    Pad,
    PixelShuffle,
    Pointwise,
    Pool,
    Resample,
    Slice,
)

OpenShape = tuple[int | None, ...]
"""(N, C, *size), None where an extent is open."""
Shapes = tuple[OpenShape, ...]


class Kind(NamedTuple):
    """One row of the table; `steps` is None until the operation has native code."""

    name: str
    shapes: Callable[[Any, Shapes], Shapes]
    define: Callable[[Any, Arrays], Arrays]
    steps: Callable[..., Any] | None = None


def output_shapes(operation: Operation, inputs: Shapes) -> Shapes:
    """The shapes of an operation's outputs; `ShapeError` where shapes do not fit."""
    outputs = KINDS[type(operation)].shapes(operation, inputs)
    for shape in outputs:
        if any(extent is not None and extent < 1 for extent in shape):
            expected = "at least 1 position along every axis"
            remedy = "Take a larger input, or cut and stride less."
            raise ShapeError("the result's shape", described_shape(shape), expected, remedy)
    return outputs


def described_shape(shape: Sequence[object]) -> str:
    """A shape for people: "(1, 80, ?)" where the last extent is open."""
    return "(" + ", ".join("?" if extent is None else str(extent) for extent in shape) + ")"


_OPEN = 1 << 40  # stands for an open extent where sizes are computed
_FLOAT32 = np.dtype(np.float32)


def _convolution(operation: Convolution, shapes: Shapes) -> Shapes:
    x, weight = shapes[0], operation.weight.shape
    if len(weight) != len(x):
        expected = f"{len(x)} axes, as many as x {described_shape(x)} has"
        raise ShapeError("weight.shape", str(weight), expected)
    size = tuple(_OPEN if extent is None else extent for extent in x)
    rule = transposed if operation.transposed else convolution
    operands = Operand(size, _FLOAT32), Operand(weight, _FLOAT32), described(operation.bias)
    try:
        result = rule(*operands, None, operation.keywords, None).shape
    except ArgumentError as error:
        texts = (error.argument, error.got, error.expected, error.remedy)
        raise type(error)(*(text.replace(str(_OPEN), "?") for text in texts)) from None
    known = (None if before is None else after for before, after in zip(x, result, strict=True))
    return _chain(operation.end, tuple(known), shapes)


def _pointwise(operation: Pointwise, shapes: Shapes) -> Shapes:
    return _chain(operation.chain, shapes[0], shapes)


def _chain(chain: Chain, shape: OpenShape, shapes: Shapes) -> Shapes:
    """The shapes of the stored values of a chain, and of its last value."""
    stored = []
    for op in chain:
        if op.name == "store":
            stored.append(shape)
        elif isinstance(op.operand, Input):
            shape = _common(shape, shapes[op.operand.number], op.name)
        elif isinstance(op.operand, np.ndarray) and op.operand.shape != (shape[1],):
            expected = f"({shape[1]},), one number per channel of {described_shape(shape)}"
            remedy = "Flatten it, as in values.reshape(-1), if it has more axes."
            raise ShapeError(f"the array of {op.name}", str(op.operand.shape), expected, remedy)
    return (*stored, shape)


def _common(first: OpenShape, second: OpenShape, name: str) -> OpenShape:
    """The shape of two values of one shape, which each may know in part."""
    fits = len(first) == len(second) and all(
        a is None or b is None or a == b for a, b in zip(first, second, strict=True)
    )
    if not fits:
        got, expected = described_shape(second), f"{described_shape(first)}, that of the first"
        remedy = "Values are never broadcast: pad, crop or resample one of them."
        raise ShapeError(f"the second value's shape in {name}", got, expected, remedy)
    return tuple(b if a is None else a for a, b in zip(first, second, strict=True))


def _concat(_: Concat, shapes: Shapes) -> Shapes:
    """The extents besides the channels agree; the channels are added up."""
    result = shapes[0]
    for shape in shapes[1:]:
        aligned = (*shape[:1], result[1], *shape[2:])
        result = _common(result, aligned, "concat (channels aside)")
    return ((result[0], sum(shape[1] or 0 for shape in shapes), *result[2:]),)


def _slice(operation: Slice, shapes: Shapes) -> Shapes:
    batch, channels, *size = shapes[0]
    if not 0 <= operation.start < operation.stop <= (channels or 0):
        got = f"{operation.start} to {operation.stop}"
        expected = f"0 <= start < stop <= {channels}, the channels of x"
        raise ShapeError("the slice of channels", got, expected)
    return ((batch, operation.stop - operation.start, *size),)


def _pad(operation: Pad, shapes: Shapes) -> Shapes:
    sizes = list(shapes[0][:2])
    for axis, (size, ends) in enumerate(zip(shapes[0][2:], operation.amounts, strict=True)):
        if size is None:
            sizes.append(None)
            continue
        kept = size + sum(min(0, amount) for amount in ends)
        most = {"reflect": kept - 1, "replicate": max(ends) if kept > 0 else 0}.get(operation.mode)
        if kept > 0 and most is not None and max(ends) > most:
            expected = f"at most {most}, as {kept} positions are there to {operation.mode}"
            raise ShapeError(f"spatial axis {axis}: amounts", str(ends), expected, "Pad less.")
        sizes.append(size + sum(ends) if kept > 0 else kept)
    return (tuple(sizes),)


def _norm(operation: Norm, shapes: Shapes) -> Shapes:
    channels = shapes[0][1]
    if (channels or 0) % operation.groups:
        expected = f"a divisor of the {channels} channels of x"
        raise ShapeError("groups", str(operation.groups), expected)
    return _chain(operation.end, shapes[0], shapes)


def _resample(operation: Resample, shapes: Shapes) -> Shapes:
    return (_multiplied(shapes[0], operation.factors),)


def _multiplied(shape: OpenShape, factors: tuple[int, ...]) -> OpenShape:
    """The shape with the spatial extents times the factors."""
    extents = zip(shape[2:], factors, strict=True)
    return (*shape[:2], *(None if size is None else size * factor for size, factor in extents))


def _pool(operation: Pool, shapes: Shapes) -> Shapes:
    columns = (shapes[0][2:], operation.kernel, operation.stride, operation.padding)
    sizes = []
    for axis, (size, kernel, stride, padding) in enumerate(zip(*columns, strict=True)):
        try:
            result = None if size is None else convolved(size, kernel, stride, 1, *padding).size
        except ShapeError as error:
            name = f"spatial axis {axis}: {error.argument}"
            expected = error.expected.replace("dilated kernel", "window")
            raise ShapeError(name, error.got, expected, "Pad more, or pool less.") from None
        sizes.append(result)
    return ((*shapes[0][:2], *sizes),)


def _pixel_shuffle(operation: PixelShuffle, shapes: Shapes) -> Shapes:
    batch, channels, *size = shapes[0]
    product = prod(operation.factors)
    if (channels or 0) % product:
        expected = f"a divisor of the {channels} channels of x"
        raise ShapeError("the product of the factors", str(product), expected)
    return (_multiplied((batch, (channels or 0) // product, *size), operation.factors),)


def _row(operation: type[Operation], name: str, rule: Callable[[Any, Shapes], Shapes]) -> Kind:
    return Kind(name, rule, DEFINITIONS[operation])


KINDS: dict[type[Operation], Kind] = {
    Convolution: _row(Convolution, "convolution", _convolution),
    Pointwise: _row(Pointwise, "pointwise", _pointwise),
    Concat: _row(Concat, "concat", _concat),
    Slice: _row(Slice, "slice", _slice),
    Pad: _row(Pad, "pad", _pad),
    Norm: _row(Norm, "norm", _norm),
    Resample: _row(Resample, "resample", _resample),
    Pool: _row(Pool, "pool", _pool),
    PixelShuffle: _row(PixelShuffle, "pixel shuffle", _pixel_shuffle),
    Convert: _row(Convert, "convert", lambda _, shapes: shapes),
}
