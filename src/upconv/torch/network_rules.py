"""The table of operations: what a node of an FX graph adds to a network.

A row is a function of a network and of the node's arguments, in the order of PyTorch's function or
of ATen's operator. Activations are `Value`s, weights are tensors; in arithmetic, a tensor is a
number or an array with one number per channel. Axes are counted in the network's order,
(N, C, *size). A row returns the node's `Value`, or a list of them. It raises an `UpconvError` for
an operation that a network cannot compute.

`ROWS` holds the rows by name. Names that begin with "functional." are functions of
`torch.nn.functional` whose arguments are ordered differently from the ATen operator's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ..errors import ArgumentError, DTypeError, brief
from ..network import Network, Value
from ..network.axes import narrowed
from . import windows
from .functional import geometry, same_pads
from .tensors import DTYPES, array

Row = Callable[..., Any]


# Convolutions and normalizations ------------------------------------------------------------------


def _conv(
    network: Network, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: Any = 1,
) -> Value:  # fmt: skip
    arguments = (stride, padding, dilation, False, 0, groups)
    return _convolution(network, x, weight, bias, *arguments)


def _conv_transpose(
    network: Network, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: Any = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    arguments = (stride, padding, dilation, True, output_padding, groups)
    return _convolution(network, x, weight, bias, *arguments)


def _convolution(network: Network, x: Any, weight: Any, bias: Any, *arguments: Any) -> Value:
    arrays = constant("weight", weight), constant("bias", bias)
    arguments = geometry(weight.shape[2:], *arguments)
    stride, padding, dilation, transposed, output_padding, groups = arguments
    if padding == "same":
        padding = same_pads(weight.shape[2:], dilation)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        return network.conv_transpose(x, *arrays, output_padding=output_padding, **options)
    return network.conv(x, *arrays, **options)


def _batch_norm(
    network: Network, x: Any, weight: Any, bias: Any, mean: Any, variance: Any,
    training: Any = False, momentum: Any = 0.1, eps: Any = 1e-5, cudnn: Any = False,
) -> Value:  # fmt: skip
    if training or mean is None or variance is None:
        raise ArgumentError("batch norm", "by the batch's statistics", "saved statistics")
    arrays = [constant("batch norm", tensor) for tensor in (weight, bias, mean, variance)]
    return network.batch_norm(x, arrays[0], arrays[1], arrays[2], arrays[3], eps)


def _instance_norm(
    network: Network, x: Any, weight: Any, bias: Any, mean: Any, variance: Any,
    use_input_stats: Any = True, momentum: Any = 0.1, eps: Any = 1e-5, cudnn: Any = False,
) -> Value:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(network, x, weight, bias, mean, variance, False, eps=eps)
    if mean is not None:
        raise ArgumentError("instance norm", "updating statistics", "no statistics, or saved ones")
    return network.instance_norm(x, constant("weight", weight), constant("bias", bias), eps)


def _statistics_first(row: Row) -> Row:
    """Return a row with the argument order of `torch.nn.functional`."""

    def reordered(
        network: Network, x: Any, running_mean: Any = None, running_var: Any = None,
        weight: Any = None, bias: Any = None, *rest: Any, **named: Any,
    ) -> Any:  # fmt: skip
        return row(network, x, weight, bias, running_mean, running_var, *rest, **named)

    return reordered


def _group_norm(
    network: Network, x: Any, num_groups: Any, weight: Any = None, bias: Any = None,
    eps: Any = 1e-5, cudnn: Any = False,
) -> Value:  # fmt: skip
    return network.group_norm(
        x, num_groups, constant("weight", weight), constant("bias", bias), eps
    )


# Functions of one value ---------------------------------------------------------------------------


def _activation(name: str, network: Network, x: Any, inplace: Any = False) -> Value:
    return network.activation(x, name)


def _with_number(
    name: str, default: float, network: Network, x: Any, value: Any = None, inplace: Any = False,
    alpha: Any = None, negative_slope: Any = None,
) -> Value:  # fmt: skip
    numbers = (value, alpha, negative_slope, default)
    number = next(number for number in numbers if number is not None)
    return network.activation(x, (name, number))


def _elu(
    network: Network, x: Any, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0
) -> Value:
    if scale != 1 or input_scale != 1:
        raise ArgumentError("elu", f"scaled by {scale} and {input_scale}", "without scales")
    return network.activation(x, ("elu", alpha))


def _gelu(network: Network, x: Any, approximate: Any = "none") -> Value:
    return network.activation(x, {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate))


def _clamp(
    network: Network, x: Any, min: Any = None, max: Any = None, inplace: Any = False,
    *, min_val: Any = None, max_val: Any = None,
) -> Value:  # fmt: skip
    low, high = (min_val if min is None else min), (max_val if max is None else max)
    return network.clip(x, low, high)


def _hardtanh(
    network: Network, x: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: Any = False
) -> Value:
    return network.clip(x, min_val, max_val)


def _pow(network: Network, x: Any, exponent: Any) -> Value:
    if not isinstance(x, Value) or exponent not in (0.5, 2):
        raise ArgumentError("the exponent", brief(exponent), "2 or 0.5")
    return network.activation(x, "square" if exponent == 2 else "sqrt")


def _softmax(network: Network, x: Any, dim: int, *rest: Any, dtype: Any = None) -> Value:
    _require_channels(dim)
    if dtype is not None or any(isinstance(argument, torch.dtype) for argument in rest):
        raise ArgumentError("dtype", "given", "None")
    return network.softmax(x)


def _softplus(network: Network, x: Any, beta: Any = 1, threshold: Any = 20) -> Value:
    if beta != 1 or threshold < 15:  # PyTorch returns x above it: exact in float32 from 15 on
        raise ArgumentError("softplus", f"beta={beta}, threshold={threshold}", "beta=1, 20")
    return network.activation(x, "softplus")


def _dropout(
    network: Network, x: Any, p: Any = 0.5, train: Any = True, inplace: Any = False,
    training: Any = None,
) -> Any:  # fmt: skip
    if (train if training is None else training) and p:
        raise ArgumentError("dropout", "in training", "a model after eval()")
    return x


# Arithmetic ---------------------------------------------------------------------------------------


def _add(network: Network, x: Any, y: Any, alpha: Any = 1) -> Value:
    if alpha != 1:
        y = _commutative("mul", network, y, alpha) if isinstance(y, Value) else y * alpha
    return _commutative("add", network, x, y)


def _commutative(name: str, network: Network, x: Any, y: Any) -> Value:
    x, y = (x, y) if isinstance(x, Value) else (y, x)
    return getattr(network, name)(x, y)  # type: ignore[no-any-return]


def _div(network: Network, x: Any, y: Any) -> Value:
    if not isinstance(x, Value):
        raise ArgumentError("the dividend", "a number or a weight", "a value")
    return network.div(x, y)


# Channels and positions ---------------------------------------------------------------------------


def _cat(network: Network, tensors: Any, dim: int) -> Value:
    for x in tensors:
        if not isinstance(x, Value):
            raise DTypeError("an operand", f"of type {type(x).__name__}", "a value of the network")
    _require_channels(dim)
    return network.concat(*tensors)


def _require_channels(dim: int) -> None:
    if dim != 1:
        raise ArgumentError("dim", str(dim), "1, the channels")


def _slice(
    network: Network, x: Any, dim: int, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    return narrowed(network, x, [slice(None)] * dim + [slice(start, end, step)])


def _split(network: Network, x: Any, sizes: Any, dim: int) -> list[Value]:
    """Split the channels into results of one size, or of the listed sizes."""
    _require_channels(dim)
    if not isinstance(sizes, (list, tuple)):
        starts = range(0, x.channels, sizes)
        return [network.slice(x, i, min(i + sizes, x.channels)) for i in starts]
    ends = np.cumsum(sizes).tolist()
    return [network.slice(x, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _chunk(network: Network, x: Any, chunks: Any, dim: int) -> list[Value]:
    return _split(network, x, -(-x.channels // chunks), dim)


def _getitem(network: Network, x: Any, index: Any) -> Any:
    if isinstance(x, list):
        return x[index]
    entries = index if isinstance(index, tuple) else (index,)
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        full = (slice(None),) * (len(x.shape) - len(entries) + 1)
        entries = (*entries[:at], *full, *entries[at + 1 :])
    for entry in entries:
        if not isinstance(entry, slice):
            raise ArgumentError("an index", brief(entry), "slices")
    return narrowed(network, x, entries)


def _pad(network: Network, x: Any, pad: Any, mode: Any = "constant", value: Any = None) -> Value:
    """Pad the ends of axes, the last axis first; `mode` and `value` as in `functional.pad`."""
    rank = len(x.shape) - 2
    ends = list(zip(pad[::2], pad[1::2], strict=True))
    if any(map(any, ends[rank:])) or (value and mode == "constant"):
        got = f"pad={tuple(pad)}, value={value}"
        raise ArgumentError("pad", got, "zeros at the ends of spatial axes")
    amounts = tuple(ends[axis] if axis < len(ends) else (0, 0) for axis in reversed(range(rank)))
    return network.pad(x, amounts, mode)


def constant(argument: str, tensor: Any) -> Any:
    """Return a weight as an array; None stays None."""
    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in DTYPES:
        kind = getattr(tensor, "dtype", "computed from the input")
        raise DTypeError(argument, f"{kind}", "a parameter or a buffer in a floating type")
    return array(tensor.detach())


_PLAIN = (
    "relu", "relu6", "silu", "tanh", "sigmoid", "mish", "selu", "abs", "exp", "sin", "cos",
    "square", "sqrt",
)  # fmt: skip
_RENAMED = {"hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "logsigmoid": "log_sigmoid",
            "log_sigmoid": "log_sigmoid"}  # fmt: skip

ROWS: dict[str, Row] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv_transpose),
    "convolution": _convolution,
    "batch_norm": _batch_norm, "functional.batch_norm": _statistics_first(_batch_norm),
    "instance_norm": _instance_norm,
    "functional.instance_norm": _statistics_first(_instance_norm),
    "group_norm": _group_norm,
    **{name: partial(_activation, name) for name in _PLAIN},
    **{name: partial(_activation, activation) for name, activation in _RENAMED.items()},
    "hardtanh": _hardtanh, "pow": _pow,
    **dict.fromkeys(("clamp", "clip"), _clamp),
    "clamp_min": lambda network, x, bound: network.clip(x, bound),
    "clamp_max": lambda network, x, bound: network.clip(x, None, bound),
    "softmax": _softmax,
    "leaky_relu": partial(_with_number, "leaky_relu", 0.01),
    "prelu": lambda network, x, slope: network.activation(x, ("prelu", constant("weight", slope))),
    "gelu": _gelu, "softplus": _softplus,
    "elu": _elu, "functional.elu": partial(_with_number, "elu", 1.0),
    **dict.fromkeys(("clone", "contiguous", "detach", "alias"), lambda _, x, *__: x),
    "dropout": _dropout,
    "add": _add,
    **{name: partial(_commutative, name) for name in ("mul", "maximum", "minimum")},
    "sub": lambda network, x, y, alpha=1: _add(network, x, y, -alpha),
    "rsub": lambda network, x, y, alpha=1: _add(network, y, x, -alpha),
    **dict.fromkeys(("div", "truediv", "divide"), _div),
    **dict.fromkeys(("neg", "negative"), lambda network, x: network.mul(x, -1.0)),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "narrow": lambda network, x, dim, start, length: _slice(
        network, x, dim, start, start + length if start >= 0 else start + length or None
    ),
    "slice": _slice, "chunk": _chunk, "getitem": _getitem,
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "pad": _pad,
    "constant_pad_nd": lambda network, x, pad, value=0: _pad(network, x, pad, "constant", value),
    **{f"reflection_pad{n}d": partial(_pad, mode="reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": partial(_pad, mode="replicate") for n in (1, 2, 3)},
    **windows.ROWS,
}  # fmt: skip
