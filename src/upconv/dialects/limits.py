"""The limits of dialects with paddings and output paddings.

Along one axis, with crops p (start) and q (end) and output padding a:

    one padding for both ends (PyTorch, MXNet)    p = padding        q = padding - a
    a padding for each end (ONNX, oneDNN)         p = begin          q = end - a

Paddings are >= 0, and 0 <= a < bound, where the bound depends on the dialect. Hence p >= 0. With
one padding, 0 <= p - q < bound; with two, q > -bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import LIMIT, Axis
from .layer import Layer


class Padding(NamedTuple):
    """A layer's crops as a dialect's arguments, one per axis; `extra` is output padding."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]
    extra: tuple[int, ...]


BOUNDS: dict[str, Callable[[Axis], int]] = {
    "the stride": lambda axis: axis.stride,
    "max(stride, dilation)": lambda axis: max(axis.stride, axis.dilation),
    "2**49": lambda _: 2 * LIMIT,  # for a dialect without a bound
}
"""Formula of a dialect's bound -> function that computes the bound of an axis."""


class Limits(NamedTuple):
    """The limits of one dialect.

    most_axes: the maximum spatial rank (0: any). one_padding: whether both ends share one padding.
    bound: a key of `BOUNDS`. least_out: the minimum output size.
    """

    dialect: str
    most_axes: int
    one_padding: bool
    bound: str
    least_out: int = 0

    def check_size(self, size: tuple[int, ...]) -> None:
        """Raise `ShapeError` for more spatial axes than the dialect supports."""
        if self.most_axes and len(size) > self.most_axes:
            expected = f"at most {self.most_axes} spatial axes"
            raise ShapeError("size", brief(size), expected, f"{self.dialect} supports no more.")

    def check_output_padding(self, axes: tuple[Axis, ...], extra: tuple[int, ...]) -> None:
        """Raise `ArgumentError` for an output padding that the dialect refuses."""
        for i, (axis, entry) in enumerate(zip(axes, extra, strict=True)):
            bound = BOUNDS[self.bound](axis)
            if entry >= bound:
                expected = f"less than {self.bound} = {bound}"
                remedy = f"{self.dialect} refuses more."
                raise ArgumentError(f"output_padding[{i}]", str(entry), expected, remedy)

    def check_outputs(self, axes: tuple[Axis, ...]) -> None:
        """Raise `ShapeError` for an output size that the dialect refuses."""
        for i, axis in enumerate(axes):
            if axis.out < self.least_out:
                name, got = f"the output size on axis {i}", f"{axis.out} = {axis.formula}"
                remedy = f"{self.dialect} refuses empty outputs."
                raise ShapeError(name, got, f"at least {self.least_out}", remedy)

    def padding(self, layer: Layer) -> Padding:
        """Return the layer's crops as paddings; raises `TranslationError` with the reason."""
        self.check_rank(layer)
        for i, axis in enumerate(layer.axes):
            reason = self._reason(axis)
            if reason:
                raise TranslationError(
                    f"axis {i} is cropped by {axis.crop_begin} at its start and {axis.crop_end} at"
                    f" its end, and {self.dialect} {reason}."
                )
        return Padding(*zip(*map(self._padding, layer.axes), strict=True))

    def check_rank(self, layer: Layer) -> None:
        """Raise `TranslationError` for a layer with more spatial axes than the dialect supports."""
        if self.most_axes and len(layer.axes) > self.most_axes:
            raise TranslationError(
                f"the layer has {len(layer.axes)} spatial axes, and {self.dialect} has at most"
                f" {self.most_axes}."
            )

    def nearest(self, layer: Layer) -> Layer:
        """Return the layer with the closest crops; of equally close crops, the smaller ones."""
        return replace(layer, axes=tuple(self._nearest(axis) for axis in layer.axes))

    def _reason(self, axis: Axis) -> str:
        if axis.crop_begin < 0:
            return "cannot add positions at the start: its padding is >= 0"
        if self.one_padding and axis.crop_end > axis.crop_begin:
            return "has one padding for both ends, so it cannot crop the end more than the start"
        extra, bound = self._padding(axis)[2], BOUNDS[self.bound](axis)
        if extra >= bound:
            limit = f"{self.bound} = {bound}"
            return f"would need output padding {extra}, which must be less than {limit}"
        if axis.out < self.least_out:
            return f"refuses an output of {axis.out} positions, fewer than {self.least_out}"
        return ""

    def _padding(self, axis: Axis) -> tuple[int, int, int]:
        """Return the paddings at both ends, and the output padding."""
        crop_begin, crop_end = axis.crop_begin, axis.crop_end
        if self.one_padding:
            return crop_begin, crop_begin, crop_begin - crop_end
        return crop_begin, max(crop_end, 0), max(-crop_end, 0)

    def _nearest(self, axis: Axis) -> Axis:
        limit = BOUNDS[self.bound](axis) - 1
        crop_begin, crop_end = max(axis.crop_begin, 0), axis.crop_end
        if self.one_padding:
            crop_begin = max(min(crop_begin, crop_end + limit), 0)
            crop_end = max(min(crop_end, crop_begin), crop_begin - limit)
        else:
            crop_end = max(crop_end, -limit)
        return replace(axis, crop_begin=crop_begin, crop_end=crop_end)
