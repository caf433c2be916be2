"""A model with float64 in the place of every narrower float, for results without rounding to see.

1. Initialisers and tensors in attributes (Constant, ConstantOfShape).
2. A Constant's bare numbers, and ConstantOfShape without a value, which are float32 by definition.
3. Attributes that name an element type: Cast's `to`, `dtype`, `output_dtype` and the like.
4. The declared types of inputs, outputs and values, in subgraphs too.

Operators that go through float32 inside cannot be put right from outside (`_ROUNDING_INSIDE`).
Sub-byte and 8-bit floats are storage, and stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ...errors import EngineRefusal
from ..backend import called
from ..graphs import values

_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")
_ROUNDING_INSIDE = ("GridSample", "LinearAttention", "DynamicQuantizeLinear", "CausalConvWithState")


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether float64 stands in for a dtype.

    >>> is_narrow(np.dtype("float32")), is_narrow(np.dtype("int64"))
    (True, False)
    """
    return dtype.name in ("float32", "float16", "bfloat16")


def to_float64(model: ir.Model) -> None:
    """Put a model, which is changed, into float64; it has no functions.

    Raises `EngineRefusal` naming the node for what rounds to float32 inside.
    """
    for graph in model.graphs():
        for node in graph:
            _widen_node(node)
    for value in values(model):
        _widen(value)


def _widen(value: ir.Value) -> None:
    if value.const_value is not None:
        value.const_value = _wide_tensor(value.const_value)
    kind = value.type
    while isinstance(kind, ir.SequenceType | ir.OptionalType):
        kind = kind.elem_type
    if isinstance(kind, ir.TensorType) and kind.dtype in _NARROW:
        kind.dtype = ir.DataType.DOUBLE


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype not in _NARROW:
        return tensor
    return ir.tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_node(node: ir.Node) -> None:
    if node.op_type in _ROUNDING_INSIDE:
        raise EngineRefusal(
            f"The model cannot be run in float64: the {called(node)} goes through float32 inside."
        )
    for name, attribute in list(node.attributes.items()):
        if attribute.type is ir.AttributeType.TENSOR:
            node.attributes[name] = ir.AttrTensor(name, _wide_tensor(attribute.as_tensor()))
        elif name in _TYPES and attribute.value in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
        elif name in ("value_float", "value_floats") and node.op_type == "Constant":
            del node.attributes[name]
            numbers = np.asarray(attribute.value, np.float64)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(numbers))
    if not node.attributes and node.op_type == "ConstantOfShape":
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1)))
    elif not node.attributes and node.op_type == "EyeLike":
        node.attributes["dtype"] = ir.AttrInt64("dtype", int(ir.DataType.DOUBLE))
