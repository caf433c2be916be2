"""The drawing of the pool in docs/jit.md: two runs, joined by four threads in different ways."""

from __future__ import annotations

from dataclasses import dataclass

from svg import Drawing

LEFT, SCALE, ROW = 118, 8.2, 58
END = 100


@dataclass(frozen=True)
class Span:
    """The activity of a thread over an interval; times have no unit."""

    start: float
    stop: float
    words: str
    kind: str


WORK, POLL, SLEEP, WAKING = "fill0", "fill1", "gone", "bare"
THREADS = {
    "leader": (
        Span(6, 40, "jobs", WORK),
        Span(40, 47, "wait", "box"),
        Span(62, 84, "jobs", WORK),
    ),
    "helper 1": (
        Span(0, 8, "poll", POLL),
        Span(8, 44, "jobs", WORK),
        Span(44, 64, "poll", POLL),
        Span(64, 82, "jobs", WORK),
        Span(82, 96, "poll", POLL),
        Span(96, END, "", SLEEP),
    ),
    "helper 2": (
        Span(0, 6, "", SLEEP),
        Span(6, 24, "woken", WAKING),
        Span(24, 47, "jobs", WORK),
        Span(47, 63, "poll", POLL),
        Span(63, 83, "jobs", WORK),
        Span(83, 97, "poll", POLL),
        Span(97, END, "", SLEEP),
    ),
    "helper 3": (
        Span(0, 6, "", SLEEP),
        Span(6, 52, "woken, too late", WAKING),
        Span(53, 63, "poll", POLL),
        Span(63, 84, "jobs", WORK),
        Span(84, 98, "poll", POLL),
        Span(98, END, "", SLEEP),
    ),
}
"""protocol.py allows this: a polling helper joins at once, a helper after the end is refused."""


def pool() -> Drawing:
    """Draw fork and join, with helpers that spin, sleep, or come late."""
    title = "two runs: no thread waits for a helper that has not joined"
    bottom = 92 + ROW * len(THREADS)
    drawing = Drawing(LEFT + SCALE * END + 24, bottom + 62, title)
    drawing.text(18, 34, title, 16, "bold ink")
    for time, words in ((6, "open"), (40, "close"), (47, "joined"), (62, "open"), (84, "close")):
        drawing.line(_at(time), 78, _at(time), bottom, "rule dashed")
        drawing.text(_at(time), 70, words, 13, "quiet", "middle")
    for row, (name, spans) in enumerate(THREADS.items()):
        y = 88 + ROW * row
        drawing.text(18, y + 23, name, 14, "bold ink")
        for span in spans:
            x, width = _at(span.start), SCALE * (span.stop - span.start)
            drawing.rect(x, y, width, 36, span.kind)
            ink = "dark" if span.kind.startswith("fill") else "quiet"
            drawing.text(x + width / 2, y + 23, span.words, 13, ink, "middle")
    _legend(drawing, bottom + 36)
    return drawing


def _at(time: float) -> float:
    return LEFT + SCALE * time


def _legend(drawing: Drawing, y: float) -> None:
    x = float(LEFT)
    for kind, words, width in (
        (WORK, "takes jobs from the counter", 238),
        (POLL, "polls the epoch", 148),
        (WAKING, "called, not awake", 176),
        (SLEEP, "asleep", 90),
    ):
        drawing.rect(x, y - 14, 24, 18, kind)
        drawing.text(x + 32, y, words, 13, "ink")
        x += width


DRAWINGS = {"jit-pool.svg": pool}
