"""Network values as a framework sees them: with other axes, or with the axes in another order.

Network values are always (N, C, *size). Models transpose to (N, T, C) for fully connected layers,
or drop an axis of extent 1. Here, such operations only relabel axes; no element moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError, ShapeError
from .graph import Array
from .kinds import described_shape
from .layers import Layers
from .values import Value

_FAR = 1 << 31
"""A slice with this end, or a larger one, reaches the end of its axis."""
Axes = tuple[int | None, ...]
"""For each axis in the framework, its axis in (N, C, *size); None if it has extent 1."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """A value, and its axes in a framework. Axes not listed have extent 1."""

    value: Value
    axes: Axes

    @classmethod
    def of(cls, value: Value) -> Arranged:
        """Arrange a value with its axes in the order (N, C, *size)."""
        return cls(value, tuple(range(len(value.shape))))

    @property
    def is_plain(self) -> bool:
        """Whether the axes are in the order (N, C, *size)."""
        rank = len(self.value.shape)
        return len(self.axes) == rank and all(a in (None, i) for i, a in enumerate(self.axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents in the framework's order; 0 for an open size."""
        return tuple(1 if axis is None else self.value.shape[axis] or 0 for axis in self.axes)

    def permuted(self, order: Sequence[int]) -> Arranged:
        """Return the same value with its axes in another order."""
        return Arranged(self.value, tuple(self.axes[number] for number in order))

    def reshaped(self, shape: Sequence[int]) -> Arranged:
        """Return the same value in another shape, which may differ only by axes of extent 1."""
        kept = [axis for axis, size in zip(self.axes, self.shape, strict=True) if size != 1]
        if [size for size in shape if size != 1] != [size for size in self.shape if size != 1]:
            expected = f"{described_shape(self.shape)} with more or fewer axes of extent 1"
            raise ShapeError("the new shape", described_shape(tuple(shape)), expected)
        rest = iter(kept)
        return Arranged(self.value, tuple(None if size == 1 else next(rest) for size in shape))

    def axis(self, number: int) -> int:
        """Return the network's axis for a framework axis; negative numbers count from the end."""
        axis = self.axes[number]
        if axis is None:
            got = f"{number} of {described_shape(self.shape)}"
            raise ArgumentError("the axis", got, "an axis with more than 1 position")
        return axis

    def plain(self) -> Value:
        """Return the value; raise `ShapeError` unless its axes are in the order (N, C, *size)."""
        if not self.is_plain:
            words = f"{described_shape(self.shape)}, axes {described_shape(self.axes)} of a network"
            raise ShapeError("the operand", words, "(N, C, *size)", "Transpose it first.")
        return self.value

    def channels_last(self) -> bool:
        """Return whether the last axis is the channel axis."""
        return self.axes[-1] == 1 or (self.axes[-1] is None and self.value.shape[1] == 1)

    def per_channel(self, constant: Array) -> float | Array:
        """Convert a constant that broadcasts to this shape to one number, or one per channel."""
        if constant.size == 1 and constant.ndim <= len(self.axes):
            return float(constant.item())
        shape = (1,) * (len(self.axes) - constant.ndim) + constant.shape
        numbers = [i for i, size in enumerate(shape) if size != 1]
        if len(shape) > len(self.axes) or [self.axes[i] for i in numbers] != [1]:
            got = f"a constant of shape {constant.shape}"
            expected = f"one number per channel of {described_shape(self.shape)}"
            raise ShapeError("an operand", got, expected)
        return np.asarray(constant).reshape(-1)


def per_channel(x: Value, constant: Array) -> float | Array:
    """Convert a constant that broadcasts to (N, C, *size) to an operand for arithmetic."""
    return Arranged.of(x).per_channel(constant)


def narrowed(network: Layers, x: Value, slices: Sequence[slice]) -> Value:
    """Return x[slices], with one slice of step 1 per leading axis.

    Along an open extent, a slice's start counts from the beginning, and its stop from the end.
    """
    cut = [_cut(part, size) for part, size in zip(slices, x.shape, strict=False)]
    batch, (begin, end), *amounts = cut + [(0, 0)] * (len(x.shape) - len(cut))
    if any(batch):
        raise ArgumentError("a slice", "of the batch", "a slice of channels or positions")
    if begin or end:
        x = network.slice(x, begin, x.channels - end)
    return network.crop(x, tuple(amounts)) if any(map(any, amounts)) else x


def _cut(part: slice, size: int | None) -> tuple[int, int]:
    """Return how many positions a slice removes at the beginning and at the end of an axis."""
    if part.step not in (None, 1):
        raise ArgumentError("the step of a slice", str(part.step), "1")
    start, stop = part.start or 0, _FAR if part.stop is None else part.stop
    if size is not None:
        begin, end, _ = slice(start, stop).indices(size)
        return begin, size - end
    if start < 0 or 0 <= stop < _FAR:
        raise ArgumentError("a slice", f"{start}:{stop} of an open size", "start: or :-end")
    return start, -stop if stop < 0 else 0


def common_axes(operands: Sequence[Arranged]) -> Axes:
    """Return an arithmetic result's axes; broadcasting aligns the operands at the last axis."""
    rank = max(len(operand.axes) for operand in operands)
    result: list[int | None] = []
    for number in range(-rank, 0):
        present = [operand for operand in operands if len(operand.axes) >= -number]
        wide = {operand.axes[number] for operand in present if operand.shape[number] != 1}
        any_axis = {operand.axes[number] for operand in present} - {None}
        result.append(next(iter(wide or any_axis), None))
        if len(wide) > 1:
            break
    named = [axis for axis in result if axis is not None]
    ranks = {len(operand.value.shape) for operand in operands}
    if len(result) < rank or len(set(named)) < len(named) or len(ranks) > 1:
        shapes = " and ".join(described_shape(operand.shape) for operand in operands)
        axes = " and ".join(described_shape(operand.axes) for operand in operands)
        got = f"{shapes}, axes {axes} of a network"
        raise ShapeError(
            "the shape of the operands", got, "of matching axes", "Transpose one of them."
        )
    return tuple(result)


def declared_axes(ndim: int, axis: int) -> Axes:
    """Return the axes of an input that is streamed along `axis`. Of the other axes, the first is
    the batch and the second the channels."""
    others = [number for number in range(ndim) if number != axis]
    named = {number: axis for axis, number in enumerate(others[:2])}
    if ndim == 2:  # (N, T), or (T, C)
        named = {others[0]: 0 if axis else 1}
    spatial = sorted({axis, *others[2:]})
    named |= {number: 2 + i for i, number in enumerate(spatial)}
    return tuple(named[number] for number in range(ndim))


def to_network(array: Array, axes: Axes, ndim: int) -> Array:
    """Convert a framework's array to (N, C, *size)."""
    known = [number for number, axis in enumerate(axes) if axis is not None]
    array = array.squeeze(tuple(number for number, axis in enumerate(axes) if axis is None))
    order = np.argsort([axes[number] or 0 for number in known], kind="stable")
    missing = [axis for axis in range(ndim) if axis not in axes]
    return np.expand_dims(array.transpose(order), missing)


def from_network(array: Array, axes: Axes) -> Array:
    """Convert an array (N, C, *size) to a framework's axes."""
    missing = [axis for axis in range(array.ndim) if axis not in axes]
    kept = [axis for axis in range(array.ndim) if axis in axes]
    order = [kept.index(axis) for axis in axes if axis is not None]
    ones = [number for number, axis in enumerate(axes) if axis is None]
    return np.expand_dims(array.squeeze(tuple(missing)).transpose(order), ones)
