"""The reach of a network's operations along the axis of a stream.

For one axis, the reach of an operation tells how many results are final after a number of inputs,
and which inputs later results need. It also gives the operation that computes a range of results
from a range of inputs. An operation that needs all positions at once raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from ..stream_progress import Progress
from . import graph as ir

Ends = tuple[int, int]
"""Positions to crop at the beginning and at the end."""


class Window(NamedTuple):
    """An operation on a range of inputs, and the positions to crop from its input and result."""

    operation: ir.Operation
    before: Ends = (0, 0)
    after: Ends = (0, 0)


@dataclass(frozen=True)
class Reach:
    """One operation along the axis of a stream; in this class each result needs one input.

    recurs: whether a result also needs the previous one.
    """

    operation: ir.Operation
    recurs: bool = field(default=False, kw_only=True)

    @property
    def trails(self) -> bool:
        """Whether the last results need no input; one input is then kept for them."""
        return False

    @property
    def rate(self) -> Fraction:
        """Results per input."""
        return Fraction(1)

    def final(self, taken: int) -> int:
        """Number of results that no input after the first `taken` can change."""
        return taken

    def total(self, taken: int) -> int:
        """Number of results if no more inputs come."""
        return taken

    def first(self, result: int) -> int:
        """The first input that results from `result` on need; it may be negative."""
        return result

    def shift(self, first: int, result: int) -> int:
        """The position of result `result` relative to input `first`, in the operation's terms."""
        return result - first

    def window(self, shift: int, size: int, count: int) -> Window:
        """The operation that computes `count` results from `size` inputs with a `shift`."""
        return Window(self.operation, (shift, size - shift - count))


@dataclass(frozen=True)
class Taps(Reach):
    """A convolution, ordinary or transposed, or another operation with sliding windows.

    axis: the spatial axis. ends: (begin, end) along all axes. cuts: whether they may be negative.
    """

    progress: Progress
    axis: int
    ends: tuple[Ends, ...]
    cuts: bool = False

    @property
    def rate(self) -> Fraction:
        return self.progress.rate

    @property
    def trails(self) -> bool:
        """Whether the last results depend only on padding."""
        one = self.progress
        return one.end >= one.extent if one.convolves else one.end < 0

    def final(self, taken: int) -> int:
        """The count of `Progress`, once there is an input."""
        return self.progress.final(taken) if taken else 0

    def total(self, taken: int) -> int:
        return self.progress.total(taken)

    def first(self, result: int) -> int:
        return self.progress.reads(result)

    def shift(self, first: int, result: int) -> int:
        return self.progress.shift(first, result)

    def window(self, shift: int, size: int, count: int) -> Window:
        """The operation with the ends that give these results."""
        axis = self.progress.window(size, shift, count)
        begin, end = axis.crop_begin, axis.crop_end
        cut = (0, 0) if self.cuts else (max(0, -begin), max(0, -end))
        ends = [*self.ends]
        ends[self.axis] = begin + cut[0], end + cut[1]
        return Window(with_ends(self.operation, ends), cut)


@dataclass(frozen=True)
class Multiplied(Reach):
    """Upsampling by an integer factor; in linear mode a result lies between two inputs."""

    factor: int
    linear: bool

    @property
    def rate(self) -> Fraction:
        return Fraction(self.factor)

    def final(self, taken: int) -> int:
        """All results, or in linear mode those left of the last input's centre."""
        if not self.linear:
            return taken * self.factor
        return -(-((2 * taken - 1) * self.factor - 1) // 2) if taken else 0

    def total(self, taken: int) -> int:
        return taken * self.factor

    def first(self, result: int) -> int:
        """The input at the result's position, or in linear mode to the left of it."""
        if not self.linear:
            return result // self.factor
        return (2 * result + 1 - self.factor) // (2 * self.factor)

    def shift(self, first: int, result: int) -> int:
        return result - first * self.factor

    def window(self, shift: int, size: int, count: int) -> Window:
        """The unchanged operation, with its results cropped at both ends."""
        return Window(self.operation, (0, 0), (shift, size * self.factor - shift - count))


@dataclass(frozen=True)
class Edges(Reach):
    """Padding by `ends` positions; those at the end are known only when the stream ends.

    `first` keeps the inputs that the end needs.
    """

    operation: ir.Pad
    axis: int

    @property
    def ends(self) -> Ends:
        """Positions added at the beginning and at the end."""
        return self.operation.amounts[self.axis]

    def final(self, taken: int) -> int:
        """All results except those of the end; 0 until there are enough inputs to reflect."""
        begin, end = self.ends
        there = taken + min(end, 0)
        enough = there > (max(begin, 0) if self.operation.mode == "reflect" else 0)
        return max(0, there + begin) if enough else 0

    def total(self, taken: int) -> int:
        return taken + sum(self.ends)

    def first(self, result: int) -> int:
        """The input at the result's position, minus the inputs that the end repeats or reflects."""
        begin, end = self.ends
        kept = 0 if end <= 0 else end + 1 if self.operation.mode == "reflect" else 1
        return result - begin - kept

    def shift(self, first: int, result: int) -> int:
        return self.ends[0] + first - result

    def window(self, shift: int, size: int, count: int) -> Window:
        """The operation with other amounts; inputs kept for the end are cropped from its result."""
        ends, end = [*self.operation.amounts], count - size - shift
        begin = shift if end <= 0 else max(0, shift)
        ends[self.axis] = begin, end
        return Window(with_ends(self.operation, ends), after=(begin - shift, 0))


@dataclass(frozen=True)
class Everything(Reach):
    """The reach of an operation that reads all positions; `reason` says why, for an error."""

    size: int
    results: int
    reason: str

    @property
    def rate(self) -> Fraction:
        return Fraction(self.results, self.size)

    def final(self, taken: int) -> int:
        return self.results if taken >= self.size else 0

    def total(self, taken: int) -> int:
        return self.results

    def first(self, result: int) -> int:
        return 0

    def shift(self, first: int, result: int) -> int:
        return 0

    def window(self, shift: int, size: int, count: int) -> Window:
        return Window(self.operation)


def ends_of(operation: ir.Operation) -> Any:
    """The padding of an operation, which differs between its windows; None if it has none."""
    if isinstance(operation, ir.Convolution):
        return operation.keywords.padding
    return getattr(operation, "padding", getattr(operation, "amounts", None))


def with_ends(operation: ir.Operation, ends: Sequence[Ends]) -> ir.Operation:
    """The operation with another padding, if it has padding."""
    pairs = tuple(ends)
    if isinstance(operation, ir.Convolution):
        keywords = operation.keywords._replace(padding=pairs, output_padding=0)
        return replace(operation, keywords=keywords)
    if isinstance(operation, ir.Pool):
        return replace(operation, padding=pairs)
    return replace(operation, amounts=pairs) if isinstance(operation, ir.Pad) else operation
