"""One spatial axis of a transposed convolution: the only file with size arithmetic.

Symbols: I input positions (`size`), k kernel taps, s stride, d dilation, p `crop_begin`, q
`crop_end`, O output positions (`out`). Input i meets tap t at position `s*i + d*t` of the full
result, which has `full = s*(I-1) + d*(k-1) + 1` positions. The output is the full result with p
positions cut from its beginning and q from its end:

    y[o] = sum of x[i] * w[t]   over   s*i + d*t = o + p,   0 <= o < O = full - p - q

A negative crop adds positions, which no product reaches: they hold the bias alone. Padding,
output padding, target shapes and the "same" modes of all frameworks are just values of p and q.
With I = 0 no product reaches an output, and `full` still follows the formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

from .argument_checks import LIMIT as LIMIT
from .argument_checks import integer
from .errors import ArgumentError, ShapeError, brief


class Tap(NamedTuple):
    """One tap of a phase: kernel index `index`, reading the input `shift` positions back."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    shift: int


class Product(NamedTuple):
    """The product of one input and one tap: x[input] * w[tap]."""

    input: int
    tap: int


class Phase(NamedTuple):
    """The outputs `o = s*j + offset`, all computed by the same taps.

    y[o] = sum x[j - shift] * w[index]; `length` is the number of such outputs. A phase without taps
    holds the bias alone.

    >>> Axis(size=3, kernel=3, stride=2, crop_begin=1).phases()[0]
    Phase(offset=0, length=3, taps=(Tap(index=1, shift=0),))
    """

    offset: int
    length: int
    taps: tuple[Tap, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis: sizes, stride, dilation and two signed crops (see the module's algebra).

    Raises `ArgumentError` if a value is not an integer in range, and `ShapeError` if the crops
    leave fewer than zero output positions.

    >>> axis = Axis(size=3, kernel=3, stride=2, crop_begin=1, crop_end=0)
    >>> axis.full, axis.out
    (7, 6)
    """

    size: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    crop_begin: int = 0
    crop_end: int = 0

    def __post_init__(self) -> None:
        _require_integer("size", self.size, 0)
        _require_integer("kernel", self.kernel, 1)
        _require_integer("stride", self.stride, 1)
        _require_integer("dilation", self.dilation, 1)
        _require_integer("crop_begin", self.crop_begin, -LIMIT)
        _require_integer("crop_end", self.crop_end, -LIMIT)
        if self.out < 0:
            remedy = "Crop less, or use a larger input or kernel."
            got = f"{self.out} = {self.formula}"
            raise ShapeError("the output size", got, "at least 0", remedy)

    @property
    def extent(self) -> int:
        """Positions one input spans: d*(k-1) + 1."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def full(self) -> int:
        """Positions of the full result, before cropping (negative only when there is no input)."""
        return self.stride * (self.size - 1) + self.extent

    @property
    def out(self) -> int:
        """Output positions O = full - crop_begin - crop_end."""
        return self.full - self.crop_begin - self.crop_end

    @property
    def formula(self) -> str:
        """The formula of the output size with its numbers, for messages."""
        return (
            f"({self.size} - 1)*{self.stride} + {self.dilation}*({self.kernel} - 1) + 1"
            f" - {_signed(self.crop_begin)} - {_signed(self.crop_end)}"
        )

    @property
    def period(self) -> int:
        """The distance s / gcd(s, d) between taps of the same phase."""
        return self.stride // gcd(self.stride, self.dilation)

    def phases(self) -> tuple[Phase, ...]:
        """Return the output's phases in order of offset: at most `stride`, none without outputs.

        Tap t is in phase r if d*t = r + p (mod s); it reads x[j - e] with e = (d*t - r - p) / s.
        """
        taps: dict[int, list[Tap]] = {}
        for t in range(self.kernel):
            shift, negative_offset = divmod(self.dilation * t - self.crop_begin, self.stride)
            taps.setdefault(negative_offset, []).append(Tap(t, shift))
        return tuple(
            Phase(r, -(-(self.out - r) // self.stride), tuple(taps.get(r, ())))
            for r in range(min(self.stride, self.out))
        )

    def reads(self, lo: int, hi: int) -> range:
        """Return an interval with every input that reaches outputs [lo, hi), or an empty one.

        With at least `dilation` outputs it is the smallest such interval. Fewer outputs may fall
        between the taps of the first or the last input.

        >>> Axis(size=5, kernel=3, stride=2).reads(4, 6)
        range(1, 3)
        """
        if hi <= lo:
            return range(0)
        first = max(-(-(lo + self.crop_begin - (self.extent - 1)) // self.stride), 0)
        last = min((hi - 1 + self.crop_begin) // self.stride, self.size - 1)
        return range(first, last + 1) if first <= last else range(0)

    def part(self, lo: int, hi: int) -> tuple[Axis, range]:
        """Return the axis that computes only outputs [lo, hi) of this one, and the inputs it reads.

        >>> axis, inputs = Axis(size=5, kernel=3, stride=2).part(4, 6)
        >>> axis.out, inputs
        (2, range(1, 3))
        """
        inputs = self.reads(lo, hi)
        begin = self.crop_begin + lo - self.stride * inputs.start
        size, kernel, stride = len(inputs), self.kernel, self.stride
        return fitted(size, kernel, stride, self.dilation, begin, hi - lo), inputs

    def gradient_part(self, lo: int, hi: int) -> tuple[Axis, range]:
        """Return the axis of inputs [lo, hi) alone, and the outputs that they reach.

        For an input gradient or a convolution these are the results and the positions they read.

        >>> axis, outputs = Axis(size=5, kernel=3, stride=2).gradient_part(1, 3)
        >>> axis.size, outputs
        (2, range(2, 7))
        """
        first = min(max(self.reach(lo).start, 0), self.out)
        outputs = range(first, max(first, min(self.reach(hi - 1).stop, self.out)))
        begin = self.crop_begin - self.stride * lo + first
        kernel, stride = self.kernel, self.stride
        return fitted(hi - lo, kernel, stride, self.dilation, begin, len(outputs)), outputs

    def used_taps(self) -> range:
        """Return an interval with every tap that reaches an output: the smallest if out >= stride.

        >>> Axis(size=5, kernel=3, dilation=100, crop_begin=100, crop_end=100).used_taps()
        range(1, 2)
        """
        first = -(-(self.crop_begin - self.stride * (self.size - 1)) // self.dilation)
        last = (self.out - 1 + self.crop_begin) // self.dilation
        first, last = max(first, 0), min(last, self.kernel - 1)
        return range(first, last + 1) if self.size and first <= last else range(0)

    def trimmed(self) -> Trimmed:
        """Return the axis with the same outputs, but only the inputs and taps that reach them."""
        inputs, taps = self.reads(0, self.out), self.used_taps()
        if not inputs or not taps:
            empty = fitted(0, 1, self.stride, self.dilation, self.crop_begin, self.out)
            return Trimmed(empty, range(0), range(0))
        if len(inputs) == self.size and len(taps) == self.kernel:
            return Trimmed(self, inputs, taps)
        begin = self.crop_begin - self.stride * inputs.start - self.dilation * taps.start
        axis = fitted(len(inputs), len(taps), self.stride, self.dilation, begin, self.out)
        again = axis.trimmed()  # fewer inputs may leave fewer useful taps, and vice versa
        return Trimmed(again.axis, _within(again.inputs, inputs), _within(again.taps, taps))

    def evened(self) -> tuple[Axis, int]:
        """Return a layer with equal crops at both ends, and where this output begins in its output.

        Its crop at the end may be smaller by up to stride - 1. Crops must be >= 0.

        >>> Axis(size=4, kernel=3, crop_begin=2).evened()[1]
        2
        """
        both = min(self.crop_begin, self.crop_end + self.stride - 1)
        crops = both, min(both, self.crop_end)
        axis = Axis(self.size, self.kernel, self.stride, self.dilation, *crops)
        return axis, self.crop_begin - both

    def products(self, o: int) -> tuple[Product, ...]:
        """Return the products whose sum is position `o`, in order of input; `o` may be cropped.

        >>> Axis(size=3, kernel=3, stride=2, crop_begin=1).products(1)
        (Product(input=0, tap=2), Product(input=1, tap=0))
        """
        pairs = []
        for t in reversed(range(self.kernel)):
            i, remainder = divmod(o + self.crop_begin - self.dilation * t, self.stride)
            if not remainder and 0 <= i < self.size:
                pairs.append(Product(i, t))
        return tuple(pairs)

    @property
    def uncropped(self) -> range:
        """Positions of the full result, numbered like outputs; the crop removes those outside it.

        >>> Axis(size=3, kernel=3, stride=2, crop_begin=1).uncropped
        range(-1, 6)
        """
        return range(-self.crop_begin, self.full - self.crop_begin)

    def reach(self, i: int) -> range:
        """Return the range of positions that input `i` reaches, numbered like outputs.

        >>> Axis(size=3, kernel=3, stride=2, crop_begin=1).reach(1)
        range(1, 4)
        """
        begin = self.stride * i - self.crop_begin
        return range(begin, begin + self.extent)

    def meeting(self, tap: int) -> tuple[range, range]:
        """Return the inputs whose products with a tap are in the output, and their outputs.

        >>> Axis(size=3, kernel=3, stride=2, crop_begin=1).meeting(0)
        (range(1, 3), range(1, 5, 2))
        """
        begin = self.crop_begin - self.dilation * tap
        first = max(-(-begin // self.stride), 0)
        count = max(min((self.out - 1 + begin) // self.stride, self.size - 1) + 1 - first, 0)
        start = self.stride * first - begin
        return range(first, first + count), range(start, start + self.stride * count, self.stride)

    def meets(self, tap: int) -> bool:
        """Return whether a tap contributes to any output."""
        return bool(self.meeting(tap)[0])


class Trimmed(NamedTuple):
    """An axis with the same outputs from fewer inputs and taps; size 0 if nothing reaches them."""

    axis: Axis
    inputs: range
    taps: range

    def without_margins(self) -> tuple[Axis, slice]:
        """Return the axis without negative crops, and the slice of the outputs that it covers."""
        axis = self.axis
        crops = max(0, axis.crop_begin), max(0, axis.crop_end)
        if not axis.size or axis.full <= sum(crops):
            return fitted(0, 1, axis.stride, axis.dilation, 0, 0), slice(0, 0)
        inner = Axis(axis.size, axis.kernel, axis.stride, axis.dilation, *crops)
        start = max(0, -axis.crop_begin)
        return inner, slice(start, start + inner.out)


def padded(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, output_padding: int
) -> Axis:
    """Return the axis of a layer with PyTorch's and ONNX's padding (begin, end) and output padding.

    Both are crops: `begin` positions at the beginning and `end - output_padding` at the end.

    >>> padded(3, 3, 2, 1, 1, 1, 1).out
    6
    """
    return Axis(size, kernel, stride, dilation, begin, end - output_padding)


def padded_size(n: Any, k: Any, s: Any, d: Any, padding: Any, output_padding: Any) -> Any:
    """Return `padded(...).out` for equal padding at both ends; sizes may be symbolic (compilers).

    >>> padded_size(3, 3, 2, 1, 1, 1)
    6
    """
    return _full(n, k, s, d) - 2 * padding + output_padding


def fitted(size: int, kernel: int, stride: int, dilation: int, begin: int, out: int) -> Axis:
    """Return the axis with exactly `out` outputs after cropping `begin` positions at its beginning.

    >>> fitted(3, 3, 2, 1, begin=1, out=6).crop_end
    0
    """
    return Axis(
        size, kernel, stride, dilation, begin, _full(size, kernel, stride, dilation) - begin - out
    )


def centred(
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    out: int,
    *,
    upper: bool,
    output_padding: int = 0,
) -> Axis:
    """Return the axis with `out` outputs whose total crop is divided between both ends.

    total = full + output_padding - out. With `upper` an odd position is cut at the end (begin =
    floor(total/2): TensorFlow, JAX, ONNX from opset 11 SAME_UPPER), else at the beginning. If total
    is negative, the end is extended (ONNX's test of output_shape; ONNX Runtime and OpenVINO agree).

    >>> [centred(5, 3, 2, 1, 10, upper=upper).crop_begin for upper in (True, False)]
    [0, 1]
    """
    total = _full(size, kernel, stride, dilation) + output_padding - out
    smaller = max(total, 0) // 2
    begin = smaller if upper else max(total, 0) - smaller
    return fitted(size, kernel, stride, dilation, begin, out)


def convolved(length: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> Axis:
    """Return the axis whose input gradient is an ordinary convolution of `length` positions.

    The convolution's output, floor((length + begin + end - extent) / s) + 1 positions, is the
    transposed convolution's input; its input is the transposed convolution's output.

    >>> convolved(7, 3, 2, 1, 1, 1).size
    4
    """
    extent = dilation * (kernel - 1) + 1
    if length + begin + end < extent:
        got = f"{length + begin + end} positions = {length} + {_signed(begin)} + {_signed(end)}"
        expected = f"at least the dilated kernel's extent, {extent}"
        remedy = "Pad more, or use a smaller kernel or dilation."
        raise ShapeError("the padded input", got, expected, remedy)
    size = (length + begin + end - extent) // stride + 1
    return fitted(size, kernel, stride, dilation, begin, length)


def scaled(size: int, stride: int) -> int:
    """Return s*I, the output size of a transposed convolution with "same" padding."""
    return stride * size


def strided(length: int, stride: int) -> int:
    """Return ceil(length / s), the output size of a convolution with "same" padding.

    >>> strided(5, 2)
    3
    """
    return -(-length // stride)


def same_padding(
    length: int, kernel: int, stride: int, dilation: int, *, upper: bool
) -> tuple[int, int]:
    """Return the zeros (begin, end) around a convolution's input for ceil(length / stride) outputs.

    >>> same_padding(5, 4, 2, 1, upper=True)
    (1, 2)
    """
    extent = dilation * (kernel - 1) + 1
    total = max((strided(length, stride) - 1) * stride + extent - length, 0)
    begin = total // 2 if upper else total - total // 2
    return begin, total - begin


def _full(size: int, kernel: int, stride: int, dilation: int) -> int:
    return stride * (size - 1) + dilation * (kernel - 1) + 1


def _within(part: range, domain: range) -> range:
    """Return a part of a range, given by its positions within it."""
    return range(domain.start + part.start, domain.start + part.stop) if part else part


def _signed(value: int) -> str:
    return f"({value})" if value < 0 else str(value)


def _require_integer(name: str, value: object, low: int) -> None:
    if type(value) is not int:
        raise ArgumentError(name, f"{brief(value)} ({type(value).__name__})", "an int")
    integer(name, value, low)
