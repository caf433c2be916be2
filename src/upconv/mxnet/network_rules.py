"""MXNet's operators as layers of `upconv.network`: `RULES` maps each to a function of a `Layers`.

A rule reads a node's attributes and inputs, calls the builder, and returns the node's outputs.
If a rule or the builder raises an `UpconvError`, the node is computed by its own operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NoReturn

import numpy as np

from ..network import Network, Value
from ..network.axes import narrowed, per_channel
from .base import MXNetError
from .operators import OPERATORS, Shape
from .operators.convolution import keywords_for
from .operators.elementwise import ELEMENTWISE
from .operators.pooling import Windows, bilinear_keywords
from .operators.shaping import axis_of, sliced
from .operators.table import channels_last


class Layers:
    """A network that is being built, and the current node, which `build` sets.

    p: the node's attributes. x: its inputs, `Value`s of the network or constant arrays.
    sized: whether a rule has read the data's sizes, so that the network fits only these.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.sized = network, False
        self.p: Any = None
        self.x: list[Any] = []
        self.shapes: list[Shape] = []

    def build(self, node: Any, inputs: list[Any], shapes: list[Shape]) -> list[Value]:
        """Add a node; raises `UpconvError` if a network cannot compute it."""
        self.p, self.x, self.shapes = node.p, inputs, shapes
        if channels_last(node.p):
            self.refuse(f"its layout is {node.p.layout}; networks have channels first")
        result = RULES[node.op](self)
        return result if isinstance(result, list) else [result]

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that keeps the node out of networks."""
        raise MXNetError(reason)

    def size(self, i: int = 0) -> Shape:
        """Return an input's spatial size; from now on, the network fits only this size."""
        self.sized = True
        return self.shapes[i][2:]

    @property
    def rank(self) -> int:
        """The number of spatial axes of the first input."""
        return len(self.shapes[0]) - 2

    def data(self, i: int = 0) -> Value:
        """Return an input that is not constant."""
        if not isinstance(self.x[i], Value):
            self.refuse("its data is constant")
        value: Value = self.x[i]
        return value

    def constants(self) -> Any:
        """Return all inputs except the first; they must be constant."""
        if any(isinstance(x, Value) for x in self.x[1:]):
            self.refuse("its parameters are not constant")
        return self.x[1:]

    def operand(self, i: int) -> Any:
        """Return an operand of arithmetic: a `Value`, a number, or one number per channel."""
        x = self.x[i]
        return x if isinstance(x, Value) else per_channel(self.data(1 - i), x)


def _convolution(b: Layers) -> Value:
    if any(getattr(b.p, "target_shape", ())):
        b.size()
    keywords = keywords_for(b.p, b.shapes[0])
    del keywords["layout"], keywords["weight_layout"]
    call = b.network.conv_transpose if hasattr(b.p, "adj") else b.network.conv
    return call(b.data(), *b.constants(), **keywords)


def _batch_norm(b: Layers) -> Value:
    if getattr(b.p, "axis", 1) % (b.rank + 2) != 1:
        b.refuse(f"its axis is {b.p.axis}; networks have the channels as axis 1")
    gamma, beta, mean, var = b.constants()
    gamma = None if b.p.fix_gamma else gamma
    return b.network.batch_norm(b.data(), gamma, beta, mean, var, b.p.eps)


def _instance_norm(b: Layers) -> Value:
    gamma, beta = b.constants()
    return b.network.instance_norm(b.data(), gamma, beta, b.p.eps)


_WORDS = {word: word for word in ("relu", "sigmoid", "tanh", "log_sigmoid", "mish", "abs", "exp",
                                  "square", "sqrt", "sin", "cos")}  # fmt: skip
_WORDS["softrelu"] = "softplus"
"""MXNet's name of an activation or function -> the network's."""


def _activation(b: Layers, word: str) -> Value:
    if word == "softsign":
        return b.network.div(b.data(), b.network.activation(b.data(), "abs") + 1)
    return b.network.activation(b.data(), _WORDS[word])


def _leaky(b: Layers) -> Value:
    kind, p = b.p.act_type, b.p
    slope = (p.lower_bound + p.upper_bound) / 2 if kind == "rrelu" else p.slope
    words: dict[str, Any] = {"elu": ("elu", slope), "prelu": ("prelu", *b.constants())}
    words |= {"gelu": "gelu", "selu": "selu"}
    return b.network.activation(b.data(), words.get(kind, ("leaky_relu", slope)))


def _pooling(b: Layers) -> Value:
    bound = b.p.global_pool or b.p.pooling_convention != "valid"
    windows = Windows(b.p, b.size() if bound else b.shapes[0][2:])
    ends = [(begin, after if bound else begin)
            for begin, after in zip(windows.pad, windows.after, strict=True)]  # fmt: skip
    arguments = (b.data(), windows.kernel, windows.stride, tuple(ends))
    if b.p.pool_type == "max":
        return b.network.max_pool(*arguments)
    if b.p.pool_type == "sum" and any(after > begin for begin, after in ends):
        b.refuse("windows reach beyond the padding")
    # An average counts positions of the padded data; without padding, these are the data's.
    inside = b.p.count_include_pad is False or not any(windows.pad)
    inside = inside and b.p.pool_type == "avg"
    if not inside and any(after > begin for begin, after in ends):
        b.refuse("windows reach beyond the padding, where an average counts no positions")
    y = b.network.avg_pool(*arguments, count_padding=not inside)
    return y * prod(windows.kernel) if b.p.pool_type == "sum" else y


def _upsampled(b: Layers) -> Value:
    if b.p.sample_type == "nearest":
        return b.network.upsample(b.data(), b.p.scale)
    return b.network.conv_transpose(b.data(), *b.constants(), **bilinear_keywords(b.p))


def _concat(b: Layers) -> Value:
    axis = b.p.dim if hasattr(b.p, "dim") else b.p.axis
    if axis_of(axis, b.rank + 2) != 1:
        b.refuse(f"it joins along axis {axis}; networks join channels")
    return b.network.concat(*map(b.data, range(len(b.x))))


def _split(b: Layers) -> list[Value]:
    x, count = b.data(), b.p.num_outputs
    part = x.channels // count
    if axis_of(b.p.axis, b.rank + 2) != 1 or b.p.squeeze_axis or part * count != x.channels:
        b.refuse("networks split channels into equal parts, and keep their axis")
    return [b.network.slice(x, i * part, (i + 1) * part) for i in range(count)]


def _slice(b: Layers) -> Value:
    """Translate slice, slice_axis, slice_like and Crop: slice channels, and crop positions."""
    return narrowed(b.network, b.data(), sliced(b.p, b.shapes))


def _padded(b: Layers) -> Value:
    widths = np.reshape(b.p.pad_width, (-1, 2)).tolist()
    if np.any(widths[:2]) or (b.p.mode == "constant" and b.p.constant_value):
        b.refuse("networks pad positions, with zeros or with values of the data")
    mode = {"edge": "replicate"}.get(b.p.mode, b.p.mode)
    return b.network.pad(b.data(), tuple(map(tuple, widths[2:])), mode)


def _applied(b: Layers, word: str, first: Any, second: Any) -> Any:
    """Apply arithmetic to two operands, at least one of which is a `Value`."""
    if word in ("maximum", "minimum"):
        pair = (first, second) if isinstance(first, Value) else (second, first)
        return getattr(b.network, word)(*pair)
    return getattr(operator, "truediv" if word == "div" else word)(first, second)


def _arithmetic(b: Layers, word: str, left: bool) -> Any:
    """Translate arithmetic of two inputs, or of an input and a number on either side."""
    if len(b.x) == 2:
        return _applied(b, word, b.operand(0), b.operand(1))
    x, number = b.data(), b.p.scalar
    if word == "power":
        return b.network.activation(x, "square") if number == 2 else b.refuse("it is not a square")
    return _applied(b, word, *((number, x) if left else (x, number)))


def _same(b: Layers) -> Value:
    return b.refuse("its mode is always") if getattr(b.p, "mode", "") == "always" else b.data()


def _rules() -> dict[str, Callable[[Layers], Any]]:
    rules: dict[str, Callable[[Layers], Any]] = {
        "Deconvolution Convolution": _convolution, "UpSampling": _upsampled, "Pooling": _pooling,
        "BatchNorm _contrib_SyncBatchNorm": _batch_norm, "SliceChannel": _split,
        "InstanceNorm": _instance_norm, "identity BlockGrad MakeLoss Dropout": _same,
        "Activation": lambda b: _activation(b, b.p.act_type), "LeakyReLU": _leaky,
        "add_n": lambda b: sum(map(b.data, range(1, len(b.x))), b.data()),
        "clip": lambda b: b.network.clip(b.data(), b.p.a_min, b.p.a_max), "Pad": _padded,
        "Concat _npi_concatenate": _concat, "slice slice_axis slice_like Crop": _slice,
        "negative": lambda b: -b.data(), "reciprocal": lambda b: 1 / b.data(),
    }  # fmt: skip
    for name, (word, left) in ELEMENTWISE.items():
        if word in (*_WORDS, "softsign"):
            rules[name] = partial(_activation, word=word)
        elif word in ("add", "sub", "mul", "div", "maximum", "minimum") or (
            word == "power" and "scalar" in OPERATORS[name].attributes and not left
        ):
            rules[name] = partial(_arithmetic, word=word, left=left)
    return {name: rule for names, rule in rules.items() for name in names.split()}


RULES = _rules()
"""Functions that add an operator to a network and return its outputs, by the operator's name."""
