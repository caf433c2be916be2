"""A drawing as SVG text: boxes, words, lines, arrows, braces. Standard library only.

Every drawing has its own background, so that it can be read on any page. It has two sets of
colours, chosen by the reader's `prefers-color-scheme`. Hues are numbers: HUES holds Okabe and Ito's
colours, which people with any colour vision can tell apart. A hue fills a box (with dark text in
both schemes) or draws a line (darker on a light background).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

HUES = (
    ("#56B4E9", "#0072B2"),  # sky blue; its lines are blue on a light background
    ("#E69F00", "#D55E00"),  # orange; vermillion
    ("#009E73", "#009E73"),  # bluish green
    ("#CC79A7", "#CC79A7"),  # reddish purple
)
"""(fill, line on a light background) of each hue; on a dark one the line is the fill."""

_STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial,
  sans-serif; }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.bold { font-weight: 600; }
.paper { fill: #ffffff; stroke: #d5d9de; }
.ink { fill: #1c2128; }
.quiet { fill: #57606a; }
.box { fill: #f3f5f7; stroke: #57606a; }
.bare { fill: none; stroke: #57606a; }
.gone { fill: none; stroke: #8c959f; stroke-dasharray: 4 3; }
.rule { stroke: #57606a; fill: none; }
.dashed { stroke-dasharray: 5 4; }
.tip { fill: #57606a; }
.dark { fill: #111418; }
"""

_DARK_STYLE = """
.paper { fill: #15181d; stroke: #3a414a; }
.ink { fill: #e8ebef; }
.quiet { fill: #a9b2bd; }
.box { fill: #232830; stroke: #a9b2bd; }
.bare { stroke: #a9b2bd; }
.gone { stroke: #7b8591; }
.rule { stroke: #a9b2bd; }
.tip { fill: #a9b2bd; }
"""


def hue_style() -> str:
    """Return the CSS of every hue, for the light and the dark scheme."""
    light = "".join(
        f".fill{n} {{ fill: {fill}; stroke: #1c2128; }}\n"
        f".line{n} {{ fill: none; stroke: {line}; }}\n.tip{n} {{ fill: {line}; }}\n"
        for n, (fill, line) in enumerate(HUES)
    )
    dark = "".join(
        f".line{n} {{ stroke: {fill}; }}\n.tip{n} {{ fill: {fill}; }}\n"
        for n, (fill, _) in enumerate(HUES)
    )
    return f"{_STYLE}{light}@media (prefers-color-scheme: dark) {{{_DARK_STYLE}{dark}}}\n"


@dataclass
class Drawing:
    """A sheet of `width` x `height` pixels, with a title for screen readers."""

    width: float
    height: float
    title: str
    marks: list[str] = field(default_factory=list)

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str = "box", radius: float = 3
    ) -> None:
        """Draw a rectangle; `kind` is a class of the style sheet."""
        self.marks.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
            f' rx="{_n(radius)}" class="{kind}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 14,
        kind: str = "ink",
        anchor: str = "start",
    ) -> None:
        """Draw text whose baseline begins, is centred or ends at (x, y), as `anchor` says."""
        self.marks.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" class="{kind}"'
            f' text-anchor="{anchor}">{escape(words, quote=False)}</text>'
        )

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: tuple[str, ...],
        kind: str = "box",
        size: float = 14,
        ink: str = "",
    ) -> None:
        """Draw a box with centred lines of text, which is dark if a hue fills the box."""
        self.rect(x, y, width, height, kind)
        ink = ink or ("mono dark" if kind.startswith("fill") else "mono ink")
        leading = size * 1.25
        top = y + height / 2 - leading * (len(lines) - 1) / 2 + size * 0.36
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * leading, line, size, ink, "middle")

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "rule") -> None:
        """Draw a straight line."""
        self.marks.append(
            f'<line x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}"'
            f' stroke-width="1.6" class="{kind}"/>'
        )

    def circle(self, x: float, y: float, radius: float, kind: str) -> None:
        """Draw a translucent dot."""
        centre = f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"'
        self.marks.append(f'<circle {centre} fill-opacity="0.7" class="{kind}"/>')

    def arrow(
        self, x: float, y: float, to_x: float, to_y: float, kind: str = "rule", tip: str = "tip"
    ) -> None:
        """Draw a line with a head at its end."""
        length = max(((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5, 1e-9)
        along_x, along_y = (to_x - x) / length, (to_y - y) / length
        base_x, base_y = to_x - 9 * along_x, to_y - 9 * along_y
        self.line(x, y, base_x, base_y, kind)
        corners = (
            (to_x, to_y),
            (base_x - 4 * along_y, base_y + 4 * along_x),
            (base_x + 4 * along_y, base_y - 4 * along_x),
        )
        points = " ".join(f"{_n(px)},{_n(py)}" for px, py in corners)
        self.marks.append(f'<polygon points="{points}" class="{tip}"/>')

    def brace(self, x: float, to_x: float, y: float, depth: float = 7) -> None:
        """Draw a bracket under or (with a negative depth) over a span."""
        self.marks.append(
            f'<path d="M{_n(x)} {_n(y)} v{_n(depth)} H{_n(to_x)} v{_n(-depth)}"'
            ' stroke-width="1.6" class="rule"/>'
        )

    def svg(self) -> str:
        """Return the file's text."""
        size = f'width="{_n(self.width)}" height="{_n(self.height)}"'
        box = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        sheet = (
            f'<rect x="0.5" y="0.5" width="{_n(self.width - 1)}" height="{_n(self.height - 1)}"'
            ' rx="8" class="paper"/>'
        )
        title = escape(self.title, quote=False)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img">'
        parts = [head, f"<title>{title}</title>", f"<style>{hue_style()}</style>", sheet]
        return "\n".join([*parts, *self.marks, "</svg>", ""])


def _n(value: float) -> str:
    """Format a coordinate without needless digits, the same on every machine."""
    return f"{round(value, 1) + 0.0:g}"  # + 0.0 turns -0.0 into 0
