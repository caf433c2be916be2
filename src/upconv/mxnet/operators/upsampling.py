"""UpSampling: nearest, which repeats, or bilinear, which is a depthwise transposed convolution."""

from __future__ import annotations

from typing import Any

from ...dialects.mxnet_attributes import Attributes
from ...ops import conv_transpose, conv_transpose_backward
from .row import Array, Call, Shape, following, row


def bilinear_keywords(p: Attributes) -> dict[str, Any]:
    """`conv_transpose`'s keywords for bilinear UpSampling, whose weight the caller gives."""
    return {"stride": p.scale, "padding": p.scale // 2, "groups": p.num_filter}


def _weight_shape(p: Attributes) -> Shape:
    reach = 2 * p.scale - p.scale % 2
    return (p.num_filter, 1, reach, reach)


def _upsample(c: Call, x: Array, *weight: Array) -> Array:
    if weight:
        return conv_transpose(x, *weight, **bilinear_keywords(c.p))
    return x.repeat(c.p.scale, 2).repeat(c.p.scale, 3)


def _gradients(c: Call, grad: Array) -> list[Array | None]:
    x, *weight = c.inputs
    if weight:
        found = conv_transpose_backward(grad, x, *weight, **bilinear_keywords(c.p))
        return [found.x, found.weight]
    (n, channels, h, w), scale = x.shape, c.p.scale
    return [grad.reshape(n, channels, h, scale, w, scale).sum((3, 5))]


row(
    "UpSampling",
    _upsample,
    _gradients,
    inputs="data weight",
    attributes="scale:count num_filter:size=0 sample_type:nearest|bilinear num_args:few=1 "
    "multi_input_mode:concat|sum=concat workspace:size=512",
    shapes=following(
        lambda p, x: [_weight_shape(p)],
        lambda p, x: [(*x[:2], *(size * p.scale for size in x[2:]))],
    ),
    absent=lambda p: () if p.sample_type == "bilinear" else ("weight",),
)
