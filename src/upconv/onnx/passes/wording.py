"""A transposed convolution said again: one ConvTranspose, then zeros, a cut, and the bias.

ONNX says crops (p, q) as pads (P, Q) and output padding a: p = P, q = Q - a. Runtimes agree on

    P >= 0,   Q >= 0,   0 <= a < s,   an output of at least one position.

What goes beyond is said by more nodes: positions that no product reaches (-q >= s) are zeros put at
the end of a result without bias, which then is added last; and a cut of the result is a Slice.

What lives here: writing that. Which of it is wanted is for the passes to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...dialects.limits import Padding
from ...geometry import Axis
from ..building import Builder, Crops
from ..nodes import ConvTransposeNode
from .base import dequantised

Maker = Callable[[ir.Value | None], ir.Value]
"""Makes a ConvTranspose, or what stands for it, with a bias or without."""


@dataclass(frozen=True, slots=True)
class Wording:
    """`paddings` of the one ConvTranspose, `zeros` put at the end of its axes, `cuts` off them."""

    paddings: tuple[Padding, ...]
    zeros: tuple[int, ...] = ()
    cuts: Crops = ()

    @property
    def plain(self) -> bool:
        """Whether one node says it all."""
        return not any(self.zeros) and not any(map(any, self.cuts))


def worded(site: ConvTransposeNode) -> Wording:
    """What the node says, so that all runtimes take it: an output padding of s or more as zeros."""
    pairs = [
        _within(padding, axis.stride)
        for padding, axis in zip(site.paddings, site.axes, strict=True)
    ]
    return Wording(tuple(said for said, _ in pairs), tuple(zeros for _, zeros in pairs))


def unpadded(padding: Padding) -> tuple[Padding, int]:
    """The same crops without output padding, and the zeros to be put at the end."""
    kept = max(padding.end - padding.output_padding, 0)
    return Padding(padding.begin, kept, 0), max(padding.output_padding - padding.end, 0)


def _within(padding: Padding, stride: int) -> tuple[Padding, int]:
    if padding.output_padding < stride:
        return padding, 0
    said, zeros = unpadded(padding)
    if zeros < stride:
        return replace(said, output_padding=zeros), 0
    return said, zeros


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


def refuses_wording(site: ConvTransposeNode, wording: Wording) -> str | None:
    """Why the node cannot be said so, if it cannot.

    Its one ConvTranspose must have an output of its own, which it has not where all of the output
    is beyond what products reach: runtimes refuse such a node.
    """
    for i, (axis, size) in enumerate(zip(site.axes, site.sizes, strict=True)):
        zeros = wording.zeros[i] if wording.zeros else 0
        if size is not None and axis.out <= zeros:
            return f"along axis {i} its output is empty, or holds the bias alone"
    return None if wording.plain else dequantised(site)


def write(site: ConvTransposeNode, builder: Builder, wording: Wording, make: Maker) -> None:
    """Put in the node's place what `make` makes of a bias, with the zeros and cuts around it."""
    late = any(wording.zeros)
    y = make(None if late else site.b)
    y = builder.pad(y, [(0, 0), (0, 0), *((0, zeros) for zeros in wording.zeros)])
    y = builder.cut(y, wording.cuts)
    if late and site.b is not None:
        y = builder.add_bias(y, site.b, site.rank)
    builder.replace(site.y, y, [site.node])


def same(site: ConvTransposeNode, builder: Builder, wording: Wording) -> Maker:
    """Makes the same node, but for its paddings."""
    said = attributes(site.axes, site.groups, wording.paddings)
    return lambda b: builder.deconv(site.x, site.w, b, said)
