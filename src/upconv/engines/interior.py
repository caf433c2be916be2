"""The interior problem, which is the part of a problem that has products, and the border around it.

Some inputs, taps and outputs of a problem take part in no product. An engine receives views of the
caller's arrays without them, and the problem that describes exactly these views. Outside the
interior, NumPy writes the result: the epilogue of bias and residual, or zero in a weight gradient.

    inputs x, taps w    the ones that `Axis.trimmed` keeps
    outputs y           without the margins that negative crops add, unless an engine computes them
    axes                without axes of one input, one tap and one output, for an engine that
                        treats (1, 1000) and (1000,) alike
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import memory
from ..activations import SCRATCH_BYTES, Activation, apply
from ..geometry import Axis
from ..problem import DataLayout, Direction, Problem
from .base import Array, Maybe, Primitive

Index = tuple[slice | int, ...]
_ALL = slice(None)


class Interior(NamedTuple):
    """The interior problem (None if there are no products), and its index in each array."""

    problem: Problem | None
    x: Index
    w: Index
    y: Index

    @classmethod
    def of(cls, problem: Problem, *, margins: bool, points: bool) -> Interior:
        """Return the interior of a problem.

        margins: whether the interior includes outputs that no input reaches. points: whether it
        includes axes of one input, one tap and one output.
        """
        axes: list[Axis] = []
        places: list[tuple[slice | int, ...]] = []
        for number, full_axis in enumerate(problem.axes):
            trimmed = full_axis.trimmed()
            axis, outputs = (trimmed.axis, _ALL) if margins else trimmed.without_margins()
            last = number == problem.rank - 1 and not axes  # a problem has at least one axis
            if points or last or not is_point(axis):
                axes.append(axis)
                places.append((_slice(trimmed.inputs), _slice(trimmed.taps), outputs))
            else:
                places.append((trimmed.inputs.start, trimmed.taps.start, outputs.start or 0))
        inputs, taps, outputs_of = zip(*places, strict=True)
        w: list[slice | int] = [_ALL] * (problem.rank + 2)
        for place, tap in zip(problem.weight_layout.to_iox(problem.rank)[2:], taps, strict=True):
            w[place] = tap
        reached = problem.batch and all(axis.size and axis.out for axis in axes)
        inner = None
        if reached:
            inner = problem if axes == [*problem.axes] else problem.replace(axes=tuple(axes))
        return cls(inner, _data(problem, inputs), tuple(w), _data(problem, outputs_of))

    def result(self, direction: Direction) -> Index:
        """Return the interior's index in the result."""
        return {
            Direction.FORWARD: self.y,
            Direction.INPUT_GRAD: self.x,
            Direction.WEIGHT_GRAD: self.w,
        }[direction]


def is_point(axis: Axis) -> bool:
    """Whether a trimmed axis has one input, one tap and one output."""
    return (axis.size, axis.kernel, axis.out, axis.crop_begin) == (1, 1, 1, 0)


def _slice(places: range) -> slice:
    return slice(places.start, places.stop)


def _data(problem: Problem, places: Index) -> Index:
    return (_ALL, _ALL, *places) if problem.layout is DataLayout.NCX else (_ALL, *places, _ALL)


Activate = Callable[[Activation, float | Array, Array], None]
"""A function that applies an activation to contiguous values in place. Its second argument is the
slope, or slopes that broadcast to the values."""


class BorderFill:
    """A primitive that runs its interior's primitive, and fills the border with NumPy.

    `activate` rounds as the interior's engine does, so equal sums give equal bits in both parts.
    """

    def __init__(
        self,
        problem: Problem,
        interior: Interior,
        inner: Primitive | None,
        activate: Activate = apply,
    ) -> None:
        self._problem, self._interior, self._inner = problem, interior, inner
        self._activate = activate
        self._place = interior.result(problem.direction)
        self._shape = problem.result_shape
        self._border = tuple(self._around())
        self._channels = problem.layout.by_channel(problem.rank)
        whole = prod(self._shape) * problem.dtype.accumulator.itemsize if self._border else 0
        around = 2 * whole + SCRATCH_BYTES if whole else 0
        self.workspace_bytes = around + (inner.workspace_bytes if inner else 0)
        self.resident_bytes = inner.resident_bytes if inner else 0
        self.predicted_cycles = inner.predicted_cycles if inner else 0.0
        order = getattr(inner, "order", None)
        self.order = None if order is None else (order, repr(interior.w))

    @property
    def description(self) -> str:
        """The interior's schedule."""
        return self._inner.description if self._inner else "nothing to multiply"

    def pack(self, weight: Array) -> Any:
        """Return the interior's taps, packed."""
        return None if self._inner is None else self._inner.pack(weight[self._interior.w])

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
        second: Maybe = None,
    ) -> None:
        """Compute into `out`; see `Primitive.run`."""
        interior, window, direction = self._interior, self._place, self._problem.direction
        if self._inner is not None:
            a = a[interior.x if direction is Direction.FORWARD else interior.y]
            b = b[interior.x] if direction is Direction.WEIGHT_GRAD else b
            within, other = (None if v is None else v[window] for v in (residual, second))
            self._inner.run(out[window], a, b, bias, within, slopes, other)
        if self._border:
            with np.errstate(all="ignore"):  # overflow to infinity and NaN are results
                for around in self._border:
                    more, other = (None if v is None else v[around] for v in (residual, second))
                    self._fill(out[around], bias, more, slopes, other)

    def close(self) -> None:
        """Close the interior's primitive."""
        if self._inner is not None:
            self._inner.close()

    def _around(self) -> Iterator[Index]:
        """Yield pieces of the result that together cover everything but the interior."""
        if self._inner is None:
            yield (_ALL,) * len(self._shape)
            return
        for axis, (part, size) in enumerate(zip(self._place, self._shape, strict=True)):
            before = self._place[:axis]
            start, stop, _ = _sliced(part).indices(size)
            for piece in (slice(0, start), slice(stop, size)):
                if piece.start < piece.stop:
                    yield (*map(_sliced, before), piece)

    def _fill(self, out: Array, bias: Maybe, residual: Maybe, slopes: Maybe, second: Maybe) -> None:
        """Fill border positions with the epilogue of bias, residual and `out`'s old values."""
        epilogue = self._problem.epilogue
        nbytes = 2 * out.size * self._problem.dtype.accumulator.itemsize
        memory.require(nbytes, "the border of the result, which no input reaches")
        value = np.zeros(out.shape, self._problem.dtype.accumulator.numpy)
        if bias is not None:
            value += bias.reshape(self._channels).astype(value.dtype)
        if residual is not None:
            value += residual
        if self._problem.accumulate:
            value += out
        slope: float | Array = epilogue.slope
        if slopes is not None:
            slope = slopes.reshape(self._channels).astype(value.dtype)
        self._activate(epilogue.activation, slope, value)
        out[...] = value
        if second is not None:
            self._activate(epilogue.second, epilogue.second_slope, value)
            second[...] = value


def bordered(
    problem: Problem,
    interior: Interior,
    inner: Primitive | None,
    fill: Callable[[Problem, Interior, Primitive | None], Primitive] = BorderFill,
) -> Primitive:
    """Return a problem's primitive, given its interior's primitive."""
    if inner and interior.problem == problem:
        return inner
    return fill(problem, interior, inner)


def _sliced(index: slice | int) -> slice:
    return index if isinstance(index, slice) else slice(index, index + 1)
