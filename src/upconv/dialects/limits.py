"""What a dialect with paddings and output paddings can say of a layer, as a table row.

Along one axis, with crops p (begin) and q (end) and output padding a:

    one padding for both ends (PyTorch, MXNet)    p = padding        q = padding - a
    a padding for each end (ONNX, oneDNN)         p = begin          q = end - a

Paddings are >= 0 and 0 <= a < bound, where the bound depends on the dialect. Hence p >= 0 and, with
one padding, 0 <= p - q < bound; with two, q > -bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import Axis
from .layer import Layer


@dataclass(frozen=True, slots=True)
class Padding:
    """One axis in a dialect's words."""

    begin: int
    end: int
    output_padding: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What one dialect can say.

    `most_axes` is the highest spatial rank (0: any); `one_padding` says that both ends share one;
    `bound(axis)` is the first output padding refused, `bound_text` the same in words; `least_out`
    is the smallest output size.
    """

    dialect: str
    most_axes: int
    one_padding: bool
    bound: Callable[[Axis], int]
    bound_text: str
    least_out: int = 0

    def check_size(self, size: tuple[int, ...]) -> None:
        """Raise `ShapeError` for more spatial axes than the dialect knows."""
        if self.most_axes and len(size) > self.most_axes:
            expected = f"at most {self.most_axes} spatial axes"
            raise ShapeError("size", brief(size), expected, f"{self.dialect} has no more.")

    def check_output_padding(self, axes: tuple[Axis, ...], extra: tuple[int, ...]) -> None:
        """Raise `ArgumentError` for an output padding that the dialect refuses."""
        for i, (axis, entry) in enumerate(zip(axes, extra, strict=True)):
            if entry >= self.bound(axis):
                expected = f"less than {self.bound_text} = {self.bound(axis)}"
                remedy = f"{self.dialect} refuses more."
                raise ArgumentError(f"output_padding[{i}]", str(entry), expected, remedy)

    def check_outputs(self, axes: tuple[Axis, ...]) -> None:
        """Raise `ShapeError` for an output size that the dialect refuses."""
        for i, axis in enumerate(axes):
            if axis.out < self.least_out:
                name, got = f"the output size on axis {i}", f"{axis.out} = {axis.formula}"
                remedy = f"{self.dialect} refuses empty outputs."
                raise ShapeError(name, got, f"at least {self.least_out}", remedy)

    def paddings(self, layer: Layer) -> tuple[Padding, ...]:
        """The layer's axes in the dialect's words; raises `TranslationError` saying why not."""
        self.check_rank(layer)
        for i, axis in enumerate(layer.axes):
            reason = self._reason(axis)
            if reason:
                raise TranslationError(
                    f"axis {i} is cropped by {axis.crop_begin} at its begin and {axis.crop_end} at"
                    f" its end, and {self.dialect} {reason}."
                )
        return tuple(self._padding(axis) for axis in layer.axes)

    def check_rank(self, layer: Layer) -> None:
        """Raise `TranslationError` for a layer of more spatial axes than the dialect knows."""
        if self.most_axes and len(layer.axes) > self.most_axes:
            raise TranslationError(
                f"the layer has {len(layer.axes)} spatial axes, and {self.dialect} has at most"
                f" {self.most_axes}."
            )

    def nearest(self, layer: Layer) -> Layer:
        """The layer with the crops that come closest; of equals, those that crop less."""
        return replace(layer, axes=tuple(self._nearest(axis) for axis in layer.axes))

    def _reason(self, axis: Axis) -> str:
        begin, end = axis.crop_begin, axis.crop_end
        if begin < 0:
            return "cannot add positions at a begin: its padding is >= 0"
        if self.one_padding and end > begin:
            return "has one padding for both ends, so it cannot crop the end more than the begin"
        if self._padding(axis).output_padding >= self.bound(axis):
            return (
                f"would need output padding {self._padding(axis).output_padding}, which must be"
                f" less than {self.bound_text} = {self.bound(axis)}"
            )
        if axis.out < self.least_out:
            return f"refuses an output of {axis.out} positions, fewer than {self.least_out}"
        return ""

    def _padding(self, axis: Axis) -> Padding:
        begin, end = axis.crop_begin, axis.crop_end
        if self.one_padding:
            return Padding(begin, begin, begin - end)
        return Padding(begin, max(end, 0), max(-end, 0))

    def _nearest(self, axis: Axis) -> Axis:
        most = self.bound(axis) - 1
        begin, end = max(axis.crop_begin, 0), axis.crop_end
        if self.one_padding:
            begin = max(min(begin, end + most), 0)
            end = min(end, begin)
            end = max(end, begin - most)
        else:
            end = max(end, -most)
        return replace(axis, crop_begin=begin, crop_end=end)
