"""The README's picture: a transposed convolution at a glance, and a call's path in upconv."""

from __future__ import annotations

from strips import CELL, Strip, first_position, sentence
from svg import Drawing

from upconv.geometry import Axis, padded

WIDTH, HEIGHT = 940, 440
SIDE = 602
"""Left edge of the explanations beside the drawing."""


def overview() -> Drawing:
    """Draw inputs, taps, full result, crops and phases; below, a call's path through upconv."""
    axis = padded(3, 3, 2, 1, begin=1, end=1, output_padding=2)
    drawing = Drawing(WIDTH, HEIGHT, "Transposed convolution, and what upconv does with it")
    drawing.text(18, 34, "Transposed convolution: every input adds x·w", 19, "bold ink")
    strip = Strip(axis, 56, first_position(axis))
    strip.draw(drawing)
    _kernel(drawing, axis)
    _phases(drawing, axis, strip.full_top)
    _way(drawing)
    return drawing


def _kernel(drawing: Drawing, axis: Axis) -> None:
    drawing.text(SIDE, 34, f"kernel w, stride {axis.stride}", 14, "bold ink")
    for t in range(axis.kernel):
        drawing.cell(SIDE + 98 * t, 48, 90, 30, (f"w{t}={10**t}",), "box", 14)


def _phases(drawing: Drawing, axis: Axis, top: float) -> None:
    drawing.text(SIDE, top - 36, "phases: outputs that use the same taps", 14, "bold ink")
    for number in range(len(axis.phases())):
        y = top - 10 + 26 * number
        drawing.rect(SIDE, y - 14, 24, 18, f"fill{number}")
        drawing.text(SIDE + 34, y, sentence(axis, number), 13.5, "mono ink")
    y = top + 72
    drawing.text(SIDE, y, "two signed crops per axis", 14, "bold ink")
    drawing.text(SIDE, y + 24, "> 0 cuts positions off the full result", 14, "quiet")
    drawing.text(SIDE, y + 46, "< 0 adds positions: the bias alone", 14, "quiet")
    assert axis.full * CELL < SIDE  # the strip does not touch the text beside it


STEPS = (
    ("dialects", "PyTorch, ONNX, Keras,", "JAX, MXNet, oneDNN"),
    ("axes", "size, kernel, stride,", "dilation, two crops"),
    ("problem", "one frozen value,", "the cache key"),
    ("engine", "refuses with a reason", "or builds a primitive"),
    ("primitive", "cached: a warm call", "does no geometry"),
)


def _way(drawing: Drawing) -> None:
    """Draw the strip at the bottom."""
    top, width, gap = 340, 162, 22
    drawing.line(18, top - 22, WIDTH - 18, top - 22, "rule dashed")
    for number, (name, first, second) in enumerate(STEPS):
        x = 20 + number * (width + gap)
        drawing.rect(x, top, width, 80, "box", 6)
        drawing.text(x + width / 2, top + 24, name, 15, "bold ink", "middle")
        drawing.text(x + width / 2, top + 46, first, 12.5, "quiet", "middle")
        drawing.text(x + width / 2, top + 64, second, 12.5, "quiet", "middle")
        if number:
            drawing.arrow(x - gap + 2, top + 40, x - 2, top + 40)


DRAWINGS = {"overview.svg": overview}
