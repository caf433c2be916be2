"""One axis of a layer, drawn: inputs, taps, the full result with its crops, the output in phases.

Two ways, chosen by what fits. Sizes and indices come from `upconv.geometry.Axis` alone.

1. Cell by cell: every position is a box that names its taps, every product a line in the colour of
   its phase. A long axis is shown by its begin and its end, with a break between them.
2. To scale: where a kernel or a stride spans too many boxes, inputs are bars over what they reach.

However large an axis is (2**40 positions, 2**40 taps), work and drawing stay small: nothing loops
over more than `MOST_TAPS` taps or phases.

What lives here: the choice, and phases in words. What never does: names, page layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ArgumentError
from ...geometry import Axis, Phase
from ..optimizing.results import AxisFacts
from . import cells, scaled
from .sheet import HUES, Sheet

MOST_TAPS = 64
"""Taps and phases that are looked at one by one."""

_LISTED = 8
_TERMS = 4


@dataclass(frozen=True, slots=True)
class PhaseWords:
    """A phase for the legend: number, hue (None: no tap makes it), formula, how many outputs."""

    number: int
    hue: int | None
    formula: str
    length: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """An axis: its sheet (None where there is nothing to draw), what it shows, its phases.

    `unlisted` phases are left out of the legend.
    """

    sheet: Sheet | None
    sentence: str
    phases: tuple[PhaseWords, ...] = ()
    unlisted: int = 0


def drawn(facts: AxisFacts) -> Drawing:
    """The drawing of an axis, whatever its numbers are; never raises.

    >>> drawing = drawn(AxisFacts(4, 3, 2, 1, 1, 0, 8))
    >>> drawing.sentence
    '4 inputs, 3 taps, stride 2, 1 cut from the begin: 8 outputs'
    >>> [phase.formula for phase in drawing.phases]
    ['y[2j] = x[j]·w1', 'y[2j+1] = x[j+1]·w0 + x[j]·w2']
    """
    try:
        axis = Axis(*(getattr(facts, n) for n in AxisFacts.__slots__ if n != "out"))
    except ArgumentError as error:
        return Drawing(None, f"Not drawn, because {error}")
    if axis.out != facts.out:
        return Drawing(None, f"Not drawn: {facts.out} outputs were seen, {axis.out} expected.")
    if not axis.size or not axis.out:
        return Drawing(None, f"{_sentence(axis)}. There is nothing to draw.")
    sheet = cells.sheet(axis) if cells.fit(axis) else scaled.sheet(axis)
    if max(axis.kernel, axis.stride) > MOST_TAPS:
        return Drawing(sheet, _sentence(axis), (), min(axis.stride, axis.out))
    phases = axis.phases()
    words = tuple(_words(axis, number, phase) for number, phase in enumerate(phases[:_LISTED]))
    return Drawing(sheet, _sentence(axis), words, len(phases) - len(words))


def _sentence(axis: Axis) -> str:
    parts = [f"{_count(axis.size, 'input')}, {_count(axis.kernel, 'tap')}, stride {axis.stride:,}"]
    if axis.dilation > 1:
        parts.append(f"dilation {axis.dilation:,}")
    for crop, end in ((axis.crop_begin, "begin"), (axis.crop_end, "end")):
        if crop:
            verb = f"{crop:,} cut from" if crop > 0 else f"{-crop:,} added at"
            parts.append(f"{verb} the {end}")
    return f"{', '.join(parts)}: {_count(axis.out, 'output')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _words(axis: Axis, number: int, phase: Phase) -> PhaseWords:
    where = f"{axis.stride}j" if axis.stride > 1 else "j"
    where += f"+{phase.offset}" if phase.offset else ""
    terms = [f"{_input(tap.shift)}·w{tap.index}" for tap in phase.taps]
    if len(terms) > _TERMS:
        terms = [*terms[: _TERMS - 2], "…", terms[-1]]
    formula = f"y[{where}] = {' + '.join(terms) or 'the bias alone'}"
    return PhaseWords(number, number % HUES if terms else None, formula, phase.length)


def _input(shift: int) -> str:
    return f"x[j{-shift:+d}]".replace("-", "\N{MINUS SIGN}") if shift else "x[j]"
