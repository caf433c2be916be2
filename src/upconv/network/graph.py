"""The graph of a network: values, and nodes that compute them. Nothing here computes.

A value is a number; the graph knows its shape (N, C, *size). A node has an operation, the values
that it reads, and the values that it writes. The operation is a frozen dataclass of all that does
not change between runs. Nodes stand in an order in which they can run. Passes are functions from
one graph to another.

A pointwise *chain* is a tuple of `Op`s. It begins with one value and applies one operation after
another, each perhaps with a second operand. The `epilogue` of a convolution or a norm is such a
chain too, so that fusing joins two tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ..engine_choice import Algorithm
from ..geometry import convolved
from ..keywords import Keywords
from ..problem import DataLayout, DType

Array = NDArray[Any]
Shape = tuple[int, ...]


class Input(NamedTuple):
    """The number of a node's input, as an operand of its chain.

    broadcast: whether it has extent 1 along axes where the chain's value has more.
    """

    number: int
    broadcast: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One step of a chain: `name` is a key of `definitions.FUNCTIONS`.

    The operand is a number, one number per channel (an array of shape (C,)), an `Input`, or None.
    The operation "store" has no operand: it makes the current value the node's next output. The
    last value of the chain is the last output.
    """

    name: str
    operand: float | Array | Input | None = None


Chain = tuple[Op, ...]
EXCHANGED = {
    "add": "add", "mul": "mul", "maximum": "maximum", "minimum": "minimum",
    "sub": "rsub", "rsub": "sub", "div": "rdiv", "rdiv": "div",
}  # fmt: skip
"""Operation of two values -> the same one with its operands exchanged."""


class Operation:
    """The operation of a node: one of the frozen classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Operation):
    """A convolution of input 0, transposed or not. `epilogue` reads further inputs.

    weight: IOX where transposed, else OIX; bias: (out_channels,). keywords: the strides, padding,
    dilation and groups of `conv_transpose` or `conv`. sums: the order in which kernels add up, as
    `Candidate.sums` names it; None for any order.
    """

    weight: Array
    bias: Array | None
    keywords: Keywords
    transposed: bool
    epilogue: Chain = ()
    sums: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pointwise(Operation):
    """A chain on input 0."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class Concat(Operation):
    """All inputs side by side along an axis of (N, C, *size): the channels, or positions."""

    axis: int = 1


@dataclass(frozen=True, slots=True)
class Slice(Operation):
    """The channels from `start` to `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Pad(Operation):
    """Positions added at the ends of each spatial axis, or cut off where a number is negative.

    amounts: (begin, end) per spatial axis. mode: "constant" (`value`), "reflect" or "replicate".
    """

    amounts: tuple[tuple[int, int], ...]
    mode: str = "constant"
    value: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Norm(Operation):
    """Normalisation of input 0: (x - mean) / sqrt(variance + epsilon), then `epilogue`.

    Mean and variance are taken over the channels of each of `groups` groups and, unless
    `per_position` (layer norm over channels), over all positions. groups = C is instance norm. The
    scale and offset per channel are the first two operations of `epilogue`.
    """

    groups: int
    epsilon: float
    per_position: bool = False
    epilogue: Chain = ()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Lstm(Operation):
    """The recurrence of an LSTM along the only spatial axis, on its inputs times their weights.

    Input 0 has the channels of the input, forget, cell and output gates. The result has those of
    h, and behind them those of the cell. Input 1, where there is one, is a result whose last
    position comes before the first one here; else that is zero. weight: (4 H, H), for h.
    """

    weight: Array

    @property
    def channels(self) -> int:
        """The channels of h."""
        return int(self.weight.shape[1])


@dataclass(frozen=True, slots=True)
class Resample(Operation):
    """Upsampling by whole factors, one per spatial axis; "nearest" or "linear" (half-pixel).

    sizes: the positions of the result, where there are no factors. aligned: whether the first and
    the last positions lie on each other, in linear mode.
    """

    factors: tuple[int, ...]
    mode: str = "nearest"
    sizes: Shape = ()
    aligned: bool = False

    def at(self, size: Sequence[int]) -> Resample:
        """The same by factors, where these are whole."""
        pairs = list(zip(size, self.sizes, strict=False))
        if self.aligned or not pairs or any(n % before for before, n in pairs):
            return self
        return Resample(tuple(n // before for before, n in pairs), self.mode)


@dataclass(frozen=True, slots=True)
class Pool(Operation):
    """The maximum or the average of windows; `padding` is (begin, end) per spatial axis.

    mode: "max" or "average". count_padding: whether padded zeros count in an average. dilation: ()
    for 1. ceil: whether a last window may begin within x or its padding and end beyond. windows:
    their number per axis where these lie side by side, whatever the size; `kernel` is () then.
    """

    mode: str
    kernel: Shape
    stride: Shape
    padding: tuple[tuple[int, int], ...]
    count_padding: bool = True
    dilation: Shape = ()
    ceil: bool = False
    windows: Shape = ()

    def at(self, size: Sequence[int]) -> Pool:
        """The same pool with a kernel, a stride and a dilation for each axis of a known size."""
        if not self.windows:
            return replace(self, dilation=self.dilation or (1,) * len(self.kernel))
        kernel = tuple(n // count for n, count in zip(size, self.windows, strict=True))
        ones, none = (1,) * len(kernel), ((0, 0),) * len(kernel)
        return replace(self, kernel=kernel, stride=kernel, padding=none, dilation=ones, windows=())

    def count(self, axis: int, size: int) -> int:
        """The number of windows along an axis; `ShapeError` where there is none."""
        kernel, stride, dilation = self.kernel[axis], self.stride[axis], self.dilation[axis]
        begin, end = self.padding[axis]
        count = convolved(size, kernel, stride, dilation, begin, end).size
        reach = count * stride + dilation * (kernel - 1) + 1
        # One more window if the others leave something, and it has more than what lies beyond.
        more = self.ceil and reach - stride < size + begin + end and count * stride < size + begin
        return count + more


@dataclass(frozen=True, slots=True)
class ChannelPool(Operation):
    """The maximum or the average ("max" or "average") of all channels at each position."""

    mode: str


@dataclass(frozen=True, slots=True)
class PixelShuffle(Operation):
    """Channels (C * prod(factors)) become positions: (C, *size * factors), in PyTorch's order."""

    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PixelUnshuffle(Operation):
    """Positions become channels: the inverse of `PixelShuffle`."""

    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permute(Operation):
    """The channels of these numbers, in this order."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convert(Operation):
    """A copy of input 0 in the layout and element type of the output; most are from passes."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operation on values; `line` says where the user's code asked for it."""

    operation: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    line: str = ""


class Form(NamedTuple):
    """The memory order of a value."""

    layout: DataLayout = DataLayout.NCX
    dtype: DType = DType.FLOAT32


class Options(NamedTuple):
    """Options of a program: the type of values in between, threads, the algorithm of kernels."""

    dtype: DType
    threads: int
    algorithm: Algorithm


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A frozen graph of known sizes.

    inputs: the values that a run is given, by name, in order. outputs: the values that it returns.
    shapes: (N, C, *size) of every value, whatever its layout. forms: where a value has no entry, it
    is channels first and float32. views: values that lie in a part of another value's array, with
    the number of their first element there along `part_axis` (`place.py`). held: values that lie
    in a block of memory of the caller's, by the first byte there (`histories.py`).
    """

    nodes: tuple[Node, ...]
    inputs: dict[str, int]
    outputs: tuple[int, ...]
    shapes: dict[int, Shape]
    forms: dict[int, Form] = field(default_factory=dict)
    views: dict[int, tuple[int, int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)

    def form(self, value: int) -> Form:
        """Layout and element type of a value."""
        return self.forms.get(value, Form())

    def part_axis(self, value: int) -> int:
        """The axis of (N, C, *size) that parts of an array are taken along: its second one in
        memory, the channels or the first positions."""
        return 1 if self.form(value).layout is DataLayout.NCX else 2

    def with_nodes(self, nodes: list[Node]) -> Graph:
        """The same graph with other nodes."""
        return replace(self, nodes=tuple(nodes))

    def readers(self) -> dict[int, list[Node]]:
        """The nodes that read each value; a node that reads it twice stands there twice."""
        readers: dict[int, list[Node]] = {value: [] for value in self.shapes}
        for node in self.nodes:
            for value in node.inputs:
                readers[value].append(node)
        return readers

    def writers(self) -> dict[int, Node]:
        """The node that writes each value."""
        return {value: node for node in self.nodes for value in node.outputs}


def with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    """A shape with another extent along an axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def array_shape(shape: Shape, layout: DataLayout) -> Shape:
    """The shape of the array that holds a value."""
    return layout.shape(shape[0], shape[1], tuple(shape[2:]))
