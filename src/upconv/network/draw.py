"""Drawing a graph: the text of an SVG file, nodes as boxes by depth.

The depth of a node is the length of the longest path to it. An edge that passes other depths has a
point at each of them, which takes part in the order like a narrow box; so edges pass beside boxes.
"""

from __future__ import annotations

from html import escape

import numpy as np

from .graph import (
    Array,
    Chain,
    Convolution,
    Graph,
    Input,
    Norm,
    Operation,
    Pad,
    PixelShuffle,
    Pointwise,
    Pool,
    Resample,
    Slice,
)
from .kinds import KINDS, described_shape

_LINE, _GAP, _LETTER = 16, 44, 7.2  # pixels: of a line of text, between depths, of a letter
_COLOURS = {Convolution: "#cfe3f7", Pointwise: "#e7f3d8", Norm: "#f9e3c8"}


class _Box:
    """A node, or a point of an edge where there are no lines of text."""

    def __init__(self, lines: list[str], colour: str = "#ffffff") -> None:
        self.lines, self.colour = lines, colour
        self.width = max(map(len, lines)) * _LETTER + 18 if lines else 8
        self.height = len(lines) * _LINE + 8 if lines else 0
        self.neighbours: tuple[list[_Box], list[_Box]] = [], []  # above and below
        self.x = self.y = 0.0


def drawing(graph: Graph) -> str:
    """The text of an SVG file that shows a graph; extents of its shapes may be None, for open."""
    rows, edges = _rows(graph)
    _arrange(rows)
    width, height = _place(rows)
    size = f'width="{width:.0f}" height="{height:.0f}"'
    style = 'font-family="sans-serif" text-anchor="middle"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
        f"<title>A network of {len(graph.nodes)} nodes</title>",
        f'<rect {size} fill="#ffffff"/>',
        *map(_edge, edges),
        *(_rectangle(box) for row in rows for box in row if box.lines),
        *(_shape(*label) for label in dict.fromkeys((path[0], text) for path, text in edges)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _rows(graph: Graph) -> tuple[list[list[_Box]], list[tuple[list[_Box], str]]]:
    """Boxes by depth, and each edge: the boxes that it passes, and the shape of its value."""
    rows: list[list[_Box]] = []
    edges: list[tuple[list[_Box], str]] = []
    paths: dict[int, tuple[int, list[_Box]]] = {}  # value -> its depth, its points from there on

    def insert(box: _Box, depth: int) -> _Box:
        rows.extend([] for _ in range(len(rows), depth + 1))
        rows[depth].append(box)
        return box

    def read(value: int, depth: int, reader: _Box) -> None:
        start, path = paths[value]
        while len(path) < depth - start:
            path.append(insert(_Box([]), start + len(path)))
            _join(path[-2], path[-1])
        _join(path[depth - start - 1], reader)
        edges.append(([*path[: depth - start], reader], described_shape(graph.shapes[value])))

    for name, value in graph.inputs.items():
        paths[value] = 0, [insert(_Box([name]), 0)]
    for node in graph.nodes:
        depth = 1 + max(paths[value][0] for value in node.inputs)
        channels = graph.shapes[node.inputs[0]][1]
        colour = _COLOURS.get(type(node.operation), "#eeeeee")
        box = insert(_Box(described(node.operation, channels), colour), depth)
        for value in dict.fromkeys(node.inputs):
            read(value, depth, box)
        paths.update((value, (depth, [box])) for value in node.outputs)
    for number, value in enumerate(graph.outputs):
        depth = 1 + paths[value][0]
        read(value, depth, insert(_Box([f"output {number}"]), depth))
    return rows, edges


def _join(upper: _Box, lower: _Box) -> None:
    upper.neighbours[1].append(lower)
    lower.neighbours[0].append(upper)


def _arrange(rows: list[list[_Box]]) -> None:
    """Give each box an x near those of its neighbours, alternately from above and from below."""
    for sweep in range(8):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {}
            for box in row:
                near = box.neighbours[sweep % 2] or [box]
                wanted[box] = sum(other.x for other in near) / len(near)
            row.sort(key=wanted.__getitem__)
            right = -1e9
            for box in row:
                box.x = max(wanted[box], right + box.width / 2)
                right = box.x + box.width / 2 + 16
            shift = sum(wanted[box] - box.x for box in row) / len(row)
            for box in row:
                box.x += shift


def _place(rows: list[list[_Box]]) -> tuple[float, float]:
    """Move all boxes to positive coordinates; the width and the height of the drawing."""
    left = min(box.x - box.width / 2 for row in rows for box in row) - 60
    y = 12.0
    for row in rows:
        height = max(box.height for box in row)
        for box in row:
            box.x, box.y = box.x - left, y + (height - box.height) / 2
        y += height + _GAP
    return max(box.x + box.width / 2 for row in rows for box in row) + 60, y - _GAP + 12


def _edge(edge: tuple[list[_Box], str]) -> str:
    """A smooth line through the boxes that an edge passes."""
    first, *others = edge[0]
    x, y = first.x, first.y + first.height
    path = f"M{x:.0f} {y:.0f}"
    for box in others:
        middle = (y + box.y) / 2
        path += f"C{x:.0f} {middle:.0f} {box.x:.0f} {middle:.0f} {box.x:.0f} {box.y:.0f}"
        x, y = box.x, box.y + box.height
    return f'<path d="{path}" fill="none" stroke="#888888"/>'


def _rectangle(box: _Box) -> str:
    corner = f'x="{box.x - box.width / 2:.0f}" y="{box.y:.0f}"'
    size = f'width="{box.width:.0f}" height="{box.height:.0f}"'
    lines = (
        _text(box.x, box.y + 1 + _LINE * number, 13, "#000000", line)
        for number, line in enumerate(box.lines, 1)
    )
    return f'<rect {corner} {size} rx="4" fill="{box.colour}" stroke="#666666"/>{"".join(lines)}'


def _shape(box: _Box, shape: str) -> str:
    """The shape of a value, below the box that it leaves, with a light border over lines."""
    style = '#444444" stroke="#ffffff" stroke-width="3" paint-order="stroke'
    return _text(box.x, box.y + box.height + 16, 12, style, shape)


def _text(x: float, y: float, size: int, fill: str, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{fill}">{escape(text)}</text>'


# Text of boxes ------------------------------------------------------------------------------------


def described(operation: Operation, channels: int) -> list[str]:
    """An operation on so many channels: its name, and a line for each operation of its end."""
    name = KINDS[type(operation)].name
    match operation:
        case Pointwise(chain):
            return _lines(chain)
        case Convolution():
            return [_convolution(operation), *_lines(operation.end)]
        case Norm(groups, _, per_position):
            kind = "instance" if groups == channels else f"{groups} groups:"
            return [f"{'layer' if per_position else kind} norm", *_lines(operation.end)]
        case Slice(start, stop):
            return [f"channels {start} to {stop}"]
        case Pad(amounts, mode):
            return [f"{mode} pad {' '.join(map(str, amounts))}"]
        case Resample(factors, mode):
            return [f"{mode} upsampling {_product(factors)}"]
        case Pool(mode, kernel, stride):
            return [f"{mode} pool {_product(kernel)} stride {_product(stride)}"]
        case PixelShuffle(factors):
            return [f"{name} {_product(factors)}"]
    return [name]


def _convolution(operation: Convolution) -> str:
    words = ["transposed conv" if operation.transposed else "conv"]
    words.append(_product(operation.weight.shape[2:]))
    for name in ("stride", "dilation", "groups"):
        value = getattr(operation.keywords, name)
        if value != 1:
            words.append(f"{name} {value if isinstance(value, int) else _product(value)}")
    return " ".join(words)


def _product(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def _lines(chain: Chain) -> list[str]:
    """Each operation of a chain with its operand."""
    return [op.name + _operand(op.operand) for op in chain]


def _operand(operand: float | Array | Input | None) -> str:
    if isinstance(operand, int | float):
        return f" {operand:.3g}"
    return {Input: " a value", np.ndarray: " per channel"}.get(type(operand), "")
