"""What a model takes and gives, and whether arrays are that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...errors import ArgumentError, DTypeError, ShapeError, brief


def inputs_of(model: ir.Model) -> tuple[ir.Value, ...]:
    """What a model is fed: its inputs that have no value of their own."""
    weights = model.graph.initializers
    return tuple(value for value in model.graph.inputs if value.name not in weights)


def fitting(inputs: Sequence[ir.Value], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """`feeds` in the order of the inputs, C-contiguous.

    Raises `ArgumentError` for missing and unknown names, `DTypeError` and `ShapeError` for arrays
    that are not what the model declares.
    """
    require_inputs(inputs, feeds)
    return {str(value.name): _fitting(value, feeds) for value in inputs}


def require_inputs(inputs: Sequence[ir.Value], names: Iterable[str]) -> None:
    """Raise `ArgumentError` for a name that no input has."""
    known = [str(value.name) for value in inputs]
    for name in names:
        if name not in known:
            listed = ", ".join(map(brief, known)) or "none"
            raise ArgumentError("feeds", f"with {brief(name)}", f"the model's inputs: {listed}")


def _fitting(value: ir.Value, feeds: Mapping[str, Any]) -> Array:
    name = str(value.name)
    argument = f"feeds[{brief(name)}]"
    if name not in feeds:
        raise ArgumentError(argument, "missing", f"an array, {declared(value)}")
    array: Array = np.ascontiguousarray(feeds[name]).reshape(np.shape(feeds[name]))
    dtype = dtype_of(value)
    if dtype is not None and array.dtype != dtype:
        raise DTypeError(argument, f"an array of {array.dtype}", str(dtype), "Convert it.")
    if not fits(array.shape, value.shape):
        raise ShapeError(f"{argument}.shape", str(array.shape), declared(value))
    return array


def dtype_of(value: ir.Value) -> np.dtype[Any] | None:
    """NumPy's dtype of a tensor of numbers, None for anything else."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (
        None, ir.DataType.UNDEFINED, ir.DataType.STRING
    ):  # fmt: skip
        return None
    return np.dtype(value.dtype.numpy())


def declared(value: ir.Value) -> str:
    """A value's type and shape as errors show them, such as "float32[N,3,?]"."""
    dims = ("...",) if value.shape is None else value.shape
    shown = (str(d if isinstance(d, int | str) else d.value or "?") for d in dims)
    return f"{dtype_of(value) or value.type or 'any type'}[{','.join(shown)}]"


def fits(shape: Sequence[int], declared: ir.Shape | None) -> bool:
    """Whether a shape is one that the declared one allows; symbols are not compared.

    >>> fits((2, 3), ir.Shape(["N", 3])), fits((2, 3), ir.Shape([None, 4]))
    (True, False)
    """
    if declared is None:
        return True
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(not isinstance(d, int) or s == d for s, d in pairs)
