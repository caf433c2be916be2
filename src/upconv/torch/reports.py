"""What `accelerate` decided about each layer and why, to be printed, saved and applied again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import index
from typing import Any

from .. import decisions
from ..terminal import aligned
from ..timing import format_seconds

_FORMAT = "upconv.torch decisions"


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer.

    name, kind: its name in the model and its class. weight: the weight's shape. followers: the
    classes of the modules that upconv computes along. inference: whether upconv computes it without
    gradients. training: which results upconv computes with gradients, as a sum of 1 (forward),
    2 (input) and 4 (weight). before, after: milliseconds in PyTorch and in upconv, inside the
    running model, with the followers; None where not measured.

    >>> LayerReport("up", "ConvTranspose2d", (8, 4, 2, 2)).inference
    False
    """

    name: str
    kind: str
    weight: tuple[int, ...]
    followers: tuple[str, ...] = ()
    inference: bool = False
    training: int = 0
    before: float | None = None
    after: float | None = None
    why: str = ""

    @property
    def replaced(self) -> bool:
        """Whether upconv computes anything of it."""
        return self.inference or self.training != 0


@dataclass(frozen=True, slots=True)
class Report:
    """All layers that upconv could compute, and the model's milliseconds before and after.

    before, after: None where no layer was faster. conditions: processor, threads, versions and,
    where it was measured, training.

    >>> layer = LayerReport("up", "Conv1d", (1, 1, 3), (), True, 0, 1012.3, 0.5, "2025 times")
    >>> print(Report((layer,)))
    layer  kind    by upconv  in PyTorch  in upconv  why
    up     Conv1d  inference  1.01 s      500 us     2025 times
    """

    layers: tuple[LayerReport, ...] = ()
    before: float | None = None
    after: float | None = None
    conditions: Mapping[str, str | int] = field(default_factory=dict)

    def __str__(self) -> str:
        head = ("layer", "kind", "by upconv", "in PyTorch", "in upconv", "why")
        lines = aligned([head, *map(_cells, self.layers)] if self.layers else [])
        if self.before is not None and self.after is not None:
            before, after = _time(self.before), _time(self.after)
            lines.append(f"The model: {before} in PyTorch, {after} with upconv.")
        if not any(layer.inference for layer in self.layers):
            but = ", but in training" if any(layer.training for layer in self.layers) else ""
            why = "no layer is faster" if self.after is None else "it is not faster with upconv"
            lines.append(f"PyTorch runs the model as it is{but}: {why}.")
        return "\n".join(lines)

    @property
    def holds_for(self) -> dict[str, Any]:
        """The conditions that the decisions hold for, by name."""
        layers = {f"layer {each.name}": f"{_kind(each)} {each.weight}" for each in self.layers}
        return {**self.conditions, "layers": len(self.layers), **layers}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the decisions to a file, for `accelerate(model, decisions=path)`.

        Raises `FileError` where the file cannot be written.
        """
        decisions.write(path, _FORMAT, asdict(self))


def _kind(layer: LayerReport) -> str:
    return " + ".join((layer.kind, *layer.followers))


def _cells(layer: LayerReport) -> tuple[str, ...]:
    parts = [name for bit, name in ((1, "y"), (2, "dx"), (4, "dw")) if layer.training & bit]
    results = (["inference"] if layer.inference else []) + parts
    times = _time(layer.before), _time(layer.after)
    return layer.name, _kind(layer), ", ".join(results) or "-", *times, layer.why


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else format_seconds(milliseconds / 1e3)


def read(path: str | os.PathLike[str]) -> Report:
    """Return a report that `save` wrote; `FileError` for a file that is missing or damaged."""
    record = decisions.read(path, _FORMAT)
    try:
        layers = tuple(map(_layer, record["layers"]))
        conditions = dict(record["conditions"])
        return decisions.built(Report, record, layers=layers, conditions=conditions)
    except (KeyError, TypeError, ValueError) as error:
        raise decisions.damaged(path, f"it is damaged, {error}") from None


def _layer(row: Any) -> LayerReport:
    weight, followers = tuple(map(index, row["weight"])), tuple(map(str, row["followers"]))
    layer = decisions.built(LayerReport, row, weight=weight, followers=followers)
    if layer.training not in range(8):
        raise ValueError(f"its training is {layer.training}")
    return layer
