"""The graph of a network: values, and nodes that compute them. This module computes nothing.

A value is a number; the graph knows its shape (N, C, *size). A node has an operation, the values
that it reads, and the values that it writes. The operation is a frozen dataclass with everything
that does not change between runs. Nodes are listed in an order in which they can run. Passes are
functions from one graph to another.

A pointwise *chain* is a tuple of `Op`s. It starts with one value and applies a sequence of
operations, each with an optional second operand. The `epilogue` of a convolution or a norm is also
a chain, so fusion concatenates two tuples.
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
    """The number of a node's input, as an operand of the node's chain.

    broadcast: whether the input has extent 1 along axes where the chain's value has more.
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
"""Operation on two values -> the same operation with its operands exchanged."""


class Operation:
    """The operation of a node: one of the frozen classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Operation):
    """A convolution of input 0, ordinary or transposed. `epilogue` reads further inputs.

    weight: IOX if transposed, else OIX; bias: (out_channels,). keywords: the strides, padding,
    dilation and groups of `conv_transpose` or `conv`. sums: the required summation order, by its
    name in `Candidate.sums`; None for any order.
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
    """Normalisation of input 0: (x - mean) / sqrt(variance + epsilon), then `epilogue`.

    Mean and variance are computed over the channels of each of `groups` groups. They also cover all
    positions unless `per_position` (layer norm over channels). groups = C is instance norm. The
    scale and offset per channel are the first two operations of `epilogue`.
    """

    groups: int
    epsilon: float
    per_position: bool = False
    epilogue: Chain = ()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Lstm(Operation):
    """The recurrence of an LSTM along the only spatial axis; its input is multiplied in advance.

    Input 0 has the channels of the input, forget, cell and output gates. The result has the
    channels of h, followed by those of the cell. Input 1, if present, is a result whose last
    position is the initial state; otherwise that state is zero. weight: (4 H, H), for h.
    """

    weight: Array

    @property
    def channels(self) -> int:
        """Number of channels of h."""
        return int(self.weight.shape[1])


@dataclass(frozen=True, slots=True)
class Resample(Operation):
    """Resampling, "nearest" or "linear" (half-pixel), by integer factors or to a size.

    factors: one per spatial axis, or () if `sizes` has the size of the result. aligned: in linear
    mode, whether the first and last positions of input and result coincide.
    """

    factors: tuple[int, ...]
    mode: str = "nearest"
    sizes: Shape = ()
    aligned: bool = False

    @property
    def by_position(self) -> bool:
        """Whether the weights are different at each position."""
        return self.aligned or not self.factors

    def at(self, size: Sequence[int]) -> Resample:
        """The same operation for this input size: by factors, if one pattern repeats, or to a size.

        Aligned corners have other weights at each position, even if the factors are integers.
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
    """The maximum or the average of windows; `padding` is (begin, end) per spatial axis.

    mode: "max" or "average". count_padding: whether averages include padded zeros. dilation: () for
    1. ceil: whether a last window may begin within x or its padding and end beyond. windows: a
    fixed number of adjacent windows per axis for every size; `kernel` is then ().
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
        """The same pool with explicit kernel, stride and dilation per axis for a known size."""
        if not self.windows:
            return replace(self, dilation=self.dilation or (1,) * len(self.kernel))
        kernel = tuple(n // count for n, count in zip(size, self.windows, strict=True))
        ones, none = (1,) * len(kernel), ((0, 0),) * len(kernel)
        return replace(self, kernel=kernel, stride=kernel, padding=none, dilation=ones, windows=())

    def count(self, axis: int, size: int) -> int:
        """Number of windows along an axis; `ShapeError` if there is none."""
        kernel, stride, dilation = self.kernel[axis], self.stride[axis], self.dilation[axis]
        begin, end = self.padding[axis]
        count = convolved(size, kernel, stride, dilation, begin, end).size
        reach = count * stride + dilation * (kernel - 1) + 1
        # One more window if positions are left over and it begins within x or its padding.
        more = self.ceil and reach - stride < size + begin + end and count * stride < size + begin
        return count + more


@dataclass(frozen=True, slots=True)
class ChannelPool(Operation):
    """The maximum or average of all channels at each position; mode: "max" or "average"."""

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
    """The channels with the numbers in `order`, in this order."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convert(Operation):
    """A copy of input 0 in the layout and dtype of the output; passes insert most of them."""


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
    """Options of a program: the dtype of intermediate values, threads, the kernels' algorithm."""

    dtype: DType
    threads: int
    algorithm: Algorithm


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A frozen graph of known sizes.

    inputs: the arguments of a run, by name, in order. outputs: the values that it returns. shapes:
    (N, C, *size) of every value, whatever its layout. forms: values without an entry are channels
    first and float32. views: values stored in a part of another value's array, with the index of
    their first element along `part_axis` (`place.py`). held: values stored in a memory block of the
    caller, with their first byte there (`histories.py`).
    """

    nodes: tuple[Node, ...]
    inputs: dict[str, int]
    outputs: tuple[int, ...]
    shapes: dict[int, Shape]
    forms: dict[int, Form] = field(default_factory=dict)
    views: dict[int, tuple[int, int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)

    def form(self, value: int) -> Form:
        """Layout and dtype of a value."""
        return self.forms.get(value, Form())

    def part_axis(self, value: int) -> int:
        """The axis of (N, C, *size) along which views are parts of arrays: the second axis in
        memory, which is the channels or the first spatial axis."""
        return 1 if self.form(value).layout is DataLayout.NCX else 2

    def with_nodes(self, nodes: list[Node]) -> Graph:
        """The same graph with other nodes."""
        return replace(self, nodes=tuple(nodes))

    def readers(self) -> dict[int, list[Node]]:
        """The nodes that read each value; a node that reads it twice is listed twice."""
        readers: dict[int, list[Node]] = {value: [] for value in self.shapes}
        for node in self.nodes:
            for value in node.inputs:
                readers[value].append(node)
        return readers

    def writers(self) -> dict[int, Node]:
        """The node that writes each value."""
        return {value: node for node in self.nodes for value in node.outputs}


def with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    """The shape with another extent along an axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def array_shape(shape: Shape, layout: DataLayout) -> Shape:
    """The shape of the array that holds a value."""
    return layout.shape(shape[0], shape[1], tuple(shape[2:]))
