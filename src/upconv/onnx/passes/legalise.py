"""ConvTranspose nodes said in fewer words, for runtimes that lack some.

ONNX says crops (p, q) as pads (P, Q) and output padding a: p = P, q = Q - a. Runtimes agree on

    P >= 0,   Q >= 0,   0 <= a < s,   an output of at least one position.

Each pass works out a `Statement` of the node within that. What output padding cannot say is a
kernel with zero taps at its end, which make a longer result that holds the bias there:

    a < L            as it is, L the first output padding that is not allowed                  (1)
    a - Q < L        pads (P, max(Q - a, 0)), output padding max(a - Q, 0)                     (2)
    else             t = ceil((a - Q)/d) more taps, pads (P, d*t - (a - Q)), output padding 0  (3)

Multiplying by zero taps, and by the zeros in place of dilation, gives NaN where x is infinite or
NaN. Weights that are computed are padded, reshaped and split by nodes; `no_dilation` needs a
constant. Quantised layers stay quantised (see `quantised`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...dialects.limits import Padding
from ...geometry import Axis
from ..building import Builder, Crops
from ..graphs import plain
from ..nodes import ConvTransposeNode
from .base import Refusal, Rewriting
from .quantised import Operand, before, finish, known, weight
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
    said, w = _statement(conv), weight(conv)
    _require_small(conv, [axis.extent for axis in said.axes], w)
    dense = tuple(replace(axis, kernel=axis.extent, dilation=1) for axis in said.axes)
    longer = np.pad(w.array, _more_taps(conv, said))
    return _rewriting(conv, replace(said, axes=dense), w.changed(spread(longer, said.axes)))


def to_rank(conv: ConvTransposeNode, rank: int = 2) -> Rewriting:
    """Axes of length 1 in front, where s = k = d = 1 and nothing is cropped."""
    if conv.rank >= rank:
        raise Refusal(f"it has {conv.rank} spatial axes, and {rank} are asked for")
    said, new = _statement(conv), list(range(2, 2 + rank - conv.rank))
    _require_small(conv, [axis.kernel for axis in said.axes])
    axes = [*(Axis(size=1, kernel=1) for _ in new), *said.axes]
    paddings = [*(Padding(0, 0, 0) for _ in new), *said.paddings]

    def write(builder: Builder) -> None:
        w = _longer(conv, builder, said)
        if isinstance(w, Operand):
            w = w.changed(np.expand_dims(w.array, new)).write(builder, "weight")
        else:
            w = builder.squeeze(w, new, undo=True)
        [x] = before(builder, conv.x, lambda v: [builder.squeeze(v, new, undo=True)])
        y = builder.deconv([x, w, conv.b], attributes(axes, conv.groups, paddings))
        finish(conv, builder, [y], lambda ys: builder.squeeze(ys[0], new))

    return write


def split_groups(conv: ConvTransposeNode, most: int = MOST_GROUPS) -> Rewriting:
    """One node per group: x, weight and bias split along channels, the results concatenated."""
    if conv.groups == 1:
        raise Refusal("it has one group")
    if conv.groups > most:
        raise Refusal(f"it has {conv.groups} groups; more than {most} nodes serve nobody")
    said = _statement(conv)
    _require_small(conv, [axis.kernel for axis in said.axes])

    def write(builder: Builder) -> None:
        xs = before(builder, conv.x, lambda v: builder.split(v, conv.groups, 1))
        ws = _parts(builder, _longer(conv, builder, said), conv.groups, "weight")
        bs: Sequence[ir.Value | None] = [None] * conv.groups
        if conv.b is not None:
            bs = _parts(builder, known(conv.b), conv.groups, "bias")
        words = attributes(said.axes, 1, said.paddings)
        parts = [builder.deconv(one, words, heir=False) for one in zip(xs, ws, bs, strict=True)]
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


def _more_taps(conv: ConvTransposeNode, said: Statement) -> list[tuple[int, int]]:
    """Zeros to put around a weight for the taps that the statement has more."""
    pairs = zip(said.axes, conv.axes, strict=True)
    return [(0, 0), (0, 0), *((0, longer.kernel - axis.kernel) for longer, axis in pairs)]


def _rewriting(conv: ConvTransposeNode, said: Statement, w: Operand | None = None) -> Rewriting:
    """The node said so, with another weight if one is given, and what is cut off its result."""
    _require_small(conv, [axis.kernel for axis in said.axes])

    def write(builder: Builder) -> None:
        value = conv.w
        if w is not None or said.axes != conv.axes:
            found = w or _longer(conv, builder, said)
            value = found.write(builder, "weight") if isinstance(found, Operand) else found
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


def _longer(conv: ConvTransposeNode, builder: Builder, said: Statement) -> Operand | ir.Value:
    """The weight with the taps that the statement has more; a value where it is computed."""
    more = _more_taps(conv, said)
    try:
        w = weight(conv)
    except Refusal:
        return builder.pad(conv.w, more)
    return w.changed(np.pad(w.array, more))


def _parts(builder: Builder, whole: Operand | ir.Value, count: int, hint: str) -> list[ir.Value]:
    """A weight or bias in equal parts along axis 0."""
    if isinstance(whole, ir.Value):
        return list(builder.split(whole, count, 0))
    parts = np.split(whole.array, count)
    along = [lambda v, i=i: np.split(v, count)[i] if whole.axis == 0 else v for i in range(count)]
    made = [whole.changed(*one) for one in zip(parts, along, strict=True)]
    return [part.write(builder, hint) for part in made]
