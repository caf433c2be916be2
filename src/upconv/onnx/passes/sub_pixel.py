"""A transposed convolution as ordinary convolutions and a shuffle, exactly.

    y = cut(shuffle(conv(x, W) + B))          W (s^n*M, C/g, *K),  B the bias, once per phase

`upconv.subpixel` says K, the zeros around x and the cut along each axis; weights that no tap stands
at are 0. Its forms, per node:

    unfolded    one convolution with fewest taps; what it makes too much is cut off (k == s: K = 1)
    folded      one convolution whose result begins where y does: no cut but at the end
    polyphase   one convolution per phase, with no multiplication by 0, side by side

Cases: 1. all strides 1: nothing to shuffle, the reversed kernel. 2. one stride for two axes: the
operator DepthToSpace. 3. any other rank or strides: Reshape, Transpose, Reshape. 4. groups: the
phases of a channel stay together (CRD), so that groups stay whole. 5. a bias that is computed, or
phases without taps: the bias is added last. 6. fewer zeros than none (crops beyond the kernel): x
is cut first. 7. an activation that follows goes before the shuffle, where runtimes compute it
together with the convolution; it is elementwise, so no value changes. Zeros in the place of phases
without taps come after it: then only one that makes 0 of 0 goes before.

Multiplying x by the zeros among the weights gives NaN where x is infinite or NaN and the original
node would not look: finite data only, except where K = 1 or the form is polyphase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...geometry import Axis
from ...subpixel import SubPixel, folded, thriftiest, waste
from ..building import Builder, Order
from ..nodes import ConvTransposeNode
from .base import constant_float_weight, elementwise, keeps_zero

MOST_WASTE = 64.0
"""Beyond so many multiplications for one needed, no runtime wins: such models are not written."""

MOST_BYTES = 1 << 30
"""A rewritten weight may not be larger; ONNX files end at twice that."""

MOST_STEPS = 1 << 20
"""Phases times the positions they and the kernel span, per axis; more would take minutes to lay
out, and no layer has it. Asked before anything is laid out: strides are a model's to say."""

MOST_PHASES = 1 << 10
"""Phases are that many convolutions, or channels for one."""


_MISLABELS = 10


class Form(Enum):
    """Which convolutions; see the module's table."""

    LEAST = "least"
    UNFOLDED = "unfolded"
    FOLDED = "folded"
    POLYPHASE = "polyphase"


@dataclass(frozen=True, slots=True)
class SubPixelPass:
    """Any transposed convolution as convolutions and a shuffle.

    `form` LEAST takes whichever of unfolded and folded wastes less, folded where they are equal.
    """

    form: Form = Form.LEAST

    @property
    def name(self) -> str:
        """sub_pixel, with the form where one is asked for."""
        return "sub_pixel" if self.form is Form.LEAST else f"sub_pixel:{self.form.value}"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """Stride 1 everywhere, a computed weight, sizes too small, or too much waste."""
        if all(axis.stride == 1 for axis in site.axes):
            return "all its strides are 1, so there is nothing to shuffle: see replace_deconv"
        refusal = _too_wide(site)
        if refusal is not None:
            return refusal
        if self.form is Form.FOLDED and _forms(site, folded) == _forms(site, thriftiest):
            return "folded and unfolded are the same here: see sub_pixel:unfolded"
        return refuses_convolution(site, self._pieces(site))

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 2 to 6."""
        write_convolutions(site, builder, self._pieces(site))

    def _pieces(self, site: ConvTransposeNode) -> list[Piece]:
        if self.form is Form.POLYPHASE:
            return _phases(site)
        forms = _forms(site, thriftiest)
        plain = _forms(site, folded)
        equal = waste(site.axes, plain) <= waste(site.axes, forms)
        if self.form is Form.FOLDED or (self.form is Form.LEAST and equal):
            forms = plain
        return [Piece(forms)]


@dataclass(frozen=True, slots=True)
class ReplaceDeconv:
    """Case 1: stride 1 as a convolution with the reversed kernel, padding d*(k-1) - crop."""

    @property
    def name(self) -> str:
        """Its name."""
        return "replace_deconv"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """A stride above 1, a computed weight, or a size too small for its crops."""
        if any(axis.stride > 1 for axis in site.axes):
            return f"its strides are {[a.stride for a in site.axes]}, not all 1: see sub_pixel"
        return refuses_convolution(site, [Piece(_forms(site, folded))])

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1, 4 and 6."""
        write_convolutions(site, builder, [Piece(_forms(site, folded))])


@dataclass(frozen=True, slots=True)
class Piece:
    """One convolution of the rewriting: a form per axis, or None where it makes only zeros."""

    forms: tuple[SubPixel, ...] | None


def _forms(site: ConvTransposeNode, of: Callable[[Axis], SubPixel]) -> tuple[SubPixel, ...]:
    return tuple(of(axis) for axis in site.axes)


def _phases(site: ConvTransposeNode) -> list[Piece]:
    pieces = []
    for phase in product(*(range(axis.stride) for axis in site.axes)):
        forms = tuple(SubPixel.of_phase(axis, r) for axis, r in zip(site.axes, phase, strict=True))
        whole = tuple(form for form in forms if form is not None)
        pieces.append(Piece(whole if len(whole) == len(forms) else None))
    return pieces


def refuses_convolution(site: ConvTransposeNode, pieces: Sequence[Piece]) -> str | None:
    """Why these convolutions cannot be written, if they cannot."""
    refusal = constant_float_weight(site)
    if refusal is not None:
        return refusal
    if any(
        size is not None and axis.out < 1 for size, axis in zip(site.sizes, site.axes, strict=True)
    ):
        return "its output is empty"
    for piece in pieces:
        if piece.forms is not None:
            refusal = (
                _too_small(site, piece.forms)
                or _too_large(site, piece.forms)
                or _mislabelled(site, piece.forms)
            )
            if refusal is not None:
                return refusal
    return None


def _too_wide(site: ConvTransposeNode) -> str | None:
    phases = prod(axis.stride for axis in site.axes)
    if phases > MOST_PHASES:
        return f"it has {phases} phases, and more than {MOST_PHASES} serve nobody"
    for i, axis in enumerate(site.axes):
        if axis.stride > 1 and axis.stride * (axis.stride + axis.extent) > MOST_STEPS:
            return f"along axis {i} its kernel spans {axis.extent} positions, too many to lay out"
    return None


def _mislabelled(site: ConvTransposeNode, forms: Sequence[SubPixel]) -> str | None:
    """In opset 10 shape inference takes a Slice of an open size for as long as what it slices.

    ONNX Runtime then gives one's memory to the other, and fails.
    """
    cut = (min(form.zeros) < 0 for form in forms)
    opened = (size is None for size in site.sizes)
    if site.opset == _MISLABELS and any(c and o for c, o in zip(cut, opened, strict=True)):
        return "its input is cut along an open axis, which opset 10 mislabels; convert to opset 11"
    return None


def _too_small(site: ConvTransposeNode, forms: Sequence[SubPixel]) -> str | None:
    for i, (form, size) in enumerate(zip(forms, site.sizes, strict=True)):
        if size is not None and not form.fits(size):
            return (
                f"along axis {i} its input of {size} is too small: the convolution cuts"
                f" {form.zeros} positions and needs {form.kernel} taps"
            )
    return None


def _too_large(site: ConvTransposeNode, forms: Sequence[SubPixel]) -> str | None:
    whole = prod(form.phases * form.kernel for form in forms)
    if waste(site.axes, forms) > MOST_WASTE and len(forms[0].taps) > 1:
        return f"it would multiply {waste(site.axes, forms):.0f} times for each product needed"
    channels = site.array.shape[0] * site.array.shape[1]
    if whole * channels * site.array.itemsize > MOST_BYTES:
        return f"its weight would take {whole * channels * site.array.itemsize} bytes"
    return None


def write_convolutions(site: ConvTransposeNode, builder: Builder, pieces: Sequence[Piece]) -> None:
    """Put the pieces, shuffled, in the node's place."""
    together = len(pieces) == 1
    empty = any(piece.forms is None for piece in pieces)
    last = site.b is not None and (_computed(site) or empty)
    order = Order.CHANNEL_MAJOR if together else Order.PHASE_MAJOR  # case 4
    activation = None if last else _movable(site, empty)
    parts = [
        _activated(builder, _convolve(site, builder, piece.forms, not last), activation)
        for piece in pieces
        if piece.forms is not None
    ]
    x = parts[0] if together else _side_by_side(site, builder, pieces, parts)
    strides = [axis.stride for axis in site.axes]
    y = builder.shuffle(x, strides, _channels(site), order)
    y = builder.cut(y, _cuts(pieces))
    if last and site.b is not None:  # case 5
        y = builder.add_bias(y, site.b, site.rank)
    if activation is None:
        builder.replace(site.y, y, [site.node])
    else:  # case 7
        builder.replace(activation.outputs[0], y, [activation, site.node])


def _movable(site: ConvTransposeNode, empty: bool) -> ir.Node | None:
    """The activation that goes before the shuffle, and before the zeros of empty phases."""
    if all(axis.stride == 1 for axis in site.axes):
        return None
    activation = elementwise(site.y)
    return None if activation and empty and not keeps_zero(activation) else activation


def _activated(builder: Builder, x: ir.Value, activation: ir.Node | None) -> ir.Value:
    if activation is None:
        return x
    said = {name: attribute.value for name, attribute in activation.attributes.items()}
    return builder.op(activation.op_type, [x], **said)


def _convolve(
    site: ConvTransposeNode, builder: Builder, forms: tuple[SubPixel, ...], biased: bool
) -> ir.Value:
    phases = prod(form.phases for form in forms)
    w = builder.constant(packed(site.array, site.groups, forms), "weight")
    b = None
    if biased and site.bias is not None and site.bias.array is not None:
        b = site.b if phases == 1 else builder.constant(np.repeat(site.bias.array, phases), "bias")
    return builder.conv(
        site.x,
        w,
        b,
        zeros=[form.zeros for form in forms],
        dilations=[form.dilation for form in forms],
        groups=site.groups,
    )


def _side_by_side(
    site: ConvTransposeNode, builder: Builder, pieces: Sequence[Piece], parts: Sequence[ir.Value]
) -> ir.Value:
    """The phases' convolutions along the channels, zeros where a phase has no taps."""
    channels, rest = _channels(site), iter(parts)
    blocks: list[ir.Value] = []
    empty = 0
    for piece in pieces:
        if piece.forms is None:
            empty += 1
            continue
        blocks.append(_padded(site, builder, next(rest), empty * channels, 0))
        empty = 0
    blocks[-1] = _padded(site, builder, blocks[-1], 0, empty * channels)
    return blocks[0] if len(blocks) == 1 else builder.op("Concat", blocks, axis=1)


def _padded(
    site: ConvTransposeNode, builder: Builder, x: ir.Value, before: int, after: int
) -> ir.Value:
    return builder.pad(x, [(0, 0), (before, after), *[(0, 0)] * site.rank])


def packed(w: Array, groups: int, forms: Sequence[SubPixel]) -> Array:
    """The weight (C, M/g, *k) as a convolution's (s^n*M, C/g, *K), phases next to their channel.

    >>> from upconv.geometry import Axis
    >>> form = folded(Axis(size=5, kernel=3, stride=1))
    >>> packed(np.array([[[1.0, 2.0, 3.0]]]), 1, [form])
    array([[[3., 2., 1.]]])
    """
    rank, (c, m) = len(forms), w.shape[:2]
    w = np.pad(w, [(0, 0), (0, 0), *[(0, 1)] * rank])  # NO_TAP is -1: the zero at the end
    for i, form in enumerate(forms):
        w = np.take(w, np.array(form.taps), axis=2 + 2 * i)  # k -> (phases, K)
    phases = [form.phases for form in forms]
    kernel = [form.kernel for form in forms]
    w = w.reshape(
        groups, c // groups, m, *(n for pair in zip(phases, kernel, strict=True) for n in pair)
    )
    odd, even = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    w = w.transpose(0, 2, *odd, 1, *even)
    return np.ascontiguousarray(w.reshape(groups * m * prod(phases), c // groups, *kernel))


def _cuts(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    forms = next(piece.forms for piece in pieces if piece.forms is not None)
    return [form.cut for form in forms]


def _channels(site: ConvTransposeNode) -> int:
    return site.groups * int(site.array.shape[1])


def _computed(site: ConvTransposeNode) -> bool:
    return site.bias is not None and site.bias.array is None
