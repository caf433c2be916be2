"""The part of a problem that products reach, and what lies around it.

The library adds no positions that nothing reaches, and errs, or writes where it must not, where a
part of the input or of the kernel meets nothing. So it is given the *frame*: only the inputs, taps
and outputs that meet each other, as views of the caller's arrays. Around it a result is what its
bias, residual and activation make of nothing; around a weight gradient it is zero. That is NumPy's.

    inputs x, taps w    those of `Axis.trimmed`
    outputs y           without the margins that negative crops add
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ... import memory
from ...activations import SCRATCH_BYTES, apply
from ...problem import DataLayout, Direction, Problem
from ..base import Array, Primitive

Index = tuple[slice, ...]
_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Frame:
    """The part that is given to the library, None if there is none, and indices of arrays."""

    problem: Problem | None
    x: Index
    w: Index
    y: Index

    @classmethod
    def of(cls, problem: Problem) -> Frame:
        """The frame of a problem."""
        trimmed = tuple(axis.trimmed() for axis in problem.axes)
        bare = tuple(each.without_margins() for each in trimmed)
        reached = problem.batch and all(axis.size and axis.out for axis, _ in bare)
        inner = problem.replace(axes=tuple(axis for axis, _ in bare)) if reached else None
        taps = [slice(each.taps.start, each.taps.stop) for each in trimmed]
        order = problem.weight_layout.to_iox(problem.rank)[2:]
        w = [_ALL] * (problem.rank + 2)
        for place, tap in zip(order, taps, strict=True):
            w[place] = tap
        inputs = tuple(slice(each.inputs.start, each.inputs.stop) for each in trimmed)
        outputs = tuple(place for _, place in bare)
        return cls(inner, _data(problem, inputs), tuple(w), _data(problem, outputs))

    def result(self, direction: Direction) -> Index:
        """The index of the result."""
        return {
            Direction.FORWARD: self.y,
            Direction.INPUT_GRAD: self.x,
            Direction.WEIGHT_GRAD: self.w,
        }[direction]


def _data(problem: Problem, places: Index) -> Index:
    return (_ALL, _ALL, *places) if problem.layout is DataLayout.NCX else (_ALL, *places, _ALL)


class Framed:
    """A problem by the primitive of its frame, and NumPy around it."""

    predicted_cycles = 0.0

    def __init__(self, problem: Problem, frame: Frame, inner: Primitive | None) -> None:
        self._problem, self._frame, self._inner = problem, frame, inner
        self._place = frame.result(problem.direction)
        self._shape = problem.result_shape
        self._channels = [1] * (problem.rank + 2)
        self._channels[1 if problem.layout is DataLayout.NCX else -1] = -1
        whole = prod(self._shape) * problem.dtype.accumulator.itemsize
        around = 2 * whole + SCRATCH_BYTES if whole else 0
        self.workspace_bytes = around + (inner.workspace_bytes if inner else 0)
        self.resident_bytes = inner.resident_bytes if inner else 0
        self.description = inner.description if inner else "nothing to multiply"

    def pack(self, weight: Array) -> Any:
        """The taps of the frame, packed."""
        return None if self._inner is None else self._inner.pack(weight[self._frame.w])

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Compute into `out`; see `Primitive.run`."""
        frame, place, backward = self._frame, self._place, self._problem.direction
        if self._inner is not None:
            a = a[frame.x if backward is Direction.FORWARD else frame.y]
            b = b[frame.x] if backward is Direction.WEIGHT_GRAD else b
            within = None if residual is None else residual[place]
            self._inner.run(out[place], a, b, bias, within)
        with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
            for around in self._around():
                self._fill(out[around], bias, None if residual is None else residual[around])

    def close(self) -> None:
        """Let go of the frame's primitive."""
        if self._inner is not None:
            self._inner.close()

    def _around(self) -> Iterator[Index]:
        """Pieces of the result that together are all of it but the frame."""
        if self._inner is None:
            yield (_ALL,) * len(self._shape)
            return
        for axis, (place, size) in enumerate(zip(self._place, self._shape, strict=True)):
            before = self._place[:axis]
            start, stop, _ = place.indices(size)
            for piece in (slice(0, start), slice(stop, size)):
                if piece.start < piece.stop:
                    yield (*before, piece)

    def _fill(self, out: Array, bias: Array | None, residual: Array | None) -> None:
        """What is where no product comes."""
        accumulate, epilogue = self._problem.accumulate, self._problem.epilogue
        memory.require(2 * out.size * 4, "what lies around the reached part of the result")
        value = np.zeros(out.shape, self._problem.dtype.accumulator.numpy)
        if bias is not None:
            value += bias.reshape(self._channels).astype(value.dtype)
        if residual is not None:
            value += residual
        apply(epilogue.activation, epilogue.slope, value)
        if accumulate:
            np.add(out, value, out=out, casting="unsafe")
        else:
            out[...] = value
