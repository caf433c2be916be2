"""Fewer spatial axes as more, for runtimes that have only those of images.

A result with axes of length 1 put in front is that of x and w with axes of length 1 in front: there
s = k = d = 1 and nothing is cropped. So x is unsqueezed, and the result squeezed.

Cases: 1. a constant weight, which gets its new shape at once. 2. a computed one, unsqueezed too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...dialects.limits import Padding
from ...geometry import Axis
from ..building import Builder
from ..nodes import ConvTransposeNode
from .base import dequantised
from .wording import attributes, refuses_wording, worded, write


@dataclass(frozen=True, slots=True)
class ToRank:
    """A ConvTranspose with `rank` spatial axes instead of fewer."""

    rank: int = 2

    @property
    def name(self) -> str:
        """to_rank, with the rank where it is not 2."""
        return "to_rank" if self.rank == 2 else f"to_rank:{self.rank}"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """As many axes already, or a quantised node."""
        if site.rank >= self.rank:
            return f"it has {site.rank} spatial axes, and {self.rank} are asked for"
        return dequantised(site) or refuses_wording(site, worded(site))

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 and 2."""
        wording, new = worded(site), list(range(2, 2 + self.rank - site.rank))
        said = attributes(
            [*(Axis(size=1, kernel=1) for _ in new), *site.axes],
            site.groups,
            [*(Padding(0, 0, 0) for _ in new), *wording.paddings],
        )

        def make(b: ir.Value | None) -> ir.Value:
            x = builder.squeeze(site.x, new, undo=True)
            w = _weight(site, builder, new)
            return builder.squeeze(builder.deconv(x, w, b, said), new)

        write(site, builder, wording, make)


def _weight(site: ConvTransposeNode, builder: Builder, new: list[int]) -> ir.Value:
    if site.weight.array is not None:  # case 1
        return builder.constant(np.expand_dims(site.array, new), "weight")
    return builder.squeeze(site.w, new, undo=True)  # case 2
