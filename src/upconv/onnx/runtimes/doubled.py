"""A model with float64 in the place of every narrower float, for results without rounding to see.

1. Tensors: initialisers, and those in attributes (Constant, ConstantOfShape).
2. A Constant's bare numbers, and ConstantOfShape without a value, which are float32 by definition.
3. Attributes that name an element type: Cast's `to`, `dtype`, `output_dtype` and the like.
4. The declared types of inputs, outputs and values, in subgraphs too.

`stash_type` stays: the evaluator computes in the type of the data whatever it says. Operators that
go through float32 inside and come back (`_ROUNDING_INSIDE`) cannot be put right from outside.
Sub-byte and 8-bit floats are storage, and stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ... import memory
from ...arrays import Array
from ...errors import EngineRefusal
from ..bodies import Body, bodies, called
from .protos import all_tensors, weight_bytes
from .values import FLOATS

_DOUBLE = onnx.TensorProto.DOUBLE
_NARROW = tuple(map(onnx.TensorProto.DataType.Value, FLOATS))
_NARROW_DTYPES = ("float32", "float16", "bfloat16")
_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")
_ROUNDING_INSIDE = ("GridSample", "LinearAttention", "DynamicQuantizeLinear", "CausalConvWithState")
_FLOAT_BY_DEFAULT = ("ConstantOfShape", "EyeLike")


def wide(value: Any) -> Any:
    """A narrow float array in float64; everything else as it is.

    >>> wide(np.float32([1])).dtype, wide(np.arange(2)).dtype
    (dtype('float64'), dtype('int64'))
    """
    return value.astype(np.float64) if value.dtype.name in _NARROW_DTYPES else value


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model in float64.

    Raises `EngineRefusal` naming the node for what rounds to float32 inside, `MemoryLimitError`.
    """
    memory.require(5 * weight_bytes(model), "the model in float64")  # a copy, then wider tensors
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for placed in all_tensors(copy):
        _widen(placed.tensor)
    for body in bodies(copy):
        for node in body.node:
            _widen_node(node)
        for info in _declared(body):
            _widen_type(info.type)
    return copy


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        name, array = tensor.name, numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float64), name))


def _widen_node(node: onnx.NodeProto) -> None:
    if node.op_type in _ROUNDING_INSIDE:
        raise EngineRefusal(
            f"The model cannot be run in float64: the {called(node)} goes through float32 inside."
        )
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i in _NARROW:
            attribute.i = _DOUBLE
    if node.op_type == "Constant":
        _widen_numbers(node)
    elif node.op_type in _FLOAT_BY_DEFAULT and not node.attribute:
        zero: Array = np.zeros(1)
        value = ("value", numpy_helper.from_array(zero))
        node.attribute.append(
            onnx.helper.make_attribute(*value)
            if node.op_type == "ConstantOfShape"
            else onnx.helper.make_attribute("dtype", _DOUBLE)
        )


def _widen_numbers(node: onnx.NodeProto) -> None:
    """`value_float` and `value_floats` as a tensor, with the float32 numbers that they are."""
    for attribute in node.attribute:
        if attribute.name in ("value_float", "value_floats"):
            single = attribute.name == "value_float"
            numbers = np.float64(attribute.f) if single else np.array(attribute.floats, np.float64)
            tensor = numpy_helper.from_array(np.asarray(numbers))
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _declared(body: Body) -> list[Any]:
    if isinstance(body, onnx.GraphProto):
        return [*body.input, *body.output, *body.value_info]
    return list(body.value_info)


def _widen_type(declared: onnx.TypeProto) -> None:
    """Follow sequences and optionals down to the tensor."""
    while True:
        kind = declared.WhichOneof("value")
        if kind == "tensor_type" and declared.tensor_type.elem_type in _NARROW:
            declared.tensor_type.elem_type = _DOUBLE
        if kind not in ("sequence_type", "optional_type"):
            return
        declared = getattr(declared, kind).elem_type
