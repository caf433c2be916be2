"""Layers to measure: read from a file, every field checked, with nothing taken on trust.

A layer file is a JSON object with "layers", a list of objects with the fields of `Layer`: see
`layers.json` beside this file. A wrong one ends in a `FileError` naming file, layer and field.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, fields
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

from .. import memory
from ..arrays import Operand, dtype_of
from ..errors import ArgumentError, FileError, brief
from ..keywords import Keywords
from ..problem import DType, Problem
from ..signatures import transposed

BUILT_IN = "the built-in layers"

_LARGEST_FILE = 4 << 20
_LONGEST_NAME = 64
_MOST_AXES = 8
_BOUNDS = {
    "n": (1, 1 << 20),
    "ic": (1, 1 << 24),
    "oc": (1, 1 << 24),
    "size": (1, 1 << 30),
    "k": (1, 1 << 24),
    "s": (1, 1 << 24),
    "p": (-(1 << 24), 1 << 24),
    "op": (0, 1 << 24),
    "d": (1, 1 << 24),
    "g": (1, 1 << 24),
}
"""Field -> least and greatest value: far beyond any model, far below an overflow."""

_MOST_TAPS = 1 << 20
_MOST_MULTIPLY_ADDS = 1 << 42  # about two minutes a call at 70 GFLOP/s


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
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the input."""
        return (self.n, self.ic, *self.size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return (self.ic, self.oc // self.g, *self.k)

    @property
    def keywords(self) -> dict[str, Any]:
        """As `upconv.conv_transpose` takes them."""
        return {
            "stride": self.s,
            "padding": self.p,
            "output_padding": self.op,
            "dilation": self.d,
            "groups": self.g,
        }

    def problem(self, dtype: DType) -> Problem:
        """The forward problem, with a bias; `ArgumentError` if there is none such.

        >>> print(built_in()[0].problem(DType.FLOAT32))
        forward n1 c1024->512 28x28->56x56 k2x2 s2x2 float32 NCX IOX bias
        """
        elements = dtype_of(dtype.value)
        x, w, b = (Operand(a, elements) for a in (self.x_shape, self.w_shape, (self.oc,)))
        keywords = Keywords(self.s, self.p, self.op, self.d, self.g)
        return transposed(x, w, b, None, keywords, None).problem


def built_in() -> list[Layer]:
    """The layers that upconv brings along."""
    packed = resources.files(__package__).joinpath("layers.json").read_text("utf-8")
    return _layers(packed, BUILT_IN)


def read(path: Path) -> list[Layer]:
    """The layers in a file; `FileError` if it is wrong in any way."""
    what = str(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{brief(what)} is not a regular file; expected a file of layers.")
        if status.st_size > _LARGEST_FILE:
            raise FileError(
                f"{brief(what)} has {status.st_size} bytes; at most {_LARGEST_FILE} are read."
            )
        text = path.read_text("utf-8")
    except FileError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"Cannot read {brief(what)}: {reason}") from None
    return _layers(text, what)


def _layers(text: str, what: str) -> list[Layer]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{what} is not JSON: {error}") from None
    entries = whole.get("layers") if isinstance(whole, dict) else None
    if not isinstance(entries, list) or not entries:
        raise FileError(f'{what}: expected an object whose "layers" is a list of layers.')
    found = [_layer(entry, f"{what}: layers[{i}]") for i, entry in enumerate(entries)]
    seen: set[str] = set()
    for layer in found:
        if layer.name in seen:
            raise FileError(f"{what}: name {layer.name!r} is used twice; expected each name once.")
        seen.add(layer.name)
    return found


def _layer(entry: object, where: str) -> Layer:
    if not isinstance(entry, dict):
        raise FileError(f"{where} is {brief(entry)}; expected an object.")
    wanted = [field.name for field in fields(Layer)]
    for key in wanted:
        if key not in entry:
            raise FileError(f"{where}: {key!r} is missing; expected {', '.join(wanted)}.")
    for key in entry:
        if key not in wanted:
            raise FileError(f"{where}: {brief(key)} is unknown; expected {', '.join(wanted)}.")
    name = entry["name"]
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise FileError(
            f"{where}: 'name' is {brief(name)}; expected 1 to {_LONGEST_NAME} printable letters."
        )
    where = f"{where} ({name})"
    size = _sizes(where, "size", entry["size"])
    n, ic, oc, g = (_integer(where, key, entry[key]) for key in ("n", "ic", "oc", "g"))
    k, s, p, op, d = (
        _each(where, key, entry[key], len(size)) for key in ("k", "s", "p", "op", "d")
    )
    layer = Layer(name, n, ic, oc, size, k, s, p, op, d, g)
    _check(where, layer)
    return layer


def _sizes(where: str, key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_AXES:
        expected = f"a list of 1 to {_MOST_AXES} integers"
        raise FileError(f"{where}: {key!r} is {brief(value)}; expected {expected}.")
    return tuple(_integer(where, key, entry) for entry in value)


def _each(where: str, key: str, value: object, rank: int) -> tuple[int, ...]:
    """One value per axis, from one for all or a list."""
    if not isinstance(value, list):
        return (_integer(where, key, value),) * rank
    if len(value) != rank:
        raise FileError(f"{where}: {key!r} is {brief(value)}; expected one or {rank} integers.")
    return _sizes(where, key, value)


def _integer(where: str, key: str, value: object) -> int:
    low, high = _BOUNDS[key]
    if type(value) is not int or not low <= value <= high:
        raise FileError(
            f"{where}: {key!r} is {brief(value)}; expected an integer from {low} to {high}."
        )
    return value


def _check(where: str, layer: Layer) -> None:
    """Whether the fields fit together, and into memory, twice: once more in float64 to verify."""
    if layer.oc % layer.g or layer.ic % layer.g:
        raise FileError(f"{where}: 'g' is {layer.g}; expected a divisor of 'ic' and 'oc'.")
    if prod(layer.k) > _MOST_TAPS:
        raise FileError(f"{where}: 'k' has {prod(layer.k)} taps; expected at most {_MOST_TAPS}.")
    operands = prod(layer.x_shape) + prod(layer.w_shape)
    _fits(where, "size", operands)
    try:
        problem = layer.problem(DType.FLOAT64)
    except ArgumentError as error:
        raise FileError(f"{where}: {error}") from None
    if not prod(problem.y_shape):
        raise FileError(f"{where}: 'p' is {layer.p}, which leaves no output; expected less.")
    _fits(where, "size", operands + prod(problem.y_shape))
    if problem.multiply_adds > _MOST_MULTIPLY_ADDS:
        raise FileError(
            f"{where}: 'size' makes {problem.multiply_adds:.2g} multiply-adds; at most"
            f" {_MOST_MULTIPLY_ADDS:.2g} are measured."
        )


def _fits(where: str, key: str, elements: int) -> None:
    needed, free = elements * (8 + 4), memory.available_bytes()
    if needed > free:
        raise FileError(
            f"{where}: {key!r} and channels make arrays of {memory.readable(needed)}; this process"
            f" may take {memory.readable(free)}."
        )
