"""The drawings of docs/how-it-works.md: a call's path, and the reference engine's padded output."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strips import CELL, LEFT, Link, hue_of, links, values
from svg import Drawing

from upconv.engines.im2col import IndexSet
from upconv.geometry import Axis


@dataclass(frozen=True)
class Stop:
    """One module on the path: the work of every call, and the additional work of a first call."""

    name: str
    always: tuple[str, str]
    first: tuple[str, str]


STOPS = (
    Stop("arrays, keywords", ("describe the arrays,", "freeze the keywords"), ("", "")),
    Stop(
        "execution",
        ("look up", "the prepared call"),
        ("check, make the", "problem, choose"),
    ),
    Stop("primitives", ("keep the primitive", "alive"), ("the engine", "builds it")),
    Stop("Primitive.run", ("pack the weight,", "pass addresses"), ("", "")),
    Stop("native code", ("compute,", "on all threads"), ("", "")),
)


def call() -> Drawing:
    """Draw the five stops; two of them do more work in a first call."""
    width, gap, top = 160, 24, 84
    drawing = Drawing(36 + len(STOPS) * (width + gap) - gap, 284, "The path of a call")
    drawing.text(18, 34, "conv_transpose(x, weight, stride=2, …)", 16, "mono bold ink")
    drawing.text(18, 64, "every call", 14, "bold ink")
    drawing.text(18, 262, "first call with this signature only", 14, "bold ink")
    for number, stop in enumerate(STOPS):
        x = 18 + number * (width + gap)
        _box(drawing, x, top, width, (stop.name, *stop.always), "fill0" if stop.first[0] else "box")
        if number:
            drawing.arrow(x - gap + 2, top + 36, x - 2, top + 36)
        if stop.first[0]:
            _box(drawing, x, 188, width, stop.first, "gone")
            drawing.arrow(x + 46, top + 74, x + 46, 186, "rule dashed")
            drawing.arrow(x + 74, 188, x + 74, top + 76, "rule dashed")
            drawing.text(x + 40, 176, "miss", 13, "quiet", "end")
            drawing.text(x + 80, 176, "cached", 13, "quiet")
    return drawing


def _box(
    drawing: Drawing, x: float, y: float, width: float, lines: tuple[str, ...], kind: str
) -> None:
    height = 30 + 21 * (len(lines) - 1)
    drawing.rect(x, y, width, height, kind, 6)
    dark = kind.startswith("fill")
    for number, line in enumerate(lines):
        head = number == 0 and len(lines) > 2
        ink = ("bold " if head else "") + ("dark" if dark else "ink" if head else "quiet")
        drawing.text(x + width / 2, y + 21 + 20 * number, line, 14, ink, "middle")


def padded() -> Drawing:
    """Draw runs of taps that reach different positions: each run is one strided addition."""
    axis = Axis(3, 5, 2, 1, crop_begin=1, crop_end=-1)
    index_set = IndexSet.of(axis)
    runs = [run.taps for run in index_set.conflict_free(index_set.size)]
    top, row = 76, 48
    bottom = top + row * len(runs)
    title = "kernel 5, stride 2: three runs, three additions"
    drawing = Drawing(LEFT + CELL * index_set.length + 60, bottom + 176, title)
    drawing.text(18, 34, title, 16, "bold ink")
    for number, taps in enumerate(runs):
        _run(drawing, axis, index_set, taps, top + number * row)
    drawing.text(18, bottom + 40, "padded output", 14, "bold ink")
    drawing.text(LEFT - 32, bottom + 40, "+=", 15, "mono ink")
    uncut = replace(axis, crop_begin=min(axis.crop_begin, 0), crop_end=min(axis.crop_end, 0))
    for place, value in enumerate(values(uncut)):
        drawing.cell(LEFT + place * CELL + 2, bottom + 20, CELL - 4, 30, (f"{value}",), "bare", 12)
        drawing.text(LEFT + (place + 0.5) * CELL, bottom + 12, f"{place}", 12, "quiet", "middle")
    _window(drawing, axis, index_set, bottom + 20)
    return drawing


def _run(drawing: Drawing, axis: Axis, index_set: IndexSet, taps: slice, y: float) -> None:
    last = taps.stop - 1
    name = f"taps {taps.start} to {last}" if last > taps.start else f"tap {last}"
    drawing.text(18, y + 20, name, 14, "bold ink")
    for link in links(axis):
        if link.t in range(taps.start, taps.stop):
            _product(drawing, axis, index_set, link, y)


def _product(drawing: Drawing, axis: Axis, index_set: IndexSet, link: Link, y: float) -> None:
    place = index_set.origin + link.position
    hue = hue_of(axis, link.position - axis.crop_begin)
    # The position before the first output has the same taps as the output a stride later.
    hue = hue_of(axis, link.position - axis.crop_begin + axis.stride) if hue is None else hue
    words = (f"x{link.i}·w{link.t}",)
    drawing.cell(LEFT + place * CELL + 2, y, CELL - 4, 30, words, f"fill{hue}", 13)


def _window(drawing: Drawing, axis: Axis, index_set: IndexSet, y: float) -> None:
    window = index_set.window
    begin, end = LEFT + window.start * CELL, LEFT + window.stop * CELL
    drawing.brace(begin + 2, end - 2, y + 36, 8)
    words = f"window: padded[{window.start}:{window.stop}]"
    drawing.text((begin + end) / 2, y + 64, words, 14, "mono ink", "middle")
    drawing.text(18, y + 102, "output y", 14, "bold ink")
    for o, value in enumerate(values(axis)):
        hue = hue_of(axis, o)
        reached = any(link.position == o + axis.crop_begin for link in links(axis))
        kind = f"fill{hue}" if reached else "gone"
        drawing.cell(begin + o * CELL + 2, y + 82, CELL - 4, 30, (f"{value}",), kind, 12)
    drawing.text(end - CELL / 2, y + 134, "bias alone", 13, "quiet", "middle")


DRAWINGS = {"inside-call.svg": call, "inside-padded-output.svg": padded}
