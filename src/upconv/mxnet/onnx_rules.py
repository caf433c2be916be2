"""Rules that express MXNet's operators in ONNX: `RULES` maps each to a function of a `Writer`.

Every shape is known, so pads, windows and Reshape's codes become numbers. If an average pooling
divides by other counts than ONNX does, the result is multiplied by the ratio of the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..dialects.mxnet import layer_of
from ..dialects.onnx import to_onnx
from .base import MXNetError
from .ndarray import NDArray
from .operators import Array
from .operators.elementwise import BINARY, ELEMENTWISE
from .operators.layers import softmax_axis
from .operators.pooling import Windows, bilinear_keywords
from .operators.reducing import REDUCTIONS, reduced_axes
from .operators.shaping import sliced
from .operators.table import channels_last


class Writer:
    """A graph that is being written, and the current node, which `write` sets.

    p: the node's attributes. x, shapes: its inputs and their shapes. out: its first output's shape.
    channel_axis: the data's channel axis. size: the sizes of its spatial axes.
    """

    def __init__(self, inputs: Mapping[str, Array], arrays: Mapping[str, Array], opset: int):
        import onnx_ir as ir
        from onnx_ir.tape import Tape

        data = {k: ir.val(k, ir.DataType.from_numpy(x.dtype), x.shape) for k, x in inputs.items()}
        constants = {k: ir.val(k, const_value=ir.tensor(x, name=k)) for k, x in arrays.items()}
        parts: Any = {"initializers": constants.values(), "opset_imports": {"": opset}}
        self.graph = ir.Graph([*data.values()], [], nodes=[], name="upconv", **parts)
        self.ir, self.tape, self.opset = ir, Tape(self.graph), opset
        self.variables, self.values = data | constants, dict[Any, Any]()

    def value(self, node: Any, i: int) -> Any:
        """Return a node's output, or a variable; None for a label, which ONNX nodes ignore."""
        return self.values[id(node), i] if node.operator else self.variables.get(node.name)

    def write(self, node: Any, inputs: list[NDArray], outputs: list[NDArray]) -> None:
        """Write an operator that was computed; raise `MXNetError` if there is no rule."""
        self.node, self.p, self.x = node, node.p, [self.value(*entry) for entry in node.inputs]
        first = (inputs or outputs)[0]
        self.shapes, self.shape = [x.shape for x in inputs], first.shape
        self.y, self.out, self.dtype = outputs[0].value, outputs[0].shape, first.value.dtype
        self.rank = len(self.shape)
        self.channel_axis = self.rank - 1 if channels_last(self.p) else 1
        self.size = tuple(s for a, s in enumerate(self.shape) if a not in (0, self.channel_axis))
        if node.op not in RULES:
            self.refuse("docs/mxnet.md lists the operators that can be written")
        results = RULES[node.op](self)
        for i, value in enumerate(results if isinstance(results, (list, tuple)) else [results]):
            self.values[id(node), i] = value

    def op(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node, and return its output or outputs; numbers and arrays become constants."""
        operands = [
            x if x is None or isinstance(x, self.ir.Value) else self._constant(x) for x in inputs
        ]
        name = self.node.name
        results = self.tape.op_multi_out(kind, operands, attributes, num_outputs=outputs, name=name)
        for value in results:
            value.name = name
        return results if outputs > 1 else results[0]

    def _constant(self, x: Any) -> Any:
        kind = self.dtype if isinstance(x, (int, float)) else getattr(x, "dtype", np.int64)
        return self.tape.op("Constant", [], {"value": self.ir.tensor(np.array(x, kind))})

    def refuse(self, reason: str) -> Any:
        """Raise an error that names the node."""
        raise MXNetError(f"{self.node.name} ({self.node.op}): it cannot be written: {reason}.")

    def moved(self, x: Any, axis: int, target: int = 1) -> Any:
        """Move an axis of the data."""
        order = [a for a in range(self.rank) if a != axis]
        order.insert(target, axis)
        return x if axis == target else self.op("Transpose", x, perm=order)

    def cast(self, x: Any, dtype: Any) -> Any:
        """Convert the elements to a type; do nothing for None."""
        kind = None if dtype is None else self.ir.DataType.from_numpy(np.dtype(dtype))
        return x if kind is None else self.op("Cast", x, to=kind.value)

    def proto(self, entries: list[Any], outputs: Mapping[str, Array]) -> Any:
        """Return the model, without nodes on which no output depends."""
        from onnx.helper import find_min_ir_version_for, make_opsetid
        from onnx_ir.passes import Sequential, common

        for value in (self.value(*entry) for entry in entries):
            computed = value.producer() is not None and value not in self.graph.outputs
            self.graph.outputs.append(value if computed else self.op("Identity", value))
        lift = common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
        version = find_min_ir_version_for([make_opsetid("", self.opset)])
        model = self.ir.Model(self.graph, ir_version=version, producer_name="upconv")
        Sequential(common.RemoveUnusedNodesPass(), lift)(model)
        for value, (name, y) in zip(self.graph.outputs, outputs.items(), strict=True):
            value.name, value.dtype = name, self.ir.DataType.from_numpy(y.dtype)
            value.shape = self.ir.Shape(y.shape)
        common.NameFixPass()(model)
        return self.ir.to_proto(model)


def _convolution(w: Writer) -> Any:
    p, n, kind = w.p, len(w.p.kernel), "ConvTranspose" if hasattr(w.p, "adj") else "Conv"
    if kind == "Conv":
        options = {"kernel_shape": p.kernel, "strides": p.stride or (1,) * n, "group": p.num_group,
                   "dilations": p.dilate or (1,) * n, "pads": (p.pad or (0,) * n) * 2}  # fmt: skip
    else:
        options = to_onnx(layer_of(w.size, p))
    x, weight = (w.moved(value, w.channel_axis) for value in w.x[:2])
    y = w.op(kind, x, weight, *w.x[2:], **options)
    return w.moved(y, 1, w.channel_axis)


def _normalized(w: Writer) -> Any:
    (x, gamma, beta, mean, var), p = w.x, w.p
    axis = getattr(p, "axis", 1) % w.rank if w.rank > 1 else w.refuse("data has one axis")
    scale = np.ones(w.shape[axis], w.dtype) if p.fix_gamma else gamma
    y = w.op("BatchNormalization", w.moved(x, axis), scale, beta, mean, var, epsilon=p.eps)
    if p.output_mean_var and w.node.op == "BatchNorm":
        var = w.op("Reciprocal", w.op("Sqrt", w.op("Add", var, p.eps)))
    return [w.moved(y, 1, axis), mean, var]


def _leaky(w: Writer) -> Any:
    kind, x = w.p.act_type, w.x[0]
    if kind == "gelu":
        factor = w.op("Add", w.op("Erf", w.op("Mul", x, 0.5**0.5)), 1.0)
        return w.op("Mul", w.op("Mul", x, 0.5), factor)
    if kind == "prelu":
        return w.op("PRelu", x, w.op("Reshape", w.x[1], (-1,) + (1,) * (w.rank - 2)))
    if kind == "selu":
        return w.op("Selu", x)
    slope = (w.p.lower_bound + w.p.upper_bound) / 2 if kind == "rrelu" else w.p.slope
    return w.op("Elu" if kind == "elu" else "LeakyRelu", x, alpha=slope)


def _connected(w: Writer) -> Any:
    x, weight, *bias = w.x
    if w.p.flatten or w.rank == 2:
        return w.op("Gemm", x if w.rank == 2 else w.op("Flatten", x), weight, *bias, transB=1)
    y = w.op("MatMul", x, w.op("Transpose", weight))
    return w.op("Add", y, *bias) if bias else y


def _pooling(w: Writer) -> Any:
    windows = Windows(w.p, w.size)
    pads = (*windows.pad, *windows.after)
    if any(pad >= size for pad, size in zip(pads, windows.kernel * 2, strict=True)):
        w.refuse("a window is outside the data")
    x = w.moved(w.x[0], w.channel_axis)
    options: Any = {"kernel_shape": windows.kernel, "strides": windows.stride, "pads": pads}
    if w.p.pool_type == "max":
        return w.moved(w.op("MaxPool", x, **options), 1, w.channel_axis)
    y = w.op("AveragePool", x, count_include_pad=1, **options)
    factor = prod(windows.kernel) / np.broadcast_to(windows.counts(), (1, 1, *windows.out))[0, 0]
    plain = np.allclose(factor, 1, atol=1e-9)
    return w.moved(y if plain else w.op("Mul", y, factor.astype(w.dtype)), 1, w.channel_axis)


def _kept_batch(w: Writer) -> tuple[int, ...]:
    """Return the shape of the output; 0 is ONNX's code for an axis that keeps its size."""
    return (0, *w.out[1:]) if w.out and w.out[0] == w.shape[0] else w.out


def _upsampled(w: Writer) -> Any:
    if w.p.sample_type == "bilinear":
        n, keywords = len(w.size), bilinear_keywords(w.p)
        strides, pads = (keywords["stride"],) * n, (keywords["padding"],) * 2 * n
        return w.op("ConvTranspose", *w.x, strides=strides, pads=pads, group=keywords["groups"])
    scales, mapping = np.array([1, 1, w.p.scale, w.p.scale], np.float32), "asymmetric"
    options: Any = {"mode": "nearest", "coordinate_transformation_mode": mapping}
    return w.op("Resize", w.x[0], None, scales, nearest_mode="floor", **options)


def _softmax(w: Writer) -> Any:
    p, x, kind = w.p, w.x[0], "LogSoftmax" if "log" in w.node.op else "Softmax"
    if getattr(p, "use_length", False):
        w.refuse("use_length has no counterpart")
    x = w.op("Div", x, p.temperature) if getattr(p, "temperature", None) else x
    axis = softmax_axis(p)
    if axis is not None:
        return w.op(kind, x, axis=axis)
    return w.op("Reshape", w.op(kind, w.op("Flatten", x)), w.out)


def _slice(w: Writer) -> Any:
    """Translate slice, slice_axis, slice_like and Crop; their ends follow from the output."""
    parts = [*sliced(w.p, w.shapes), *[slice(None)] * w.rank][: w.rank]
    columns = enumerate(zip(parts, w.out, w.shape, strict=True))
    axes = [(axis, *part.indices(i)[::2], o, i) for axis, (part, o, i) in columns]
    cut = [axis for axis in axes if axis[1:4] != (0, 1, axis[4])] or axes[:1]
    ends = [e if e >= 0 else -i - 1 for _, b, s, o, i in cut for e in [b + s * o]]
    numbers, begins, steps = ([axis[i] for axis in cut] for i in range(3))
    return w.op("Slice", w.x[0], begins, ends, numbers, steps)


def _split(w: Writer) -> Any:
    axis, n = w.p.axis % w.rank, w.p.num_outputs
    parts = w.op("Split", w.x[0], [w.shape[axis] // n] * n, axis=axis, outputs=n)
    parts = parts if n > 1 else [parts]
    return [w.op("Reshape", y, w.out) if len(w.out) < w.rank else y for y in parts]


def _repeat(w: Writer) -> Any:
    shape, axis = ((prod(w.shape),), 0) if w.p.axis is None else (w.shape, w.p.axis % w.rank)
    head, tail = shape[: axis + 1], shape[axis + 1 :]
    x = w.op("Reshape", w.x[0], (*head, 1, *tail))
    return w.op("Reshape", w.op("Expand", x, (*head, w.p.repeats, *tail)), w.out)


def _reduced(w: Writer) -> Any:
    word, axes, x = w.node.op.removeprefix("_npi_"), reduced_axes(w.p, w.rank), w.x[0]
    kind = "ReduceL2" if word == "norm" else f"Reduce{word.title()}"
    if axes and (w.opset >= 18 or word == "sum"):
        x = w.op(kind, x, axes, keepdims=0)
    elif axes:
        x = w.op(kind, x, axes=axes, keepdims=0)
    return w.op("Reshape", w.cast(x, w.p.dtype), w.out)


def _stack(w: Writer) -> Any:
    axis = w.p.axis % len(w.out)
    return w.op("Concat", *(w.op("Unsqueeze", x, (axis,)) for x in w.x), axis=axis)


def _where(w: Writer) -> Any:
    rows = (*w.shape, *(1,) * (len(w.out) - w.rank))
    return w.op("Where", w.cast(w.op("Reshape", w.x[0], rows), bool), *w.x[1:])


def _tiled(w: Writer) -> Any:
    rank = len(w.out)
    shape, reps = ((1,) * (rank - len(sizes)) + tuple(sizes) for sizes in (w.shape, w.p.reps))
    return w.op("Tile", w.op("Reshape", w.x[0], shape), reps)


def _flipped(w: Writer) -> Any:
    axes = [a % w.rank for a in w.p.axis]
    first, last = [-1] * len(axes), [-(2**31)] * len(axes)
    return w.op("Slice", w.x[0], first, last, axes, first)


def _extreme(w: Writer) -> Any:
    kind = "ArgMax" if w.node.op == "argmax" else "ArgMin"
    x = w.x[0] if w.p.axis is not None else w.op("Reshape", w.x[0], (-1,))
    y = w.op(kind, x, axis=w.p.axis or 0, keepdims=0)
    return w.op("Reshape", w.cast(y, w.dtype), w.out)


_KINDS = {
    "softrelu": "Softplus", "log_sigmoid": "Neg Softplus Neg", "negative": "Neg", "power": "Pow",
    "maximum": "Max", "minimum": "Min", "not_equal": "Equal Not", "lesser": "Less",
    "greater_equal": "GreaterOrEqual", "lesser_equal": "LessOrEqual",
}  # fmt: skip
"""ONNX's operators for a word, in order, unless it is the word in title case."""


def _unary(w: Writer, word: str, left: bool = False) -> Any:
    y = x = w.x[0]
    if word in ("square", "mish"):
        return w.op("Mul", x, x if word == "square" else w.op("Tanh", w.op("Softplus", x)))
    for kind in _KINDS.get(word, word.title()).split():
        y = w.op(kind, y)
    return y


def _binary(w: Writer, word: str, left: bool) -> Any:
    x, y = w.x if len(w.x) == 2 else (w.x[0], w.p.scalar)
    x, y = (y, x) if left else (x, y)
    if word == "mod":  # the result has the divisor's sign; ONNX's has the dividend's for floats
        rest = w.op("Mod", x, y, fmod=1)
        return w.op("Where", w.op("Less", w.op("Mul", rest, y), 0), w.op("Add", rest, y), rest)
    first, *others = _KINDS.get(word, word.title()).split()
    y = w.op(first, x, y)
    for kind in others:
        y = w.op(kind, y)
    compares = len(BINARY[word]) == 1
    return w.cast(y, w.dtype if compares and "_npi" not in w.node.op else None)


def _rules() -> dict[str, Callable[[Writer], Any]]:
    rules: dict[str, Callable[[Writer], Any]] = {
        name: partial(_binary if word in BINARY else _unary, word=word, left=left)
        for name, (word, left) in ELEMENTWISE.items()
    }
    others: dict[str, Callable[[Writer], Any]] = {
        "Deconvolution Convolution": _convolution, "BatchNorm _contrib_SyncBatchNorm": _normalized,
        "Activation": lambda w: _unary(w, w.p.act_type), "UpSampling": _upsampled, "stack": _stack,
        "LeakyReLU": _leaky, "FullyConnected": _connected, "Pooling": _pooling, "repeat": _repeat,
        "softmax log_softmax SoftmaxActivation SoftmaxOutput": _softmax, "SliceChannel": _split,
        "slice slice_axis slice_like Crop": _slice, "identity BlockGrad MakeLoss": lambda w: w.x[0],
        "Concat": lambda w: w.op("Concat", *w.x, axis=w.p.dim),
        "_npi_concatenate": lambda w: w.op("Concat", *w.x, axis=w.p.axis),
        "Reshape _npi_reshape _npx_reshape expand_dims squeeze _npi_squeeze Flatten":
            lambda w: w.op("Reshape", w.x[0], _kept_batch(w)),
        "transpose": lambda w: w.op("Transpose", w.x[0], perm=w.p.axes or [*range(w.rank)][::-1]),
        "Pad": lambda w: w.op("Pad", w.x[0], np.reshape(w.p.pad_width, (-1, 2)).T.ravel(),
                              w.p.constant_value, mode=w.p.mode),
        "Dropout": lambda w: w.refuse("its mode is always") if w.p.mode == "always" else w.x[0],
        "clip": lambda w: w.op("Clip", w.x[0], w.p.a_min, w.p.a_max),
        "LRN": lambda w: w.op("LRN", w.x[0], alpha=w.p.alpha, beta=w.p.beta, bias=w.p.knorm,
                              size=w.p.nsize),
        "where": _where, "broadcast_to": lambda w: w.op("Expand", w.x[0], w.out),
        "tile": _tiled, "reverse": _flipped, "argmax": _extreme, "argmin": _extreme,
        "InstanceNorm": lambda w: w.op("InstanceNormalization", *w.x, epsilon=w.p.eps),
        "Cast": lambda w: w.cast(w.x[0], w.p.dtype), "add_n": lambda w: w.op("Sum", *w.x),
        "_zeros _ones _full _arange": lambda w: w.op("Identity", w.y),
        "zeros_like": lambda w: w.op("Expand", 0, w.out),
        "ones_like": lambda w: w.op("Expand", 1, w.out),
        " ".join(f"{word} _npi_{word}" for word in REDUCTIONS): _reduced,
    }  # fmt: skip
    return rules | {name: rule for names, rule in others.items() for name in names.split()}


RULES = _rules()
"""The functions that write operators, by the operators' names; they return the outputs."""
