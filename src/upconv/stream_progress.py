"""Progress of a stream along one axis: the final results, and the inputs still needed.

With the symbols of `upconv.geometry`, after the first T inputs of a transposed convolution

    outputs that no later input reaches          o < s*T - p
    outputs that exist even if the input ends    o < s*(T-1) + extent - p - q

so outputs o < s*T - P are returned, with the lag P = max(p, p + q - extent + s). A convolution has
b zeros before its input and e after it (crops where negative). Its output i reads inputs up to
s*i + extent-1 - b, and exists if -e more inputs follow. Nothing here depends on chunk sizes: T
alone determines which results are returned and which inputs are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Protocol

from .geometry import Axis, convolved, fitted

_FAR = 1 << 40
"""A position so far from the beginning that the beginning has no effect."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One axis of a streamed transposed convolution, or of an ordinary one if `convolves`.

    `begin` and `end` are the crops of a transposed convolution, or the zeros around a convolution's
    input; both may be negative.

    >>> up = Progress(kernel=4, stride=2, dilation=1, begin=1, end=1, convolves=False)
    >>> [up.final(taken) for taken in range(4)], up.total(3)
    ([0, 1, 3, 5], 6)
    """

    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    convolves: bool
    lag: int = field(init=False)
    """Positions between a result and its last input, on the longer side, input or output."""

    def __post_init__(self) -> None:
        late = max(self.begin, self.begin + self.end - self.extent + self.stride)
        if self.convolves:
            late = self.extent - 1 - self.begin - min(self.end, 0)
        object.__setattr__(self, "lag", late)  # computed once, since every push reads it

    @property
    def extent(self) -> int:
        """Positions that the dilated kernel spans."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def rate(self) -> Fraction:
        """Results per input: the stride or its reciprocal."""
        return Fraction(1, self.stride) if self.convolves else Fraction(self.stride)

    def final(self, taken: int) -> int:
        """Return the number of results that no later input can change after `taken` inputs."""
        if self.convolves:
            return max(0, (taken - 1 - self.lag) // self.stride + 1)
        return max(0, self.stride * taken - self.lag)

    def takes(self, results: int) -> int:
        """Return the smallest number of inputs after which `results` results are final."""
        if self.convolves:
            return max(0, self.stride * (results - 1) + 1 + self.lag)
        return max(0, -(-(results + self.lag) // self.stride))

    def total(self, taken: int) -> int:
        """Return the number of results if the input ends here; `ShapeError` if it is not valid."""
        if self.convolves:
            around = (self.begin, self.end)
            return convolved(taken, self.kernel, self.stride, self.dilation, *around).size
        return Axis(taken, self.kernel, self.stride, self.dilation, self.begin, self.end).out

    def first(self, taken: int) -> int:
        """Return the first of `taken` inputs that results not yet final may need."""
        return min(max(0, self.reads(self.final(taken))), taken)

    def reads(self, result: int) -> int:
        """Return the first input that results from `result` on need; it may be negative."""
        if self.convolves:
            return self.stride * result - self.begin
        return -(-(result + self.begin - self.extent + 1) // self.stride)

    def shift(self, first: int, result: int) -> int:
        """Return `begin` for inputs renumbered from `first`, and results from `result`."""
        if self.convolves:
            return self.begin - self.stride * result + first
        return self.begin + result - self.stride * first

    @property
    def latency(self) -> int:
        """The largest number of results by which a running stream lags behind rate * inputs."""
        rate = self.rate
        return ceil(self._most(lambda t: rate * t - self.final(t)))

    @property
    def lookahead(self) -> int:
        """The largest number of inputs that a result o needs beyond input o // rate."""
        rate = self.rate
        return int(self._most(lambda o: Fraction(self.takes(o + 1) - 1 - o // rate)))

    def _most(self, late: Callable[[int], Fraction]) -> Fraction:
        """Return the maximum over one period far from the beginning, at one of three positions."""
        period = self.stride
        return max(late(period * _FAR + i) for i in (0, period - 1, self.lag % period))

    def window(self, inputs: int, shift: int, results: int) -> Axis:
        """Return the axis for `results` results from `inputs` inputs, with `shift` as its begin."""
        size, out = (results, inputs) if self.convolves else (inputs, results)
        return fitted(size, self.kernel, self.stride, self.dilation, shift, out)


class Flow(Protocol):
    """The rule that maps a number of inputs to a number of final results."""

    @property
    def rate(self) -> Fraction:
        """Results per input."""

    @property
    def latency(self) -> int:
        """The largest number of results by which a stream lags behind rate * inputs."""

    @property
    def lookahead(self) -> int:
        """The largest number of inputs that a result needs beyond the one at its position."""

    def final(self, taken: int) -> int:
        """Return the number of results that no later input can change after `taken` inputs."""
