"""Rewrite ConvTranspose nodes with fewer attributes, for runtimes that lack some.

Each pass computes the axes of an equivalent node, and how to crop its result. In ONNX, crops (p, q)
are pads (p, max(q, 0)) and output padding max(-q, 0), if the output has at least one position.
Runtimes agree on output padding below the stride. To write more, or to write none at all, zero taps
at the kernel's end lengthen the result by positions that hold the bias:

    t = ceil(-q/d) more taps, crops (p, q + d*t)                                               (1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from ...dialects import Layer, to_onnx
from ...dialects.onnx import Rule
from ...geometry import Axis
from ..building import Builder, Crops
from ..nodes import ConvTransposeNode
from .base import Refusal, Rewriting
from .quantised import Operand, before, bias, finish, weight
from .sub_pixel import require_affordable

MAX_GROUPS = 256  # each becomes a node; more would be useless

Axes = Sequence[Axis]


def normalise(conv: ConvTransposeNode) -> Rewriting:
    """Write auto_pad and output_shape as pads, and state all attributes: runtimes then agree."""
    axes, stated = _axes(conv), conv.node.attributes
    if stated.keys() == attributes(axes, conv.groups).keys():
        pairs = zip(stated["output_padding"].as_ints(), axes, strict=True)
        if all(extra < axis.stride for extra, axis in pairs):
            raise Refusal("its attributes already say everything")
    return _rewriting(conv, axes)


def no_output_padding(conv: ConvTransposeNode) -> Rewriting:
    """Write output padding as less padding at the end, or as zero taps (1)."""
    stated = any(conv.node.attributes.get_ints("output_padding", ()))
    if not stated and not any(axis.crop_end < 0 for axis in conv.axes):
        raise Refusal("it has no output padding")
    return _rewriting(conv, _axes(conv, padding=False))


def symmetric_pads(conv: ConvTransposeNode) -> Rewriting:
    """Write unequal pads (P, Q) as (m, m), m = min(P, Q), and a Slice; keep output padding."""
    stated = list(conv.node.attributes.get_ints("pads", ()))
    same = stated != [] and stated == stated[: conv.rank] * 2
    if same or all(p == max(q, 0) for p, q in conv.layer.crops):
        raise Refusal("its pads are the same at both ends of every axis")
    return _padded_by(conv, min)


def no_pads(conv: ConvTransposeNode) -> Rewriting:
    """Write pads (P, Q) as a Slice; keep output padding."""
    if all(p == 0 and q <= 0 for p, q in conv.layer.crops):
        raise Refusal("it has no pads")
    return _padded_by(conv, lambda *_: 0)


def _padded_by(conv: ConvTransposeNode, amount: Callable[[int, int], int]) -> Rewriting:
    axes, cuts = [], []
    for axis in _axes(conv):
        begin, end = axis.crop_begin, max(axis.crop_end, 0)
        m = amount(begin, end)
        axes.append(replace(axis, crop_begin=m, crop_end=m + min(axis.crop_end, 0)))
        cuts.append((begin - m, end - m))
    return _rewriting(conv, axes, cuts=cuts)


def no_dilation(conv: ConvTransposeNode) -> Rewriting:
    """Write a kernel of k taps, d apart, as a kernel of d*(k-1) + 1 taps with zeros between."""
    if all(axis.dilation == 1 for axis in conv.axes):
        raise Refusal("all its dilations are 1")
    axes, w = _axes(conv), weight(conv)
    per_tap = w.array.itemsize * prod(w.array.shape[:2])
    _require_small(conv, [axis.extent for axis in axes], per_tap)
    dense = [replace(axis, kernel=axis.extent, dilation=1) for axis in axes]
    w = _longer(conv, axes)
    dilated = np.zeros((*w.array.shape[:2], *(axis.extent for axis in axes)), w.array.dtype)
    every = tuple(slice(None, None, axis.dilation) for axis in axes)
    dilated[(slice(None), slice(None), *every)] = w.array
    return _rewriting(conv, dense, w.changed(dilated))


def to_rank(conv: ConvTransposeNode) -> Rewriting:
    """Write one axis as two, the first of length 1, with s = k = d = 1 and no crop."""
    if conv.rank >= 2:
        raise Refusal(f"it has {conv.rank} spatial axes, and 2 are enough")
    axes = _axes(conv)
    w = _longer(conv, axes)
    w = w.changed(np.expand_dims(w.array, 2))
    words = attributes([Axis(size=1, kernel=1), *axes], conv.groups)

    def write(builder: Builder) -> None:
        [x] = before(builder, conv.x, lambda v: [builder.squeeze(v, [2], undo=True)])
        y = builder.deconv([x, w.write(builder, "weight"), conv.b], words)
        finish(conv, builder, [y], lambda ys: builder.squeeze(ys[0], [2]))

    return write


def split_groups(conv: ConvTransposeNode) -> Rewriting:
    """Write one node per group: split x, weight and bias by channels, and concatenate."""
    if conv.groups == 1:
        raise Refusal("it has one group")
    if conv.groups > MAX_GROUPS:
        raise Refusal(f"it has {conv.groups} groups; more than {MAX_GROUPS} nodes are useless")
    axes = _axes(conv)
    w, b, words = _longer(conv, axes), bias(conv), attributes(axes, 1)

    def write(builder: Builder) -> None:
        xs = before(builder, conv.x, lambda v: builder.split(v, conv.groups, 1))
        ws = [part.write(builder, "weight") for part in w.split(conv.groups)]
        bs = [part.write(builder, "bias") for part in b.split(conv.groups)] if b else []
        parts = [builder.deconv(one, words, heir=False) for one in zip_longest(xs, ws, bs)]
        finish(conv, builder, parts, lambda ys: builder.op("Concat", ys, axis=1))

    return write


def attributes(axes: Axes, groups: int) -> dict[str, Any]:
    """Return a ConvTranspose's attributes; raise `TranslationError` for impossible crops."""
    return to_onnx(Layer(tuple(axes), groups), rule=Rule.ONNXRUNTIME.value)


def _axes(conv: ConvTransposeNode, padding: bool = True) -> list[Axis]:
    """Return the node's axes with output padding below the stride, or with none, by (1)."""
    axes = []
    for axis in conv.axes:
        if -axis.crop_end >= (axis.stride if padding else 1):
            d = axis.dilation if axis.kernel > 1 else 1  # dilation has no effect on a single tap
            t = -(axis.crop_end // d)
            crop_end = axis.crop_end + d * t
            axis = replace(axis, kernel=axis.kernel + t, dilation=d, crop_end=crop_end)
        axes.append(axis)
    return axes


def _rewriting(
    conv: ConvTransposeNode, axes: Axes, w: Operand | None = None, cuts: Crops = ()
) -> Rewriting:
    """Write the node with these axes and the weight `w`, if any; cut `cuts` off its result."""
    if w is None and any(a.kernel > b.kernel for a, b in zip(axes, conv.axes, strict=True)):
        w = _longer(conv, axes)
    words = attributes(axes, conv.groups)

    def write(builder: Builder) -> None:
        value = conv.w if w is None else w.write(builder, "weight")
        y = builder.deconv([conv.x, value, conv.b], words)
        if any(map(any, cuts)):
            finish(conv, builder, [y], lambda ys: builder.cut(ys[0], cuts))
        else:
            builder.replace(conv.y, y, [conv.node])

    return write


def _require_small(conv: ConvTransposeNode, kernel: Sequence[int], per_tap: int = 0) -> None:
    """Raise `Refusal` for a kernel with far more taps than before, or with many bytes."""
    ratio = prod(kernel) / prod(axis.kernel for axis in conv.axes)
    require_affordable(ratio, prod(kernel) * per_tap)


def _longer(conv: ConvTransposeNode, axes: Axes) -> Operand:
    """Append zeros to the weight for the additional taps of these axes."""
    _require_small(conv, [axis.kernel for axis in axes])
    w, pairs = weight(conv), zip(axes, conv.axes, strict=True)
    more = [(0, 0), (0, 0), *((0, longer.kernel - axis.kernel) for longer, axis in pairs)]
    return w.changed(np.pad(w.array, more))
