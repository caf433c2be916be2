"""MXNet's operators in ONNX's: `RULES` has a function of a `Writer` for each that can be written.

Every shape is known, so pads, windows and codes of Reshape become numbers. Where a pooling counts
otherwise than ONNX's, its average is multiplied by the ratio of the counts.
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
from .operators import OPERATORS, Array
from .operators.elementwise import NUMPY_WORDS
from .operators.pooling import Windows


class Writer:
    """A graph that is being written, and the node at hand, which `write` begins.

    p: the node's attributes; x, shapes: its inputs and their shapes; out: the shape of its first
    output; last: data's axis of channels; size: the others.
    """

    def __init__(self, inputs: Mapping[str, Array], arrays: Mapping[str, Array], opset: int):
        import onnx_ir as ir
        from onnx_ir.tape import Tape

        given = {k: ir.val(k, ir.DataType.from_numpy(x.dtype), x.shape) for k, x in inputs.items()}
        held = {k: ir.val(k, const_value=ir.tensor(x, name=k)) for k, x in arrays.items()}
        known: Any = {"initializers": held.values(), "opset_imports": {"": opset}}
        self.graph = ir.Graph([*given.values()], [], nodes=[], name="upconv", **known)
        self.ir, self.tape, self.opset = ir, Tape(self.graph), opset
        self.variables, self.values = given | held, dict[Any, Any]()

    def value(self, node: Any, i: int) -> Any:
        """An output of a node, or a variable; a label, which nobody reads, is None."""
        return self.values[id(node), i] if node.row else self.variables.get(node.name)

    def write(self, node: Any, given: list[NDArray], found: list[NDArray]) -> None:
        """Write an operator that was computed; raises `MXNetError` where there is no rule."""
        self.node, self.p, self.x = node, node.p, [self.value(*each) for each in node.inputs]
        first = (given or found)[0]
        self.shapes, self.shape = [x.shape for x in given], first.shape
        self.y, self.out, self.dtype = found[0].value, found[0].shape, first.value.dtype
        self.rank = len(self.shape)
        self.last = self.rank - 1 if (getattr(self.p, "layout", None) or "NCX")[-1] == "C" else 1
        self.size = tuple(s for a, s in enumerate(self.shape) if a not in (0, self.last))
        if node.row.name not in RULES:
            self.refuse("docs/mxnet.md lists the operators that can be")
        made = RULES[node.row.name](self)
        for i, value in enumerate(made if isinstance(made, (list, tuple)) else [made]):
            self.values[id(node), i] = value

    def op(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """The output, or outputs, of a new node; numbers, tuples and arrays become constants."""
        given = [
            x if x is None or isinstance(x, self.ir.Value) else self._constant(x) for x in inputs
        ]
        name = self.node.name
        found = self.tape.op_multi_out(kind, given, attributes, num_outputs=outputs, name=name)
        for value in found:
            value.name = name
        return found if outputs > 1 else found[0]

    def _constant(self, x: Any) -> Any:
        kind = self.dtype if isinstance(x, (int, float)) else getattr(x, "dtype", np.int64)
        return self.tape.op("Constant", [], {"value": self.ir.tensor(np.array(x, kind))})

    def refuse(self, why: str) -> Any:
        """Raise an error that names the node."""
        raise MXNetError(f"{self.node.name} ({self.node.row.name}): it cannot be written: {why}.")

    def moved(self, x: Any, axis: int, place: int = 1) -> Any:
        """Data with an axis moved to another place."""
        order = [a for a in range(self.rank) if a != axis]
        order.insert(place, axis)
        return x if axis == place else self.op("Transpose", x, perm=order)

    def cast(self, x: Any, dtype: Any) -> Any:
        """Elements of another type, or those of this one as they are if it is None."""
        kind = None if dtype is None else self.ir.DataType.from_numpy(np.dtype(dtype))
        return x if kind is None else self.op("Cast", x, to=kind.value)

    def proto(self, entries: list[Any], outputs: Mapping[str, Array]) -> Any:
        """The whole model, without what no output depends on."""
        from onnx.helper import find_min_ir_version_for, make_opsetid
        from onnx_ir.passes import Sequential, common

        for value in (self.value(*entry) for entry in entries):
            own = value.producer() is not None and value not in self.graph.outputs
            self.graph.outputs.append(value if own else self.op("Identity", value))
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
        how = {"kernel_shape": p.kernel, "strides": p.stride or (1,) * n, "group": p.num_group,
               "dilations": p.dilate or (1,) * n, "pads": (p.pad or (0,) * n) * 2}  # fmt: skip
    else:
        how = to_onnx(layer_of(w.size, p))
    y = w.op(kind, w.moved(w.x[0], w.last), w.moved(w.x[1], w.last), *w.x[2:], **how)
    return w.moved(y, 1, w.last)


def _normalized(w: Writer) -> Any:
    (x, gamma, beta, mean, var), p = w.x, w.p
    axis = getattr(p, "axis", 1) % w.rank if w.rank > 1 else w.refuse("data has one axis")
    scale = np.ones(w.shape[axis], w.dtype) if p.fix_gamma else gamma
    y = w.op("BatchNormalization", w.moved(x, axis), scale, beta, mean, var, epsilon=p.eps)
    if p.output_mean_var and w.node.row.name == "BatchNorm":
        var = w.op("Reciprocal", w.op("Sqrt", w.op("Add", var, p.eps)))
    return [w.moved(y, 1, axis), mean, var]


def _leaky(w: Writer) -> Any:
    kind, x = w.p.act_type, w.x[0]
    if kind == "gelu":
        wide = w.op("Add", w.op("Erf", w.op("Mul", x, 0.5**0.5)), 1.0)
        return w.op("Mul", w.op("Mul", x, 0.5), wide)
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
    if any(end >= size for end, size in zip(pads, windows.kernel * 2, strict=True)):
        w.refuse("a window lies beside the data")
    x = w.moved(w.x[0], w.last)
    how: Any = {"kernel_shape": windows.kernel, "strides": windows.stride, "pads": pads}
    if w.p.pool_type == "max":
        return w.moved(w.op("MaxPool", x, **how), 1, w.last)
    y = w.op("AveragePool", x, count_include_pad=1, **how)
    factor = prod(windows.kernel) / np.broadcast_to(windows.counts(), (1, 1, *windows.out))[0, 0]
    plain = np.allclose(factor, 1, atol=1e-9)
    return w.moved(y if plain else w.op("Mul", y, factor.astype(w.dtype)), 1, w.last)


def _kept_batch(w: Writer) -> tuple[int, ...]:
    """Return the shape of the output; 0 is ONNX's number for a first axis that stays."""
    return (0, *w.out[1:]) if w.out and w.out[0] == w.shape[0] else w.out


def _upsampled(w: Writer) -> Any:
    if w.p.sample_type == "bilinear":
        begin, n = w.p.scale // 2, len(w.size)
        strides, pads = (w.p.scale,) * n, (begin,) * 2 * n
        return w.op("ConvTranspose", *w.x, strides=strides, pads=pads, group=w.p.num_filter)
    how: Any = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    scales = np.array([1, 1, w.p.scale, w.p.scale], np.float32)
    return w.op("Resize", w.x[0], None, scales, nearest_mode="floor", **how)


def _softmax(w: Writer) -> Any:
    p, x, kind = w.p, w.x[0], "LogSoftmax" if "log" in w.node.row.name else "Softmax"
    if getattr(p, "use_length", False):
        w.refuse("use_length has no counterpart")
    x = w.op("Div", x, p.temperature) if getattr(p, "temperature", None) else x
    channel = getattr(p, "mode", "") == "channel" or getattr(p, "multi_output", False)
    if channel or getattr(p, "preserve_shape", True):
        return w.op(kind, x, axis=getattr(p, "axis", 1 if channel else -1))
    return w.op("Reshape", w.op(kind, w.op("Flatten", x)), w.out)  # over all but the batch


def _slice(w: Writer) -> Any:
    """slice; and, of the size of the output, slice_axis, slice_like and Crop."""
    begins, steps, p = [0] * w.rank, [1] * w.rank, w.p
    if hasattr(p, "offset"):
        room = [(i - o) // 2 for i, o in zip(w.shape, w.out, strict=True)]
        begins[2:] = room[2:] if p.center_crop else p.offset
    elif hasattr(p, "axis"):
        begins[p.axis] = slice(p.begin, p.end).indices(w.shape[p.axis])[0]
    elif hasattr(p, "begin"):
        rows = zip(p.begin, p.end, p.step or [None] * w.rank, w.shape, strict=False)
        for i, (*part, size) in enumerate(rows):
            begins[i], _, steps[i] = slice(*part).indices(size)
    whole = [*zip(range(w.rank), begins, steps, w.out, w.shape, strict=True)]
    cut = [row for row in whole if row[1:4] != (0, 1, row[4])] or whole[:1]
    ends = [e if e >= 0 else -i - 1 for _, b, s, o, i in cut for e in [b + s * o]]
    axes, begins, steps = ([row[i] for row in cut] for i in range(3))
    return w.op("Slice", w.x[0], begins, ends, axes, steps)


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
    word = w.node.row.name.removeprefix("_npi_")
    kind = "ReduceL2" if word == "norm" else f"Reduce{word.title()}"
    named = {axis % w.rank for axis in w.p.axis or range(w.rank)}
    axes = tuple(i for i in range(w.rank) if (i in named) != w.p.exclude)
    by_input = w.opset >= 18 or word == "sum"
    given: Any = ((axes,), {}) if by_input else ((), {"axes": axes})
    x = w.op(kind, w.x[0], *given[0], **given[1], keepdims=0) if axes else w.x[0]
    return w.op("Reshape", w.cast(x, w.p.dtype), w.out)


def _stack(w: Writer) -> Any:
    axis = w.p.axis % len(w.out)
    return w.op("Concat", *(w.op("Unsqueeze", x, (axis,)) for x in w.x), axis=axis)


def _chosen(w: Writer) -> Any:
    rows = (*w.shape, *(1,) * (len(w.out) - w.rank))
    return w.op("Where", w.cast(w.op("Reshape", w.x[0], rows), bool), *w.x[1:])


def _expanded(w: Writer) -> Any:
    return w.op("Expand", w.x[0], w.out)


def _tiled(w: Writer) -> Any:
    rank = len(w.out)
    whole, reps = ((1,) * (rank - len(each)) + tuple(each) for each in (w.shape, w.p.reps))
    return w.op("Tile", w.op("Reshape", w.x[0], whole), reps)


def _flipped(w: Writer) -> Any:
    axes = [a % w.rank for a in w.p.axis]
    first, last = [-1] * len(axes), [-(2**31)] * len(axes)
    return w.op("Slice", w.x[0], first, last, axes, first)


def _extreme(w: Writer) -> Any:
    kind = "ArgMax" if w.node.row.name == "argmax" else "ArgMin"
    x = w.x[0] if w.p.axis is not None else w.op("Reshape", w.x[0], (-1,))
    y = w.op(kind, x, axis=w.p.axis or 0, keepdims=0)
    return w.op("Reshape", w.cast(y, w.dtype), w.out)


_UNARY = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "exp": "Exp",
    "softsign": "Softsign", "log_sigmoid": "Neg Softplus Neg", "negative": "Neg", "abs": "Abs",
    "sign": "Sign", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "sin": "Sin",
    "cos": "Cos", "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "square": "", "mish": "",
}  # fmt: skip
_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "mod": "Mod", "power": "Pow",
    "maximum": "Max", "minimum": "Min", "equal": "Equal ", "not_equal": "Equal Not",
    "greater": "Greater ", "greater_equal": "GreaterOrEqual ", "lesser": "Less ",
    "lesser_equal": "LessOrEqual ",
}  # fmt: skip
"""What makes one of them, in order; a space among them: the result is a comparison's."""


def _unary(w: Writer, word: str) -> Any:
    y = x = w.x[0]
    if not _UNARY[word]:
        y = w.op("Mul", x, x if word == "square" else w.op("Tanh", w.op("Softplus", x)))
    for kind in _UNARY[word].split():
        y = w.op(kind, y)
    return y


def _binary(w: Writer, word: str, left: bool = False) -> Any:
    x, y = w.x if len(w.x) == 2 else (w.x[0], w.p.scalar)
    x, y = (y, x) if left else (x, y)
    if word == "mod":  # of the divisor's sign; ONNX has the dividend's for floats
        rest = w.op("Mod", x, y, fmod=1)
        return w.op("Where", w.op("Less", w.op("Mul", rest, y), 0), w.op("Add", rest, y), rest)
    first, *others = _BINARY[word].split()
    y = w.op(first, x, y)
    for kind in others:
        y = w.op(kind, y)
    as_bool = "_npi" in w.node.row.name or " " not in _BINARY[word]
    return w.cast(y, None if as_bool else w.dtype)


def _rules() -> dict[str, Callable[[Writer], Any]]:
    found: dict[str, Callable[[Writer], Any]] = {
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
        "where": _chosen, "broadcast_to": _expanded,
        "tile": _tiled, "reverse": _flipped, "argmax": _extreme, "argmin": _extreme,
        "InstanceNorm": lambda w: w.op("InstanceNormalization", *w.x, epsilon=w.p.eps),
        "Cast": lambda w: w.cast(w.x[0], w.p.dtype), "add_n": lambda w: w.op("Sum", *w.x),
        "_zeros _ones _full _arange": lambda w: w.op("Identity", w.y),
        "zeros_like": lambda w: w.op("Expand", 0, w.out),
        "ones_like": lambda w: w.op("Expand", 1, w.out),
        " ".join(f"{k} _npi_{k}" for k in ("sum", "mean", "max", "min", "prod", "norm")): _reduced,
    }  # fmt: skip
    for word in _UNARY:
        found[f"{word} _npi_{word}"] = partial(_unary, word=word)
    for word in _BINARY:
        own = NUMPY_WORDS.get(word, word)
        names = f"elemwise_{word} broadcast_{word} _{word}_scalar _npi_{own} _npi_{own}_scalar"
        found[f"_r{word}_scalar _npi_r{own}_scalar"] = partial(_binary, word=word, left=True)
        found[names] = partial(_binary, word=word)
    named = [(name, rule) for names, rule in found.items() for name in names.split()]
    return {OPERATORS[name].name: rule for name, rule in named if name in OPERATORS}


RULES = _rules()
"""What writes an operator, by its name: the names of its outputs."""
