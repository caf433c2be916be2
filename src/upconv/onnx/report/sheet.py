"""An SVG sheet: rectangles, lines and words at coordinates, looked up in classes of the page's CSS.

Every text on a sheet is ours or a number; it is escaped all the same. A sheet has no colours and no
ids of its own, so that one copy serves light, dark and print, and many places of a page.

What lives here: marks. What never does: what a drawing is about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

HUES = 5
"""Colours there are for phases; the numbers in the boxes tell them apart beyond that."""


@dataclass
class Sheet:
    """Marks on `width` x `height` pixels, from the top left; those of one kind become one element.

    Kinds are painted in the order in which they first came.
    """

    width: float
    height: float
    shapes: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    inner: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A rectangle."""
        self._path(kind, f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h{_n(-width)}z")

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        """A straight line."""
        self._path(kind, f"M{_n(x)} {_n(y)}L{_n(to_x)} {_n(to_y)}")

    def brace(self, x: float, to_x: float, y: float) -> None:
        """A bracket under a span."""
        self._path("rule", f"M{_n(x)} {_n(y)}v5H{_n(to_x)}v-5")

    def text(self, x: float, y: float, words: str, kind: str) -> None:
        """Words on the baseline y; the class says whether they begin, end or are centred at x."""
        marks = self.words.setdefault(kind, [])
        marks.append(f'<text x="{_n(x)}" y="{_n(y)}">{escape(words)}</text>')

    def put(self, inner: Sheet, x: float, y: float) -> None:
        """Another sheet, with all that lies beyond its edges cut off."""
        self.inner.append(
            f'<svg x="{_n(x)}" y="{_n(y)}" width="{_n(inner.width)}"'
            f' height="{_n(inner.height)}">{inner.body}</svg>'
        )

    def _path(self, kind: str, steps: str) -> None:
        self.shapes.setdefault(kind, []).append(steps)

    @property
    def body(self) -> str:
        """All marks: shapes, then words over them, then the sheets put on this one."""
        paths = (f'<path class="{k}" d="{"".join(steps)}"/>' for k, steps in self.shapes.items())
        texts = (f'<g class="{k}">{"".join(marks)}</g>' for k, marks in self.words.items())
        return "".join([*paths, *texts, *self.inner])


def _n(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"  # + 0.0 makes -0.0 a plain 0
