"""One axis drawn as strips: inputs, arrows, the full result, the output; colours are phases.

Inputs are 1, 2, 3, ... and taps 1, 10, 100, ..., so that the digits of a sum show its products.
Every size and index comes from `upconv.geometry.Axis`, every value from `upconv.conv_transpose`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from svg import HUES, Drawing

import upconv
from upconv.geometry import Axis

CELL = 54
LEFT = 118
"""Left edge of a strip's first position; the name of the row is to its left."""


@dataclass(frozen=True)
class Link:
    """Input `i` meets tap `t` at `position` of the full result."""

    i: int
    t: int
    position: int


def links(axis: Axis) -> list[Link]:
    """Return every product of the full result from `Axis.phases`, sorted by input and tap."""
    full = replace(axis, crop_begin=0, crop_end=0)
    products = [
        Link(j - tap.shift, tap.index, position)
        for phase in full.phases()
        for j, position in enumerate(range(full.out)[phase.offset :: full.stride])
        for tap in phase.taps
        if 0 <= j - tap.shift < full.size
    ]
    return sorted(products, key=lambda link: (link.i, link.t))


def values(axis: Axis, bias: float = 0.0) -> list[int]:
    """Return the output for inputs 1, 2, 3, ... and taps 1, 10, 100, ..."""
    x = np.arange(1.0, axis.size + 1).reshape(1, 1, -1)
    w = (10.0 ** np.arange(axis.kernel)).reshape(1, 1, -1)
    crops = ((axis.crop_begin, axis.crop_end),)
    y = upconv.conv_transpose(
        x, w, np.array([float(bias)]), stride=axis.stride, dilation=axis.dilation, padding=crops
    )
    return [int(value) for value in y[0, 0]]


def hue_of(axis: Axis, o: int) -> int | None:
    """Return the hue of output `o`, its phase's number, or None if no tap reaches the output."""
    for number, phase in enumerate(axis.phases()):
        if o in range(axis.out)[phase.offset :: axis.stride]:
            return number % len(HUES) if phase.taps else None
    return None


def sentence(axis: Axis, number: int) -> str:
    """Return phase `number` as a formula: `y[2j+1] = x[j+1]*w1 + x[j]*w3`."""
    phase = axis.phases()[number]
    where = f"{axis.stride}j" if axis.stride > 1 else "j"
    where += f"+{phase.offset}" if phase.offset else ""
    products = [
        f"x[j{-tap.shift:+d}]·w{tap.index}" if tap.shift else f"x[j]·w{tap.index}"
        for tap in phase.taps
    ]
    return f"y[{where}] = " + (" + ".join(products) if products else "bias alone")


@dataclass(frozen=True)
class Strip:
    """One axis at height `top` of a drawing; `first` is the position at its left edge."""

    axis: Axis
    top: float
    first: int
    left: float = LEFT
    bias: float = 0.0
    fan: float = 62

    def x(self, position: float) -> float:
        """Return the left edge of a position of the full result."""
        return self.left + (position - self.first) * CELL

    @property
    def terms_height(self) -> float:
        """Height of a cell of the full result, with one line per product."""
        products = [link.position for link in links(self.axis)]
        most = max((products.count(position) for position in products), default=1)
        return 16 + 17 * most

    @property
    def full_top(self) -> float:
        """Top of the full result."""
        return self.top + 30 + self.fan

    @property
    def out_top(self) -> float:
        """Top of the output."""
        return self.full_top + self.terms_height + 38

    @property
    def bottom(self) -> float:
        """Bottom of the strip, including the braces under the output."""
        return self.out_top + 30 + 38

    def draw(self, drawing: Drawing) -> None:
        """Draw all rows."""
        self._inputs_and_arrows(drawing)
        self._full(drawing)
        self._output(drawing)

    def _inputs_and_arrows(self, drawing: Drawing) -> None:
        self._name(drawing, self.top + 20, "input x")
        for link in links(self.axis):
            hue = hue_of(self.axis, link.position - self.axis.crop_begin)
            kept = link.position in self._kept()
            kind = f"line{hue}" if kept and hue is not None else "rule dashed"
            tip = f"tip{hue}" if kept and hue is not None else "tip"
            start, middle = self._centre(link.i), self.x(link.position) + CELL / 2
            end = middle + max(-14.0, min(14.0, (start - middle) / 4))
            drawing.arrow(start, self.top + 30, end, self.full_top - 2, kind, tip)
        for i in range(self.axis.size):
            drawing.cell(self._centre(i) - 23, self.top, 46, 30, (f"x{i}={i + 1}",), "box", 13)

    def _centre(self, i: int) -> float:
        """Return x above the middle of the positions that input `i` reaches."""
        reached = [link.position for link in links(self.axis) if link.i == i]
        return self.x((min(reached) + max(reached)) / 2) + CELL / 2

    def _kept(self) -> range:
        return range(self.axis.crop_begin, self.axis.crop_begin + self.axis.out)

    def _full(self, drawing: Drawing) -> None:
        self._name(drawing, self.full_top + self.terms_height / 2 + 5, "full result")
        products: dict[int, list[str]] = {}
        for link in links(self.axis):
            products.setdefault(link.position, []).append(f"x{link.i}·w{link.t}")
        for position in range(self.axis.full):
            kept = position in self._kept()
            drawing.cell(
                self.x(position) + 2,
                self.full_top,
                CELL - 4,
                self.terms_height,
                tuple(products.get(position, ["·"])),
                "bare" if kept else "gone",
                13,
                "mono ink" if kept else "mono quiet",
            )

    def _output(self, drawing: Drawing) -> None:
        axis = self.axis
        self._name(drawing, self.out_top + 20, "output y")
        for o, value in enumerate(values(axis, self.bias)):
            hue = hue_of(axis, o)
            position = o + axis.crop_begin
            reached = any(link.position == position for link in links(axis))
            kind = f"fill{hue}" if hue is not None and reached else "gone"
            drawing.cell(self.x(position) + 2, self.out_top, CELL - 4, 30, (f"{value}",), kind, 14)
        self._crops(drawing)

    def _crops(self, drawing: Drawing) -> None:
        """Draw brackets under the positions that each crop cut off or added."""
        axis = self.axis
        ends = (
            (axis.crop_begin, range(axis.crop_begin), range(axis.crop_begin, 0), "begin"),
            (
                axis.crop_end,
                range(axis.full)[self._kept().stop :],
                range(axis.full, self._kept().stop),
                "end",
            ),
        )
        for crop, cut, added, name in ends:
            words = f"{name} {crop}".replace("-", "\N{MINUS SIGN}")
            if cut:
                y = self.full_top + self.terms_height + 3
                drawing.brace(self.x(cut.start) + 4, self.x(cut.stop) - 4, y)
                middle = (self.x(cut.start) + self.x(cut.stop)) / 2
                drawing.text(middle, y + 23, words, 13, "quiet", "middle")
            if added:
                y = self.out_top + 33
                drawing.brace(self.x(added.start) + 4, self.x(added.stop) - 4, y)
                middle = (self.x(added.start) + self.x(added.stop)) / 2
                drawing.text(middle, y + 23, f"{words}: bias alone", 13, "quiet", "middle")

    def _name(self, drawing: Drawing, y: float, name: str) -> None:
        drawing.text(18, y, name, 14, "bold ink")


def first_position(*axes: Axis) -> int:
    """Return the leftmost position that any of these axes shows."""
    return min(min(0, axis.crop_begin) for axis in axes)


def last_position(*axes: Axis) -> int:
    """Return one past the rightmost position that any of these axes shows."""
    return max(max(axis.full, axis.crop_begin + axis.out) for axis in axes)
