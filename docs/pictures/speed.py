"""The landing page's figure: how long other libraries take, in units of upconv's JIT engine.

All numbers are read from the first table of docs/benchmarks.md that names the engines.
"""

from __future__ import annotations

from math import exp, log, log2

from benchmarks import NAMES, ratios
from svg import Drawing

WIDTH, LEFT, RIGHT, TOP, STEP = 760, 190, 740, 66, 46
LEAST, MOST = 0.72, 15


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def speed() -> Drawing:
    """A row of dots for each library, one dot for each layer, on a scale of powers of two."""
    found = ratios()
    count = max(map(len, found.values()))
    bottom = TOP + STEP * len(NAMES)
    title = f"Time per layer, as a multiple of upconv's, on {count} layers"
    drawing = Drawing(WIDTH, bottom + 62, title)
    drawing.text(18, 30, title, 17, "bold ink")
    for power in range(4):
        at = _x(2.0**power)
        drawing.line(at, TOP - 14, at, bottom, "rule dashed" if power else "rule")
        label = f"{2**power} times" if power else "1: upconv"
        drawing.text(at, bottom + 20, label, 13, "quiet" if power else "bold ink", "middle")
    for row, (name, label) in enumerate(NAMES.items()):
        _row(drawing, TOP + STEP * row + 8, label, found[name])
    words = "One dot per layer; bar: geometric mean. Right of 1 upconv is faster. "
    words += "CPU, 2 threads, float32."
    drawing.text(18, bottom + 46, words, 13, "quiet")
    return drawing


def _row(drawing: Drawing, y: float, label: str, values: list[float]) -> None:
    average = mean(values)
    drawing.text(18, y - 2, label, 14, "bold ink")
    drawing.text(18, y + 16, f"{average:.1f} times, {len(values)} layers", 13, "quiet")
    drawing.rect(_x(1), y - 9, _x(average) - _x(1), 18, "fill0", radius=0)
    for value in values:
        drawing.circle(_x(value), y, 4, "fill1")


def _x(ratio: float) -> float:
    share = (log2(ratio) - log2(LEAST)) / (log2(MOST) - log2(LEAST))
    return LEFT + share * (RIGHT - LEFT)


DRAWINGS = {"speed.svg": speed}
