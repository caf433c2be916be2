"""BatchNorm, by upconv's public functions, and LRN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...dialects.mxnet_attributes import Attributes
from ...errors import ArgumentError
from ...normalization import batch_norm, batch_norm_backward
from ..packed import written
from .row import Array, Call, Shapes, row, unified

BATCH_NORM = (
    "eps:number=1e-3 momentum:number=0.9 fix_gamma:bool=True use_global_stats:bool=False "
    "output_mean_var:bool=False axis:int=1 cudnn_off:bool=False min_calib_range:number?=None "
    "max_calib_range:number?=None "
)


def _shapes(p: Attributes, inputs: Shapes) -> tuple[Shapes, Shapes]:
    data, axis = inputs[0], getattr(p, "axis", 1)
    if data is None:
        return inputs, []
    if not -len(data) <= axis < len(data):
        raise ArgumentError("axis", str(axis), f"an axis of data, of shape {data}")
    channels = (data[axis],)
    rest = [unified(f"the shape of input {i}", channels, s) for i, s in enumerate(inputs[1:], 1)]
    return [data, *rest], [data, channels, channels]


def _normalized(c: Call, *inputs: Array) -> tuple[Array, ...]:
    """out, mean and 1/sqrt(var + eps); with fix_gamma gamma itself becomes ones, as in MXNet."""
    data, gamma, beta, mean, var = inputs
    if c.p.fix_gamma:
        gamma[...] = 1
        written(gamma)
    found = batch_norm(
        data,
        gamma,
        beta,
        mean,
        var,
        eps=c.p.eps,
        training=c.training,
        use_global_stats=c.p.use_global_stats,
        axis=getattr(c.p, "axis", 1),
        statistics="mxnet",
    )
    saved = (found.saved_mean, found.saved_invstd)
    return np.asarray(found.y), np.asarray(saved[0], mean.dtype), np.asarray(saved[1], var.dtype)


def _normalized_gradients(c: Call, grad: Array, *_: Array) -> tuple[Array | None, ...]:
    """Gradients of data, gamma and beta; in training the moving statistics are updated here.

    MXNet updates them in the backward pass, so a forward alone leaves them as they are.
    """
    data, gamma, beta, mean, var = c.inputs
    own = c.training and not c.p.use_global_stats
    names = ("x", "gamma", "beta")
    found = batch_norm_backward(
        grad,
        c.outputs[1] if own else None,
        c.outputs[2] if own else None,
        data,
        gamma,
        beta,
        mean,
        var,
        eps=c.p.eps,
        training=c.training,
        fix_gamma=c.p.fix_gamma,
        use_global_stats=c.p.use_global_stats,
        axis=getattr(c.p, "axis", 1),
        needs=[name for name, wanted in zip(names, c.wanted, strict=False) if wanted],
    )
    if own:
        with np.errstate(all="ignore"):
            spread = 1 / np.square(c.outputs[2], dtype=np.float64) - c.p.eps
        for moving, batch in ((mean, c.outputs[1]), (var, spread)):
            moving[...] = moving * c.p.momentum + batch * (1 - c.p.momentum)
            written(moving)
    return (*(getattr(found, name) for name in names), None, None)


def _synchronized(c: Call, *inputs: Array) -> tuple[Array, ...]:
    """BatchNorm on one device, whose third output is the variance."""
    out, mean, spread = _normalized(c, *inputs)
    return out, mean, 1 / np.square(spread) - spread.dtype.type(c.p.eps)


def _synchronized_gradients(c: Call, grad: Array, *_: Array) -> tuple[Array | None, ...]:
    out, mean, var = c.outputs
    spread = 1 / np.sqrt(var + var.dtype.type(c.p.eps))
    return _normalized_gradients(replace(c, outputs=(out, mean, spread)), grad)


def _neighbours(x: Array, nsize: int) -> Array:
    """The sums over nsize channels around each, those beyond the ends left out."""
    half = nsize // 2
    padded = np.pad(x, [(0, 0), (half + 1, half), *[(0, 0)] * (x.ndim - 2)])
    sums = padded.cumsum(1, dtype=np.float64)
    return np.asarray(sums[:, nsize:] - sums[:, :-nsize], x.dtype)


def _respond(c: Call, data: Array) -> tuple[Array, Array]:
    norm = c.p.knorm + c.p.alpha / c.p.nsize * _neighbours(data * data, c.p.nsize)
    return data * norm**-c.p.beta, norm.astype(data.dtype)


def _respond_gradient(c: Call, grad: Array, *_: Array) -> tuple[Array]:
    (data,), (out, norm) = c.inputs, c.outputs
    spread = _neighbours(grad * out / norm, c.p.nsize)
    factor = 2 * c.p.alpha * c.p.beta / c.p.nsize
    return (np.asarray(grad * norm**-c.p.beta - factor * data * spread),)


for _names, _attributes, _pair in (
    ("BatchNorm _npx_batch_norm BatchNorm_v1", BATCH_NORM, (_normalized, _normalized_gradients)),
    (
        "_contrib_SyncBatchNorm",
        f"{BATCH_NORM.replace('axis:int=1', '')} ndev:int=1 key:text=None",
        (_synchronized, _synchronized_gradients),
    ),
):
    row(
        _names,
        *_pair,
        inputs="data gamma beta moving_mean moving_var",
        attributes=_attributes,
        shapes=_shapes,
        auxiliary=("moving_mean", "moving_var"),
        outputs=lambda p: ("output", "mean", "var"),
        visible=lambda p: 3 if p.output_mean_var else 1,
    )
row(
    "LRN",
    _respond,
    _respond_gradient,
    attributes="alpha:number=1e-4 beta:number=0.75 knorm:number=2 nsize:count",
    shapes=lambda p, inputs: (inputs, inputs * 2),
    outputs=lambda p: ("output", "tmp_norm"),
)
