"""The graph of a network: values, and nodes that compute them. This module computes nothing.

A value is identified by a number; the graph stores its shape (N, C, *size). A node has an
operation, the values that it reads, and the values that it writes. The operation is a frozen
dataclass with everything that does not change between runs. Nodes are listed in an order in which
they can run. Passes are functions from one graph to another.

A pointwise *chain* is a tuple of `Op`s: operations that are applied in sequence to one value, each
with an optional second operand. The `epilogue` of a convolution or a norm is also a chain.
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
    """A node's input, by its number, as an operand of the node's chain.

    broadcast: whether the input has extent 1 along axes where the chain's value is larger.
    """

    number: int
    broadcast: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation of a chain: `name` is a key of `definitions.FUNCTIONS`.

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
"""Operation on two values -> the equivalent operation on the exchanged operands."""


class Operation:
    """The operation of a node: one of the frozen classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Operation):
    """A convolution of input 0, ordinary or transposed; the `epilogue` may read further inputs.

    weight: IOX if transposed, else OIX; bias: (out_channels,). keywords: stride, padding, dilation
    and groups, as in `conv_transpose` or `conv`. sums: the required summation order, as named in
    `Candidate.sums`; None for any order.
    """

    weight: Array
    bias: Array | None
    keywords: Keywords
    transposed: bool
    epilogue: Chain = ()
    sums: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pointwise(Operation):
    """A chain that starts with input 0."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class Concat(Operation):
    """The concatenation of all inputs along an axis of (N, C, *size): channels or positions."""

    axis: int = 1


@dataclass(frozen=True, slots=True)
class Slice(Operation):
    """The channels from `start` to `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Pad(Operation):
    """Padding at the ends of each spatial axis; negative amounts crop.

    amounts: (begin, end) per spatial axis. mode: "constant" (`value`), "reflect" or "replicate".
    """

    amounts: tuple[tuple[int, int], ...]
    mode: str = "constant"
    value: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Norm(Operation):
    """Normalization of input 0: (x - mean) / sqrt(variance + epsilon), then `epilogue`.

    Mean and variance are computed over the channels of each of `groups` groups and over all
    positions; with `per_position`, at each position separately (layer norm over channels). groups =
    C is instance norm. The epilogue begins with the scale and offset per channel.
    """

    groups: int
    epsilon: float
    per_position: bool = False
    epilogue: Chain = ()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Lstm(Operation):
    """The recurrence of an LSTM along the only spatial axis.

    Input 0 holds the gates' inputs, already multiplied by their weights: input, forget, cell and
    output gate along the channels. The result has the channels of h, then those of the cell. Input
    1, if present, is an earlier result, whose last position is the initial state (else zero).
    weight: (4 H, H), for h.
    """

    weight: Array

    @property
    def channels(self) -> int:
        """Number of channels of h."""
        return int(self.weight.shape[1])


@dataclass(frozen=True, slots=True)
class Resample(Operation):
    """Resampling, "nearest" or "linear" (half-pixel), by integer factors or to a size.

    factors: one per spatial axis, or () if `sizes` is the size of the result. aligned: in linear
    mode, whether the first and last positions of the input and the result coincide.
    """

    factors: tuple[int, ...]
    mode: str = "nearest"
    sizes: Shape = ()
    aligned: bool = False

    @property
    def by_position(self) -> bool:
        """Whether the weights differ from position to position."""
        return self.aligned or not self.factors

    def at(self, size: Sequence[int]) -> Resample:
        """Return this operation for an input size: by integer factors if possible, else to a size.

        With aligned corners, weights differ at each position even if the factors are integers.
        """
        if self.aligned:
            sizes = self.sizes or tuple(n * f for n, f in zip(size, self.factors, strict=True))
            return replace(self, factors=(), sizes=sizes)
        pairs = list(zip(size, self.sizes, strict=False))
        if not pairs or any(n % before for before, n in pairs):
            return self
        return Resample(tuple(n // before for before, n in pairs), self.mode)


@dataclass(frozen=True, slots=True)
class Pool(Operation):
    """The maximum or the average of each window; `padding` is (begin, end) per spatial axis.

    mode: "max" or "average". count_padding: whether averages include padded zeros. dilation: ()
    means 1. ceil: whether a last window that begins in x or its padding may end beyond both.
    windows: a fixed number of adjacent windows per axis at every size; `kernel` is then ().
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
        """Return the pool for a known size, with explicit kernel, stride and dilation per axis."""
        if not self.windows:
            return replace(self, dilation=self.dilation or (1,) * len(self.kernel))
        kernel = tuple(n // count for n, count in zip(size, self.windows, strict=True))
        ones, none = (1,) * len(kernel), ((0, 0),) * len(kernel)
        return replace(self, kernel=kernel, stride=kernel, padding=none, dilation=ones, windows=())

    def count(self, axis: int, size: int) -> int:
        """Return the number of windows along an axis; raise `ShapeError` if there is none."""
        kernel, stride, dilation = self.kernel[axis], self.stride[axis], self.dilation[axis]
        begin, end = self.padding[axis]
        count = convolved(size, kernel, stride, dilation, begin, end).size
        reach = count * stride + dilation * (kernel - 1) + 1
        # If positions are left over, one more window fits that begins within x or its padding.
        more = self.ceil and reach - stride < size + begin + end and count * stride < size + begin
        return count + more


@dataclass(frozen=True, slots=True)
class ChannelPool(Operation):
    """The maximum or average of all channels at each position; mode: "max" or "average"."""

    mode: str


@dataclass(frozen=True, slots=True)
class PixelShuffle(Operation):
    """Channels (C * prod(factors)) become positions (C, *size * factors), as in PyTorch."""

    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PixelUnshuffle(Operation):
    """Positions become channels: the inverse of `PixelShuffle`."""

    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permute(Operation):
    """The channels that `order` lists, in that order."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convert(Operation):
    """A copy of input 0 in the output's layout and dtype; passes insert most of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operation on values; `line` is the line of the user's code that added it."""

    operation: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    line: str = ""


class Form(NamedTuple):
    """The memory order of a value."""

    layout: DataLayout = DataLayout.NCX
    dtype: DType = DType.FLOAT32


class Options(NamedTuple):
    """A program's options: intermediate values' dtype, number of threads, kernels' algorithm."""

    dtype: DType
    threads: int
    algorithm: Algorithm


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A frozen graph of known sizes.

    inputs: the arguments of a run, by name, in order. outputs: the values that it returns. shapes:
    every value as (N, C, *size), independent of layouts. forms: values without an entry are float32
    and channels first. views: values stored in another value's array, with that value and the index
    of their first element along `part_axis` (`place.py`). held: values stored in a memory block
    that belongs to the caller, with their offset in bytes (`histories.py`).
    """

    nodes: tuple[Node, ...]
    inputs: dict[str, int]
    outputs: tuple[int, ...]
    shapes: dict[int, Shape]
    forms: dict[int, Form] = field(default_factory=dict)
    views: dict[int, tuple[int, int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)

    def form(self, value: int) -> Form:
        """Return a value's layout and dtype."""
        return self.forms.get(value, Form())

    def part_axis(self, value: int) -> int:
        """Return the axis of (N, C, *size) along which views are parts of arrays. It is the second
        axis in memory: the channels or the first spatial axis."""
        return 1 if self.form(value).layout is DataLayout.NCX else 2

    def with_nodes(self, nodes: list[Node]) -> Graph:
        """Return this graph with other nodes."""
        return replace(self, nodes=tuple(nodes))

    def readers(self) -> dict[int, list[Node]]:
        """Return the nodes that read each value; a node that reads it twice is listed twice."""
        readers: dict[int, list[Node]] = {value: [] for value in self.shapes}
        for node in self.nodes:
            for value in node.inputs:
                readers[value].append(node)
        return readers

    def writers(self) -> dict[int, Node]:
        """Return the node that writes each value."""
        return {value: node for node in self.nodes for value in node.outputs}


def with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    """Return the shape with its extent along one axis replaced."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def array_shape(shape: Shape, layout: DataLayout) -> Shape:
    """Return the shape of the array that holds a value."""
    return layout.shape(shape[0], shape[1], tuple(shape[2:]))
