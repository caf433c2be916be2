"""ConvTranspose nodes said in fewer words, for runtimes that lack some.

ONNX says crops (p, q) as pads (P, Q) and output padding a: p = P, q = Q - a. Runtimes agree on

    P >= 0,   Q >= 0,   0 <= a < s,   an output of at least one position.

Each pass works out a `Statement` of the node within that. What output padding cannot say is a
kernel with zero taps at its end, which make a longer result that holds the bias there:

    a < L            as it is, L the first output padding that is not allowed                  (1)
    a - Q < L        pads (P, max(Q - a, 0)), output padding max(a - Q, 0)                     (2)
    else             t = ceil((a - Q)/d) more taps, pads (P, d*t - (a - Q)), output padding 0  (3)

Multiplying by zero taps, and by the zeros in place of dilation, gives NaN where x is infinite or
NaN. A weight that has to change must be constant. Quantised layers stay quantised (see
`quantised`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod

import numpy as np

from ...arrays import Array
from ...dialects.limits import Padding
from ...geometry import Axis
from ..building import Builder, Crops
from ..graphs import plain
from ..nodes import ConvTransposeNode
from .base import Refusal, Rewriting
from .quantised import Operand, before, bias, finish, weight
from .sub_pixel import require_affordable

MOST_GROUPS = 256
"""More nodes than this serve nobody."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The axes and paddings of a node; `cuts` are taken off its result."""

    axes: tuple[Axis, ...]
    paddings: tuple[Padding, ...]
    cuts: Crops = ()


def normalise(conv: ConvTransposeNode) -> Rewriting:
    """auto_pad and output_shape as pads, and every attribute said: what all runtimes read alike."""
    statement = _statement(conv)
    wanted = attributes(statement.axes, conv.groups, statement.paddings)
    if {name: plain(one.value) for name, one in conv.node.attributes.items()} == wanted:
        raise Refusal("its attributes say everything already")
    return _rewriting(conv, statement)


def no_output_padding(conv: ConvTransposeNode) -> Rewriting:
    """Output padding as less padding at the end, or as zero taps: cases 2 and 3 with L = 1."""
    stated = any(conv.node.attributes.get_ints("output_padding", ()))
    if not stated and not any(padding.output_padding for padding in conv.paddings):
        raise Refusal("it has no output padding")
    return _rewriting(conv, _statement(conv, lambda _: 1))


def symmetric_pads(conv: ConvTransposeNode) -> Rewriting:
    """Unequal pads (P, Q) as (m, m), m = min(P, Q), and a Slice. Output padding stays."""
    if all(padding.begin == padding.end for padding in conv.paddings):
        raise Refusal("its pads are the same at both ends of every axis")
    return _padded_by(conv, lambda padding: min(padding.begin, padding.end))


def no_pads(conv: ConvTransposeNode) -> Rewriting:
    """Pads (P, Q) as a Slice. Output padding stays."""
    if not any(padding.begin or padding.end for padding in conv.paddings):
        raise Refusal("it has no pads")
    return _padded_by(conv, lambda _: 0)


def _padded_by(conv: ConvTransposeNode, amount: Callable[[Padding], int]) -> Rewriting:
    """The node with the same padding at both ends of an axis, and the rest as cuts."""
    said = _statement(conv)
    pairs = [(padding, amount(padding)) for padding in said.paddings]
    paddings = tuple(replace(p, begin=m, end=m) for p, m in pairs)
    cuts = [(p.begin - m, p.end - m) for p, m in pairs]
    return _rewriting(conv, Statement(said.axes, paddings, cuts))


def no_dilation(conv: ConvTransposeNode) -> Rewriting:
    """A kernel of k taps, d apart, as one of d*(k-1) + 1 taps with zeros between."""
    if all(axis.dilation == 1 for axis in conv.axes):
        raise Refusal("all its dilations are 1")
    said = _statement(conv)
    _require_small(conv, [axis.extent for axis in said.axes], weight(conv))
    dense = tuple(replace(axis, kernel=axis.extent, dilation=1) for axis in said.axes)
    w = _longer(conv, said)
    return _rewriting(conv, replace(said, axes=dense), w.changed(spread(w.array, said.axes)))


def to_rank(conv: ConvTransposeNode) -> Rewriting:
    """One axis as two: an axis of length 1 in front, where s = k = d = 1 and nothing is cropped."""
    if conv.rank >= 2:
        raise Refusal(f"it has {conv.rank} spatial axes, and 2 are enough")
    said = _statement(conv)
    _require_small(conv, [axis.kernel for axis in said.axes])
    axes, paddings = [Axis(size=1, kernel=1), *said.axes], [Padding(0, 0, 0), *said.paddings]
    w = _longer(conv, said)
    w = w.changed(np.expand_dims(w.array, 2))

    def write(builder: Builder) -> None:
        [x] = before(builder, conv.x, lambda v: [builder.squeeze(v, [2], undo=True)])
        operands = [x, w.write(builder, "weight"), conv.b]
        y = builder.deconv(operands, attributes(axes, conv.groups, paddings))
        finish(conv, builder, [y], lambda ys: builder.squeeze(ys[0], [2]))

    return write


def split_groups(conv: ConvTransposeNode) -> Rewriting:
    """One node per group: x, weight and bias split along channels, the results concatenated."""
    if conv.groups == 1:
        raise Refusal("it has one group")
    if conv.groups > MOST_GROUPS:
        raise Refusal(f"it has {conv.groups} groups; more than {MOST_GROUPS} nodes serve nobody")
    said = _statement(conv)
    _require_small(conv, [axis.kernel for axis in said.axes])
    w, b = _longer(conv, said), bias(conv)

    def write(builder: Builder) -> None:
        xs = before(builder, conv.x, lambda v: builder.split(v, conv.groups, 1))
        ws = [part.write(builder, "weight") for part in w.split(conv.groups)]
        bs = [part.write(builder, "bias") for part in b.split(conv.groups)] if b else []
        words = attributes(said.axes, 1, said.paddings)
        operands = zip_longest(xs, ws, bs)
        parts = [builder.deconv(one, words, heir=False) for one in operands]
        finish(conv, builder, parts, lambda ys: builder.op("Concat", ys, axis=1))

    return write


def attributes(axes: Sequence[Axis], groups: int, paddings: Sequence[Padding]) -> dict[str, object]:
    """All attributes of a ConvTranspose, with nothing left to its defaults."""
    return {
        "dilations": [axis.dilation for axis in axes],
        "group": groups,
        "kernel_shape": [axis.kernel for axis in axes],
        "output_padding": [padding.output_padding for padding in paddings],
        "pads": [*(p.begin for p in paddings), *(p.end for p in paddings)],
        "strides": [axis.stride for axis in axes],
    }


def spread(w: Array, axes: Sequence[Axis]) -> Array:
    """The weight with zeros between its taps.

    >>> from upconv.geometry import Axis
    >>> spread(np.array([[[1.0, 2.0]]]), [Axis(size=5, kernel=2, dilation=3)])
    array([[[1., 0., 0., 2.]]])
    """
    wide = np.zeros((*w.shape[:2], *(axis.extent for axis in axes)), w.dtype)
    every = tuple(slice(None, None, axis.dilation) for axis in axes)
    wide[(slice(None), slice(None), *every)] = w
    return wide


def _statement(
    conv: ConvTransposeNode, limit: Callable[[Axis], int] = lambda axis: axis.stride
) -> Statement:
    """What the node says, with output padding below `limit` on every axis: cases 1 to 3."""
    said = [_said(*one, limit(one[0])) for one in zip(conv.axes, conv.paddings, strict=True)]
    return Statement(tuple(axis for axis, _ in said), tuple(padding for _, padding in said))


def _said(axis: Axis, padding: Padding, limit: int) -> tuple[Axis, Padding]:
    if padding.output_padding < limit:
        return axis, padding
    lacking = padding.output_padding - padding.end
    if lacking < limit:
        return axis, Padding(padding.begin, max(-lacking, 0), max(lacking, 0))
    dilation = axis.dilation if axis.kernel > 1 else 1  # of one tap it means nothing
    more = -(-lacking // dilation)
    end = more * dilation - lacking
    longer = replace(axis, kernel=axis.kernel + more, dilation=dilation, crop_end=end)
    return longer, Padding(padding.begin, end, 0)


def _rewriting(conv: ConvTransposeNode, said: Statement, w: Operand | None = None) -> Rewriting:
    """The node said so, with another weight if one is given, and what is cut off its result."""
    _require_small(conv, [axis.kernel for axis in said.axes])
    if w is None and said.axes != conv.axes:
        w = _longer(conv, said)

    def write(builder: Builder) -> None:
        value = conv.w if w is None else w.write(builder, "weight")
        words = attributes(said.axes, conv.groups, said.paddings)
        y = builder.deconv([conv.x, value, conv.b], words)
        if any(map(any, said.cuts)):
            finish(conv, builder, [y], lambda ys: builder.cut(ys[0], said.cuts))
        else:
            builder.replace(conv.y, y, [conv.node])

    return write


def _require_small(
    conv: ConvTransposeNode, kernel: Sequence[int], w: Operand | None = None
) -> None:
    """`Refusal` for an empty output, and for a kernel of much more taps than there were."""
    for i, (axis, size) in enumerate(zip(conv.axes, conv.sizes, strict=True)):
        if size is not None and axis.out < 1:
            raise Refusal(f"along axis {i} its output is empty")
    per_tap = 0 if w is None else w.array.itemsize * prod(w.array.shape[:2])
    ratio = prod(kernel) / prod(axis.kernel for axis in conv.axes)
    require_affordable(ratio, prod(kernel) * per_tap)


def _longer(conv: ConvTransposeNode, said: Statement) -> Operand:
    """The weight with zeros for the taps that the statement has more."""
    w, pairs = weight(conv), zip(said.axes, conv.axes, strict=True)
    more = [(0, 0), (0, 0), *((0, longer.kernel - axis.kernel) for longer, axis in pairs)]
    return w.changed(np.pad(w.array, more))
