"""The correlation that kernels compute; forward passes and input gradients are cases of it.

Kernels depend on neither the direction nor the weight's layout; docs/jit.md explains why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...geometry import LIMIT, Axis, Phase, Tap
from ...problem import DataLayout, Direction, DType, Epilogue, Problem
from .sum_type import computed


class Line(NamedTuple):
    """An axis: positions of the operand and of the result, and how j steps through both.

    The phases have only taps that read an existing operand position for some result; `low` and
    `high` are their smallest and largest shifts. `every` has all taps of the same phases.
    """

    size: int
    step: int
    out: int
    stride: int
    phases: tuple[Phase, ...]
    low: int
    high: int
    every: tuple[Phase, ...]

    @classmethod
    @lru_cache(maxsize=256)  # kernels are scheduled in order to compare them
    def of(cls, axis: Axis, direction: Direction) -> Line:
        """Return the line of an axis in a direction."""
        if direction is Direction.FORWARD:
            size, step, out, stride, phases = axis.size, 1, axis.out, axis.stride, axis.phases()
        else:
            size, step, out, stride = axis.out, axis.stride, axis.size, 1
            shifts = (axis.crop_begin - axis.dilation * t for t in range(axis.kernel))
            phases = (Phase(0, axis.size, tuple(Tap(t, e) for t, e in enumerate(shifts))),)
        kept = tuple(
            phase._replace(taps=tuple(t for t in phase.taps if -size < t.shift <= last))
            for phase in phases
            for last in (step * (phase.length - 1),)
        )
        return cls(size, step, out, stride, kept, *_ends(kept), tuple(phases))

    @property
    def with_every_tap(self) -> Line:
        """The line including taps that read no operand."""
        low, high = _ends(self.every)
        return self._replace(phases=self.every, low=low, high=high)

    @property
    def is_inside(self) -> bool:
        """Whether every tap of each result reads an existing position."""
        last = max((phase.length for phase in self.phases), default=1) - 1
        return self.high <= 0 and self.step * last - self.low < self.size

    @property
    def is_pointwise(self) -> bool:
        """Whether each result depends only on the operand at its own position."""
        same = 0 < self.size == self.out and self.step == self.stride == 1
        return same and self.phases[0].taps == (Tap(0, 0),)

    def part(self, low: int, high: int) -> tuple[Line, range]:
        """Return the line of results [low, high), and the operand positions that they need.

        `low` is a multiple of the stride. The part keeps all the axis's phases.
        """
        first = self.step * (low // self.stride)
        last = self.step * ((high - 1) // self.stride)
        reads = range(max(0, first - self.high), min(self.size, last - self.low + 1))
        reads = reads if reads else range(0)
        return self._replace(size=len(reads), out=high - low), reads


def _ends(phases: tuple[Phase, ...]) -> tuple[int, int]:
    """Return the smallest and the largest shift."""
    shifts = [tap.shift for phase in phases for tap in phase.taps]
    return min(shifts, default=0), max(shifts, default=0)


class WeightForm(NamedTuple):
    """The form of a correlation's weight, independent of spatial sizes.

    Channels are counted over all groups. The strides are a contiguous weight's, in elements:
    of a group, a reduced channel, a made (result) channel, and a tap of each axis."""

    reduced: int
    made: int
    groups: int
    dtype: DType
    strides: tuple[int, ...]

    @property
    def element(self) -> str:
        """The computed element type."""
        return computed(self.dtype)


@dataclass(frozen=True, slots=True)
class Correlation:
    """A problem in the form that kernels compute. Channels are counted over all groups. Adjacent
    pointwise axes are merged.

    `weight_strides` are as in `WeightForm`, and `rounded` as in the problem.
    """

    lines: tuple[Line, ...]
    batch: int
    reduced: int
    made: int
    groups: int
    dtype: DType
    layout: DataLayout
    weight_strides: tuple[int, ...]
    epilogue: Epilogue
    accumulate: bool
    rounded: bool = False
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Caches of schedules use correlations as keys, and hashing hundreds of phases is slow.
        lines = tuple((line.size, line.out, line.low, line.high) for line in self.lines)
        object.__setattr__(self, "_hash", hash((lines, self.batch, self.reduced, self.made)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    @lru_cache(maxsize=64)  # both the choice of a kernel and the kernel need it
    def of(cls, problem: Problem) -> Correlation:
        """Return the correlation of a problem that is not a weight gradient."""
        forward = problem.direction is Direction.FORWARD
        channels = problem.in_channels, problem.out_channels
        lines: list[Line] = []
        every = weight_strides(problem, forward=forward)
        strides = list(every[:3])
        for axis, by_tap in zip(problem.axes, every[3:], strict=True):
            line = Line.of(axis, problem.direction)
            size = lines[-1].size * line.size if lines else 0
            if size <= LIMIT and lines and lines[-1].is_pointwise and line.is_pointwise:
                lines.pop()
                strides.pop()
                line = Line.of(Axis(size, 1), problem.direction)
            lines.append(line)
            strides.append(by_tap)
        counts = problem.batch, *(channels if forward else channels[::-1]), problem.groups
        form = problem.dtype, problem.layout, tuple(strides)
        ends = problem.epilogue, problem.accumulate, problem.rounded
        return cls(tuple(lines), *counts, *form, *ends)

    @property
    def weight(self) -> WeightForm:
        """The weight's form, for packing."""
        strides = self.weight_strides
        return WeightForm(self.reduced, self.made, self.groups, self.dtype, strides)

    @property
    def element(self) -> str:
        """The computed element type."""
        return computed(self.dtype)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.lines)

    @property
    def operand_size(self) -> tuple[int, ...]:
        """Spatial size of the operand."""
        return tuple(line.size for line in self.lines)

    @property
    def result_size(self) -> tuple[int, ...]:
        """Spatial size of the result."""
        return tuple(line.out for line in self.lines)

    @property
    def operand_shape(self) -> tuple[int, ...]:
        """Shape of the operand in this layout."""
        return self.layout.shape(self.batch, self.reduced, self.operand_size)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the result in this layout."""
        return self.layout.shape(self.batch, self.made, self.result_size)

    @property
    def taps(self) -> int:
        """Number of taps of all phases."""
        return prod(sum(len(phase.taps) for phase in line.phases) for line in self.lines)

    @property
    def has_larger_weight(self) -> bool:
        """Whether the weight has more elements than the operand."""
        weight = self.reduced // self.groups * self.made * self.taps
        return weight > prod(self.operand_shape)

    @property
    def multiply_adds(self) -> int:
        """Number of multiply-adds, including those with zeros outside the operand."""
        products = prod(sum(p.length * len(p.taps) for p in line.phases) for line in self.lines)
        return self.batch * self.reduced // self.groups * self.made * products


class Reads(NamedTuple):
    """Reads along an axis: position j of `length` reads position step * j - shift of `size`."""

    length: int
    step: int
    size: int
    shifts: Sequence[int]


def reads_of(axes: Sequence[Reads]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the flat position that each tuple of shifts (row) reads at each position (column).

    It is -1 outside the operand.
    """
    total = np.zeros((1, 1), np.int64)
    for length, step, size, shifts in axes:
        along = step * np.arange(length) - np.array(shifts)[:, None]
        along[(along < 0) | (along >= size)] = -1
        before, along = total[:, None, :, None], along[None, :, None, :]
        both = np.where((before < 0) | (along < 0), -1, before * size + along)
        total = both.reshape(both.shape[0] * both.shape[1], -1)
    return total


def weight_strides(problem: Problem, *, forward: bool) -> tuple[int, ...]:
    """Return the strides of a contiguous weight, in elements: of a group, an input channel, an
    output channel (in this order if `forward`, else swapped), and a tap of each axis."""
    shape = problem.weight_shape
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    by_input, by_output, *by_tap = (strides[i] for i in problem.weight_layout.to_iox(problem.rank))
    by_group = by_input * (problem.in_channels // problem.groups)
    pair = (by_input, by_output) if forward else (by_output, by_input)
    return (by_group, *pair, *by_tap)
