"""Pooling.

Along an axis, `pooling_convention` "valid" has floor((i + 2p - k) / s) + 1 outputs, "full" rounds
up, and "same" has ceil(i / s). A window that leaves the padded data counts what lies inside. An
average divides by the positions of the window within the padded data, or, without
`count_include_pad`, by those within the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ...dialects.mxnet_attributes import Attributes
from ...errors import ArgumentError, ShapeError
from .row import Array, Call, Shape, Shapes, row


class _Windows:
    """The windows of a pooling over spatial sizes: where each tap of every window reads."""

    def __init__(self, p: Attributes, size: Shape) -> None:
        ones = (1,) * len(size)
        self.size, self.convention = size, p.pooling_convention
        self.kernel = size if p.global_pool else p.kernel
        self.stride = ones if p.global_pool else p.stride or ones
        self.pad = (0,) * len(size) if p.global_pool else p.pad or (0,) * len(size)
        for name in ("kernel", "stride", "pad"):
            value, low = getattr(self, name), int(name != "pad")
            if len(value) != len(size) or min(value) < low:
                raise ArgumentError(name, str(value), f"{len(size)} integers >= {low}")
        self.out = tuple(map(self._out, range(len(size))))
        reach = zip(self.out, self.stride, self.kernel, self.pad, size, strict=True)
        self.after = tuple(max(0, (o - 1) * s + k - p_ - i) for o, s, k, p_, i in reach)

    def _out(self, a: int) -> int:
        size, stride = self.size[a], self.stride[a]
        room = size + 2 * self.pad[a] - self.kernel[a]
        if self.convention == "same":
            return -(-size // stride)
        if room < 0:
            raise ShapeError("kernel", str(self.kernel), f"one that fits in {self.size} padded")
        return (-(-room // stride) if self.convention == "full" else room // stride) + 1

    def padded(self, data: Array, value: Any) -> Array:
        """Data with a border of `value`, so wide that every tap of every window is inside."""
        width = [(0, 0), (0, 0), *zip(self.pad, self.after, strict=True)]
        return np.pad(data, width, constant_values=value)

    def taps(self) -> Iterator[Any]:
        """For each tap, the index of what all windows read there, in padded data."""
        for tap in product(*map(range, self.kernel)):
            rows = zip(tap, self.out, self.stride, strict=True)
            yield (..., *(slice(t, t + (o - 1) * s + 1, s) for t, o, s in rows))

    def counts(self, p: Attributes) -> Any:
        """How many positions an average divides by, for each window; 1 for other poolings."""
        total = np.ones(self.out if p.pool_type == "avg" else (), np.int64)
        if p.pool_type == "avg":
            border = 0 if p.count_include_pad is False else 1
            for a, (k, s, pad) in enumerate(zip(self.kernel, self.stride, self.pad, strict=True)):
                begin = np.arange(self.out[a]) * s - pad
                end = np.minimum(begin + k, self.size[a] + pad * border)
                inside = end - np.maximum(begin, -pad * border)
                total *= inside.reshape((-1,) + (1,) * (len(self.out) - a - 1))
        return np.maximum(total, 1)


def _first(p: Attributes, x: Array) -> Array:
    """Channels first, as the windows have them."""
    return np.moveaxis(x, -1, 1) if p.layout is not None and p.layout[-1] == "C" else x


def _as_given(p: Attributes, x: Array) -> Array:
    return np.moveaxis(x, 1, -1) if p.layout is not None and p.layout[-1] == "C" else x


def _shapes(p: Attributes, inputs: Shapes) -> tuple[Shapes, Shapes]:
    data = inputs[0]
    if data is None:
        return inputs, []
    last = p.layout is not None and p.layout[-1] == "C"
    size = data[1:-1] if last else data[2:]
    out = _Windows(p, tuple(entry or max(p.kernel, default=1) for entry in size)).out
    out = tuple(o if i or p.global_pool else 0 for i, o in zip(size, out, strict=True))
    return inputs, [(data[0], *out, data[-1]) if last else (*data[:2], *out)]


def _pool(c: Call, data: Array) -> Array:
    data = _first(c.p, data)
    windows = _Windows(c.p, data.shape[2:])
    if c.p.pool_type == "max":
        padded = windows.padded(data, -np.inf if data.dtype.kind == "f" else data.min(initial=0))
        result = np.full((*data.shape[:2], *windows.out), padded.min(initial=np.inf), data.dtype)
        for tap in windows.taps():
            np.maximum(result, padded[tap], out=result)
        return _as_given(c.p, result)
    power = (c.p.p_value or 2) if c.p.pool_type == "lp" else 1
    padded = windows.padded(data**power, 0)  # with its sign, where the power is odd
    total = sum(padded[tap] for tap in windows.taps()) / windows.counts(c.p)
    root = np.sign(total) * np.abs(total) ** (1 / power)
    return _as_given(c.p, np.asarray(root if power > 1 else total, data.dtype))


def _pool_gradient(c: Call, grad: Array) -> tuple[Array]:
    data, out, grad = (_first(c.p, x) for x in (c.inputs[0], c.outputs[0], grad))
    windows = _Windows(c.p, data.shape[2:])
    padded = windows.padded(data, -np.inf if c.p.pool_type == "max" else 0)
    result = np.zeros(padded.shape, data.dtype)
    grad = grad / windows.counts(c.p)
    free = np.ones(out.shape, bool)  # windows whose first maximum has not been met yet
    for tap in windows.taps():
        share = grad
        if c.p.pool_type == "max":
            hit = free & (padded[tap] == out)
            free &= ~hit
            share = np.where(hit, grad, 0)
        elif c.p.pool_type == "lp":
            part, power = padded[tap], c.p.p_value or 2
            share = grad * part ** (power - 1) * np.where(out == 0, 0, out ** (1.0 - power))
        result[tap] += share
    inner = (slice(b, b + i) for b, i in zip(windows.pad, windows.size, strict=True))
    return (_as_given(c.p, result[(slice(None), slice(None), *inner)]),)


row(
    "Pooling _npx_pooling Pooling_v1",
    _pool,
    _pool_gradient,
    attributes="kernel:shape=() pool_type:max|avg|sum|lp=max global_pool:bool=False "
    "cudnn_off:bool=False pooling_convention:valid|full|same=valid stride:shape=() pad:shape=() "
    "p_value:count?=None count_include_pad:bool?=None layout:NCW|NCHW|NCDHW|NWC|NHWC|NDHWC?=None",
    shapes=_shapes,
)
