"""Random inputs for a model: reproducible, of the shapes asked for, values that most models take.

    floats            standard normal
    bool              either, evenly
    uint8, int8       all their values, as pixels and quantised data have them
    other integers    0 or 1: an index, a length or a flag that is seldom out of range

A dimension that the model leaves open is, in this order, what `sizes` says of the input or of the
symbol; what another input has for the same symbol; 1 for the first axis, `OPEN` for the others.
Values depend on the seed and the input's name alone, so two models draw the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import onnx

from ... import memory
from ...arrays import Array, as_shape
from ...errors import ArgumentError, DTypeError, MemoryLimitError, ShapeError, brief
from .base import Session
from .values import Interface, Value

OPEN = 32
"""The size of an open dimension of which nothing is said, but the first, which is 1."""

_MOST_AXES = 64  # NumPy's


def feeds(
    source: Session | onnx.ModelProto,
    sizes: Mapping[str, Sequence[int]] | None = None,
    *,
    seed: int = 0,
) -> dict[str, Array]:
    """An array for every input of a session or model; the same seed gives the same values.

    sizes: the whole shape of an input by its name, or the one size of a symbolic dimension by its.

    Raises `ArgumentError` for a name that neither is, `ShapeError` for a shape that the model does
    not allow, `DTypeError` for an input that is no tensor of numbers, `MemoryLimitError`.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, H] x) => (y) {y = Neg(x)}'
    >>> feeds(onnx.parser.parse_model(text), {"H": (5,)})["x"].shape
    (1, 3, 5)
    """
    interface = Interface.of(source) if isinstance(source, onnx.ModelProto) else source
    return drawn(interface.inputs, sizes, seed=seed)


def drawn(
    inputs: Sequence[Value], sizes: Mapping[str, Sequence[int]] | None = None, *, seed: int = 0
) -> dict[str, Array]:
    """`feeds` for inputs that stand for themselves.

    >>> drawn([Value("x", np.dtype("int8"), (2, None))], {"x": (2, 3)})["x"].shape
    (2, 3)
    """
    if not isinstance(seed, int) or seed < 0:
        raise ArgumentError("seed", brief(seed), "an integer >= 0")
    dtypes = {value.name: _dtype(value) for value in inputs}
    shapes = input_shapes(inputs, sizes or {})
    _require_memory(shapes, dtypes)
    arrays = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng([seed, crc32(name.encode())])
        arrays[name] = _values(rng, shape, dtypes[name])
    return arrays


def input_shapes(
    inputs: Sequence[Value], sizes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """The shape of every input, with nothing left open; raises what `feeds` raises.

    >>> inputs = Value("x", None, ("N", 3)), Value("y", None, ("N", None))
    >>> input_shapes(inputs, {"x": (2, 3)})
    {'x': (2, 3), 'y': (2, 32)}
    """
    given = {name: as_shape(f"sizes[{brief(name)}]", size) for name, size in sizes.items()}
    symbols = _symbols(inputs, given)
    shapes = {}
    for value in inputs:
        if value.name in given:
            _require_fit(value, given[value.name], symbols)
            shapes[value.name] = given[value.name]
        else:
            shapes[value.name] = _closed(value, symbols)
    return shapes


def _symbols(inputs: Sequence[Value], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Symbol -> size, by its own name first, then by the shapes of inputs."""
    names = {value.name for value in inputs}
    known = {dim for value in inputs for dim in value.shape or () if isinstance(dim, str)}
    symbols: dict[str, int] = {}
    for name, size in given.items():
        if name in names:
            continue
        if name not in known:
            listed = ", ".join(map(brief, sorted(names) + sorted(known))) or "none"
            raise ArgumentError("sizes", f"with {brief(name)}", f"inputs or symbols: {listed}")
        if len(size) != 1:
            raise ShapeError(f"sizes[{brief(name)}]", str(size), "one size: it is a dimension")
        symbols[name] = size[0]
    for value in inputs:
        for dim, size_ in zip(value.shape or (), given.get(value.name, ()), strict=False):
            if isinstance(dim, str):
                symbols.setdefault(dim, size_)
    return symbols


def _closed(value: Value, symbols: Mapping[str, int]) -> tuple[int, ...]:
    if value.shape is None:
        raise ShapeError(
            f"The shape of input {brief(value.name)}",
            "not told by the model",
            "a shape",
            "Give it in sizes.",
        )
    opened = (
        dim if isinstance(dim, int) else symbols.get(dim or "", 1 if i == 0 else OPEN)
        for i, dim in enumerate(value.shape)
    )
    return tuple(opened)


def _require_fit(value: Value, shape: tuple[int, ...], symbols: Mapping[str, int]) -> None:
    if value.shape is None:
        return
    wanted = [symbols.get(dim) if isinstance(dim, str) else dim for dim in value.shape]
    pairs = zip(shape, wanted, strict=False)
    if len(shape) != len(wanted) or any(w is not None and s != w for s, w in pairs):
        known = {name: size for name, size in symbols.items() if name in value.shape}
        remedy = f"Here {', '.join(f'{n} is {s}' for n, s in known.items())}." if known else ""
        raise ShapeError(f"sizes[{brief(value.name)}]", str(shape), str(value), remedy)


def _dtype(value: Value) -> np.dtype[Any]:
    if value.dtype is None or value.dtype.kind == "c":
        raise DTypeError(
            f"Input {brief(value.name)}",
            f"a {value.kind}" if value.dtype is None else str(value.dtype),
            "a tensor of real numbers",
            "No values can be drawn for it: give it as an array.",
        )
    return value.dtype


def _require_memory(
    shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype[Any]]
) -> None:
    for name, shape in shapes.items():
        if len(shape) > _MOST_AXES:
            raise MemoryLimitError(
                f"Input {brief(name)} has {len(shape)} axes; NumPy has at most {_MOST_AXES}."
            )
    # Narrow floats are drawn in float32 first, one input after the other: one array more at most.
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    total = sum(size * dtypes[name].itemsize for name, size in sizes.items())
    memory.require(total + 4 * max(sizes.values(), default=0), "the random inputs of the model")


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape, np.uint8).astype(bool)
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        low, high = (whole.min, whole.max) if dtype.itemsize == 1 else (0, 1)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    if dtype == np.float64:
        return rng.standard_normal(shape)
    return rng.standard_normal(shape, np.float32).astype(dtype, copy=False)
