"""What a session decided about each layer and why, to be printed, saved and applied again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import decisions
from ...errors import brief
from ...terminal import aligned, shortened
from ...timing import format_seconds
from ..documents import document

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
        lines = aligned([head, *map(_cells, self.layers)] if self.layers else [])
        if self.before is not None and self.after is not None:
            before, after = _time(self.before), _time(self.after)
            lines.append(f"The model: {before} in ONNX Runtime, {after} with upconv.")
        if self.why:
            lines.append(f"ONNX Runtime runs the model as it is: {self.why}.")
        return "\n".join(lines)

    @property
    def holds_for(self) -> dict[str, Any]:
        """The conditions that the decisions hold for, by name."""
        return {**self.conditions, "shapes": self.shapes}

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


def read(path: str | os.PathLike[str]) -> Report:
    """Return a report that `save` wrote; `FileError` for a file that is missing or damaged."""
    record = decisions.read(path, _FORMAT)
    try:
        layers = tuple(decisions.built(LayerReport, row) for row in record["layers"])
        shapes = tuple({n: tuple(shape) for n, shape in one.items()} for one in record["shapes"])
        more = {"layers": layers, "shapes": shapes, "conditions": dict(record["conditions"])}
        report = decisions.built(Report, record, **more)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise decisions.damaged(path, f"it is damaged, {error}") from None
    if report.runs not in ("upconv", "onnxruntime"):
        raise decisions.damaged(path, f"it runs in {brief(report.runs)}")
    return report
