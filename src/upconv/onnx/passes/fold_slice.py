"""A Slice before or after a ConvTranspose, as its pads: `windows` has the algebra.

Cases: 1. after it: what is cut off is cropped. 2. before it, where what is cut off x would reach no
output: a position is a stride of crop more. Several in a row are folded together. Where the size of
an axis is open and the Slice would leave nothing of it, nothing becomes a refusal of the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..building import Builder
from ..nodes import ConvTransposeNode
from .base import Refusal
from .windows import folded, read_slice, write


@dataclass(frozen=True, slots=True)
class FoldSlice:
    """A ConvTranspose with the Slices around it in its pads."""

    @property
    def name(self) -> str:
        """Its name."""
        return "fold_slice"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """No Slice of step 1 along spatial axes, or nothing that pads can say."""
        try:
            folded(site, "Slice", read_slice)
        except Refusal as refusal:
            return str(refusal)
        return None

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 and 2."""
        write(site, builder, folded(site, "Slice", read_slice))
