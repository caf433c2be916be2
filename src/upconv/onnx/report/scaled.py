"""An axis drawn to scale: bars over what inputs reach, the full result with its crops, the output.

For kernels and strides that span too many positions to draw each. The first and the last few inputs
are shown, at the begin and the end of the axis, or together where they overlap.

What lives here: large axes. What never does: size arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...geometry import Axis
from .sheet import Sheet

LEFT = 76
_WIDTH = 700
_GAP = 36
_INPUTS = 3
"""Inputs of each end."""
_ROW = 22
_MOST_TICKS = 64


@dataclass(frozen=True, slots=True)
class _View:
    """A stretch of positions, the inputs drawn over it, the crops at the ends it shows."""

    positions: range
    inputs: range
    crop_begin: int
    crop_end: int


def sheet(axis: Axis) -> Sheet:
    """The drawing."""
    views = _views(axis)
    room = (_WIDTH - _GAP * (len(views) - 1)) / len(views)
    longest = max(view.positions.stop - view.positions.start for view in views)
    scale = room / longest
    rows = max(len(view.inputs) for view in views)
    full = rows * _ROW + 8
    drawing = Sheet(LEFT + _WIDTH + 6, full + 3 * _ROW + 24)
    for y, name in ((14, "input"), (full + 14, "full result"), (full + _ROW * 2 + 2, "output")):
        drawing.text(0, y, name, "row")
    x: float = LEFT
    for view in views:
        if x > LEFT:
            drawing.text(x - _GAP / 2, full + 14, "…", "mid")
        drawing.put(_painted(axis, view, room, scale, full), x, 0)
        x += room + _GAP
    return drawing


def _views(axis: Axis) -> list[_View]:
    uncropped = axis.uncropped
    whole = range(min(0, uncropped.start), max(axis.out, uncropped.stop))
    first, last = range(min(_INPUTS, axis.size)), range(max(axis.size - _INPUTS, 0), axis.size)
    begin, end = axis.reach(first[-1]).stop, axis.reach(last[0]).start
    if axis.size <= 2 * _INPUTS or begin >= end:
        inputs = range(min(2 * _INPUTS, axis.size))
        return [_View(whole, inputs, axis.crop_begin, axis.crop_end)]
    return [
        _View(range(whole.start, begin), first, axis.crop_begin, 0),
        _View(range(end, whole.stop), last, 0, axis.crop_end),
    ]


def _painted(axis: Axis, view: _View, width: float, scale: float, full: float) -> Sheet:
    painted = Sheet(width, full + 3 * _ROW + 24)
    start = view.positions.start

    def bar(span: range, y: float, kind: str) -> None:
        painted.rect(*_clipped(span, start, scale, width, y), kind)

    for row, i in enumerate(view.inputs):
        reach = axis.reach(i)
        bar(reach, row * _ROW + 2, "h h0")
        if axis.kernel <= _MOST_TICKS and axis.dilation > 1:
            _ticks(painted, [(o - start) * scale for o in reach[:: axis.dilation]], row * _ROW + 2)
        label = (max(reach.start, start) - start) * scale + 5
        words = f"x[{i}]·w0" + (f"…w{axis.kernel - 1}" if axis.kernel > 1 else "")
        painted.text(min(label, width - 7 * len(words)), row * _ROW + 15, words, "on")
    bar(axis.uncropped, full + 1, "cut")
    kept = range(max(0, axis.uncropped.start), min(axis.out, axis.uncropped.stop))
    bar(kept, full + 1, "box")
    bar(range(axis.out), full + _ROW * 2 - 12, "box")
    _label(painted, view, full + 3 * _ROW)
    return painted


def _clipped(
    span: range, start: int, scale: float, width: float, y: float
) -> tuple[float, float, float, float]:
    """x, y, width, height of a bar, no wider than the sheet: SVG's numbers are single precision."""
    x = min(max((span.start - start) * scale, -4.0), width + 4.0)
    to_x = min(max((span.stop - start) * scale, -4.0), width + 4.0)
    return x, y, max(to_x - x, 0.0), _ROW - 4


def _ticks(painted: Sheet, places: list[float], y: float) -> None:
    for x in places:
        if 0 <= x <= painted.width:
            painted.line(x + 0.5, y, x + 0.5, y + _ROW - 4, "l tick")


def _label(painted: Sheet, view: _View, y: float) -> None:
    """How much is cut or added at the ends that are in view."""
    ends = ((view.crop_begin, 0.0, "dim"), (view.crop_end, painted.width, "end dim"))
    for crop, x, kind in ends:
        if crop:
            painted.text(x, y, f"{'cut' if crop > 0 else 'added'} {abs(crop):,}", kind)
