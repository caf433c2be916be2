"""The drawing of docs/winograd.md: one tile of F(2, 2), both phases from one transform."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from svg import Drawing

from upconv.engines.jit.winograd.transforms import Transform

MINUS = "\N{MINUS SIGN}"
LEFT, WIDTH, GAP = 176, 190, 30
INPUTS = (f"x[q{MINUS}1]", "x[q]", "x[q+1]")
TAPS = ((2, 0), (3, 1))  # of each phase, in the order of its inputs


def tile() -> Drawing:
    """Draw windows, points, products and results, computed from the matrices."""
    form = Transform.of(2, 2)
    title = "kernel 4, stride 2: two results per phase from three products, not four"
    drawing = Drawing(LEFT + 3 * WIDTH + 2 * GAP + 24, 442, title)
    drawing.text(
        18, 34, "kernel 4, stride 2, by F(2,2): one window for both phases", 16, "bold ink"
    )
    _label(drawing, 58, "a window", "of each channel")
    _label(drawing, 138, "transform", "once, by B")
    for i, name in enumerate(INPUTS):
        drawing.cell(_column(i), 58, WIDTH, 32, (name,), "box")
    for p, row in enumerate(form.b[0]):
        for i, factor in enumerate(row):
            if factor:
                drawing.arrow(_middle(i), 92, _middle(p), 136)
        drawing.cell(_column(p), 138, WIDTH, 32, (f"v{p} = {_sum(row, INPUTS)}",), "box")
    _label(drawing, 204, "times weights", "summed over channels")
    for p, row in enumerate(form.g):
        drawing.arrow(_middle(p), 172, _middle(p), 202)
        for phase, taps in enumerate(TAPS):
            words = _sum(row, [f"w{tap}" for tap in taps])
            y = 204 + 36 * phase
            drawing.cell(
                _column(p),
                y,
                WIDTH,
                32,
                (f"z{p} = \N{GREEK CAPITAL LETTER SIGMA} v{p}·({words})",),
                f"fill{phase}",
                13,
            )
    _label(drawing, 312, "inverse transform", "by A, for each phase")
    half = (3 * WIDTH + 2 * GAP) / 4
    for b, row in enumerate(form.a[0]):
        for phase in range(2):
            x = LEFT + half * (2 * b + phase)
            words = _sum(row, ("z0", "z1", "z2"))
            drawing.cell(x + 4, 312, half - 8, 32, (words,), f"fill{phase}", 13)
            place = f"2q+{2 * b + phase}" if b or phase else "2q"
            drawing.cell(x + 4, 366, half - 8, 32, (f"y[{place}]",), f"fill{phase}", 13)
            drawing.arrow(x + half / 2, 346, x + half / 2, 364)
    drawing.text(LEFT + 2 * half, 424, "interleaved, and the crop cut off", 14, "quiet", "middle")
    return drawing


def _column(number: int) -> float:
    return LEFT + number * (WIDTH + GAP)


def _middle(number: int) -> float:
    return _column(number) + WIDTH / 2


def _label(drawing: Drawing, y: float, words: str, more: str) -> None:
    drawing.text(18, y + 15, words, 14, "bold ink")
    drawing.text(18, y + 33, more, 12.5, "quiet")


def _sum(row: Sequence[Fraction], names: Sequence[str]) -> str:
    """Format the product of a matrix row and names."""
    words = ""
    for factor, name in sorted(zip(row, names, strict=True), key=lambda term: -term[0]):
        if factor:
            sign = f" {MINUS} " if factor < 0 else " + " if words else ""
            words += (sign if words or factor > 0 else MINUS) + name
    return words


DRAWINGS = {"winograd-tile.svg": tile}
