"""Rewrite a transposed convolution exactly as ordinary convolutions and a shuffle.

    y = cut(shuffle(conv(x, W) + B))          W (s^n*M, C/g, *K),  B the bias, once per phase

`upconv.subpixel` computes K, the zeros around x and the cut along each axis; weights without a tap
are 0. A node has these forms:

    unfolded    one convolution with the fewest taps (K = 1 for k == s); surplus results are cut off
    folded      one convolution whose result begins where y does, so that only its end is cut
    polyphase   one convolution per phase, side by side, each with the taps of its phase

Cases: 1. All strides are 1: nothing to shuffle; the kernel is reversed. 2. Two axes of equal
stride: the operator DepthToSpace. 3. Any other rank or strides: Reshape, Transpose, Reshape. 4.
Groups: a channel's phases stay together (CRD), and so do a group's channels. 5. Crops beyond the
kernel need a negative number of zeros: x is cut first. 6. A following activation moves before the
shuffle, where runtimes fuse it with the convolution. 7. Quantized models (see `quantised`): the
weight's integers are permuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...subpixel import SubPixel, folded, thriftiest, waste
from ..building import Builder
from ..nodes import ConvTransposeNode, known_sizes
from .base import Refusal, Rewriting
from .quantised import Operand, before, bias, finish, weight

MAX_WASTE = 64.0  # multiplications per necessary one; beyond this, no runtime is faster
MAX_BYTES = 1 << 30  # of a rewritten weight; the limit of ONNX files is twice that
MAX_PHASES = 1 << 10  # which become as many convolutions, or channels per channel
MAX_STEPS = 1 << 20
"""Maximum phases times the positions that they and the kernel span, per axis; more take too
long."""

Forms = tuple[SubPixel, ...]  # one convolution: a form per axis


class Form(Enum):
    """The form of the convolutions; LEAST is folded or unfolded, whichever wastes less."""

    LEAST = "least"
    UNFOLDED = "unfolded"
    FOLDED = "folded"
    POLYPHASE = "polyphase"


def sub_pixel(conv: ConvTransposeNode, form: Form = Form.LEAST) -> Rewriting:
    """Write the node as convolutions and a shuffle (cases 2 to 7)."""
    if all(axis.stride == 1 for axis in conv.axes):
        raise Refusal("all its strides are 1, so there is nothing to shuffle: see replace_deconv")
    _require_few_phases(conv)
    if form is Form.POLYPHASE:
        per_axis = [[SubPixel.of_phase(axis, r) for r in range(axis.stride)] for axis in conv.axes]
        return _rewriting(conv, list(product(*per_axis)))
    plain, least = (tuple(map(of, conv.axes)) for of in (folded, thriftiest))
    if form is Form.FOLDED and plain == least:
        raise Refusal("folded and unfolded are the same here: see sub_pixel:unfolded")
    equal = waste(conv.axes, plain) <= waste(conv.axes, least)
    if form is Form.FOLDED or (form is Form.LEAST and equal):
        least = plain
    return _rewriting(conv, [least])


def replace_deconv(conv: ConvTransposeNode) -> Rewriting:
    """Write the node as a convolution, kernel reversed, with padding d*(k-1) - crop (case 1)."""
    if any(axis.stride > 1 for axis in conv.axes):
        raise Refusal(f"its strides are {[a.stride for a in conv.axes]}, not all 1: see sub_pixel")
    return _rewriting(conv, [tuple(map(folded, conv.axes))])


def _rewriting(conv: ConvTransposeNode, pieces: Sequence[Forms]) -> Rewriting:
    w, b = weight(conv), bias(conv)
    sizes = zip(conv.sizes, conv.axes, strict=True)
    if any(size is not None and axis.out < 1 for size, axis in sizes):
        raise Refusal("its output is empty")
    for forms in pieces:
        for i, (form, size) in enumerate(zip(forms, conv.sizes, strict=True)):
            if size is not None and not form.fits(size):
                raise Refusal(
                    f"along axis {i} its input of {size} is too small: the convolution cuts"
                    f" {form.zeros} positions and needs {form.kernel} taps"
                )
        taps = prod(form.phases * form.kernel for form in forms)
        per_tap = w.array.itemsize * prod(w.array.shape[:2])
        require_affordable(waste(conv.axes, forms), taps * per_tap)
    together, cuts = len(pieces) == 1, [form.cut for form in pieces[0]]
    strides, channels = [axis.stride for axis in conv.axes], conv.groups * w.array.shape[1]
    [batch, *_] = known_sizes(conv.x) or [None]

    def write(builder: Builder) -> None:
        def side_by_side(ys: Sequence[ir.Value]) -> ir.Value:
            x = ys[0] if together else builder.op("Concat", ys, axis=1)
            mode = "CRD" if together else "DCR"  # case 4
            y = builder.shuffle(x, strides, channels, mode, may_be_empty=not batch)
            return builder.cut(y, cuts)

        parts = [_convolution(conv, builder, forms, w, b) for forms in pieces]
        if max(strides) == 1:  # then nothing is cut
            builder.replace(conv.y, parts[0], [conv.node])
        else:
            finish(conv, builder, parts, side_by_side)

    return write


def _require_few_phases(conv: ConvTransposeNode) -> None:
    """Refuse large strides before listing taps, since a model can state any stride."""
    phases = prod(axis.stride for axis in conv.axes)
    if phases > MAX_PHASES:
        raise Refusal(f"it has {phases} phases, and more than {MAX_PHASES} would be useless")
    for i, axis in enumerate(conv.axes):
        if axis.stride > 1 and axis.stride * (axis.stride + axis.extent) > MAX_STEPS:
            raise Refusal(
                f"along axis {i} its kernel spans {axis.extent} positions, too many to list"
            )


def require_affordable(ratio: float, nbytes: int) -> None:
    """Raise `Refusal` for too many unnecessary multiplications or too large a weight."""
    if ratio > MAX_WASTE:
        raise Refusal(f"it would need {ratio:.0f} multiplications for each necessary one")
    if nbytes > MAX_BYTES:
        raise Refusal(f"its weight would take {nbytes} bytes")


def _convolution(
    conv: ConvTransposeNode, builder: Builder, forms: Forms, w: Operand, b: Operand | None
) -> ir.Value:
    phases = prod(form.phases for form in forms)
    packed_w = w.changed(
        packed(w.array, conv.groups, forms),
        lambda v: np.tile(np.repeat(v, phases), conv.groups),  # all groups share their scales
        axis=0,
    )
    x = conv.x
    cuts = [(max(-begin, 0), max(-end, 0)) for begin, end in (form.zeros for form in forms)]
    if any(map(any, cuts)):  # case 5
        [x] = before(builder, x, lambda v: [builder.cut(v, cuts)])
    operands = [x, packed_w.write(builder, "weight"), conv.b]
    if b is not None and phases > 1:  # repeat each number for the phases of its channel
        repeated = b.changed(np.repeat(b.array, phases), lambda v: np.repeat(v, phases))
        operands[2] = repeated.write(builder, "bias")
    return builder.conv(
        operands,
        zeros=[(max(form.zeros[0], 0), max(form.zeros[1], 0)) for form in forms],
        dilations=[form.dilation for form in forms],
        groups=conv.groups,
    )


def packed(w: Array, groups: int, forms: Sequence[SubPixel]) -> Array:
    """Rearrange the weight (C, M/g, *k) for a convolution: (s^n*M, C/g, *K), phases by channel.

    >>> from upconv.geometry import Axis
    >>> form = folded(Axis(size=5, kernel=3, stride=1))
    >>> packed(np.array([[[1.0, 2.0, 3.0]]]), 1, [form])
    array([[[3., 2., 1.]]])
    """
    rank, (c, m) = len(forms), w.shape[:2]
    w = np.pad(w, [(0, 0), (0, 0), *[(0, 1)] * rank])  # NO_TAP is -1: the zero at the end
    for i, form in enumerate(forms):
        w = np.take(w, np.array(form.taps), axis=2 + 2 * i)  # k -> (phases, K)
    phases, kernel = [form.phases for form in forms], [form.kernel for form in forms]
    pairs = [n for form in forms for n in (form.phases, form.kernel)]
    w = w.reshape(groups, c // groups, m, *pairs)
    odd, even = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    w = w.transpose(0, 2, *odd, 1, *even)
    return np.ascontiguousarray(w.reshape(groups * m * prod(phases), c // groups, *kernel))
