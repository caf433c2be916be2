"""One spatial axis as SVG: inputs, a line for every tap that meets, and the output in phases.

A number in each box of the output is its phase, since a colour alone tells some readers nothing;
hatched boxes are cut off, dashed ones are reached by no tap. Long axes are shown by their begin.
Sizes and indices come from `upconv.geometry.Axis` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...errors import ArgumentError
from ...geometry import Axis

_CELL, _GAP, _LEFT = 20, 50, 60
_MOST = 36
"""Positions that are drawn."""

_WIDEST = 64
"""An extent of a kernel, or a stride, beyond which there is nothing to see."""

_HUES = 5


def drawn(facts: Mapping[str, int]) -> str:
    """The drawing of an axis as the report's JSON has it; "" where it would show nothing.

    >>> drawn({"size": 4, "kernel": 3, "stride": 2, "dilation": 1, "crop_begin": 1, "crop_end": 0,
    ...     "out": 8})[:4]
    '<svg'
    """
    try:
        steps = facts["stride"], facts["dilation"]
        crops = facts["crop_begin"], facts["crop_end"]
        axis = Axis(facts["size"], facts["kernel"], *steps, *crops)
    except ArgumentError:
        return ""
    if axis.extent > _WIDEST or axis.stride > _WIDEST:
        return ""
    first = min(0, axis.uncropped.start)
    last = max(axis.out, axis.uncropped.stop)
    shown = range(first, min(last, first + _MOST))
    width = _LEFT + len(shown) * _CELL + 24
    marks = "".join((*_inputs(axis, shown), *_outputs(axis, shown)))
    more = f'<text x="{width - 18}" y="{_GAP + 36}">…</text>' if last > shown.stop else ""
    rows = f'<text y="15">input</text><text y="{_GAP + 36}">output</text>'
    return (
        f'<svg class="axis" width="{width}" height="{_GAP + 60}" role="img"'
        f' aria-label="which taps make which outputs">{rows}{marks}{more}</svg>'
    )


def _x(position: float, shown: range) -> float:
    return _LEFT + (position - shown.start) * _CELL


def _inputs(axis: Axis, shown: range) -> Iterator[str]:
    for i in axis.reads(shown.start, shown.stop):
        x = _centre(axis, i, shown)
        if x - 8 >= _LEFT and x + 8 <= _x(shown.stop, shown):
            yield f'<rect class="in" x="{x - 9:g}" y="1" width="18" height="20"/>'
            yield f'<text class="mid" x="{x:g}" y="15">{i}</text>'


def _centre(axis: Axis, i: int, shown: range) -> float:
    reach = axis.reach(i)
    return _x((reach.start + reach.stop) / 2, shown)


def _outputs(axis: Axis, shown: range) -> Iterator[str]:
    top = _GAP + 21
    for o in shown:
        x, phase = _x(o, shown), o % axis.stride
        products = axis.products(o)
        kept = 0 <= o < axis.out
        hue = f"h{phase % _HUES}" if kept and products else "cut" if not kept else "bare"
        for product in products if kept else ():
            start = _centre(axis, product.input, shown)
            if _LEFT <= start <= _x(shown.stop, shown):
                yield (
                    f'<line class="l{phase % _HUES}" x1="{start:g}" y1="21"'
                    f' x2="{x + _CELL / 2:g}" y2="{top}"/>'
                )
        yield f'<rect class="{hue}" x="{x + 1:g}" y="{top}" width="{_CELL - 2}" height="20"/>'
        if kept:
            label = phase if products else "b"
            yield f'<text class="mid on" x="{x + _CELL / 2:g}" y="{top + 15}">{label}</text>'
            if phase == 0:
                yield f'<text class="mid dim" x="{x + _CELL / 2:g}" y="{top + 34}">{o}</text>'
