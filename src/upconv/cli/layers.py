"""The layers that `upconv bench` measures: `layers.json` beside this file, or a file of the user's.

A layer file is a JSON object whose "layers" is a list of objects with the fields of `Layer`. A
wrong one ends in a `FileError` that names file, layer and field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from .. import memory
from ..dialects import values
from ..errors import ArgumentError, FileError, MemoryLimitError, brief
from ..files import opened, reported
from ..geometry import LIMIT, padded
from ..problem import Direction, DType, Problem

_BUILT_IN = Path(__file__).with_name("layers.json")
_LEAST = {"p": -LIMIT, "op": 0}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: batch, channels, spatial size, and per axis kernel, stride, padding, output
    padding, dilation; groups."""

    name: str
    n: int
    ic: int
    oc: int
    size: tuple[int, ...]
    k: tuple[int, ...]
    s: tuple[int, ...]
    p: tuple[int, ...]
    op: tuple[int, ...]
    d: tuple[int, ...]
    g: int

    @property
    def keywords(self) -> dict[str, Any]:
        """As `upconv.conv_transpose` takes them."""
        names = {"stride": "s", "padding": "p", "output_padding": "op", "dilation": "d"}
        return {**{word: getattr(self, key) for word, key in names.items()}, "groups": self.g}

    def problem(self, dtype: DType) -> Problem:
        """The forward problem, with a bias; `ArgumentError` if there is none such.

        >>> print(read()[0].problem(DType.FLOAT32))
        forward n1 c1024->512 28x28->56x56 k2x2 s2x2 float32 NCX IOX bias
        """
        columns = self.size, self.k, self.s, self.d, self.p, self.p, self.op
        axes = tuple(padded(*axis) for axis in zip(*columns, strict=True))
        return Problem(Direction.FORWARD, axes, self.n, self.ic, self.oc, self.g, dtype, bias=True)


def read(path: Path = _BUILT_IN) -> list[Layer]:
    """The layers in a file, or those that upconv brings along; `FileError` if it is wrong."""
    with reported(str(path), "read"), opened(path) as file:
        data = file.read()
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}") from None
    entries = whole.get("layers") if isinstance(whole, dict) else None
    if not isinstance(entries, list) or not entries:
        raise FileError(f'{path}: expected an object whose "layers" is a list of layers.')
    found: dict[str, Layer] = {}
    for i, entry in enumerate(entries):
        layer = _layer(entry, f"{path}: layers[{i}]")
        if layer.name in found:
            raise FileError(f"{path}: name {layer.name!r} is used twice; expected each name once.")
        found[layer.name] = layer
    return list(found.values())


def _layer(entry: object, where: str) -> Layer:
    if not isinstance(entry, dict):
        raise FileError(f"{where} is {brief(entry)}; expected an object.")
    wanted = [field.name for field in fields(Layer)]
    for key in {*wanted} ^ {*entry}:
        fault = "missing" if key in wanted else "unknown"
        raise FileError(f"{where}: {brief(key)} is {fault}; expected {', '.join(wanted)}.")
    name, size = entry["name"], entry["size"]
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
        raise FileError(f"{where}: 'name' is {brief(name)}; expected 1 to 64 printable letters.")
    where = f"{where} ({name})"
    if not isinstance(size, list) or not 1 <= len(size) <= 8:
        raise FileError(f"{where}: 'size' is {brief(size)}; expected a list of 1 to 8 integers.")
    try:
        single = {key: values.integer(key, entry[key], low=1) for key in ("n", "ic", "oc", "g")}
        each = {
            key: values.per_axis_or_one(key, entry[key], len(size), _LEAST.get(key, 1))
            for key in ("size", "k", "s", "p", "op", "d")
        }
        layer = Layer(name=name, **single, **each)  # type: ignore[arg-type]  # by the names above
        problem = layer.problem(DType.FLOAT64)
        if not prod(problem.y_shape):
            raise ArgumentError("'p'", str(layer.p), "less, as no output is left")
        memory.require(2 * problem.nbytes, "'size': its arrays, in float64 and as measured,")
    except (ArgumentError, MemoryLimitError) as error:
        raise FileError(f"{where}: {error}") from None
    return layer
