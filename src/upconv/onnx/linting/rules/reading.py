"""Rules about nodes that cannot be read, or not whole: not ONNX, or not known before it runs."""

from __future__ import annotations

from collections.abc import Iterator

from ...nodes import ConvTransposeNode
from ..places import Place
from .base import Observation
from .meaning import kernel_shape, pads_with_auto_pad
from .support import output_padding

_SAID_BY_OTHERS = (pads_with_auto_pad, kernel_shape, output_padding)


def malformed(place: Place) -> Iterator[Observation]:
    """What ONNX does not allow, unless another rule says it better."""
    found = place.found
    if isinstance(found, ConvTransposeNode) or not found.wrong:
        return
    if not any(True for rule in _SAID_BY_OTHERS for _ in rule(place)):
        yield Observation(
            f"It is not what ONNX allows: {found.reason.rstrip('.')}.", {"reason": found.reason}
        )


def unreadable(place: Place) -> Iterator[Observation]:
    """A node whose geometry cannot be known from the model."""
    found = place.found
    if not isinstance(found, ConvTransposeNode) and not found.wrong:
        yield Observation(
            f"It cannot be looked at: {found.reason.rstrip('.')}.", {"reason": found.reason}
        )


def computed_weight(place: Place) -> Iterator[Observation]:
    """A weight that is not constant; dequantised ones are as they should be."""
    site = place.site
    if site is None or site.weight.array is not None:
        return
    maker = site.w.producer()
    if maker is None or maker.op_type != "DequantizeLinear":
        yield Observation(
            f"Its weight is not constant: {site.weight.reason}", {"reason": site.weight.reason}
        )
