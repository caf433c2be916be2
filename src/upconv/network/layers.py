"""The methods that add layers to a network; each one checks its arguments at once."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ..checks import LIMIT, boolean, integer, number
from ..errors import ArgumentError, ShapeError
from ..keywords import Keywords
from . import graph as ir
from . import operands
from .graph import Op
from .kinds import output_shapes
from .values import Nodes, Value


class Layers:
    """The methods of `Network` that add nodes. Each one takes values and returns a new value."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def conv(
        self, x: Value, weight: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, activation: Any = None,
    ) -> Value:  # fmt: skip
        """Convolve x, as in `upconv.conv`.

        weight: (F, C/groups, *kernel). bias: (F,). activation: as in `activation`, or None.
        """
        keywords = Keywords.of(stride, padding, 0, dilation, groups, None, "NCX", "OIX")
        return self._convolution(x, weight, bias, keywords, False, activation)

    def conv_transpose(
        self, x: Value, weight: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, dilation: Any = 1, groups: int = 1, activation: Any = None,
    ) -> Value:  # fmt: skip
        """Convolve x with a transposed kernel, as in `upconv.conv_transpose`.

        weight: (C, F/groups, *kernel). bias: (F,). activation: as in `activation`, or None.
        """
        words = (stride, padding, output_padding, dilation, groups, None, "NCX", "IOX")
        return self._convolution(x, weight, bias, Keywords.of(*words), True, activation)

    def activation(self, x: Value, activation: Any) -> Value:
        """Apply an activation, given by name or as a pair (name, operand).

        "relu", "relu6", "tanh", "sigmoid", "hard_sigmoid", "log_sigmoid", "silu", "hard_swish",
        "gelu" (with erf), "gelu_tanh", "mish", "selu", "softplus"; ("leaky_relu", slope), by
        default 0.01; ("elu", alpha), by default 1; ("prelu", slopes) and ("snake", a) with arrays
        (C,), where snake is v + sin(a v)^2 / a. Functions are accepted too: "abs", "exp", "sin",
        "cos", "square", "sqrt".
        """
        chain = operands.activation_chain(activation, self._nodes.check("x", x).channels)
        return self._nodes.insert(ir.Pointwise(chain), x)

    def add(self, x: Value, y: Any) -> Value:
        """Add x and y; y is a value, a number, or an array (C,) with one number per channel.

        A value whose extent is 1 along the batch, the channels or all spatial axes is broadcast
        along these, as in (N, C, 1, 1) and (N, C, H, W).
        """
        return self._nodes.combined("add", x, y)

    def sub(self, x: Value, y: Any) -> Value:
        """Subtract y from x, with operands as in `add`."""
        return self._nodes.combined("sub", x, y)

    def mul(self, x: Value, y: Any) -> Value:
        """Multiply x by y, with operands as in `add`."""
        return self._nodes.combined("mul", x, y)

    def div(self, x: Value, y: Any) -> Value:
        """Divide x by y, with operands as in `add`."""
        return self._nodes.combined("div", x, y)

    def maximum(self, x: Value, y: Any) -> Value:
        """Return the larger of x and y, or NaN if either is NaN, with operands as in `add`."""
        return self._nodes.combined("maximum", x, y)

    def minimum(self, x: Value, y: Any) -> Value:
        """Return the smaller of x and y, or NaN if either is NaN, with operands as in `add`."""
        return self._nodes.combined("minimum", x, y)

    def clip(self, x: Value, low: float | None = None, high: float | None = None) -> Value:
        """Limit x to the interval from `low` to `high`; None means no limit."""
        bounds = (("maximum", "low", low), ("minimum", "high", high))
        chain = tuple(Op(op, number(name, y)) for op, name, y in bounds if y is not None)
        if [op.operand for op in chain] == [0.0, 6.0]:
            chain = (Op("relu6"),)  # a convolution's kernel applies it
        return self._nodes.insert(ir.Pointwise(chain), x)

    def batch_norm(
        self, x: Value, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: float = 1e-5
    ) -> Value:
        """Compute scale * (x - mean) / sqrt(variance + epsilon) + offset, with arrays (C,).

        scale may be None for 1, and offset for 0. After a convolution, batch norm takes no time.
        """
        arguments = (scale, offset, mean, variance, epsilon, self._nodes.check("x", x).channels)
        return self._nodes.insert(ir.Pointwise(operands.batch_norm_chain(*arguments)), x)

    def lstm(self, x: Value, weight: Any, hidden_weight: Any, bias: Any = None) -> Value:
        """Apply a one-layer LSTM along the only spatial axis, from the first position to the last.

        weight: (4 H, C) for x; hidden_weight: (4 H, H) for the previous result; bias: (4 H,), the
        sum of PyTorch's two biases. Rows are those of the input, forget, cell and output gates, as
        in PyTorch. The result has H channels. The initial state is zero.
        """
        weight = operands.array_of("weight", weight)
        hidden = operands.array_of("hidden_weight", hidden_weight)
        if hidden.ndim != 2 or hidden.shape[0] != 4 * hidden.shape[1] or not hidden.size:
            raise ShapeError("hidden_weight.shape", str(hidden.shape), "(4 H, H)")
        if weight.ndim != 2 or len(weight) != len(hidden):
            expected = f"({len(hidden)}, C), with as many rows as hidden_weight"
            raise ShapeError("weight.shape", str(weight.shape), expected)
        gates = self.conv(x, weight[:, :, None], bias)
        return self.slice(self._nodes.insert(ir.Lstm(hidden), gates), 0, hidden.shape[1])

    def instance_norm(
        self, x: Value, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
    ) -> Value:
        """Normalize each channel of each image over its positions; scale, offset: (C,)."""
        return self.group_norm(x, self._nodes.check("x", x).channels, scale, offset, epsilon)

    def group_norm(
        self, x: Value, groups: int, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
    ) -> Value:
        """Normalize each group of channels of each image; scale, offset: (C,)."""
        return self._norm(x, integer("groups", groups, 1), False, scale, offset, epsilon)

    def layer_norm(
        self, x: Value, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
    ) -> Value:
        """Normalize over the channels at each position; scale, offset: (C,)."""
        return self._norm(x, 1, True, scale, offset, epsilon)

    # Channels and positions -----------------------------------------------------------------------

    def concat(self, *xs: Value) -> Value:
        """Concatenate the channels of all values."""
        if not xs:
            raise ArgumentError("the values of concat", "none", "at least one")
        return self._nodes.insert(ir.Concat(), *xs)

    def slice(self, x: Value, start: int, stop: int) -> Value:
        """Return the channels from `start` to `stop`."""
        return self._nodes.insert(ir.Slice(integer("start", start, 0), integer("stop", stop, 0)), x)

    def permute(self, x: Value, order: Any) -> Value:
        """Return the channels of x that `order` lists, in that order."""
        return self._nodes.insert(ir.Permute(operands.numbers("order", order)), x)

    def channel_shuffle(self, x: Value, groups: int) -> Value:
        """Return the first channel of every group, then the second of every group, and so on."""
        channels, groups = self._nodes.check("x", x).channels, integer("groups", groups, 1)
        if channels % groups:
            raise ShapeError("groups", str(groups), f"a divisor of the {channels} channels of x")
        width = channels // groups
        return self.permute(x, [g * width + c for c in range(width) for g in range(groups)])

    def pad(self, x: Value, amounts: Any, mode: str = "constant", value: float = 0.0) -> Value:
        """Pad the ends of spatial axes; negative amounts crop.

        amounts: an int, or one int or (begin, end) per axis. mode: "constant" (`value`), "reflect"
        (without repeating the last position) or "replicate".
        """
        rank = self._nodes.rank(x)
        operands.one_of("mode", mode, ("constant", "reflect", "replicate"))
        ends = operands.pairs("amounts", amounts, rank, -LIMIT)
        return self._nodes.insert(ir.Pad(ends, mode, number("value", value)), x)

    def crop(self, x: Value, amounts: Any) -> Value:
        """Crop the ends of spatial axes by an int, or by one int or (begin, end) pair per axis."""
        rank = self._nodes.rank(x)
        cut = operands.pairs("amounts", amounts, rank, 0)
        return self._nodes.insert(ir.Pad(tuple((-begin, -end) for begin, end in cut)), x)

    def upsample(
        self, x: Value, factors: Any, mode: str = "nearest", *, align_corners: bool = False
    ) -> Value:
        """Upsample by integer factors, "nearest" or "linear", as in PyTorch's `interpolate`.

        align_corners: in linear mode, whether the first and last positions stay in place.
        """
        multiples = operands.per_axis("factors", factors, self._nodes.rank(x), 1)
        return self._resample(x, ir.Resample(multiples, mode), align_corners)

    def resize(
        self, x: Value, size: Any, mode: str = "nearest", *, align_corners: bool = False
    ) -> Value:
        """Resample to a size, "nearest" or "linear", as in PyTorch's `interpolate`.

        align_corners: in linear mode, whether the first and last positions stay in place.
        """
        sizes = operands.per_axis("size", size, self._nodes.rank(x), 1)
        return self._resample(x, ir.Resample((), mode, sizes), align_corners)

    def _resample(self, x: Value, operation: ir.Resample, align_corners: bool) -> Value:
        operands.one_of("mode", operation.mode, ("nearest", "linear"))
        aligned = boolean("align_corners", align_corners)
        if aligned and operation.mode == "nearest":
            expected = "False in mode 'nearest'"
            raise ArgumentError("align_corners", "True", expected, "Or use mode='linear'.")
        return self._nodes.insert(replace(operation, aligned=aligned), x)

    def max_pool(
        self, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, *, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Value:  # fmt: skip
        """Return the maximum of each window; `stride` defaults to the kernel.

        ceil_mode: whether a last window may end beyond x and its padding.
        """
        return self._pool("max", x, kernel, stride, padding, dilation, ceil_mode)

    def avg_pool(
        self, x: Value, kernel: Any, stride: Any = None, padding: Any = 0,
        count_padding: bool = True, *, dilation: Any = 1, ceil_mode: bool = False,
    ) -> Value:  # fmt: skip
        """Return the average of each window, with windows as in `max_pool`; padded zeros count
        unless `count_padding` is False."""
        return self._pool("average", x, kernel, stride, padding, dilation, ceil_mode, count_padding)

    def adaptive_pool(self, x: Value, windows: Any = 1, mode: str = "average") -> Value:
        """Pool x by "max" or "average" into a number of windows per axis that divides its size.

        One window covers all positions and gives (N, C, 1, ...).
        """
        operands.one_of("mode", mode, ("max", "average"))
        counts = operands.per_axis("windows", windows, self._nodes.rank(x), 1)
        return self._nodes.insert(ir.Pool(mode, (), (), (), windows=counts), x)

    def channel_pool(self, x: Value, mode: str = "average") -> Value:
        """Return the "max" or "average" of all channels at each position: (N, 1, \\*size)."""
        operands.one_of("mode", mode, ("max", "average"))
        return self._nodes.insert(ir.ChannelPool(mode), self._nodes.check("x", x))

    def softmax(self, x: Value) -> Value:
        """Divide exp(x) by its sum over the channels, at each position."""
        powers = self.activation(self.sub(x, self.channel_pool(x, "max")), "exp")
        return powers / (self.channel_pool(powers) * x.channels)

    def pixel_shuffle(self, x: Value, factor: Any, order: str = "CRD") -> Value:
        """Move channels to positions: (C * factor**rank, *size) becomes (C, ...).

        order: "CRD" if the channels of one result are adjacent, as in PyTorch, or "DCR" if the
        channels of one position are. The names are from ONNX.
        """
        operands.one_of("order", order, ("CRD", "DCR"))
        factors = operands.per_axis("factor", factor, self._nodes.rank(x), 1)
        if order == "DCR" and not self._nodes.check("x", x).channels % prod(factors):
            x = self.channel_shuffle(x, prod(factors))
        return self._nodes.insert(ir.PixelShuffle(factors), x)

    def pixel_unshuffle(self, x: Value, factor: Any) -> Value:
        """Move positions to channels, the inverse of `pixel_shuffle`; `factor` divides the size."""
        factors = operands.per_axis("factor", factor, self._nodes.rank(x), 1)
        return self._nodes.insert(ir.PixelUnshuffle(factors), x)

    def _convolution(
        self, x: Value, weight: Any, bias: Any, keywords: Keywords, transposed: bool, act: Any
    ) -> Value:
        weight = operands.array_of("weight", weight)
        bias = None if bias is None else operands.array_of("bias", bias)
        bare = ir.Convolution(weight, bias, keywords, transposed)
        channels = output_shapes(bare, (self._nodes.check("x", x).shape,))[0][1] or 0
        epilogue = operands.activation_chain(act, channels)
        return self._nodes.insert(replace(bare, epilogue=epilogue), x)

    def _norm(
        self, x: Value, groups: int, per_position: bool, scale: Any, offset: Any, epsilon: Any
    ) -> Value:
        epilogue = operands.scale_and_offset(scale, offset, self._nodes.check("x", x).channels)
        return self._nodes.insert(
            ir.Norm(groups, number("epsilon", epsilon, 0), per_position, epilogue), x
        )

    def _pool(
        self, mode: str, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: Any, count_padding: Any = True,
    ) -> Value:  # fmt: skip
        rank = self._nodes.rank(x)
        kernel = operands.per_axis("kernel", kernel, rank, 1)
        stride = kernel if stride is None else operands.per_axis("stride", stride, rank, 1)
        padding = operands.window_padding(padding, kernel)
        count = boolean("count_padding", count_padding)
        dilation = operands.per_axis("dilation", dilation, rank, 1)
        ceil = boolean("ceil_mode", ceil_mode)
        operation = ir.Pool(mode, kernel, stride, padding, count, dilation, ceil)
        return self._nodes.insert(operation, x)
