"""The drawings of docs/geometry.md: single axes, from the simplest case to unusual ones."""

from __future__ import annotations

from strips import CELL, LEFT, Strip, first_position, last_position, sentence
from svg import Drawing

from upconv.geometry import Axis, centred, padded

MARGIN = 24


def scatter() -> Drawing:
    """Draw the simplest case: stride 2, kernel 3, one position cut from the beginning."""
    return _single(
        Axis(4, 3, 2, 1, crop_begin=1, crop_end=0),
        "4 inputs, kernel 3, stride 2, crops (1, 0): 8 outputs",
    )


def negative_crop() -> Drawing:
    """Draw a negative crop, which adds positions that hold the bias alone."""
    return _single(
        Axis(3, 3, 2, 1, crop_begin=1, crop_end=-2),
        "crops (1, \N{MINUS SIGN}2): two added positions hold the bias alone (bias 7000)",
        bias=7000,
    )


def phases() -> Drawing:
    """Draw which taps contribute to which outputs."""
    return _single(
        Axis(4, 5, 3, 1, crop_begin=1, crop_end=1),
        "kernel 5, stride 3, crops (1, 1): three phases",
        formulas=True,
    )


def empty_phases() -> Drawing:
    """Draw a stride larger than the kernel, which leaves outputs that no tap reaches."""
    return _single(
        Axis(3, 2, 4, 1, 0, -2),
        "kernel 2, stride 4, crops (0, \N{MINUS SIGN}2): phases 2 and 3 have no tap",
        formulas=True,
    )


def dilation() -> Drawing:
    """Draw a stride and dilation with a common divisor, which also leave phases empty."""
    return _single(
        Axis(3, 3, 4, 2),
        "kernel 3, stride 4, dilation 2: gcd 2, so only every second phase has taps",
        formulas=True,
    )


def same() -> Drawing:
    """Draw the odd position of "same", cut from the end or from the beginning."""
    pair = [centred(4, 3, 2, 1, 8, upper=upper) for upper in (True, False)]
    names = (
        "same_upper: the odd position is cut from the end",
        "same_lower: it is cut from the beginning",
    )
    return _stack(list(zip(names, pair, strict=True)), "same_upper and same_lower")


def output_padding() -> Drawing:
    """Draw how output padding moves the end crop, through zero and beyond the full result."""
    rows = [
        (
            f"padding 1, output_padding {extra}: crops (1, {axis.crop_end})".replace(
                "-", "\N{MINUS SIGN}"
            )
            + (" (bias 7000)" if axis.crop_end < 0 else ""),
            axis,
        )
        for extra in (0, 1, 3)
        for axis in [padded(3, 3, 2, 1, 1, 1, extra)]
    ]
    return _stack(rows, "output padding", bias=7000)


def _single(axis: Axis, title: str, bias: float = 0.0, formulas: bool = False) -> Drawing:
    strip = Strip(axis, 52, first_position(axis), bias=bias)
    lines = len(axis.phases()) if formulas else 0
    drawing = Drawing(_width(axis, title), strip.bottom + 26 * lines + (4 if lines else 0), title)
    drawing.text(18, 32, title, 16, "bold ink")
    strip.draw(drawing)
    for number in range(lines):
        y = strip.bottom + 26 * number
        kind = f"fill{number}" if axis.phases()[number].taps else "gone"
        drawing.rect(LEFT + 2, y - 13, 22, 16, kind)
        drawing.text(LEFT + 36, y, f"phase {number}", 14, "bold ink")
        drawing.text(LEFT + 108, y, sentence(axis, number), 14, "mono ink")
    return drawing


def _stack(rows: list[tuple[str, Axis]], title: str, bias: float = 0.0) -> Drawing:
    axes = [axis for _, axis in rows]
    first = first_position(*axes)
    strips, top = [], 52.0
    for _, axis in rows:
        strips.append(Strip(axis, top, first, bias=bias))
        top = strips[-1].bottom + 44
    width = max(_width(axis, name) for name, axis in rows)
    drawing = Drawing(width, strips[-1].bottom, title)
    for strip, (name, _) in zip(strips, rows, strict=True):
        drawing.text(18, strip.top - 20, name, 16, "bold ink")
        strip.draw(drawing)
    return drawing


def _width(axis: Axis, title: str) -> float:
    cells = LEFT + CELL * (last_position(axis) - first_position(axis)) + MARGIN
    return max(cells, 36 + 9.2 * len(title), 560)


DRAWINGS = {
    "axis-scatter.svg": scatter,
    "axis-negative-crop.svg": negative_crop,
    "axis-phases.svg": phases,
    "axis-empty-phases.svg": empty_phases,
    "axis-dilation.svg": dilation,
    "axis-same.svg": same,
    "axis-output-padding.svg": output_padding,
}
