"""A model's inputs: checks of arrays, and random arrays that fit.

    floats            standard normal
    bool              true or false, equally likely
    uint8, int8       all values, as in pixels and quantized data
    other integers    0 or 1, which are rarely out of range for an index, a length or a flag

The size of a dynamic dimension is stated in `sizes`, for the input or for the symbol; otherwise, it
is the size of the same symbol in another input; otherwise, 1 for the first axis and `OPEN` for all
others. Values depend only on the seed and the input's name, so two models share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import onnx_ir as ir

from .. import memory
from ..arrays import Array, array_or_numbers, as_shape, copied
from ..checks import by_name
from ..errors import ArgumentError, DTypeError, MemoryLimitError, ShapeError, brief
from .models import Source, from_model

OPEN = 32
_MAX_AXES = 64  # in NumPy


def inputs_of(model: ir.Model) -> tuple[ir.Value, ...]:
    """Return the inputs that a model needs: those without an initializer."""
    weights = model.graph.initializers
    return tuple(value for value in model.graph.inputs if value.name not in weights)


def dtype_of(value: ir.Value) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a tensor of numbers; None for anything else."""
    kind = value.dtype if isinstance(value.type, ir.TensorType) else None
    if kind is None or kind in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return np.dtype(kind.numpy())


def declared(value: ir.Value) -> str:
    """Describe a value's type and shape for errors, as in "float32[N,3,?]"."""
    dims = ("...",) if value.shape is None else value.shape
    shown = (str(d if isinstance(d, int | str) else d.value or "?") for d in dims)
    return f"{dtype_of(value) or value.type or 'any type'}[{','.join(shown)}]"


def fits(shape: Sequence[int], declared: ir.Shape | None) -> bool:
    """Return whether the declared shape allows a shape; symbols are not compared."""
    if declared is None:
        return True
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(not isinstance(d, int) or s == d for s, d in pairs)


def fitting(inputs: Sequence[ir.Value], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Return `feeds` as C-contiguous arrays in the inputs' order; raise if they do not fit."""
    _require_inputs(inputs, feeds)
    arrays: dict[str, Array] = {}
    for value in inputs:
        name = str(value.name)
        argument = f"feeds[{brief(name)}]"
        if name not in feeds:
            raise ArgumentError(argument, "missing", f"an array, {declared(value)}")
        dtype = dtype_of(value)
        array = array_or_numbers(argument, feeds[name], dtype)
        if dtype is not None and array.dtype != dtype:
            raise DTypeError(argument, f"an array of {array.dtype}", str(dtype), "Convert it.")
        if not fits(array.shape, value.shape):
            raise ShapeError(f"{argument}.shape", str(array.shape), declared(value))
        if not array.flags.c_contiguous:
            array = copied(argument, array)
        arrays[name] = array
    return arrays


def _require_inputs(inputs: Sequence[ir.Value], names: Iterable[str]) -> None:
    known = [str(value.name) for value in inputs]
    for name in names:
        if name not in known:
            expected = f"the model's inputs: {', '.join(map(brief, known)) or 'none'}"
            raise ArgumentError("feeds", f"given for {brief(name)}", expected)


def feeds(
    model: Source | Sequence[ir.Value],
    sizes: Mapping[str, Sequence[int]] | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
) -> dict[str, Array]:
    """Return an array for every input of a model, or for every input in a list.

    sizes: by name, the full shapes of inputs or the sizes of symbolic dimensions.
    given: arrays for some inputs, used as they are.

    Raises `ArgumentError` for an unknown name, `ShapeError` for a shape that the model does not
    allow, `DTypeError` for an input that is not a tensor of numbers, and `MemoryLimitError`.
    """
    if not isinstance(seed, int) or seed < 0:
        raise ArgumentError("seed", brief(seed), "an integer >= 0")
    if isinstance(model, list | tuple):
        inputs: Sequence[ir.Value] = model
    else:
        inputs = inputs_of(model if isinstance(model, ir.Model) else from_model(model))
    fixed = given or {}
    _require_inputs(inputs, fixed)
    arrays = {
        name: array_or_numbers(f"feeds[{brief(name)}]", fixed[name], dtype_of(value))
        for value in inputs
        if (name := str(value.name)) in fixed
    }
    stated = by_name("sizes", sizes) | {name: array.shape for name, array in arrays.items()}
    shapes = input_shapes(inputs, stated)
    dtypes = {str(value.name): _dtype(value) for value in inputs if value.name not in arrays}
    # 16-bit floats are first drawn in float32, one input at a time: at most one extra array.
    counts = {name: prod(shapes[name]) for name in dtypes}
    total = sum(count * dtypes[name].itemsize for name, count in counts.items())
    memory.require(
        total + 4 * max(counts.values(), default=0), "drawing the random inputs of the model"
    )
    for name, dtype in dtypes.items():
        rng = np.random.default_rng([seed, crc32(name.encode())])
        arrays[name] = _values(rng, shapes[name], dtype)
    return {name: arrays[name] for name in shapes}


def input_shapes(
    inputs: Sequence[ir.Value], sizes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input, without dynamic sizes; raise what `feeds` raises."""
    stated = {name: as_shape(f"sizes[{brief(name)}]", size) for name, size in sizes.items()}
    symbols, shapes = _symbols(inputs, stated), {}
    for value in inputs:
        name, dims = str(value.name), value.shape
        if dims is None and name not in stated:
            what = f"The shape of input {brief(name)}"
            raise ShapeError(what, "not declared by the model", "a shape", "Give it in sizes.")
        known = [d if isinstance(d, int) else symbols.get(d.value or "") for d in dims or ()]
        drawn = ((OPEN if i else 1) if d is None else d for i, d in enumerate(known))
        shape = stated.get(name) or tuple(drawn)
        if dims is not None and not fits(shape, ir.Shape(known)):
            expected = f"{declared(value)}, here [{','.join(str(d or '?') for d in known)}]"
            raise ShapeError(f"sizes[{brief(name)}]", str(shape), expected)
        if len(shape) > _MAX_AXES:
            words = f"{len(shape)} axes; NumPy supports at most {_MAX_AXES}"
            raise MemoryLimitError(f"Input {brief(name)} has {words}.")
        shapes[name] = shape
    return shapes


def _symbols(inputs: Sequence[ir.Value], sizes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the sizes of symbols, stated by name or else implied by the shapes of inputs."""
    dims = {str(v.name): [getattr(d, "value", None) for d in v.shape or ()] for v in inputs}
    known = {symbol for symbols in dims.values() for symbol in symbols if symbol}
    symbols: dict[str, int] = {}
    for name, size in sizes.items():
        if name not in dims and name not in known:
            listed = ", ".join(map(brief, sorted(dims) + sorted(known))) or "none"
            raise ArgumentError("sizes", f"given for {brief(name)}", f"inputs or symbols: {listed}")
        if name not in dims and len(size) != 1:
            raise ShapeError(f"sizes[{brief(name)}]", str(size), "one size: it is a dimension")
        symbols |= {} if name in dims else {name: size[0]}
    for name, axes in dims.items():
        for symbol, length in zip(axes, sizes.get(name, ()), strict=False):
            if symbol:
                symbols.setdefault(symbol, length)
    return symbols


def _dtype(value: ir.Value) -> np.dtype[Any]:
    dtype = dtype_of(value)
    if dtype is None or dtype.kind == "c" or (value.dtype is not None and value.dtype.bitwidth < 8):
        words = "a tensor of real numbers", "No values can be drawn for it: give it as an array."
        raise DTypeError(f"Input {brief(value.name)}", declared(value), *words)
    return dtype


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape, np.uint8).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (limits.min, limits.max) if dtype.itemsize == 1 else (0, 1)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    if dtype == np.float64:
        return rng.standard_normal(shape)
    return rng.standard_normal(shape, np.float32).astype(dtype, copy=False)
