"""Drawings of graphs as SVG, with nodes as boxes arranged by depth.

A node's depth is the length of the longest path to it. An edge that spans several depths has a
point at each of them. Points are arranged like narrow boxes, so that edges go around the boxes.
"""

from __future__ import annotations

from html import escape

from .explain import computes
from .graph import Convolution, Graph, Norm, Pointwise
from .kinds import described_shape

_LINE, _GAP, _LETTER = 16, 44, 7.2  # pixels: line height, gap between depths, letter width
_COLOURS = {Convolution: "#cfe3f7", Pointwise: "#e7f3d8", Norm: "#f9e3c8"}


class _Box:
    """A node and the shape of its values; a box without lines of text is a point of an edge."""

    def __init__(self, lines: list[str], shape: str = "", colour: str = "#ffffff") -> None:
        self.lines, self.shape, self.colour = lines, shape, colour
        self.width = max(map(len, lines)) * _LETTER + 18 if lines else 8
        self.height = len(lines) * _LINE + 8 if lines else 0
        self.above: list[_Box] = []
        self.below: list[_Box] = []
        self.x = self.y = 0.0

    def edges(self) -> str:
        """Draw the edges from this box to the boxes below."""
        x, y = self.x, self.y + self.height
        paths = []
        for box in self.below:
            middle = (y + box.y) / 2
            path = f"M{x:.0f} {y:.0f}C{x:.0f} {middle:.0f} {box.x:.0f} {middle:.0f}"
            target = f"{box.x:.0f} {box.y:.0f}"
            paths.append(f'<path d="{path} {target}" fill="none" stroke="#888888"/>')
        return "".join(paths)

    def svg(self) -> str:
        """Draw the box, its text, and the shape of its values on top of the outgoing edges."""
        corner = f'x="{self.x - self.width / 2:.0f}" y="{self.y:.0f}"'
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
        parts = [f'<rect {corner} {size} rx="4" fill="{self.colour}" stroke="#666666"/>']
        texts = [(self.y + 1 + _LINE * n, line, "#000000") for n, line in enumerate(self.lines, 1)]
        over = '#444444" stroke="#ffffff" stroke-width="3" paint-order="stroke'
        for y, text, fill in (*texts, (self.y + self.height + 16, self.shape, over)):
            style = f'x="{self.x:.0f}" y="{y:.0f}" font-size="13" fill="{fill}"'
            parts.append(f"<text {style}>{escape(text)}</text>" if text else "")
        return "".join(parts)


def drawing(graph: Graph) -> str:
    """Return an SVG file that shows a graph, in whose shapes open extents are None."""
    rows = _rows(graph)
    boxes = [box for row in rows for box in row]
    _arrange(rows)
    left, y = min(box.x - box.width / 2 for box in boxes) - 60, 12.0
    for row in rows:
        height = max(box.height for box in row)
        for box in row:
            box.x, box.y = box.x - left, y + (height - box.height) / 2
        y += height + _GAP
    width = max(box.x + box.width / 2 for box in boxes) + 60
    size = f'width="{width:.0f}" height="{y - _GAP + 12:.0f}"'
    style = 'font-family="sans-serif" text-anchor="middle"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
        f"<title>A network of {len(graph.nodes)} nodes</title>",
        f'<rect {size} fill="#ffffff"/>',
        *(box.edges() for box in boxes),
        *(box.svg() for box in boxes if box.lines),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _rows(graph: Graph) -> list[list[_Box]]:
    """Return the boxes by depth, each connected to its neighbours above and below."""
    rows: list[list[_Box]] = []
    paths: dict[int, tuple[int, list[_Box]]] = {}  # value -> its depth, its points from there on

    def insert(box: _Box, depth: int, values: tuple[int, ...]) -> None:
        rows.extend([] for _ in range(len(rows), depth + 1))
        rows[depth].append(box)
        for value in dict.fromkeys(values):
            start, path = paths[value]
            while len(path) < depth - start:
                point = _Box([])
                insert(point, start + len(path), (value,))
                path.append(point)
            path[depth - start - 1].below.append(box)
            box.above.append(path[depth - start - 1])

    for name, value in graph.inputs.items():
        paths[value] = 0, [_Box([name], described_shape(graph.shapes[value]))]
        insert(paths[value][1][0], 0, ())
    for node in graph.nodes:
        depth = 1 + max(paths[value][0] for value in node.inputs)
        shapes = [graph.shapes[value] for value in (*node.inputs, *node.outputs)]
        colour = _COLOURS.get(type(node.operation), "#eeeeee")
        lines = computes(node, shapes).split(" + ")
        box = _Box(lines, described_shape(shapes[-1]), colour)
        insert(box, depth, node.inputs)
        paths.update(dict.fromkeys(node.outputs, (depth, [box])))
    for number, value in enumerate(graph.outputs):
        insert(_Box([f"output {number}"]), 1 + paths[value][0], (value,))
    return rows


def _arrange(rows: list[list[_Box]]) -> None:
    """Move each box towards its neighbours, alternating between those above and those below."""
    for sweep in range(8):
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = {}
            for box in row:
                near = (box.below if sweep % 2 else box.above) or [box]
                wanted[box] = sum(other.x for other in near) / len(near)
            row.sort(key=wanted.__getitem__)
            right = -1e9
            for box in row:
                box.x = max(wanted[box], right + box.width / 2)
                right = box.x + box.width / 2 + 16
            shift = sum(wanted[box] - box.x for box in row) / len(row)
            for box in row:
                box.x += shift
