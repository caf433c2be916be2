"""A grouped ConvTranspose as one per group, for runtimes that have no groups.

x is split along its channels, the weight along the same channels, the bias along the output's; the
results are concatenated.

Cases: 1. a constant weight or bias is split at once. 2. a computed one by a Split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..building import Builder
from ..constants import Constant
from ..nodes import ConvTransposeNode
from .base import dequantised
from .wording import attributes, refuses_wording, worded, write


@dataclass(frozen=True, slots=True)
class SplitGroups:
    """As many ConvTranspose nodes of one group, `most` of them or fewer."""

    most: int = 256

    @property
    def name(self) -> str:
        """Its name."""
        return "split_groups"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """One group, too many, or a quantised node."""
        if site.groups == 1:
            return "it has one group"
        if site.groups > self.most:
            return f"it has {site.groups} groups; more than {self.most} nodes serve nobody"
        return dequantised(site) or refuses_wording(site, worded(site))

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 and 2."""
        wording = worded(site)
        said = attributes(site.axes, 1, wording.paddings)

        def make(b: ir.Value | None) -> ir.Value:
            xs = builder.split(site.x, site.groups, 1)
            ws = _parts(site, builder, site.w, site.weight, "weight")
            bs: Sequence[ir.Value | None] = [None] * site.groups
            if b is not None and site.bias is not None:
                bs = _parts(site, builder, b, site.bias, "bias")
            parts = [builder.deconv(*one, said, heir=False) for one in zip(xs, ws, bs, strict=True)]
            return builder.op("Concat", parts, axis=1)

        write(site, builder, wording, make)


def _parts(
    site: ConvTransposeNode, builder: Builder, value: ir.Value, constant: Constant, hint: str
) -> Sequence[ir.Value]:
    if constant.array is None:  # case 2
        return builder.split(value, site.groups, 0)
    parts = np.split(constant.array, site.groups)  # case 1
    return [builder.constant(part, hint) for part in parts]
