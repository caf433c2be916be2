"""The drawing of docs/onnx-lint.md: the number of taps of each output, uneven and even."""

from __future__ import annotations

from math import prod

from svg import Drawing

from upconv.geometry import Axis

CELL, TOP, LEFT, GAP = 30, 96, 24, 60
SHOWN = 8


def overlap() -> Drawing:
    """Draw kernel 3 and kernel 4 at stride 2, in two dimensions, with the border."""
    maps = [(f"kernel {k} at stride 2", counts(Axis(5, k, 2))) for k in (3, 4)]
    side = CELL * SHOWN
    drawing = Drawing(
        LEFT * 2 + 2 * side + GAP, TOP + side + 52, "number of taps of each output position"
    )
    drawing.text(18, 32, "Number of taps of each output, in two dimensions", 16, "bold ink")
    drawing.text(18, 54, "The first rows and columns are the border.", 13, "quiet")
    for number, (name, line) in enumerate(maps):
        left = LEFT + number * (side + GAP)
        drawing.text(left, TOP - 14, name, 14, "bold ink")
        _map(drawing, left, line)
        drawing.text(left, TOP + side + 24, _said(line), 13, "quiet")
    return drawing


def counts(axis: Axis) -> list[int]:
    """Count the taps per output of the full result, by adding the taps of each input."""
    line = [0] * axis.full
    for phase in axis.phases():
        for tap in phase.taps:
            for i in range(axis.size):
                line[axis.stride * (i + tap.shift) + phase.offset] += 1
    return line[:SHOWN]


def _map(drawing: Drawing, left: float, line: list[int]) -> None:
    hues = {count: f"fill{n % 4}" for n, count in enumerate(sorted(_inside(line)))}
    for row, a in enumerate(line):
        for column, b in enumerate(line):
            drawing.cell(
                left + CELL * column,
                TOP + CELL * row,
                CELL,
                CELL,
                (str(a * b),),
                hues.get(a * b, "box") if min(row, column) >= 2 else "box",
            )


def _inside(line: list[int]) -> set[int]:
    return {a * b for a in line[2:] for b in line[2:]}


def _said(line: list[int]) -> str:
    inside = _inside(line)
    if len(inside) == 1:
        return f"inside: {prod(inside)} taps everywhere"
    return f"inside: {min(inside)} to {max(inside)} taps, uneven"


DRAWINGS = {"lint-overlap.svg": overlap}
