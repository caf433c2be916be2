"""Unequal pads as equal ones and a Slice, for runtimes with one padding for both ends.

    pads (P, Q)  ->  pads (m, m), m = min(P, Q), then P - m and Q - m positions cut off the result

Output padding stays: see no_output_padding. Cases: 1. explicit pads. 2. auto_pad and output_shape,
by what they come to. 3. zeros at the end, where output padding cannot say them (see normalise).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..building import Builder
from ..nodes import ConvTransposeNode
from .wording import Wording, refuses_wording, same, worded, write


@dataclass(frozen=True, slots=True)
class SymmetricPads:
    """A ConvTranspose with equal pads at both ends of every axis, and a Slice."""

    @property
    def name(self) -> str:
        """Its name."""
        return "symmetric_pads"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """Pads that are equal already, or a quantised node."""
        if all(padding.begin == padding.end for padding in site.paddings):
            return "its pads are the same at both ends of every axis"
        return refuses_wording(site, _symmetric(site))

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 to 3."""
        wording = _symmetric(site)
        write(site, builder, wording, same(site, builder, wording))


def _symmetric(site: ConvTransposeNode) -> Wording:
    wording = worded(site)
    least = [min(p.begin, p.end) for p in wording.paddings]
    pairs = list(zip(wording.paddings, least, strict=True))
    return replace(
        wording,
        paddings=tuple(replace(p, begin=m, end=m) for p, m in pairs),
        cuts=tuple((p.begin - m, p.end - m) for p, m in pairs),
    )
