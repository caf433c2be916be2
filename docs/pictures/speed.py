"""The landing page's figure: times of other libraries, as multiples of upconv's JIT engine.

All numbers come from the first table in docs/benchmarks.md that names the engines.
"""

from __future__ import annotations

from math import exp, log, log2

from svg import Drawing

from benchmarks import NAMES, ratios

WIDTH, LEFT, RIGHT, TOP, STEP = 440, 16, 424, 76, 52  # narrow enough for a phone
LEAST, MOST = 0.72, 15


def mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def speed() -> Drawing:
    """Draw a row of dots for each library, one dot per layer, on a scale of powers of two."""
    ratios_of = ratios()
    bottom = TOP + STEP * len(NAMES)
    drawing = Drawing(WIDTH, bottom + 56, "Time per layer, relative to upconv")
    drawing.text(LEFT, 28, drawing.title, 15, "bold ink")
    for power in range(4):
        at = _x(2.0**power)
        for row in range(len(NAMES)):
            top = TOP + STEP * row
            drawing.line(at, top - 11, at, top + 13, "rule dashed" if power else "rule")
        label = f"{2**power} times" if power else "upconv"
        drawing.text(at, bottom - 8, label, 13, "quiet" if power else "bold ink", "middle")
    for row, (name, label) in enumerate(NAMES.items()):
        _row(drawing, TOP + STEP * row, label, ratios_of[name])
    for line, words in enumerate(
        (
            "One dot per layer; bar: geometric mean. upconv is faster",
            "to the right of the first line. CPU, 2 threads, float32.",
        )
    ):
        drawing.text(LEFT, bottom + 24 + 18 * line, words, 13, "quiet")
    return drawing


def _row(drawing: Drawing, y: float, label: str, values: list[float]) -> None:
    average = mean(values)
    drawing.text(LEFT, y - 16, label, 14, "bold ink")
    words = f"{average:.1f} times, {len(values)} layers"
    drawing.text(RIGHT, y - 16, words, 13, "quiet", "end")
    drawing.rect(_x(1), y - 9, _x(average) - _x(1), 18, "fill0", radius=0)
    for value in values:
        drawing.circle(_x(value), y, 4, "fill1")


def _x(ratio: float) -> float:
    share = (log2(ratio) - log2(LEAST)) / (log2(MOST) - log2(LEAST))
    return LEFT + share * (RIGHT - LEFT)


DRAWINGS = {"speed.svg": speed}
