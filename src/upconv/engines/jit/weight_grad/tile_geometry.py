"""Positions for a weight gradient on tile registers: one long row for the entire batch.

Along an axis, tap t meets g at s*i + d*t - p = s*j + r, with j = i + q. The numbers of g with the
same remainder r are a *phase*, and within a phase a tap is a shift q. The rows of x, and of each
phase of g, form one row of flattened positions, with enough zeros between them for every shift. So
a tap of any rank is one constant shift, and its reduction runs over the entire batch.

Zeros are multiplied by the other operand, which must be finite: the primitive checks the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ....geometry import Axis
from ....problem import Problem
from ..packing import Numbers
from ..tiles.operations import PAIRS


@dataclass(frozen=True, slots=True)
class Line:
    """An axis: each tap's shift and remainder, each remainder's count of outputs from `first` on,
    and the padded size `pitch`, in positions along this axis."""

    size: int
    stride: int
    first: int
    taps: tuple[tuple[int, int], ...]
    counts: dict[int, int]
    pitch: int

    @classmethod
    def of(cls, axis: Axis) -> Line:
        """Return an axis's line, with enough zeros between rows for its shifts."""
        offsets = [axis.dilation * tap - axis.crop_begin for tap in range(axis.kernel)]
        shifts = [offset // axis.stride for offset in offsets]
        low, high = min(shifts), max(shifts)
        first = max(0, low)
        counts = {
            r: max(0, min(-(-(axis.out - r) // axis.stride), axis.size + high) - first)
            for r in sorted({offset % axis.stride for offset in offsets})
        }
        last = first + max(counts.values())
        taps = tuple((q - first, o % axis.stride) for q, o in zip(shifts, offsets, strict=True))
        # A shifted row ends before the next row, or in the zeros after the previous row.
        pitch = max(axis.size + max(0, high - first), last - first, last - low)
        return cls(axis.size, axis.stride, first, taps, counts, pitch)


@dataclass(frozen=True, slots=True)
class Phase:
    """Numbers of g that are a stride apart: the first one's position, their count along each axis,
    and the taps that meet them, each with its shift."""

    position: int
    counts: tuple[int, ...]
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Runs of an operand's numbers, which are `step` image positions apart: each run's start in the
    flattened row, its image, its start in the image, and its length."""

    flat: Numbers
    image: Numbers
    position: Numbers
    lengths: Numbers
    step: int

    def joined(self) -> Rows:
        """Merge each row that begins where the previous row ends."""
        begins = np.append(True, np.diff(self.flat) != self.lengths[:-1])
        first = np.flatnonzero(begins)
        lengths = np.add.reduceat(self.lengths, first)
        return Rows(self.flat[first], self.image[first], self.position[first], lengths, self.step)


class Flat:
    """A problem's flattened positions."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._lines = [Line.of(axis) for axis in problem.axes]
        pitches = [line.pitch for line in self._lines]
        # At least one zero separates two images, so that runs and pairs of positions end there.
        self._strides = [prod(pitches[i + 1 :]) for i in range(len(pitches))]
        self._image = prod(pitches) + 1
        self.phases = self._phases()
        shifts = [shift for phase in self.phases for _, shift in phase.taps]
        self.low, self.high = min(shifts), max(shifts)
        self.parities = 1 + any((self.high - shift) % 2 for shift in shifts)
        steps = zip(self._lines, self._strides, strict=True)
        last = sum((max(line.counts.values()) - 1) * step for line, step in steps)
        self.chunks = max(1, -(-((problem.batch - 1) * self._image + last + 1) // PAIRS))

    def _phases(self) -> tuple[Phase, ...]:
        taps_of: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for number, taps in enumerate(product(*(line.taps for line in self._lines))):
            shift = sum(q * step for (q, _), step in zip(taps, self._strides, strict=True))
            taps_of.setdefault(tuple(r for _, r in taps), []).append((number, shift))
        return tuple(
            Phase(
                _dot(remainders, self._outputs),
                tuple(n.counts[r] for n, r in zip(self._lines, remainders, strict=True)),
                tuple(taps),
            )
            for remainders, taps in taps_of.items()
        )

    @property
    def _outputs(self) -> list[int]:
        """Strides of g's axes, in positions."""
        sizes = self._problem.out_size
        return [prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def rows_of_x(self) -> Rows:
        """Return the rows of x, merged if there are no zeros between them."""
        sizes = self._problem.size
        steps = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
        return self._rows(sizes, steps, 0, 1).joined()

    def rows_of_g(self, counts: tuple[int, ...]) -> Rows:
        """Return the rows of a phase of g at remainder 0, with `counts` numbers along the axes."""
        lines = zip(self._lines, self._outputs, strict=True)
        steps = [line.stride * step for line, step in lines]
        begin = _dot([line.first for line in self._lines], steps)
        return self._rows(counts, steps, begin, self._lines[-1].stride)

    def _rows(self, counts: tuple[int, ...], steps: list[int], begin: int, step: int) -> Rows:
        flat: Numbers = np.arange(self._problem.batch)[:, None] * self._image
        position: Numbers = np.full((1, 1), begin)
        for count, stride, length in zip(counts[:-1], self._strides, steps, strict=False):
            along = np.arange(count)
            flat = (flat[:, :, None] + along * stride).reshape(len(flat), -1)
            position = (position[:, :, None] + along * length).reshape(1, -1)
        image = np.repeat(np.arange(self._problem.batch), flat.shape[1])
        position = np.broadcast_to(position, flat.shape)
        lengths = np.full(flat.size, counts[-1])
        return Rows(flat.ravel(), image, position.ravel(), lengths, step)


def _dot(numbers: Any, others: Any) -> int:
    return sum(a * b for a, b in zip(numbers, others, strict=True))


@lru_cache(maxsize=64)
def flat_of(problem: Problem) -> Flat:
    """Return a problem's flattened positions, which both the model and the primitive need."""
    return Flat(problem)
