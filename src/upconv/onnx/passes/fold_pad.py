"""A Pad of zeros before or after a ConvTranspose, as its pads: `windows` has the algebra.

Cases: 1. before it: a zero is a stride of crop less. 2. after it, without a bias: at the end, as
output padding below the stride; anywhere else only where no product would fall. A Pad with negative
pads, which takes off, is folded as a Slice is. Several in a row are folded together.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..building import Builder
from ..nodes import ConvTransposeNode
from .base import Refusal
from .windows import folded, read_pad, write


@dataclass(frozen=True, slots=True)
class FoldPad:
    """A ConvTranspose with the Pads around it in its pads."""

    @property
    def name(self) -> str:
        """Its name."""
        return "fold_pad"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """No Pad, not one of zeros along spatial axes, or nothing that pads can say."""
        try:
            folded(site, "Pad", read_pad)
        except Refusal as refusal:
            return str(refusal)
        return None

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 and 2."""
        write(site, builder, folded(site, "Pad", read_pad))
