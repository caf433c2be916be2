"""The picture of whole models: each peer's time as a multiple of upconv's, one row per model.

All numbers come from the tables of docs/models.md, for the first number of threads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log2
from pathlib import Path

from svg import Drawing

PAGE = Path(__file__).parents[1] / "models.md"
PEERS = {
    "torch": "PyTorch",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
OURS = ("`accelerate`", '`backend="upconv"`', "`Session`")

WIDTH, LABELS, LEFT, RIGHT = 440, 16, 172, 424
TOP, STEP, GAP, FOOT = 96, 19, 26, 64
LEAST, MOST = 0.7, 11.3


@dataclass(frozen=True)
class Line:
    """A model: its label, its kind, and the time of each peer over the best of upconv."""

    label: str
    kind: str
    ratios: dict[str, float]


def lines() -> tuple[list[Line], int]:
    """Read the models of the page's first measurement, and its number of threads."""
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(r"^### float32, (\d+) threads?\n(.*?)^### ", text, re.MULTILINE | re.DOTALL)
    assert match, "docs/models.md has no measurement in float32"
    result: list[Line] = []
    for table in re.findall(r"(?:^\|.*\n)+", match[2], re.MULTILINE):
        head, _, *rows = (
            [cell.strip(" *") for cell in line.strip("|\n ").split("|")]
            for line in table.strip().splitlines()
        )
        for cells in rows:
            row = dict(zip(head, cells, strict=True))
            times = {name: float(row[name]) for name in row if _is_time(name, row[name])}
            ours = min(times[name] for name in OURS if name in times)
            peers = {k: times[label] / ours for k, label in PEERS.items() if label in times}
            result.append(Line(cells[0], head[0], peers))
    return result, int(match[1])


def _is_time(name: str, cell: str) -> bool:
    return cell != "-" and name in (*PEERS.values(), *OURS)


def sheet(models: list[Line], threads: int) -> Drawing:
    """Draw a row of dots for each model on a scale of powers of two."""
    kinds = list(dict.fromkeys(line.kind for line in models))
    height = TOP + STEP * len(models) + GAP * len(kinds) + FOOT
    drawing = Drawing(WIDTH, height, "Time per model, relative to upconv")
    drawing.text(LABELS, 28, drawing.title, 15, "bold ink")
    _legend(drawing)
    bottom = height - FOOT + 6
    for power in range(4):
        x = _x(2.0**power)
        drawing.line(x, TOP - 14, x, bottom, "rule dashed" if power else "rule")
        label = f"{2**power} times" if power else "upconv"
        drawing.text(x, TOP - 20, label, 13, "quiet" if power else "bold ink", "middle")
    y = TOP
    for kind in kinds:
        drawing.text(LABELS, y + 8, kind, 13, "bold ink")
        y += GAP
        for line in (line for line in models if line.kind == kind):
            _row(drawing, y, line)
            y += STEP
    setting = f"CPU, {threads} thread{'s' * (threads != 1)}, float32."
    words = "upconv is faster to the right of the first line."
    drawing.text(LABELS, height - 34, words, 13, "quiet")
    drawing.text(LABELS, height - 16, setting, 13, "quiet")
    return drawing


def _legend(drawing: Drawing) -> None:
    x = LABELS
    for hue, label in enumerate(PEERS.values()):
        drawing.circle(x + 5, 50, 5, f"fill{hue}")
        drawing.text(x + 15, 54.5, label, 13, "ink")
        x += 34 + 7 * len(label)


def _row(drawing: Drawing, y: float, line: Line) -> None:
    drawing.text(LABELS + 8, y + 4, line.label, 13, "ink")
    for hue, name in enumerate(PEERS):
        if name in line.ratios:
            drawing.circle(_x(line.ratios[name]), y, 5, f"fill{hue}")


def _x(ratio: float) -> float:
    share = (log2(min(max(ratio, LEAST), MOST)) - log2(LEAST)) / (log2(MOST) - log2(LEAST))
    return LEFT + share * (RIGHT - LEFT)


def models() -> Drawing:
    """Draw the page's first measurement."""
    return sheet(*lines())


DRAWINGS = {"models.svg": models}
