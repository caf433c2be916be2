"""The table of engines in docs/benchmarks.md, as data: figures show the numbers of the page."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "benchmarks.md"
NAMES = {
    "torch": "PyTorch",
    "torch-last": "PyTorch, channels last",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
"""Columns of other libraries, and their names in figures."""


def layers() -> list[dict[str, str]]:
    """Return the table's rows, one for each layer, with the column names as keys."""
    text = PAGE.read_text(encoding="utf-8")
    table = re.search(r"^\| layer \| input \| jit .*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table, "docs/benchmarks.md has no table of engines"
    head, _, *rows = (
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in table.group().strip().splitlines()
    )
    return [dict(zip(head, row, strict=True)) for row in rows if re.match(r"\d+x", row[1])]


def ratios() -> dict[str, list[float]]:
    """Return each library's time over the JIT's for the layers that the library computes."""
    rows = layers()
    return {
        name: [float(row[name]) / float(row["jit"]) for row in rows if row[name] != "-"]
        for name in NAMES
    }
