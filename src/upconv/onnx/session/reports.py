"""What a session decided about each layer and why, to be printed, saved and used again.

A saved report is a JSON file:

    {"format": "upconv.onnx session", "version": 1, "upconv": ..., "onnxruntime": ...,
     "processor": ..., "threads": ..., "shapes": [{input: shape}, ...], "runs": ..., "why": ...,
     "before": ms, "after": ms, "layers": [{a `LayerReport`}, ...]}

A file that is damaged or of another model is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import ArgumentError, brief
from ...files import published, reported
from ...tuning import processor_model
from ..documents import document
from ..names import one_line

_FORMAT, _VERSION = "upconv.onnx session", 1


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer.

    name: the node's. output: the value that it makes, by which a report is used again. kind: the
    operators, with the activation that upconv computes along. weight: its shape. upconv: whether
    upconv computes it. before, after: milliseconds in ONNX Runtime and in upconv, inside the
    running model, for all shapes that were measured; None where it was not.
    """

    name: str
    output: str
    kind: str
    weight: tuple[int, ...]
    upconv: bool = False
    before: float | None = None
    after: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All layers that upconv could compute, and the model's milliseconds before and after.

    runs: "upconv" where the model runs as decided for its layers, "onnxruntime" where it runs as
    it was given, for the reason in `why`.

    >>> layer = LayerReport("up", "y", "ConvTranspose", (1, 1, 3), upconv=True)
    >>> print(Report("upconv", "", (layer,), threads=2))
    layer  kind           computed by  ms in ONNX Runtime  ms in upconv  why
    up     ConvTranspose  upconv       -                   -
    """

    runs: str
    why: str
    layers: tuple[LayerReport, ...] = ()
    before: float | None = None
    after: float | None = None
    shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    threads: int = 1
    processor: str = field(default_factory=processor_model)

    def __str__(self) -> str:
        head = ("layer", "kind", "computed by", "ms in ONNX Runtime", "ms in upconv", "why")
        rows = [head, *map(_cells, self.layers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        if self.before is not None and self.after is not None:
            lines.append(f"The model: {self.before:.2f} ms before, {self.after:.2f} ms after.")
        if self.why:
            lines.append(f"ONNX Runtime runs the model as it is: {self.why}.")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        import onnxruntime

        versions = {"upconv": __version__, "onnxruntime": onnxruntime.__version__}
        return {"format": _FORMAT, "version": _VERSION, **versions, **document(self)}

    def save(self, path: str | Path) -> None:
        """Write the report to a file, for `Session(model, decisions=path)`.

        Raises `OSError` where the file cannot be written.
        """
        with published(Path(path), force=True) as file:
            file.write(json.dumps(self.as_json(), indent=1).encode() + b"\n")


def _cells(layer: LayerReport) -> tuple[str, ...]:
    times = ("-" if each is None else f"{each:.3f}" for each in (layer.before, layer.after))
    who = "upconv" if layer.upconv else "ONNX Runtime"
    return layer.name, layer.kind, who, *times, layer.why


def decided(decisions: Any, known: Mapping[str, LayerReport]) -> set[str] | None:
    """The outputs of the layers that upconv computes, by a report, its JSON or its file.

    None where ONNX Runtime runs the model as it was given.

    known: the layers of the model, by their outputs. Raises `ArgumentError` for a report that is
    damaged or of another model, `FileError` where the file cannot be read.
    """
    content, what = decisions, "a report"
    if isinstance(decisions, Report):
        content = decisions.as_json()
    elif isinstance(decisions, str | Path):
        what = brief(str(decisions))
        with reported(str(decisions), "read"):
            content = Path(decisions).read_bytes()
    try:
        if isinstance(content, bytes):
            content = json.loads(content)
        if (content["format"], content["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"not of the format {_FORMAT!r}, version {_VERSION}")
        rows = {str(row["output"]): row for row in content["layers"]}
        for output, row in rows.items():
            layer = known[output]
            if (row["kind"], list(row["weight"])) != (layer.kind, list(layer.weight)):
                raise ValueError(f"whose layer {brief(row['name'])} is another")
        chosen = {output for output, row in rows.items() if row["upconv"]}
        return chosen if content["runs"] == "upconv" else None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        got = f"{what}, {one_line(error)}"
        expected = "decisions that a session's report() saved for this model"
        remedy = "Measure again: leave decisions out."
        raise ArgumentError("decisions", got, expected, remedy) from None
