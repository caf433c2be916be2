"""An axis drawn cell by cell: inputs, a line per product, the full result, the output in phases.

Positions are counted as the output's, so that cropped ones lie below 0 or from `axis.out` on. The
full result's boxes hold the numbers of their taps; the output's boxes hold the number of the phase,
because a colour alone tells some readers nothing.

What lives here: small axes, and the two ends of long ones. What never does: size arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...geometry import Axis
from .sheet import HUES, Sheet

CELL = 20
LEFT = 76
_GAP = 36
_HALF = 16
"""Positions of each end of a long axis."""
_WIDEST = 24
"""A kernel's extent and a stride together, in positions, that can be drawn this way."""

_BOX = 20
_FULL = 74
"""Where the full result begins, below the inputs and their lines."""
_LINE = 13
_MOST_LINES = 4


def fit(axis: Axis) -> bool:
    """Whether an axis can be drawn this way."""
    return axis.extent + axis.stride <= _WIDEST


def sheet(axis: Axis) -> Sheet:
    """The drawing."""
    panels = _panels(axis)
    lines = min(_MOST_LINES, max(len(axis.products(o)) for panel in panels for o in panel))
    rows = _Rows(axis, max(1, lines))
    width = sum(map(len, panels)) * CELL + _GAP * (len(panels) - 1)
    drawing = Sheet(LEFT + width + 6, rows.bottom)
    for y, name in ((14, "input"), (_FULL + 14, "taps"), (rows.out + 14, "output")):
        drawing.text(0, y, name, "row")
    x = LEFT
    for panel in panels:
        if x > LEFT:
            for y in (14, _FULL + 14, rows.out + 14):
                drawing.text(x - _GAP / 2, y, "…", "mid")
        drawing.put(rows.panel(panel), x, 0)
        x += len(panel) * CELL + _GAP
    return drawing


def _panels(axis: Axis) -> list[range]:
    """All positions, or those of both ends, that a reader is shown."""
    full = axis.uncropped
    start, stop = min(0, full.start), max(axis.out, full.stop)
    half = max(_HALF, axis.extent + axis.stride)
    if stop - start <= 2 * half + 2:
        return [range(start, stop)]
    return [range(start, start + half), range(stop - half, stop)]


class _Rows:
    """The rows of one axis, painted panel by panel."""

    def __init__(self, axis: Axis, lines: int) -> None:
        self.axis, self.phases, self.lines = axis, axis.phases(), lines
        self.full_height = lines * _LINE + 6
        self.out = _FULL + self.full_height + 26
        added = axis.uncropped.start > 0 or axis.uncropped.stop < axis.out
        self.bottom = self.out + _BOX + (38 if added else 18)

    def panel(self, panel: range) -> Sheet:
        """One stretch of positions."""
        painted = Sheet(len(panel) * CELL, self.bottom)
        self._lines(painted, panel)
        self._inputs(painted, panel)
        for x, o in self._places(panel):
            self._full(painted, x, o)
            self._output(painted, x, o)
        self._indices(painted, panel)
        self._crops(painted, panel)
        return painted

    def _places(self, panel: range) -> Iterable[tuple[float, int]]:
        return ((number * CELL, o) for number, o in enumerate(panel))

    def _centre(self, panel: range, i: int) -> float:
        """The middle of what input `i` reaches."""
        reach = self.axis.reach(i)
        return ((reach.start + reach.stop) / 2 - panel.start) * CELL

    def _lines(self, painted: Sheet, panel: range) -> None:
        for x, o in self._places(panel):
            for product in self.axis.products(o):
                hue = self._hue(o)
                kind = f"l l{hue}" if hue is not None else "l gone"
                start = self._centre(panel, product.input)
                painted.line(start, _BOX, x + CELL / 2, _FULL, kind)

    def _hue(self, o: int) -> int | None:
        """The hue of output `o`; None where it is no output, or no tap makes it."""
        if not 0 <= o < self.axis.out:
            return None
        number = o % self.axis.stride
        return number % HUES if self.phases[number].taps else None

    def _inputs(self, painted: Sheet, panel: range) -> None:
        width = min(CELL * self.axis.stride - 3, 32)
        for i in self.axis.reads(panel.start, panel.stop):
            x = self._centre(panel, i)
            painted.rect(x - width / 2, 1, width, _BOX - 1, "box")
            room = width / len(str(i))
            if room >= 5.3:  # an index that does not fit is left out
                painted.text(x, 15, str(i), "num" if room >= 6.5 else "num small")

    def _full(self, painted: Sheet, x: float, o: int) -> None:
        if o not in self.axis.uncropped:
            return
        kept = 0 <= o < self.axis.out
        painted.rect(x + 1, _FULL, CELL - 2, self.full_height, "box" if kept else "cut")
        taps = [str(product.tap) for product in self.axis.products(o)]
        if len(taps) > self.lines:
            taps = [*taps[: self.lines - 1], "…"]
        top = _FULL + 3 + (self.lines - len(taps)) * _LINE / 2
        for number, tap in enumerate(taps):
            painted.text(x + CELL / 2, top + number * _LINE + 10, tap, "num")

    def _output(self, painted: Sheet, x: float, o: int) -> None:
        if not 0 <= o < self.axis.out:
            return
        hue = self._hue(o)
        painted.rect(x + 1, self.out, CELL - 2, _BOX, "cut" if hue is None else f"h h{hue}")
        label = "b" if hue is None else str(o % self.axis.stride)
        painted.text(x + CELL / 2, self.out + 14, label, "num" if hue is None else "num on")

    def _indices(self, painted: Sheet, panel: range) -> None:
        """Some outputs' numbers below them: those of phase 0, as many as there is room for."""
        shown = [(x, o) for x, o in self._places(panel) if 0 <= o < self.axis.out]
        room = len(str(self.axis.out)) * 6.5 + 8
        free = -room
        for x, o in shown:
            if (o % self.axis.stride == 0 or o == shown[-1][1]) and x >= free:
                painted.text(x + CELL / 2, self.out + _BOX + 13, str(o), "num dim")
                free = x + room

    def _crops(self, painted: Sheet, panel: range) -> None:
        """Brackets under what was cut off, and under what was added, with how much it is."""
        full, out = self.axis.uncropped, range(self.axis.out)
        below = _FULL + self.full_height + 3
        cut = (
            range(full.start, min(out.start, full.stop)),
            range(max(out.stop, full.start), full.stop),
        )
        added = (
            range(out.start, min(full.start, out.stop)),
            range(max(full.stop, out.start), out.stop),
        )
        for spans, y, verb in ((cut, below, "cut"), (added, self.out + _BOX + 17, "added")):
            for span in spans:
                self._bracket(painted, panel, span, y, verb)

    def _bracket(self, painted: Sheet, panel: range, span: range, y: float, verb: str) -> None:
        start, stop = max(span.start, panel.start), min(span.stop, panel.stop)
        if start >= stop:
            return
        x, to_x = (start - panel.start) * CELL, (stop - panel.start) * CELL
        painted.brace(x + 2, to_x - 2, y)
        words = f"{verb} {span.stop - span.start}"
        if start == panel.start and stop == panel.stop:
            painted.text((x + to_x) / 2, y + 17, words, "num dim")
        elif start == panel.start:
            painted.text(x + 1, y + 17, words, "dim")
        else:
            painted.text(to_x - 1, y + 17, words, "end dim")
