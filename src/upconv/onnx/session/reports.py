"""What a session decided about each layer and why, to be printed, saved and applied again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from ... import decisions
from ...decisions import typed
from ...timing import format_seconds
from ..documents import document
from ..names import shortened

_FORMAT = "upconv.onnx decisions"

Shapes = tuple[Mapping[str, tuple[int, ...]], ...]


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
    it was given, for the reason in `why`. shapes: of the inputs that were measured, by name.
    conditions: processor, threads, versions and the digest of the model.

    >>> layer = LayerReport("up", "ConvTranspose", upconv=True, before=1012.3, after=0.5)
    >>> print(Report("upconv", "", (layer,)))
    layer  kind           computed by  in ONNX Runtime  in upconv  why
    up     ConvTranspose  upconv       1.01 s           500 us
    """

    runs: str
    why: str
    layers: tuple[LayerReport, ...] = ()
    before: float | None = None
    after: float | None = None
    shapes: Shapes = ()
    conditions: Mapping[str, str | int] = field(default_factory=dict)

    def __str__(self) -> str:
        head = ("layer", "kind", "computed by", "in ONNX Runtime", "in upconv", "why")
        rows = [head, *map(_cells, self.layers)] if self.layers else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if self.before is not None and self.after is not None:
            before, after = _time(self.before), _time(self.after)
            lines.append(f"The model: {before} in ONNX Runtime, {after} with upconv.")
        if self.why:
            lines.append(f"ONNX Runtime runs the model as it is: {self.why}.")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, ready for `json.dumps`."""
        plain: dict[str, Any] = document(self)
        return plain

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the decisions to a file, for `Session(model, decisions=path)`.

        Raises `FileError` where the file cannot be written.
        """
        decisions.write(path, _FORMAT, self.as_json())


def _cells(layer: LayerReport) -> tuple[str, ...]:
    who = "upconv" if layer.upconv else "ONNX Runtime"
    times = _time(layer.before), _time(layer.after)
    return shortened(layer.name), layer.kind, who, *times, layer.why


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else format_seconds(milliseconds / 1e3)


_TIMES: dict[str, tuple[type, ...]] = dict.fromkeys(("before", "after"), (int, float, NoneType))
_ROW = {**dict.fromkeys(("name", "kind", "why"), (str,)), "upconv": (bool,), **_TIMES}
_RECORD = {
    **dict.fromkeys(("runs", "why"), (str,)),
    **dict.fromkeys(("layers", "shapes"), (list,)),
    "conditions": (dict,),
    **_TIMES,
}


def read(path: str | os.PathLike[str]) -> Report:
    """Return a report that `save` wrote; `FileError` for a file that is missing or damaged."""
    record = decisions.read(path, _FORMAT)
    rows = record.get("layers", ())
    known = typed(record, _RECORD) and record["runs"] in ("upconv", "onnxruntime")
    if not (known and all(typed(row, _ROW) for row in rows)):
        raise decisions.damaged(path, "it is damaged")
    try:
        shapes = [{name: tuple(shape) for name, shape in one.items()} for one in record["shapes"]]
    except (AttributeError, TypeError):
        raise decisions.damaged(path, "its shapes are damaged") from None
    layers = tuple(LayerReport(**row) for row in rows)
    return Report(**{**record, "layers": layers, "shapes": tuple(shapes)})
