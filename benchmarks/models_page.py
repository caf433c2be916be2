"""The tables and the picture of docs/models.md, from JSON files that models.py writes.

`written` puts the tables between two marks in the page. The picture shows the same rows.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

_BUSY = 1.0
"""System load from which on the measurements are rough."""

Row = dict[str, Any]
Document = dict[str, Any]

BEGIN, END = "<!-- tables: benchmarks/models.py -->", "<!-- end of tables -->"

LABELS = {
    "torch": "PyTorch",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "channels-last": "channels last",
    "freezing": "with freezing",
    "accelerate": "`accelerate`",
    "backend": '`backend="upconv"`',
    "session": "`Session`",
}
PEERS = ("torch", "inductor", "onnxruntime", "openvino", "channels-last", "freezing")


def written(page: str, documents: list[Document]) -> str:
    """Return a page with new tables between its marks."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{tables(documents)}\n{END}{tail}"


def tables(documents: list[Document]) -> str:
    """Return every table: times by kind, and the first file's start-up times and memory."""
    parts = [_conditions(documents[0])]
    for document in documents:
        words = document["conditions"]
        threads = f"{words['threads']} thread{'s' * (words['threads'] != 1)}"
        parts.append(f"### {words['precision']}, {threads}\n\n{_ratios(document)}")
        for kind in dict.fromkeys(row["kind"] for row in document["rows"]):
            rows = [row for row in document["rows"] if row["kind"] == kind]
            parts.append(_times(kind, rows))
    rows = documents[0]["rows"]
    parts.append("### Start-up, seconds\n\n" + _columns(rows, "startup_s", ".1f"))
    parts.append("### Memory, MiB\n\n" + _columns(rows, "memory_mib", ".0f"))
    return "\n\n".join(parts)


def _conditions(document: Document) -> str:
    words = document["conditions"]
    versions = ", ".join(f"{name} {number}" for name, number in words["versions"].items())
    text = (
        f"{words['processor']}, {words['processors']} processors, {words['date']}, "
        f"Python {words['python']}, {versions}."
    )
    load = words.get("load", 0)
    if load >= _BUSY:
        text += f" **Others used the machine (load {load:.1f}): the figures are rough.**"
    return text


def _ratios(document: Document) -> str:
    """Return a sentence on the geometric mean of the ratios, and the models that are slower."""
    ratios = {row["label"]: row["ratio"] for row in document["rows"] if row["ratio"]}
    behind = [f"{label} {ratio:.2f}" for label, ratio in ratios.items() if ratio < 1]
    mean = math.exp(sum(map(math.log, ratios.values())) / max(1, len(ratios)))
    lowest_label = min(ratios, key=ratios.__getitem__, default="")
    tail = f"Behind: {', '.join(behind)}." if behind else f"The least is {lowest_label}."
    lowest = f" {ratios[lowest_label]:.2f}" if lowest_label and not behind else ""
    return (
        f"The best peer takes {mean:.2f} times as long as the best of upconv, "
        f"in the geometric mean of {len(ratios)} models. {tail[:-1]}{lowest}."
    )


def _names(rows: list[Row], key: str) -> list[str]:
    return [name for name in LABELS if any(name in row[key] for row in rows)]


def _times(kind: str, rows: list[Row]) -> str:
    names = _names(rows, "ms")
    audio = any("audio_s" in row for row in rows)
    head = [kind, "input", *map(LABELS.__getitem__, names), "best peer over upconv"]
    head += ["times real time: best peer", "upconv"] * audio
    lines = []
    for row in rows:
        cells = [row["label"], " x ".join(map(str, row["input"]))]
        best = min(row["ms"], key=row["ms"].__getitem__, default="")
        for name in names:
            text = _number(row["ms"].get(name))
            cells.append(f"**{text}**" if name == best else text)
        cells.append(f"{row['ratio']:.2f}" if row["ratio"] else "-")
        speeds = row.get("times_real_time", {})
        names_of_speeds = (row["best_peer"], row["best_of_upconv"]) if audio else ()
        cells += [_number(speeds.get(name)) for name in names_of_speeds]
        lines.append(cells)
    return _table(head, lines)


def _columns(rows: list[Row], key: str, form: str) -> str:
    names = _names(rows, key)
    lines = [
        [row["label"], *(format(row[key][n], form) if n in row[key] else "-" for n in names)]
        for row in rows
    ]
    return _table(["model", *map(LABELS.__getitem__, names)], lines)


def _number(value: float | None) -> str:
    """Return a number with about three digits."""
    if value is None:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(max(value, 1e-9))))
    return f"{value:.{min(digits, 2)}f}"


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def drawing(documents: list[Document]) -> str:
    """Return the first file's picture as SVG."""
    sys.path.append(str(Path(__file__).parents[1] / "docs" / "pictures"))
    from whole_models import Line, sheet

    lines = []
    for row in documents[0]["rows"]:
        ours = row["ms"].get(row["best_of_upconv"])
        if ours:
            ratios = {n: t / ours for n, t in row["ms"].items() if n in PEERS}
            lines.append(Line(row["label"], row["kind"], ratios))
    return sheet(lines, documents[0]["conditions"]["threads"]).svg()
