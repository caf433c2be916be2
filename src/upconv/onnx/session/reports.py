"""What a session decided about each layer, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..documents import document


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer.

    name: the node's, or its output's where it has none. kind: the operators, with the activation
    that upconv computes along. upconv: whether upconv computes it. before, after: milliseconds in
    ONNX Runtime and in upconv, inside the running model, for all shapes; None where not measured.
    """

    name: str
    kind: str
    upconv: bool = False
    before: float | None = None
    after: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All layers that upconv could compute, and the model's milliseconds before and after.

    runs: "upconv" where the model runs as decided for its layers, "onnxruntime" where it runs as
    it was given, for the reason in `why`.

    >>> layer = LayerReport("up", "ConvTranspose", upconv=True)
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

    def __str__(self) -> str:
        head = ("layer", "kind", "computed by", "ms in ONNX Runtime", "ms in upconv", "why")
        rows = [head, *map(_cells, self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if self.before is not None and self.after is not None:
            lines.append(f"The model: {self.before:.2f} ms before, {self.after:.2f} ms after.")
        if self.why:
            lines.append(f"ONNX Runtime runs the model as it is: {self.why}.")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, ready for `json.dumps`."""
        plain: dict[str, Any] = document(self)
        return plain


def _cells(layer: LayerReport) -> tuple[str, ...]:
    times = ("-" if each is None else f"{each:.3f}" for each in (layer.before, layer.after))
    who = "upconv" if layer.upconv else "ONNX Runtime"
    return layer.name, layer.kind, who, *times, layer.why
