"""The report as plain text for a terminal: one row per layer, the whole model, the verdict last.

No line is wider than `width` columns. What a name could do to a terminal is taken out of it,
letters from right to left included; wide letters count as two columns. Words of ours are plain
ASCII, for terminals that know no more.

What lives here: rows and columns. What never does: printing, colours.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

from .. import names
from ..optimizing.results import ORIGINAL, LayerResult, Optimization, Trial
from . import conclusions, figures

NARROWEST = 60
"""Columns that are taken even where fewer are asked for."""

_GAP = "  "
_LABEL = 16
_NUMBERS = (8, 8, 7)
_SETTING = 48
"""Columns of one word about the setting."""
_OPERATOR = "/ConvTranspose"
"""What exporters end names with; every layer here is one, and there is no room to say so."""
_ASCII = str.maketrans({"µ": "u", figures.TIMES: "x", figures.MINUS: "-", figures.NOTHING: "-"})


@dataclass(frozen=True, slots=True)
class _Cells:
    """One row: words, three numbers, words."""

    layer: str
    before: str
    after: str
    faster: str
    now: str


_HEADINGS = _Cells("layer", "before", "after", "faster", "now")


def as_text(optimization: Optimization, width: int = 80) -> str:
    """The report of an optimisation in lines of at most `width` columns (at least 60).

    The text ends with the verdict, without a newline.

    >>> from upconv.onnx.optimizing.results import Optimization
    >>> found = Optimization("a.onnx", "none", 1, 17, (), (), (), None, (), "", 9, 9, "x", (), 1.0)
    >>> print(as_text(found).splitlines()[-1])
    verdict         Nothing to do; nothing to prove.
    """
    room = max(width, NARROWEST)
    lines = [*_head(optimization, room), "", *_table(optimization, room), ""]
    return "\n".join([*lines, *_ending(optimization, room)])


def _head(found: Optimization, room: int) -> Iterator[str]:
    yield _fitted(_name(found.model), room).rstrip()
    target, machine = _name(found.target, _SETTING), _name(found.machine, _SETTING)
    threads = figures.count(found.threads, "thread")
    yield from _wrapped(f"{target}, {threads}, opset {found.opset}, {machine}", room)


def _table(found: Optimization, room: int) -> Iterator[str]:
    if not found.layers:
        steps = found.prepared or ("No transposed convolutions.",)
        yield from (_fitted(_name(step, room), room).rstrip() for step in steps)
        return
    rows = [_HEADINGS, *map(_cells, found.layers)]
    words = room - sum(_NUMBERS) - len(_GAP) * 4
    layer, now = (
        max(map(_columns, column)) for column in zip(*((r.layer, r.now) for r in rows), strict=True)
    )
    now = min(now, max(words - layer, words // 2))
    layer = min(layer, words - now)
    for row in rows:
        cells = (row.before, row.after, row.faster)
        aligned = [cell.rjust(size) for cell, size in zip(cells, _NUMBERS, strict=True)]
        line = [_fitted(row.layer, layer), *aligned, _fitted(row.now, now)]
        yield _GAP.join(line).rstrip()


def _cells(layer: LayerResult) -> _Cells:
    chosen = layer.trial(layer.chosen)
    node = _name(layer.node.removesuffix(_OPERATOR) or layer.node)
    before = _time(layer.trial(ORIGINAL))
    if layer.rewritten:
        ratio = figures.times(chosen.ratio.median) if chosen and chosen.ratio else "-"
        return _Cells(node, before, _time(chosen), ratio.translate(_ASCII), _name(layer.chosen))
    untried = conclusions.state(layer) is conclusions.State.UNTRIED
    return _Cells(node, before, "-", "-", "as it was, not tried" if untried else "as it was")


def _time(trial: Trial | None) -> str:
    if not trial or not trial.timing:
        return "-"
    return figures.seconds(trial.timing.median).translate(_ASCII)


def _ending(found: Optimization, room: int) -> Iterator[str]:
    speed, proof = conclusions.speed(found), conclusions.proof(found)
    facts = (
        ("deconvolutions", (conclusions.share(found) or "not measured").translate(_ASCII)),
        ("whole model", f"{speed.title}. {speed.sentence}".translate(_ASCII)),
        ("proof", f"{proof.title}. {proof.sentence}".translate(_ASCII)),
        ("file", conclusions.written(found)),
        *(("remark", conclusions.sentence(remark)) for remark in found.remarks),
        *(("not in profile", conclusions.sentence(node)) for node in found.broken),
        ("verdict", conclusions.sentence(found.verdict or f"{speed.title}; {proof.title.lower()}")),
    )
    for label, sentence in facts:
        first, *others = list(_wrapped(sentence, room - _LABEL)) or [""]
        yield (label.ljust(_LABEL) + first).rstrip()
        yield from (" " * _LABEL + line for line in others)


def _name(text: str, longest: int = names.LONGEST) -> str:
    return names.on_terminal(names.shortened(text, longest, "...")) or "(no name)"


def _wrapped(text: str, room: int) -> Iterator[str]:
    """The words in lines of at most so many columns."""
    harmless = names.on_terminal(names.clipped(text))
    for line in wrap(harmless, room, break_on_hyphens=False):
        yield from _cut(line, room)


def _cut(line: str, room: int) -> Iterator[str]:
    """A line of wide letters in pieces that fit."""
    while _columns(line) > room:
        piece = line[: room // 2]
        yield piece
        line = line[len(piece) :]
    yield line


def _fitted(text: str, room: int) -> str:
    """The text in exactly so many columns, its middle cut out where it is longer."""
    longest = len(text)
    while _columns(text) > room:
        longest = min(longest - 1, room)
        text = names.shortened(text, longest, "...")
    return text + " " * (room - _columns(text))


def _columns(text: str) -> int:
    """Columns a terminal takes for a text: marks none, wide letters two."""
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
