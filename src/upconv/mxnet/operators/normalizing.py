"""BatchNorm and InstanceNorm, which upconv's public functions compute, and LRN."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects.mxnet_attributes import Attributes
from ...errors import ArgumentError, ShapeError
from ...normalization import batch_norm, batch_norm_backward
from ..packed import written
from .table import Array, Call, Shape, Types, define, following

BATCH_NORM = (
    "eps:number=1e-3 momentum:number=0.9 fix_gamma:bool=True use_global_stats:bool=False "
    "output_mean_var:bool=False axis:int=1 cudnn_off:bool=False min_calib_range:number?=None "
    "max_calib_range:number?=None"
)


def _channels(p: Attributes, data: Shape) -> Shape:
    """Return the shape that every parameter has."""
    axis = getattr(p, "axis", 1)
    if not -len(data) <= axis < len(data):
        raise ArgumentError("axis", str(axis), f"an axis of data, of shape {data}")
    return (data[axis],)


def _types(p: Attributes, inputs: Types, outputs: Types) -> tuple[Types, Types]:
    """Infer the parameters' type: the data's type, or float32 for float16 data."""
    data = outputs[0] if inputs[0] is None else inputs[0]
    kind = np.dtype(np.float32) if data == np.float16 else data
    return [data, *[kind] * 4], [data, kind, kind]


def _options(c: Call) -> dict[str, Any]:
    """Return the keywords that the forward and the backward function share."""
    options = {name: getattr(c.p, name) for name in ("eps", "use_global_stats", "fix_gamma")}
    return {**options, "training": c.training, "axis": getattr(c.p, "axis", 1)}


def _normalized(c: Call, *inputs: Array) -> tuple[Array, ...]:
    """Compute out, mean and 1/sqrt(var + eps); SyncBatchNorm returns the variance instead.

    With fix_gamma the array gamma becomes ones, as in MXNet, unless a loaded model owns it.
    """
    _, gamma, _, mean, var = inputs
    if c.p.fix_gamma and gamma.flags.writeable and not (gamma == 1).all():
        gamma[...] = 1
        written(gamma)
    y, center, invstd, *_ = map(np.asarray, batch_norm(*inputs, **_options(c), statistics="mxnet"))
    third = invstd if hasattr(c.p, "axis") else _variance(c, invstd)
    return y, center.astype(mean.dtype), third.astype(var.dtype)


def _variance(c: Call, invstd: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(1 / np.square(invstd, dtype=np.float64) - c.p.eps)


def _normalized_gradients(c: Call, grad: Array, *_: Array) -> tuple[Array | None, ...]:
    """Compute the gradients of data, gamma and beta; in training update the moving statistics.

    MXNet updates them in the backward pass, so a forward pass alone does not change them.
    """
    center, third, mean, var = *c.outputs[1:], *c.inputs[3:]
    invstd = third if hasattr(c.p, "axis") else 1 / np.sqrt(third + third.dtype.type(c.p.eps))
    names = ("x", "gamma", "beta")
    needs = [name for name, wanted in zip(names, c.wanted, strict=False) if wanted]
    gradients = batch_norm_backward(grad, center, invstd, *c.inputs, **_options(c), needs=needs)
    if c.training and not c.p.use_global_stats:
        for moving, batch in ((mean, center), (var, _variance(c, invstd))):
            moving[...] = moving * c.p.momentum + batch * (1 - c.p.momentum)
            written(moving)
    return (*gradients, None, None)


def _neighbours(x: Array, nsize: int) -> Array:
    """Sum over the nsize channels around each channel, as far as these exist."""
    half = nsize // 2
    padded = np.pad(x, [(0, 0), (half, half), *[(0, 0)] * (x.ndim - 2)]).astype(np.float64)
    return np.asarray(sum(padded[:, i : i + x.shape[1]] for i in range(nsize)), x.dtype)


def _require_odd(p: Attributes) -> None:
    if p.nsize % 2 == 0:
        raise ArgumentError("nsize", str(p.nsize), "an odd number")


def _respond(c: Call, data: Array) -> tuple[Array, Array]:
    norm = c.p.knorm + c.p.alpha / c.p.nsize * _neighbours(data * data, c.p.nsize)
    return data * norm**-c.p.beta, norm.astype(data.dtype)


def _respond_gradient(c: Call, grad: Array, *_: Array) -> tuple[Array]:
    (data,), (out, norm) = c.inputs, c.outputs
    spread = _neighbours(grad * out / norm, c.p.nsize)
    factor = 2 * c.p.alpha * c.p.beta / c.p.nsize
    return (np.asarray(grad * norm**-c.p.beta - factor * data * spread),)


for _names, _attributes in (
    ("BatchNorm _npx_batch_norm BatchNorm_v1", BATCH_NORM),
    ("_contrib_SyncBatchNorm", f"{BATCH_NORM.replace('axis:int=1', '')} ndev:int=1 key:text=None"),
):
    define(
        _names,
        _normalized,
        _normalized_gradients,
        inputs="data gamma beta moving_mean moving_var",
        attributes=_attributes,
        shapes=following(
            lambda p, data: [_channels(p, data)] * 4,
            lambda p, data: [data, *[_channels(p, data)] * 2],
        ),
        types=_types,
        auxiliary=("moving_mean", "moving_var"),
        outputs=lambda p: ("output", "mean", "var"),
        visible=lambda p: 3 if p.output_mean_var else 1,
    )


def _by_instance(c: Call, *inputs: Array) -> tuple[list[Array], dict[str, Any]]:
    """Return the operands of a batch normalization over all instances' channels."""
    x, *parameters = inputs[:3]
    if x.ndim < 3:
        raise ShapeError("the shape of data", str(x.shape), "three axes or more")
    count = x.shape[0] * x.shape[1]
    moving = [np.zeros(count, x.dtype), np.ones(count, x.dtype)]
    parameters = [np.tile(value, x.shape[0]) for value in parameters]
    options = {"eps": c.p.eps, "use_global_stats": False, "fix_gamma": False, "training": True}
    return [x.reshape(1, count, -1), *parameters, *moving], {**options, "axis": 1}


def _normalized_instances(c: Call, *inputs: Array) -> list[Array]:
    operands, options = _by_instance(c, *inputs)
    y, mean, invstd, *_ = map(np.asarray, batch_norm(*operands, **options, statistics="mxnet"))
    return [y.reshape(inputs[0].shape), mean, invstd]


def _instance_gradients(c: Call, grad: Array, *_: Array) -> list[Array]:
    operands, options = _by_instance(c, *c.inputs)
    x, grad = c.inputs[0], grad.reshape(operands[0].shape)
    needs = ["x", "gamma", "beta"]
    gradients = batch_norm_backward(grad, *c.outputs[1:], *operands, **options, needs=needs)
    d_x, *sums = map(np.asarray, gradients)
    return [d_x.reshape(x.shape), *(total.reshape(len(x), -1).sum(0) for total in sums)]


define(
    "InstanceNorm",
    _normalized_instances,
    _instance_gradients,
    inputs="data gamma beta",
    attributes="eps:number=1e-3",
    shapes=following(
        lambda p, data: [(data[1],)] * 2, lambda p, data: [data, *[(data[0] * data[1],)] * 2]
    ),
    outputs=lambda p: ("output", "mean", "var"),
)
define(
    "LRN",
    _respond,
    _respond_gradient,
    attributes="alpha:number=1e-4 beta:number=0.75 knorm:number=2 nsize:count",
    shapes=lambda p, inputs, outputs: (inputs, inputs * 2),
    outputs=lambda p: ("output", "tmp_norm"),
    check=_require_odd,
)
