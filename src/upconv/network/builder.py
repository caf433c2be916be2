"""`Network`, the builder: a model written call by call, each call checked where it stands.

    network = Network({"x": (1, 80, None)})
    y = network.conv(network.inputs["x"], weight, bias, padding=3, activation="relu")
    network.output(y)

Channels, ranks and weights are checked at each call. What only known sizes can tell is checked by
`graph`, which names the line of the call that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..arrays import as_array
from ..checks import LIMIT, boolean, integer, number
from ..choices import Algorithm
from ..errors import ArgumentError
from ..keywords import Keywords
from ..problem import DType
from ..threads import resolved
from . import graph as ir
from . import operands
from .graph import Op
from .kinds import described_shape, output_shapes
from .values import Nodes, Value

if TYPE_CHECKING:
    from .program import Program
    from .programs import Programs


class Network:
    """A network of layers: its inputs, the values that calls add, and its outputs.

    inputs: (N, C, *size) by name. None or a name stands for an open extent (of the batch or of a
    size); one name is one extent wherever it occurs.

    Weights and numbers per channel may be float16, bfloat16, float32 or float64. They are copied
    as float32. Each method returns a new `Value`; `output` ends the network.

    Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arguments that do not fit together.

    >>> import numpy as np
    >>> network = Network({"x": (1, 2, None)})
    >>> x = network.inputs["x"]
    >>> y = network.conv(x, np.ones((2, 2, 3)), padding=1, activation="relu")
    >>> network.output(x + y)
    >>> network.graph(x=(1, 2, 5)).shapes
    {0: (1, 2, 5), 1: (1, 2, 5), 2: (1, 2, 5)}
    """

    def __init__(self, inputs: Mapping[str, Sequence[int | str | None]]) -> None:
        self._nodes = Nodes(inputs)
        self._programs: Programs | None = None

    @property
    def inputs(self) -> dict[str, Value]:
        """The inputs by name, in order."""
        return dict(self._nodes.inputs)

    def __repr__(self) -> str:
        count, declared = len(self._nodes.nodes), self._nodes.declared.items()
        inputs = ", ".join(f"{name} {described_shape(shape)}" for name, shape in declared)
        return f"<Network of {count} node{'s' * (count != 1)}, inputs {inputs}>"

    # Layers ---------------------------------------------------------------------------------------

    def conv(
        self, x: Value, weight: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, activation: Any = None,
    ) -> Value:  # fmt: skip
        """A convolution, as `upconv.conv` does it.

        weight: (F, C/groups, *kernel). bias: (F,). activation: as in `activation`, or None.
        """
        keywords = Keywords.of(stride, padding, 0, dilation, groups, None, "NCX", "OIX")
        return self._convolution(x, weight, bias, keywords, False, activation)

    def conv_transpose(
        self, x: Value, weight: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, dilation: Any = 1, groups: int = 1, activation: Any = None,
    ) -> Value:  # fmt: skip
        """A transposed convolution, as `upconv.conv_transpose` does it.

        weight: (C, F/groups, *kernel). bias: (F,). activation: as in `activation`, or None.
        """
        words = (stride, padding, output_padding, dilation, groups, None, "NCX", "IOX")
        return self._convolution(x, weight, bias, Keywords.of(*words), True, activation)

    def activation(self, x: Value, activation: Any) -> Value:
        """An activation: its name, or a pair of name and operand.

        "relu", "relu6", "tanh", "sigmoid", "hard_sigmoid", "log_sigmoid", "silu", "hard_swish",
        "gelu" (with erf), "gelu_tanh", "mish", "selu", "softplus"; ("leaky_relu", slope), 0.01
        where none is given; ("elu", alpha), 1 where none is given; ("prelu", slopes) and
        ("snake", a) with arrays (C,), where snake is v + sin(a v)^2 / a. Functions may be named
        too: "abs", "exp", "sin", "cos", "square", "sqrt".
        """
        chain = operands.activation_chain(activation, self._nodes.check("x", x).channels)
        return self._nodes.insert(ir.Pointwise(chain), x)

    def add(self, x: Value, y: Any) -> Value:
        """The sum of x and y: a value, a number, or one number per channel (C,).

        Of two values one may have extent 1 along the batch, the channels or all spatial axes where
        the other one has more, as in (N, C, 1, 1) and (N, C, H, W): it is broadcast.
        """
        return self._nodes.combined("add", x, y)

    def sub(self, x: Value, y: Any) -> Value:
        """The difference x - y, of operands as in `add`."""
        return self._nodes.combined("sub", x, y)

    def mul(self, x: Value, y: Any) -> Value:
        """The product of x and y, of operands as in `add`."""
        return self._nodes.combined("mul", x, y)

    def div(self, x: Value, y: Any) -> Value:
        """The quotient x / y, of operands as in `add`."""
        return self._nodes.combined("div", x, y)

    def maximum(self, x: Value, y: Any) -> Value:
        """The larger of x and y, NaN if one is NaN, of operands as in `add`."""
        return self._nodes.combined("maximum", x, y)

    def minimum(self, x: Value, y: Any) -> Value:
        """The smaller of x and y, NaN if one is NaN, of operands as in `add`."""
        return self._nodes.combined("minimum", x, y)

    def clip(self, x: Value, low: float | None = None, high: float | None = None) -> Value:
        """x, at least `low` and at most `high`; None for no bound."""
        bounds = (("maximum", "low", low), ("minimum", "high", high))
        chain = tuple(Op(op, number(name, y)) for op, name, y in bounds if y is not None)
        return self._nodes.insert(ir.Pointwise(chain), x)

    def batch_norm(
        self, x: Value, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: float = 1e-5
    ) -> Value:
        """scale * (x - mean) / sqrt(variance + epsilon) + offset, with arrays (C,).

        scale and offset may be None, for 1 and 0. Behind a convolution it costs nothing.
        """
        arguments = (scale, offset, mean, variance, epsilon, self._nodes.check("x", x).channels)
        return self._nodes.insert(ir.Pointwise(operands.batch_norm_chain(*arguments)), x)

    def instance_norm(
        self, x: Value, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
    ) -> Value:
        """Normalisation of each channel of each image over its positions; scale, offset: (C,)."""
        return self.group_norm(x, self._nodes.check("x", x).channels, scale, offset, epsilon)

    def group_norm(
        self, x: Value, groups: int, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
    ) -> Value:
        """Normalisation of each group of channels of each image; scale, offset: (C,)."""
        return self._norm(x, integer("groups", groups, 1), False, scale, offset, epsilon)

    def layer_norm(
        self, x: Value, scale: Any = None, offset: Any = None, epsilon: float = 1e-5
    ) -> Value:
        """Normalisation over the channels at each position; scale, offset: (C,)."""
        return self._norm(x, 1, True, scale, offset, epsilon)

    # Channels and positions -----------------------------------------------------------------------

    def concat(self, *xs: Value) -> Value:
        """The channels of all values, one value after the other."""
        if not xs:
            raise ArgumentError("the values of concat", "none", "at least one")
        return self._nodes.insert(ir.Concat(), *xs)

    def slice(self, x: Value, start: int, stop: int) -> Value:
        """The channels from `start` to `stop`."""
        return self._nodes.insert(ir.Slice(integer("start", start, 0), integer("stop", stop, 0)), x)

    def pad(self, x: Value, amounts: Any, mode: str = "constant") -> Value:
        """Positions added at the ends of spatial axes; negative amounts cut off.

        amounts: an int, or one int or (begin, end) per axis. mode: "constant" (zeros), "reflect"
        (the last position is not repeated) or "replicate".
        """
        rank = self._nodes.rank(x)
        operands.one_of("mode", mode, ("constant", "reflect", "replicate"))
        return self._nodes.insert(ir.Pad(operands.pairs("amounts", amounts, rank, -LIMIT), mode), x)

    def crop(self, x: Value, amounts: Any) -> Value:
        """Positions cut off the ends of spatial axes: an int, or one int or pair per axis."""
        rank = self._nodes.rank(x)
        cut = operands.pairs("amounts", amounts, rank, 0)
        return self._nodes.insert(ir.Pad(tuple((-begin, -end) for begin, end in cut)), x)

    def upsample(self, x: Value, factors: Any, mode: str = "nearest") -> Value:
        """Upsampling by whole factors; "nearest", or "linear" between centres of positions."""
        operands.one_of("mode", mode, ("nearest", "linear"))
        multiples = operands.per_axis("factors", factors, self._nodes.rank(x), 1)
        return self._nodes.insert(ir.Resample(multiples, mode), x)

    def max_pool(self, x: Value, kernel: Any, stride: Any = None, padding: Any = 0) -> Value:
        """The maximum of each window; `stride` is the kernel where None."""
        return self._pool("max", x, kernel, stride, padding, True)

    def avg_pool(
        self, x: Value, kernel: Any, stride: Any = None, padding: Any = 0,
        count_padding: bool = True,
    ) -> Value:  # fmt: skip
        """The average of each window; padded zeros count unless `count_padding` is False."""
        return self._pool("average", x, kernel, stride, padding, count_padding)

    def pixel_shuffle(self, x: Value, factor: Any) -> Value:
        """Channels to positions, in PyTorch's order: (C * factor**rank, *size) to (C, ...)."""
        factors = operands.per_axis("factor", factor, self._nodes.rank(x), 1)
        return self._nodes.insert(ir.PixelShuffle(factors), x)

    # Use ------------------------------------------------------------------------------------------

    def output(self, *values: Value) -> None:
        """The outputs of the network, in order. No call can add anything after this one."""
        if not values:
            raise ArgumentError("the outputs", "none", "at least one value")
        for i, value in enumerate(values):
            self._nodes.check(f"values[{i}]", value)
        numbers: list[int] = []
        for value in values:
            # A caller gets each output in an array of its own, apart from the inputs.
            shared = value.number in numbers or value.number < len(self._nodes.inputs)
            numbers.append((self._nodes.insert(ir.Convert(), value) if shared else value).number)
        self._nodes.outputs = tuple(numbers)

    def graph(self, /, **shapes: Any) -> ir.Graph:
        """The graph of known sizes. Nodes that no output needs are left out.

        shapes: (N, C, *size) of each input that has open extents, by name.
        """
        if not self._nodes.outputs:
            remedy = "Call network.output(value) when all is built."
            raise ArgumentError("the network", "without an output", "at least one", remedy)
        return self._nodes.sized(shapes)

    def compile(
        self, shapes: Mapping[str, Sequence[int]] | None = None, *, precision: str = "float32",
        threads: int | None = None, algorithm: str = "auto",
    ) -> Program:  # fmt: skip
        """A program for known sizes, its weights packed: `program.run(*arrays)`.

        shapes: (N, C, *size) of each input that has open extents, by name. precision: "float32" or
        "bfloat16", the type of all values in between. threads: default `get_num_threads()` now.
        algorithm: as in `conv_transpose`. Programs of other sizes share the packed weights.

        Raises what `graph` raises, and `MemoryLimitError` where the values do not fit.
        """
        programs, known = self._sized(dict(shapes or {}))
        return programs.compiled(known, *_how(precision, threads, algorithm))

    def __call__(self, *arrays: Any, precision: str = "float32", threads: int | None = None) -> Any:
        """Run on arrays of any sizes that fit; the programs of the latest sizes are kept.

        Returns, and raises, what `Program.run` does.
        """
        names = self._nodes.inputs
        if len(arrays) != len(names):
            expected = f"{len(names)}: {', '.join(names)}"
            raise ArgumentError("the number of inputs", str(len(arrays)), expected)
        pairs = zip(names, arrays, strict=True)
        shapes = {name: as_array(name, array).shape for name, array in pairs}
        return self.program(shapes, precision=precision, threads=threads).run(*arrays)

    def program(
        self, shapes: Mapping[str, ir.Shape], *, precision: str = "float32",
        threads: int | None = None,
    ) -> Program:  # fmt: skip
        """The program, not to be closed, that a call with arrays of these shapes runs."""
        how = _how(precision, threads, "auto")
        program = None if self._programs is None else self._programs.find(shapes, *how)
        if program is None:
            programs, known = self._sized(dict(shapes))
            program = programs.kept(known, *how)
        return program

    def draw(self) -> str:
        """A drawing of the network as it was written: the text of an SVG file."""
        from .draw import drawing

        return drawing(self._nodes.graph())

    def _sized(self, shapes: dict[str, Any]) -> tuple[Programs, dict[str, ir.Shape]]:
        """The programs of this network, and the shapes of all inputs."""
        from .programs import Programs  # the builder itself needs no engine

        graph = self.graph(**shapes)
        self._programs = self._programs or Programs(graph)
        return self._programs, {name: graph.shapes[value] for name, value in graph.inputs.items()}

    def _convolution(
        self, x: Value, weight: Any, bias: Any, keywords: Keywords, transposed: bool, act: Any
    ) -> Value:
        weight = operands.array_of("weight", weight)
        bias = None if bias is None else operands.array_of("bias", bias)
        bare = ir.Convolution(weight, bias, keywords, transposed)
        channels = output_shapes(bare, (self._nodes.check("x", x).shape,))[0][1] or 0
        return self._nodes.insert(replace(bare, end=operands.activation_chain(act, channels)), x)

    def _norm(
        self, x: Value, groups: int, per_position: bool, scale: Any, offset: Any, epsilon: Any
    ) -> Value:
        end = operands.scale_and_offset(scale, offset, self._nodes.check("x", x).channels)
        return self._nodes.insert(
            ir.Norm(groups, number("epsilon", epsilon, 0), per_position, end), x
        )

    def _pool(
        self, mode: str, x: Value, kernel: Any, stride: Any, padding: Any, count_padding: Any
    ) -> Value:
        rank = self._nodes.rank(x)
        kernel = operands.per_axis("kernel", kernel, rank, 1)
        stride = kernel if stride is None else operands.per_axis("stride", stride, rank, 1)
        padding = operands.window_padding(padding, kernel)
        count = boolean("count_padding", count_padding)
        return self._nodes.insert(ir.Pool(mode, kernel, stride, padding, count), x)


def _how(precision: Any, threads: int | None, algorithm: str) -> tuple[DType, int, Algorithm]:
    operands.one_of("precision", precision, ("float32", "bfloat16"))
    return DType(precision), resolved(threads), Algorithm.of(algorithm)
