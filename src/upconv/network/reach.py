"""The reach of a network's operations along a stream's axis.

An operation's reach along an axis says how many results are final after a number of inputs, and
which inputs later results need. It also provides the operation that computes a range of results
from a range of inputs. Operations that need all positions at once are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from ..errors import EngineRefusal
from ..keywords import Same, paddings, paddings_of_stride_1
from ..stream_progress import Progress
from . import graph as ir
from .kinds import signature_of

Ends = tuple[int, int]
"""Positions to crop at the beginning and at the end."""


class Window(NamedTuple):
    """An operation on a range of inputs, and the positions to crop from input and result."""

    operation: ir.Operation
    before: Ends = (0, 0)
    after: Ends = (0, 0)


@dataclass(frozen=True)
class Reach:
    """One operation along a stream's axis; in this base class, each result needs one input.

    recurs: whether a result also needs the previous result.
    """

    operation: ir.Operation
    recurs: bool = field(default=False, kw_only=True)

    @property
    def trails(self) -> bool:
        """Whether the last results need no input; one input is then kept to compute them from."""
        return False

    @property
    def rate(self) -> Fraction:
        """Results per input."""
        return Fraction(1)

    def final(self, taken: int) -> int:
        """Return how many results no input after the first `taken` can change."""
        return taken

    def total(self, taken: int) -> int:
        """Return the number of results if the stream ends after `taken` inputs."""
        return taken

    def first(self, result: int) -> int:
        """Return the first input that results from `result` on need; it may be negative."""
        return result

    def shift(self, first: int, result: int) -> int:
        """Return the offset of result `result` from input `first`, in the operation's terms."""
        return result - first

    def window(self, shift: int, size: int, count: int) -> Window:
        """Return the operation that computes `count` results from `size` inputs at a `shift`."""
        return Window(self.operation, (shift, size - shift - count))


@dataclass(frozen=True)
class Taps(Reach):
    """An ordinary or transposed convolution, or another operation with sliding windows.

    axis: the spatial axis. ends: the padding along all axes. cuts: whether it may be negative.
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
        """Return `Progress`'s count; 0 before the first input."""
        return self.progress.final(taken) if taken else 0

    def total(self, taken: int) -> int:
        return self.progress.total(taken)

    def first(self, result: int) -> int:
        return self.progress.reads(result)

    def shift(self, first: int, result: int) -> int:
        return self.progress.shift(first, result)

    def window(self, shift: int, size: int, count: int) -> Window:
        """Return the operation with the padding that gives these results."""
        axis = self.progress.window(size, shift, count)
        begin, end = axis.crop_begin, axis.crop_end
        cut = (0, 0) if self.cuts else (max(0, -begin), max(0, -end))
        ends = [*self.ends]
        ends[self.axis] = begin + cut[0], end + cut[1]
        return Window(with_ends(self.operation, ends), cut)


class Multiplied(Taps):
    """Upsampling by an integer factor, which reaches as far as a transposed convolution."""

    def window(self, shift: int, size: int, count: int) -> Window:
        """Return the unchanged operation, and crop its results at both ends."""
        begin = shift - self.progress.begin
        return Window(self.operation, after=(begin, size * self.progress.stride - begin - count))


@dataclass(frozen=True)
class Edges(Reach):
    """Padding by `ends` positions; the end is known only when the stream ends.

    `first` keeps the inputs that padding at the end needs.
    """

    operation: ir.Pad
    axis: int

    @property
    def ends(self) -> Ends:
        """Positions added at the beginning and at the end."""
        return self.operation.amounts[self.axis]

    def final(self, taken: int) -> int:
        """Count all results except those at the end; 0 until there is enough input to reflect."""
        begin, end = self.ends
        inner = taken + min(end, 0)
        enough = inner > (max(begin, 0) if self.operation.mode == "reflect" else 0)
        return max(0, inner + begin) if enough else 0

    def total(self, taken: int) -> int:
        return taken + sum(self.ends)

    def first(self, result: int) -> int:
        """Return the result's input position, minus the inputs that the end repeats or reflects."""
        begin, end = self.ends
        kept = 0 if end <= 0 else end + 1 if self.operation.mode == "reflect" else 1
        return result - begin - kept

    def shift(self, first: int, result: int) -> int:
        return self.ends[0] + first - result

    def window(self, shift: int, size: int, count: int) -> Window:
        """Return the operation with other amounts; crop inputs kept for the end from its result."""
        ends, end = [*self.operation.amounts], count - size - shift
        begin = shift if end <= 0 else max(0, shift)
        ends[self.axis] = begin, end
        return Window(with_ends(self.operation, ends), after=(begin - shift, 0))


@dataclass(frozen=True)
class Everything(Reach):
    """The reach of an operation that reads all positions; `reason` says why, for errors."""

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
    """Return an operation's padding, which may differ between windows; None if it has none."""
    if isinstance(operation, ir.Convolution):
        return operation.keywords.padding
    return getattr(operation, "padding", getattr(operation, "amounts", None))


def with_ends(operation: ir.Operation, ends: Sequence[Ends]) -> ir.Operation:
    """Return the operation with different padding, if it has padding."""
    pairs = tuple(ends)
    if isinstance(operation, ir.Convolution):
        keywords = operation.keywords._replace(padding=pairs, output_padding=0)
        return replace(operation, keywords=keywords)
    if isinstance(operation, ir.Pool):
        return replace(operation, padding=pairs)
    return replace(operation, amounts=pairs) if isinstance(operation, ir.Pad) else operation


def reach(node: ir.Node, graph: ir.Graph, number: int) -> Reach:
    """Return a node's reach along a spatial axis of any size.

    Raises `EngineRefusal` with the reason if the node needs all positions at once.
    """
    rule = REACHES.get(type(node.operation))
    if rule is None:
        raise EngineRefusal("it reads all positions")
    return rule(node.operation, graph.shapes[node.inputs[0]], number)


def _convolution(operation: ir.Convolution, shape: ir.Shape, number: int) -> Reach:
    axes = signature_of(operation, shape).problem.axes
    along = axes[number]
    ends = along.crop_begin, along.crop_end
    if not operation.transposed:  # the crop at the end depends on the size
        padding, kernel = operation.keywords.padding, [axis.kernel for axis in axes]
        if along.stride > 1 and isinstance(paddings(padding, len(axes)), Same):
            raise EngineRefusal("its padding depends on the size of the input")
        ends = paddings_of_stride_1(padding, kernel, [axis.dilation for axis in axes])[number]
    progress = Progress(along.kernel, along.stride, along.dilation, *ends, not operation.transposed)
    pairs = tuple((one.crop_begin, one.crop_end) for one in axes)
    return Taps(operation, progress, number, pairs, cuts=True)


def _pool(operation: ir.Pool, _: ir.Shape, number: int) -> Reach:
    if operation.windows or operation.ceil:
        raise EngineRefusal("its windows depend on the size of the input")
    kernel, stride = operation.kernel[number], operation.stride[number]
    dilation = operation.at(()).dilation[number]
    progress = Progress(kernel, stride, dilation, *operation.padding[number], convolves=True)
    return Taps(operation, progress, number, operation.padding)


def _multiplied(operation: ir.Resample | ir.PixelShuffle, _: ir.Shape, number: int) -> Reach:
    """Return the reach of upsampling: in linear mode, each input reaches 2 * factor results."""
    if isinstance(operation, ir.Resample) and operation.by_position:
        raise EngineRefusal("its factor depends on the size of the input")
    factor = operation.factors[number]
    progress = Progress(factor, factor, 1, 0, 0, convolves=False)
    if isinstance(operation, ir.Resample) and operation.mode == "linear" and factor > 1:
        begin, end = (factor + 1) // 2, factor // 2
        progress = Progress(2 * factor, factor, 1, begin, end, convolves=False)
    return Multiplied(operation, progress, number, ((0, 0),) * len(operation.factors))


def _divided(operation: ir.PixelUnshuffle, _: ir.Shape, number: int) -> Reach:
    factor = operation.factors[number]
    progress = Progress(factor, factor, 1, 0, 0, convolves=True)
    return Taps(operation, progress, number, ((0, 0),) * len(operation.factors))


def _norm(operation: ir.Norm, *_: object) -> Reach:
    if not operation.per_position:
        raise EngineRefusal("its mean and variance cover all positions")
    return Reach(operation)


_ONE_BY_ONE = ir.Pointwise, ir.Concat, ir.Slice, ir.Permute, ir.ChannelPool, ir.Convert
REACHES: dict[type[ir.Operation], Callable[[Any, ir.Shape, int], Reach]] = {
    ir.Convolution: _convolution,
    ir.Pool: _pool,
    ir.Resample: _multiplied,
    ir.PixelShuffle: _multiplied,
    ir.PixelUnshuffle: _divided,
    ir.Norm: _norm,
    ir.Lstm: lambda operation, *_: Reach(operation, recurs=True),
    ir.Pad: lambda operation, _, number: Edges(operation, number),
    **dict.fromkeys(_ONE_BY_ONE, lambda operation, *_: Reach(operation)),
}
