"""The small layers of a network: Activation, LeakyReLU, FullyConnected, softmax, Dropout."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...activations import erf
from ...dialects.mxnet_attributes import Attributes
from ...errors import ArgumentError
from ..random import generator
from .elementwise import UNARY, summed_to
from .table import Array, Call, Shapes, define, following, same_shape

ACTIVATIONS = ("relu", "sigmoid", "log_sigmoid", "mish", "tanh", "softrelu", "softsign")

_SELU = (1.0507009873554805, 1.6732632423543772)  # scale and alpha

# name: the function of x, its derivative from x and y
_GATES: dict[str, tuple[Any, Any]] = {
    "gelu": (
        lambda x: 0.5 * x * (1 + erf(x / 2**0.5)),
        lambda x, y: 0.5 * (1 + erf(x / 2**0.5)) + x * np.exp(-0.5 * x * x) / (2 * np.pi) ** 0.5,
    ),
    "selu": (
        lambda x: _SELU[0] * np.where(x > 0, x, _SELU[1] * np.expm1(np.minimum(x, 0))),
        lambda x, y: np.where(x > 0, _SELU[0], y + _SELU[0] * _SELU[1]),
    ),
}


def _slope(c: Call, x: Array, *gamma: Array) -> Any:
    """Return the factor for negative values; in training, rrelu draws it."""
    p = c.p
    if p.act_type == "prelu":
        return gamma[0].reshape((-1,) + (1,) * (x.ndim - 2))
    if p.act_type == "rrelu" and c.training:
        return generator().uniform(p.lower_bound, p.upper_bound, x.shape).astype(x.dtype)
    return x.dtype.type((p.lower_bound + p.upper_bound) / 2 if p.act_type == "rrelu" else p.slope)


def _leaky(c: Call, x: Array, *gamma: Array) -> Any:
    if c.p.act_type in _GATES:
        return np.asarray(_GATES[c.p.act_type][0](x), x.dtype)
    slope = _slope(c, x, *gamma)
    below = np.expm1(np.minimum(x, 0)) if c.p.act_type == "elu" else x
    y = np.where(x > 0, x, below * slope)
    return (y, np.broadcast_to(slope, x.shape)) if c.p.act_type == "rrelu" else y


def _leaky_gradients(c: Call, grad: Array, *_: Array) -> list[Array]:
    x, *gamma = c.inputs
    kind, y = c.p.act_type, c.outputs[0]
    if kind in _GATES:
        return [np.asarray(grad * _GATES[kind][1](x, y), x.dtype)]
    slope = c.outputs[1] if kind == "rrelu" else _slope(c, x, *gamma)
    grads = [grad * np.where(x > 0, x.dtype.type(1), y + slope if kind == "elu" else slope)]
    if gamma:
        grads.append(summed_to(grad * np.minimum(x, 0), slope.shape).reshape(gamma[0].shape))
    return grads


def _leaky_shapes(p: Attributes, inputs: Shapes, outputs: Shapes) -> tuple[Shapes, Shapes]:
    data = inputs[0]
    return [data, *(s or (data and (data[1],)) for s in inputs[1:])], [data]


_connected_shapes = following(
    lambda p, x: [(p.num_hidden, prod(x[1:]) if p.flatten else x[-1]), (p.num_hidden,)],
    lambda p, x: [(*(x[:1] if p.flatten else x[:-1]), p.num_hidden)],
)


def _connect(c: Call, x: Array, weight: Array, *bias: Array) -> Array:
    _connected_shapes(c.p, [x.shape, weight.shape, *(b.shape for b in bias)])
    y = (x.reshape(len(x), -1) if c.p.flatten else x) @ weight.T
    return np.asarray(y + bias[0] if bias else y)


def _connect_gradients(c: Call, grad: Array) -> list[Array]:
    x, weight, *bias = c.inputs
    grad = grad.reshape(-1, c.p.num_hidden)
    grads = [(grad @ weight).reshape(x.shape), grad.T @ x.reshape(len(grad), -1)]
    return [*grads, grad.sum(0)] if bias else grads


def softmax_axis(p: Attributes) -> int | None:
    """Return a softmax's axis; None means all axes but the batch.

    The older operators use the channels, the last axis, or all axes but the batch.
    """
    if hasattr(p, "axis"):
        return int(p.axis)
    if getattr(p, "mode", "") == "channel" or getattr(p, "multi_output", False):
        return 1
    return -1 if getattr(p, "preserve_shape", True) else None


def _rows(p: Attributes, x: Array) -> tuple[Array, int]:
    """Return x and a softmax's axis; for all axes but the batch, flatten x."""
    axis = softmax_axis(p)
    return (x.reshape(len(x), -1), -1) if axis is None else (x, axis)


def _softmax(c: Call, x: Array, *label: Array) -> Array:
    rows, axis = _rows(c.p, x)
    scaled = rows / x.dtype.type(getattr(c.p, "temperature", None) or 1)
    powers = np.exp(scaled - scaled.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True)).reshape(x.shape)


def _softmax_gradient(c: Call, grad: Array) -> list[Array]:
    y, axis = _rows(c.p, c.outputs[0])
    grad = grad / y.dtype.type(getattr(c.p, "temperature", None) or 1)
    return [y * (grad - (grad * y).sum(axis, keepdims=True))]


def _log_softmax(c: Call, x: Array) -> Array:
    shifted = x / x.dtype.type(c.p.temperature or 1)
    shifted = shifted - shifted.max(c.p.axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(c.p.axis, keepdims=True)))


def _label_shapes(p: Attributes, inputs: Shapes, outputs: Shapes) -> tuple[Shapes, Shapes]:
    data, label = inputs
    if label is None and data is not None:
        label = (data[0], prod(data[2:])) if p.multi_output else data[:-1]
    return [data, label], [data]


def _loss_gradient(c: Call, grad: Array) -> list[Array | None]:
    """Compute the gradient of a loss, y - onehot(label), regardless of the gradient of y."""
    x, label = c.inputs
    y, axis = _rows(c.p, c.outputs[0])
    kept = np.ones((), bool)
    if label.shape != x.shape:
        label = label.reshape([*y.shape[: axis % y.ndim], 1, *y.shape[axis % y.ndim + 1 :]])
        kept = label != c.p.ignore_label if c.p.use_ignore else kept
        classes = np.moveaxis(np.arange(y.shape[axis]).reshape([-1] + [1] * (y.ndim - 1)), 0, axis)
        off = c.p.smooth_alpha / max(1, y.shape[axis] - 1)
        label = np.where(label == classes, 1 - c.p.smooth_alpha, off)
    result = (y - label.reshape(y.shape)) * kept
    result = result.reshape(x.shape) * (grad if c.p.out_grad else 1)
    valid = np.sum(kept) if kept.ndim else y.size // y.shape[axis]
    image = x.size // (len(x) * y.shape[axis]) if c.p.multi_output else 1  # its positions
    counts = {"null": image, "batch": image * len(x), "valid": max(1, valid)}
    return [np.asarray(result * (c.p.grad_scale / counts[c.p.normalization]), x.dtype), None]


def _check_rate(p: Attributes) -> None:
    if not 0 <= p.p <= 1:
        raise ArgumentError("p", str(p.p), "a number from 0 to 1")


def _drop(c: Call, x: Array) -> tuple[Array, Array]:
    mask = np.ones(x.shape, x.dtype)
    if c.training or c.p.mode == "always":
        shape = tuple(1 if a in c.p.axes else size for a, size in enumerate(x.shape))
        mask = mask * (generator().random_sample(shape) >= c.p.p) / x.dtype.type(1 - c.p.p)
    return x * mask, mask


_AXIS = "axis:int=-1 temperature:number?=None dtype:dtype?=None use_length:bool=False length:text="
define(
    "Activation _npx_activation",
    lambda c, x: np.asarray(UNARY[c.p.act_type][0](x), x.dtype),
    lambda c, grad: [
        np.asarray(grad * UNARY[c.p.act_type][1](c.inputs[0], c.outputs[0]), grad.dtype)
    ],
    attributes=f"act_type:{'|'.join(ACTIVATIONS)}",
    shapes=same_shape,
)
define(
    "LeakyReLU _npx_leaky_relu",
    _leaky,
    _leaky_gradients,
    inputs="data gamma",
    attributes="act_type:elu|gelu|leaky|prelu|rrelu|selu=leaky slope:number=0.25 "
    "lower_bound:number=0.125 upper_bound:number=0.334",
    shapes=_leaky_shapes,
    absent=lambda p: () if p.act_type == "prelu" else ("gamma",),
    outputs=lambda p: ("output", "mask") if p.act_type == "rrelu" else ("output",),
)
define(
    "FullyConnected _npx_fully_connected",
    _connect,
    _connect_gradients,
    inputs="data weight bias",
    attributes="num_hidden:count no_bias:bool=False flatten:bool=True",
    shapes=_connected_shapes,
    absent=lambda p: ("bias",) if p.no_bias else (),
)
define("softmax _npx_softmax", _softmax, _softmax_gradient, attributes=_AXIS, shapes=same_shape)
define(
    "SoftmaxActivation",
    _softmax,
    _softmax_gradient,
    attributes="mode:instance|channel=instance",
    shapes=same_shape,
)
define(
    "log_softmax _npx_log_softmax",
    _log_softmax,
    lambda c, grad: [
        (grad - np.exp(c.outputs[0]) * grad.sum(c.p.axis, keepdims=True))
        / grad.dtype.type(c.p.temperature or 1)
    ],
    attributes=_AXIS,
    shapes=same_shape,
)
define(
    "SoftmaxOutput",
    _softmax,
    _loss_gradient,
    inputs="data label",
    attributes="grad_scale:number=1 ignore_label:number=-1 multi_output:bool=False "
    "use_ignore:bool=False preserve_shape:bool=False normalization:null|batch|valid=null "
    "out_grad:bool=False smooth_alpha:number=0",
    shapes=_label_shapes,
)
define(
    "Dropout _npx_dropout",
    _drop,
    lambda c, grad, *_: [grad * c.outputs[1]],
    attributes="p:number=0.5 mode:training|always=training axes:shape=() cudnn_off:bool?=False",
    shapes=lambda p, inputs, outputs: (inputs, inputs * 2),
    outputs=lambda p: ("output", "mask"),
    check=_check_rate,
)
