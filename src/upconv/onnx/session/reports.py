"""What a session decided about each layer and why, to be printed, saved and used again.

A saved report is a JSON file:

    {"format": "upconv.onnx session", "version": 1, "upconv": ..., "onnxruntime": ...,
     "processor": ..., "threads": ..., "shapes": [{input: shape}, ...], "runs": ..., "why": ...,
     "before": ms, "after": ms, "layers": [{a `LayerReport`}, ...]}

Reading one checks everything: a file that is damaged or of another model is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import ArgumentError, brief
from ...files import published, reported
from ...tuning import processor_model

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
        content = {"format": _FORMAT, "version": _VERSION, **versions, **asdict(self)}
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return plain

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
    content = decisions.as_json() if isinstance(decisions, Report) else decisions
    if isinstance(content, str | Path):
        with reported(str(content), "read"):
            text = Path(content).read_text(encoding="utf-8", errors="replace")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _refused(decisions, f"no JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _refused(decisions, f"no report of the format {_FORMAT!r}")
    if content.get("version") != _VERSION:
        raise _refused(decisions, f"of version {brief(content.get('version'))}")
    rows = content.get("layers")
    if not isinstance(rows, list):
        raise _refused(decisions, "without a list of layers")
    chosen = {_row(decisions, row, known) for row in rows} - {""}
    return chosen if content.get("runs") == "upconv" else None


def _row(decisions: Any, row: Any, known: Mapping[str, LayerReport]) -> str:
    """The output of a layer that upconv computes, else nothing."""
    if not isinstance(row, dict) or not isinstance(row.get("output"), str):
        raise _refused(decisions, f"with a layer that is {brief(row)}")
    layer, name = known.get(row["output"]), brief(row.get("name"))
    if layer is None:
        raise _refused(decisions, f"which names the layer {name}, not there")
    if (row.get("kind"), row.get("weight")) != (layer.kind, list(layer.weight)):
        raise _refused(decisions, f"whose layer {name} is another")
    if not isinstance(row.get("upconv"), bool):
        raise _refused(decisions, f"with a damaged layer {name}")
    return row["output"] if row["upconv"] else ""


def _refused(decisions: Any, got: str) -> ArgumentError:
    what = brief(str(decisions)) if isinstance(decisions, str | Path) else "a report"
    expected = "decisions that a session's report() saved for this model"
    return ArgumentError(
        "decisions", f"{what}, {got}", expected, "Measure again: leave decisions out."
    )
