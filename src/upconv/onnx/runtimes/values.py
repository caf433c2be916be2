"""What a model takes and gives: names, element types and shapes, as its graph declares them.

A dimension is an int, the name of a symbolic one, or None where nothing is said (a negative number,
which some exporters write, says nothing either). An initialiser that is listed among the inputs, as
models before IR version 4 do, is not an input here: it has a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy the names bfloat16, float8_* and int4
import numpy as np
import onnx

from ...arrays import Array
from ...errors import ArgumentError, DTypeError, ModelError, ShapeError, brief

Dimension = int | str | None

_DTYPES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "BOOL": "bool",
    **{
        f"{sign}INT{bits}": f"{sign.lower()}int{bits}"
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
}
"""ONNX's name of an element type -> NumPy's; types of less than a byte and text are not here."""

FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16")
"""The types that float64 can stand in for."""


def code_of(dtype: np.dtype[Any]) -> int:
    """ONNX's number of a NumPy dtype.

    >>> code_of(np.dtype("float32"))
    1
    """
    name = next(name for name, numpy_name in _DTYPES.items() if numpy_name == dtype.name)
    return int(onnx.TensorProto.DataType.Value(name))


def dtype_of_code(code: int) -> np.dtype[Any] | None:
    """NumPy's dtype of ONNX's number, None where it has none.

    >>> dtype_of_code(16), dtype_of_code(8)
    (dtype(bfloat16), None)
    """
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    name = _DTYPES.get(names.get(code, ""))
    return None if name is None else np.dtype(name)


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output.

    `dtype` is None where it is no tensor of numbers (`kind` then says what it is), or where the
    model does not tell. `shape` is None where not even the number of axes is known.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[Dimension, ...] | None
    kind: str = "tensor"

    def __str__(self) -> str:
        shape = (
            "..."
            if self.shape is None
            else ",".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{self.dtype or self.kind}[{shape}]"

    @classmethod
    def of(cls, info: onnx.ValueInfoProto) -> Value:
        """A value as the protobuf message says it."""
        kind = info.type.WhichOneof("value") or "value of a type that is not told"
        if kind != "tensor_type":
            return cls(info.name, None, None, kind.removesuffix("_type"))
        tensor = info.type.tensor_type
        dtype = dtype_of_code(tensor.elem_type)
        shape = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None
        names = onnx.TensorProto.DataType
        known = tensor.elem_type in names.values()
        told = names.Name(tensor.elem_type).lower() if known else f"element type {tensor.elem_type}"
        return cls(info.name, dtype, shape, "tensor" if dtype else f"tensor of {told}")


def _dimension(dim: Any) -> Dimension:
    which = dim.WhichOneof("value")
    if which == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return dim.dim_param or None if which == "dim_param" else None


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs and outputs of a model, in its order."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Interface:
        """The interface of a model; `ModelError` where two values of it have one name."""
        graph = model.graph
        given = {tensor.name for tensor in graph.initializer}
        given |= {tensor.values.name for tensor in graph.sparse_initializer}
        inputs = tuple(Value.of(info) for info in graph.input if info.name not in given)
        outputs = tuple(Value.of(info) for info in graph.output)
        for values, what in ((inputs, "inputs"), (outputs, "outputs")):
            names = [value.name for value in values]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ModelError(f"Two {what} are called {brief(twice)}; names must be distinct.")
        return cls(inputs, outputs)

    def arrays(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """`feeds` in the order of the inputs, C-contiguous, copied only if they are not.

        Raises `ArgumentError` for missing and unknown names, `DTypeError` and `ShapeError` for
        arrays that are not what the model declares.
        """
        names = [value.name for value in self.inputs]
        for name in feeds:
            if name not in names:
                listed = ", ".join(map(brief, names)) or "none"
                raise ArgumentError("feeds", f"with {brief(name)}", f"the model's inputs: {listed}")
        return {value.name: _fitting(value, feeds) for value in self.inputs}


def _fitting(value: Value, feeds: Mapping[str, Any]) -> Array:
    argument = f"feeds[{brief(value.name)}]"
    if value.name not in feeds:
        raise ArgumentError(argument, "missing", f"an array, {value}")
    array = np.asarray(feeds[value.name], order="C")
    if value.dtype is not None and array.dtype != value.dtype:
        raise DTypeError(argument, f"an array of {array.dtype}", str(value.dtype), "Convert it.")
    if not fits(array.shape, value.shape):
        raise ShapeError(f"{argument}.shape", str(array.shape), str(value))
    return array


def fits(shape: tuple[int, ...], declared: tuple[Dimension, ...] | None) -> bool:
    """Whether a shape is one that the declared one allows; symbols are not compared.

    >>> fits((2, 3), ("N", 3)), fits((2, 3), (None, 4))
    (True, False)
    """
    if declared is None:
        return True
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(not isinstance(d, int) or s == d for s, d in pairs)
