"""What `accelerate` decided about each layer and why, to be printed, saved and applied again.

A saved report is a JSON file:

    {"format": "upconv.torch decisions", "version": 1, "upconv": ..., "torch": ...,
     "processor": ..., "threads": ..., "layers": [{a `LayerReport`}, ...]}

Reading one checks everything: a file that is damaged or of another model is refused. Where it was
measured is compared with where it is applied.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..errors import ArgumentError, brief
from ..files import opened, published, reported
from ..tuning import processor_model
from .tensors import thread_count

_FORMAT, _VERSION = "upconv.torch decisions", 1


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer.

    name, kind: where it is and of which class. weight: the weight's shape. followers: the names of
    the classes that are computed with it. inference: whether upconv computes it without gradients.
    training: which results upconv computes with gradients, as a sum of 1 (forward), 2 (input) and 4
    (weight). before, after: milliseconds in one run of the model with what is computed with it.

    >>> LayerReport("up", "ConvTranspose2d", (8, 4, 2, 2)).inference
    False
    """

    name: str
    kind: str
    weight: tuple[int, ...]
    followers: tuple[str, ...] = ()
    inference: bool = False
    training: int = 0
    before: float = 0.0
    after: float = 0.0
    why: str = ""

    @property
    def replaced(self) -> bool:
        """Whether upconv computes anything of it."""
        return self.inference or self.training != 0


@dataclass(frozen=True, slots=True)
class Report:
    """All layers that upconv could compute, and the model's milliseconds before and after.

    before, after: of the whole model; 0 where no layer was faster. processor, threads, upconv,
    torch: where it was measured.

    >>> print(Report((LayerReport("up", "Conv1d", (1, 1, 3), why="0.91 times as fast"),)))
    layer  kind    upconv  ms before  ms after  why
    up     Conv1d  -       0.00       0.00      0.91 times as fast
    No layer was faster: the model is unchanged.
    """

    layers: tuple[LayerReport, ...] = ()
    before: float = 0.0
    after: float = 0.0
    processor: str = field(default_factory=processor_model)
    threads: int = field(default_factory=thread_count)
    upconv: str = __version__
    torch: str = str(torch.__version__)

    def __str__(self) -> str:
        head = ("layer", "kind", "upconv", "ms before", "ms after", "why")
        rows = [head, *map(_cells, self.layers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, self._result()])

    def _result(self) -> str:
        whole = f"The whole model: {self.before:.2f} ms before, {self.after:.2f} after"
        if any(layer.inference for layer in self.layers):
            return f"{whole}."
        why = f"{whole}: not faster, so it" if self.after else "No layer was faster: the model"
        but = " but in training" if any(layer.training for layer in self.layers) else ""
        return f"{why} is unchanged{but}."

    @property
    def elsewhere(self) -> str:
        """What was different where the decisions were measured; empty where nothing was."""
        here = asdict(Report())
        names = ("processor", "threads", "upconv", "torch")
        pairs = [(name, getattr(self, name), here[name]) for name in names]
        return ", ".join(
            f"{name} {brief(then)} (here {brief(now)})" for name, then, now in pairs if then != now
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the decisions to a file, for `accelerate(model, decisions=path)`.

        Raises `FileError` where the file cannot be written.
        """
        content = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        with reported(str(path)), published(Path(path), force=True) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")


def _cells(layer: LayerReport) -> tuple[str, ...]:
    kind = " + ".join((layer.kind, *layer.followers))
    parts = [name for bit, name in ((1, "y"), (2, "dx"), (4, "dw")) if layer.training & bit]
    what = (["inference"] if layer.inference else []) + parts
    times = f"{layer.before:.2f}", f"{layer.after:.2f}"
    return layer.name, kind, ", ".join(what) or "-", *times, layer.why


def read(path: str | os.PathLike[str]) -> Report:
    """A saved report.

    Raises `ArgumentError` for a file that holds none, `FileError` for one that cannot be read.
    """
    with reported(str(path), "read"), opened(Path(path)) as file:
        text = file.read().decode(errors="replace")
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused(path, f"no JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise refused(path, f"no file of the format {_FORMAT!r}")
    if content.get("version") != _VERSION:
        raise refused(path, f"of version {brief(content.get('version'))}")
    rows = content.get("layers")
    if not isinstance(rows, list):
        raise refused(path, "without a list of layers")
    layers = tuple(_layer(path, row) for row in rows)
    if len({layer.name for layer in layers}) != len(layers):
        raise refused(path, "with a layer that is there twice")
    rest = {name: content.get(name) for name in _CONDITIONS}
    if not all(type(rest[name]) in kinds for name, kinds in _CONDITIONS.items()):
        raise refused(path, "that does not say where it was measured")
    return Report(layers, **rest)  # type: ignore[arg-type]


_CONDITIONS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("before", "after"), (int, float)),
    "threads": (int,),
    **dict.fromkeys(("processor", "upconv", "torch"), (str,)),
}
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "kind", "why"), (str,)),
    **dict.fromkeys(("weight", "followers"), (list,)),
    "inference": (bool,),
    "training": (int,),
    **dict.fromkeys(("before", "after"), (int, float)),
}


def _layer(path: object, row: Any) -> LayerReport:
    if not isinstance(row, dict) or set(row) != set(_TYPES):
        raise refused(path, f"with a layer that is {brief(row)}")
    right = all(type(row[name]) in kinds for name, kinds in _TYPES.items())
    right = right and all(type(size) is int for size in row["weight"])
    right = right and all(type(each) is str for each in row["followers"])
    if not right or not 0 <= row["training"] <= 7:
        raise refused(path, f"with a damaged layer {brief(row.get('name'))}")
    shape, followers = tuple(row["weight"]), tuple(row["followers"])
    return LayerReport(**{**row, "weight": shape, "followers": followers})


def refused(path: object, got: str) -> ArgumentError:
    """The error for decisions that are not taken."""
    expected = "decisions that report(model).save wrote for this model"
    return ArgumentError(
        "decisions", f"{brief(str(path))}, {got}", expected, "Measure again: leave decisions out."
    )
