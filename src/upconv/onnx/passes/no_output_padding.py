"""Output padding removed, for runtimes that have none.

Along an axis with pads (P, Q) and output padding a:

    a <= Q    pads (P, Q - a)                                         (1)
    a > Q     pads (P, 0), then a - Q zeros put at the end            (2)

In (2) no product reaches these positions; they hold the bias alone, so the bias is added last,
after the zeros. Cases 1 and 2 are chosen axis by axis.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..building import Builder
from ..nodes import ConvTransposeNode
from .wording import Wording, refuses_wording, same, unpadded, write


@dataclass(frozen=True, slots=True)
class NoOutputPadding:
    """A ConvTranspose without output padding, and zeros at its end where they are needed."""

    @property
    def name(self) -> str:
        """Its name."""
        return "no_output_padding"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """No output padding, an output of the bias alone, or a quantised node in case 2."""
        if not any(padding.output_padding for padding in site.paddings) and not _stated(site):
            return "it has no output padding"
        return refuses_wording(site, _without(site))

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 and 2."""
        wording = _without(site)
        write(site, builder, wording, same(site, builder, wording))


def _without(site: ConvTransposeNode) -> Wording:
    pairs = [unpadded(padding) for padding in site.paddings]
    return Wording(tuple(said for said, _ in pairs), tuple(zeros for _, zeros in pairs))


def _stated(site: ConvTransposeNode) -> bool:
    """Whether the attribute is there for auto_pad or output_shape to take away again."""
    attribute = site.node.attributes.get("output_padding")
    return attribute is not None and any(attribute.as_ints())
