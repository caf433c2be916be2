"""UpSampling: nearest, which repeats, or bilinear, which is a depthwise transposed convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects.mxnet_attributes import Attributes
from ...errors import ShapeError
from ...ops import conv_transpose, conv_transpose_backward
from .row import Array, Call, Shapes, row


def bilinear_keywords(p: Attributes) -> dict[str, Any]:
    """`conv_transpose`'s keywords for bilinear UpSampling, whose weight the caller gives."""
    return {"stride": p.scale, "padding": p.scale // 2, "groups": p.num_filter}


def _shapes(p: Attributes, inputs: Shapes) -> tuple[Shapes, Shapes]:
    first = inputs[0]
    reach = 2 * p.scale - p.scale % 2
    if p.sample_type == "bilinear":
        inputs = [first, (p.num_filter, 1, reach, reach)]
    if first is None or None in inputs:
        return inputs, []
    kept = p.sample_type == "bilinear" or p.multi_input_mode == "sum"
    channels = first[1] if kept else sum(s[1] for s in inputs if s is not None)
    return inputs, [(first[0], channels, *(size * p.scale for size in first[2:]))]


def _upsample(c: Call, *inputs: Array) -> Any:
    """Each input repeated to the first one's size times scale; several are joined or added."""
    if c.p.sample_type == "bilinear":
        return conv_transpose(*inputs, **bilinear_keywords(c.p))
    target, parts = [size * c.p.scale for size in inputs[0].shape[2:]], []
    for x in inputs:
        part = x
        for axis, size in enumerate(target, 2):
            if size % x.shape[axis]:
                raise ShapeError(f"axis {axis} of an input", str(x.shape), f"a divisor of {size}")
            part = part.repeat(size // x.shape[axis], axis)
        parts.append(part)
    return sum(parts) if c.p.multi_input_mode == "sum" else np.concatenate(parts, 1)


def _gradients(c: Call, grad: Array) -> list[Array | None]:
    if c.p.sample_type == "bilinear":
        found = conv_transpose_backward(grad, *c.inputs, **bilinear_keywords(c.p))
        return [found.x, found.weight]
    results: list[Array | None] = []
    channel = 0
    for x in c.inputs:
        n, channels, h, w = x.shape
        part = grad
        if c.p.multi_input_mode == "concat":
            part, channel = grad[:, channel : channel + channels], channel + channels
        blocks = part.reshape(n, channels, h, part.shape[2] // h, w, part.shape[3] // w)
        results.append(blocks.sum((3, 5)))
    return results


row(
    "UpSampling",
    _upsample,
    _gradients,
    inputs="arg{}",
    attributes="scale:count num_filter:size=0 sample_type:nearest|bilinear num_args:few=1 "
    "multi_input_mode:concat|sum=concat workspace:size=512",
    shapes=_shapes,
)
