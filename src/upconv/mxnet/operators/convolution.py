"""Deconvolution and Convolution, which upconv's public functions compute.

The dialect (`upconv.dialects.mxnet`) reads the attributes: pad and adj, or a target_shape that
replaces both. Unlike MXNet on processors, these operators also compute channels last, float16 and
dilated layers of rank 3.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...dialects.mxnet import DECONVOLUTION, DEVICE, WINDOW, check, layer_of
from ...dialects.mxnet_attributes import Attributes
from ...errors import ArgumentError, ShapeError
from ...geometry import convolved
from ...ops import conv, conv_backward, conv_transpose, conv_transpose_backward
from ...plans import conv_plan, plan
from ...threads import get_num_threads
from ..packed import plan_of
from .table import Array, Call, Shape, Shapes, channels_last, define, following

CONVOLUTION = (
    f"{WINDOW} num_filter:count num_group:count=1 workspace:size=1024 no_bias:bool=False {DEVICE}"
    " layout:NCW|NCHW|NCDHW|NWC|NHWC|NDHWC?=None"
)


def _parts(p: Attributes, data: Shape) -> tuple[int, int, Shape]:
    """Return the batch, channels and spatial sizes in the data's shape."""
    rank = len(p.kernel)
    if len(data) != rank + 2:
        raise ShapeError("the shape of data", str(data), f"{rank + 2} axes, kernel's rank and two")
    return (data[0], data[-1], data[1:-1]) if channels_last(p) else (data[0], data[1], data[2:])


def _joined(p: Attributes, first: int, second: int, size: Shape) -> Shape:
    return (first, *size, second) if channels_last(p) else (first, second, *size)


def _layer(p: Attributes, size: Shape) -> Any:
    """Return the transposed layer for a spatial size; raise errors as `layer_of` does."""
    layer = layer_of(size, p)
    derived = tuple(begin for begin, _ in layer.crops)
    targeted = any(p.target_shape) and p.rule == "library"
    if targeted and (p.pad or (0,) * len(size)) != derived:
        why = 'MXNet\'s library fails here; rule="document" derives the pad.'
        raise ArgumentError("pad", str(p.pad), f"{derived}, as target_shape derives it", why)
    return layer


def keywords_for(p: Attributes, data: Shape) -> dict[str, Any]:
    """Return the keywords of upconv's function for data of this shape; compute them once."""
    _, _, size = _parts(p, data)
    if hasattr(p, "adj"):
        known: dict[Shape, Any] = vars(p).setdefault("_keywords", {})
        if size not in known:
            known[size] = _layer(p, size).keywords()
        return dict(known[size])
    return {
        "stride": p.stride or 1,
        "padding": p.pad or 0,
        "dilation": p.dilate or 1,
        "groups": p.num_group,
        "layout": "NXC" if channels_last(p) else "NCX",
        "weight_layout": "OXI" if channels_last(p) else "OIX",
    }


def _weight_shape(p: Attributes, data: Shape) -> Shape:
    """Return the weight's shape: (C, F/G, ...) if transposed (with an adj), else (F, C/G, ...)."""
    channels, transposed = _parts(p, data)[1], hasattr(p, "adj")
    if p.num_filter % p.num_group or channels % p.num_group:
        numbers = f"num_filter = {p.num_filter} and of {channels} channels of data"
        raise ArgumentError("num_group", str(p.num_group), f"a divisor of {numbers}")
    if transposed:
        return _joined(p, channels, p.num_filter // p.num_group, p.kernel)
    return _joined(p, p.num_filter, channels // p.num_group, p.kernel)


def _transposed_size(p: Attributes, size: Shape) -> Shape:
    if 0 in size and any(p.target_shape):
        return tuple(p.target_shape[: len(size)])
    axes = _layer(p, tuple(entry or 1 for entry in size)).axes
    return tuple(axis.out if i else 0 for i, axis in zip(size, axes, strict=True))


def _size(p: Attributes, size: Shape) -> Shape:
    """Return the spatial sizes of a convolution's result; 0 where the data's size is unknown."""
    ones, pad = (1,) * len(size), p.pad or (0,) * len(size)
    window = p.kernel, p.stride or ones, p.dilate or ones, pad, pad
    return tuple(i and convolved(i, *axis).size for i, *axis in zip(size, *window, strict=True))


def _out(p: Attributes, data: Shape) -> Shapes:
    batch, _, size = _parts(p, data)
    size = (_transposed_size if hasattr(p, "adj") else _size)(p, size)
    return [_joined(p, batch, p.num_filter, size)]


def _forward(c: Call, data: Array, weight: Array, *bias: Array) -> Array:
    transposed = hasattr(c.p, "adj")
    expected = _weight_shape(c.p, data.shape)
    keywords = keywords_for(c.p, data.shape)
    if weight.shape != expected:
        wanted = f"{expected} for data of shape {data.shape}"
        raise ShapeError("the shape of weight", str(weight.shape), wanted)
    if not c.training and {x.dtype for x in (weight, *bias)} == {data.dtype}:
        make = partial(plan if transposed else conv_plan, data.shape, weight, *bias, **keywords)
        key = (transposed, data.shape, get_num_threads(), tuple(keywords.values()))
        packed = plan_of([weight, *bias], key, make)
        if packed is not None:
            return np.asarray(packed(data))
    return (conv_transpose if transposed else conv)(data, weight, *bias, **keywords)


def _backward(c: Call, grad: Array) -> list[Array | None]:
    function = conv_transpose_backward if hasattr(c.p, "adj") else conv_backward
    names = ("x", "weight", "bias")[: len(c.inputs)]
    needs: list[Any] = [name for name, wanted in zip(names, c.wanted, strict=True) if wanted]
    keywords = keywords_for(c.p, c.inputs[0].shape)
    gradients = function(grad, *c.inputs[:2], **keywords, needs=needs)
    return [getattr(gradients, name) for name in names]


for _names, _attributes in (
    ("Deconvolution _npx_deconvolution", f"{DECONVOLUTION} rule:document|library=document"),
    ("Convolution _npx_convolution Convolution_v1", CONVOLUTION),
):
    define(
        _names,
        _forward,
        _backward,
        inputs="data weight bias",
        attributes=_attributes,
        shapes=following(lambda p, data: [_weight_shape(p, data), (p.num_filter,)], _out),
        absent=lambda p: ("bias",) if p.no_bias else (),
        check=check,
    )
