"""Dilation as zeros in the weight, for runtimes that have none.

A kernel of k taps, d apart, is one of d*(k-1) + 1 taps with zeros between. Pads, output padding and
sizes stay. It multiplies d times as often, and by zeros: where x is infinite or NaN the zeros make
NaN out of outputs that the original leaves finite.

Cases: 1. d > 1. 2. d > 1 on an axis of one tap, where it means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...arrays import Array
from ...geometry import Axis
from ..building import Builder
from ..nodes import ConvTransposeNode
from .base import constant_float_weight
from .sub_pixel import MOST_BYTES, MOST_WASTE
from .wording import attributes, refuses_wording, worded, write


@dataclass(frozen=True, slots=True)
class NoDilation:
    """A ConvTranspose of dilation 1 with a longer kernel."""

    @property
    def name(self) -> str:
        """Its name."""
        return "no_dilation"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """No dilation, a computed weight, or too much waste."""
        if all(axis.dilation == 1 for axis in site.axes):
            return "all its dilations are 1"
        refusal = constant_float_weight(site) or refuses_wording(site, worded(site))
        return refusal or _too_large(site)

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 and 2."""
        wording, axes = worded(site), _dense(site)
        said = attributes(axes, site.groups, wording.paddings)
        w = site.w
        if any(axis.kernel != dense.kernel for axis, dense in zip(site.axes, axes, strict=True)):
            w = builder.constant(spread(site.array, site.axes), "weight")
        write(site, builder, wording, lambda b: builder.deconv(site.x, w, b, said))


def spread(w: Array, axes: Sequence[Axis]) -> Array:
    """The weight with zeros between its taps.

    >>> from upconv.geometry import Axis
    >>> spread(np.array([[[1.0, 2.0]]]), [Axis(size=5, kernel=2, dilation=3)])
    array([[[1., 0., 0., 2.]]])
    """
    wide = np.zeros((*w.shape[:2], *(axis.extent for axis in axes)), w.dtype)
    every = tuple(slice(None, None, axis.dilation) for axis in axes)
    wide[(slice(None), slice(None), *every)] = w
    return wide


def _dense(site: ConvTransposeNode) -> tuple[Axis, ...]:
    return tuple(replace(axis, kernel=axis.extent, dilation=1) for axis in site.axes)


def _too_large(site: ConvTransposeNode) -> str | None:
    taps = prod(axis.extent for axis in site.axes)
    waste = taps / prod(site.layer.kernel)
    if waste > MOST_WASTE:
        return f"it would multiply {waste:.0f} times for each product needed"
    channels = site.array.shape[0] * site.array.shape[1]
    if taps * channels * site.array.itemsize > MOST_BYTES:
        return f"its weight would take {taps * channels * site.array.itemsize} bytes"
    return None
