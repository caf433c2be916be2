"""Pooling, and UpSampling: nearest or bilinear; the latter is a depthwise transposed convolution.

Along an axis, `pooling_convention` "valid" has floor((i + 2p - k) / s) + 1 outputs, "full" rounds
up, and "same" has ceil(i / s). A window that extends beyond the padded data is cut off there. An
average divides by the window's positions within the padded data. Without `count_include_pad` it
divides by the positions within the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...dialects.mxnet_attributes import Attributes
from ...errors import ArgumentError, ShapeError
from ...ops import conv_transpose, conv_transpose_backward
from .table import Array, Call, Shape, Shapes, channels_last, define, following


class Windows:
    """The windows of a pooling over data of a spatial size."""

    def __init__(self, p: Attributes, size: Shape) -> None:
        ones, zeros = (1,) * len(size), (0,) * len(size)
        self.kernel: Shape = size if p.global_pool else p.kernel
        self.stride: Shape = ones if p.global_pool else p.stride or ones
        self.pad: Shape = zeros if p.global_pool else p.pad or zeros
        for name, low in (("kernel", 1), ("stride", 1), ("pad", 0)):
            value = getattr(self, name)
            if len(value) != len(size) or min(value) < low:
                raise ArgumentError(name, str(value), f"{len(size)} integers >= {low}")
        axes = [*zip(size, self.kernel, self.stride, self.pad, strict=True)]
        self.p, self.size = p, size
        self.out = tuple(self._out(*axis) for axis in axes)
        reach = zip(self.out, axes, strict=True)
        self.after = tuple(max(0, (o - 1) * s + k - pad - i) for o, (i, k, s, pad) in reach)

    def _out(self, size: int, kernel: int, stride: int, pad: int) -> int:
        room = size + 2 * pad - kernel
        if self.p.pooling_convention == "same":
            return -(-size // stride)
        if room < 0:
            raise ShapeError("kernel", str(self.kernel), f"one that fits in {self.size} padded")
        return (-(-room // stride) if self.p.pooling_convention == "full" else room // stride) + 1

    def padded(self, data: Array, value: Any) -> Array:
        """Add a border of `value` to data, wide enough for every window."""
        width = [(0, 0), (0, 0), *zip(self.pad, self.after, strict=True)]
        return np.pad(data, width, constant_values=value)

    def taps(self, padded: Array) -> Iterator[Array]:
        """Yield a view for each tap: all windows' elements at this tap."""
        axes = tuple(range(2, padded.ndim))
        views = sliding_window_view(padded, self.kernel, axes, writeable=True)
        begins = zip(self.out, self.stride, strict=True)
        views = views[(slice(None), slice(None), *(slice(0, o * s, s) for o, s in begins))]
        return (views[(..., *tap)] for tap in np.ndindex(self.kernel))

    def counts(self) -> Any:
        """Return an average's divisor for each window; 1 for other poolings."""
        if self.p.pool_type != "avg":
            return 1
        counted = self.padded(np.zeros((1, 1, *self.size), np.int64), 0)
        pads = (0 if self.p.count_include_pad is False else pad for pad in self.pad)
        axes = zip(self.pad, self.size, pads, strict=True)
        part: Any = (..., *(slice(begin - pad, begin + i + pad) for begin, i, pad in axes))
        counted[part] = 1
        return np.maximum(sum(self.taps(counted)), 1)


def _first(p: Attributes, x: Array) -> Array:
    """Return data with the channels as axis 1."""
    return np.moveaxis(x, -1, 1) if channels_last(p) else x


def _as_given(p: Attributes, x: Array) -> Array:
    return np.moveaxis(x, 1, -1) if channels_last(p) else x


def _out(p: Attributes, data: Shape) -> Shapes:
    size = data[1:-1] if channels_last(p) else data[2:]
    out = Windows(p, tuple(entry or max(p.kernel, default=1) for entry in size)).out
    out = tuple(o if i or p.global_pool else 0 for i, o in zip(size, out, strict=True))
    return [(data[0], *out, data[-1]) if channels_last(p) else (*data[:2], *out)]


def _pool(c: Call, data: Array) -> Array:
    data = _first(c.p, data)
    windows = Windows(c.p, data.shape[2:])
    if c.p.pool_type == "max":
        padded = windows.padded(data, -np.inf if data.dtype.kind == "f" else data.min(initial=0))
        taps = windows.taps(padded)
        result = next(taps).copy()
        for part in taps:
            np.maximum(result, part, out=result)
        return _as_given(c.p, result)
    total = sum(windows.taps(windows.padded(data, 0))) / windows.counts()
    return _as_given(c.p, np.asarray(total, data.dtype))


def _pool_gradient(c: Call, grad: Array) -> tuple[Array]:
    data, out, grad = (_first(c.p, x) for x in (c.inputs[0], c.outputs[0], grad))
    windows = Windows(c.p, data.shape[2:])
    padded = windows.padded(data, -np.inf if c.p.pool_type == "max" else 0)
    result = np.zeros(padded.shape, data.dtype)
    share = grad / windows.counts()
    free = np.ones(out.shape, bool)  # windows whose first maximum is still to come
    for part, target in zip(windows.taps(padded), windows.taps(result), strict=True):
        if c.p.pool_type == "max":
            hit = free & (part == out)
            free &= ~hit
            share = np.where(hit, grad, 0)
        target += share
    inner: Any = (slice(b, b + i) for b, i in zip(windows.pad, windows.size, strict=True))
    return (_as_given(c.p, result[(..., *inner)]),)


define(
    "Pooling _npx_pooling Pooling_v1",
    _pool,
    _pool_gradient,
    attributes="kernel:shape=() pool_type:max|avg|sum=max global_pool:bool=False "
    "cudnn_off:bool=False pooling_convention:valid|full|same=valid stride:shape=() pad:shape=() "
    "p_value:count?=None count_include_pad:bool?=None layout:NCW|NCHW|NCDHW|NWC|NHWC|NDHWC?=None",
    shapes=following(lambda p, data: [], _out),
)


def bilinear_keywords(p: Attributes) -> dict[str, Any]:
    """Return the keywords of `conv_transpose` for bilinear UpSampling, which has a weight."""
    return {"stride": p.scale, "padding": p.scale // 2, "groups": p.num_filter}


def _upsample(c: Call, x: Array, *weight: Array) -> Array:
    if weight:
        return conv_transpose(x, *weight, **bilinear_keywords(c.p))
    return x.repeat(c.p.scale, 2).repeat(c.p.scale, 3)


def _upsample_gradients(c: Call, grad: Array) -> list[Array | None]:
    x, *weight = c.inputs
    if weight:
        gradients = conv_transpose_backward(grad, x, *weight, **bilinear_keywords(c.p))
        return [gradients.x, gradients.weight]
    (n, channels, h, w), scale = x.shape, c.p.scale
    return [grad.reshape(n, channels, h, scale, w, scale).sum((3, 5))]


define(
    "UpSampling",
    _upsample,
    _upsample_gradients,
    inputs="data weight",
    attributes="scale:count num_filter:size=0 sample_type:nearest|bilinear num_args:few=1 "
    "multi_input_mode:concat|sum=concat workspace:size=512",
    shapes=following(
        lambda p, x: [(p.num_filter, 1, *[2 * p.scale - p.scale % 2] * 2)],
        lambda p, x: [(*x[:2], *(size * p.scale for size in x[2:]))],
    ),
    absent=lambda p: () if p.sample_type == "bilinear" else ("weight",),
)
