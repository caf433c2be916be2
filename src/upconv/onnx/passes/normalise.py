"""auto_pad and output_shape as pads, and every attribute said: what all runtimes read alike.

Cases: 1. attributes left to their defaults are written out. 2. auto_pad and output_shape become the
pads and output padding that the pass's rule reads in them (`upconv.dialects.onnx` has the table).
3. a result longer than output padding can say, by a stride or more, which ONNX's text allows and
runtimes refuse: zeros put at its end, then the bias.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...dialects.onnx import Rule
from ..building import Builder
from ..nodes import ConvTransposeNode
from .wording import Wording, attributes, refuses_wording, same, worded, write


@dataclass(frozen=True, slots=True)
class Normalise:
    """A ConvTranspose that leaves nothing to its reader.

    rule: whose reading is written down, whoever reads the model otherwise; None takes the run's,
    and leaves nodes alone that are read differently where the run has none.
    """

    rule: Rule | None = None

    @property
    def name(self) -> str:
        """normalise, with the rule where it has one."""
        return "normalise" if self.rule is None else f"normalise:{self.rule.value}"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """All is said already, an output without a product, or a quantised node in case 3."""
        wording = worded(site)
        if wording.plain and _says_all(site, wording):
            return "its attributes say everything already"
        return refuses_wording(site, wording)

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 to 3."""
        wording = worded(site)
        write(site, builder, wording, same(site, builder, wording))


def _says_all(site: ConvTransposeNode, wording: Wording) -> bool:
    wanted = attributes(site.axes, site.groups, wording.paddings)
    stated = site.node.attributes
    return stated.keys() == wanted.keys() and all(
        _plain(stated[name].value) == entry for name, entry in wanted.items()
    )


def _plain(value: object) -> object:
    return list(value) if isinstance(value, (list, tuple)) else value
