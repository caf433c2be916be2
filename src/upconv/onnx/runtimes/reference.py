"""ONNX's reference evaluator with some operators of upconv's own (`operators`): slow, and right.

With the precision f64 the whole model is computed in float64, whatever it says. In float64 are
then, in the place of every narrower float (8-bit ones are storage, and stay):

1. Initialisers and tensors in attributes (Constant, ConstantOfShape).
2. A Constant's bare numbers, and ConstantOfShape without a value, which are float32 by definition.
3. Attributes that name an element type: Cast's `to`, `dtype`, `output_dtype` and the like.

A few operators (GridSample, DynamicQuantizeLinear) go through float32 inside all the same; where
that shows in an output's type, it is not held against anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import InlinePass

from ...arrays import Array
from ..operators import evaluator_operators
from .host import Backend, Feeds

if TYPE_CHECKING:
    from . import Runtime


_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")


class Model(Backend):
    """A model in the evaluator."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        proto = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
        whole = ir.from_proto(proto)
        if whole.functions:  # `new_ops` does not go into functions
            InlinePass()(whole)
        self._wide = runtime.precision == "f64"
        if self._wide:
            _to_float64(whole)
        operators = evaluator_operators(runtime.rule, whole.opset_imports.get("", 1))
        self._evaluator = ReferenceEvaluator(ir.to_proto(whole), new_ops=operators)
        self._names = list(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        """The outputs, copied: an Identity hands on the caller's own array, or a weight."""
        given = {n: _wide_array(a) for n, a in feeds.items()} if self._wide else feeds
        with np.errstate(all="ignore"):  # infinities are the model's affair, here as elsewhere
            found = self._evaluator.run(self._names, given)
        return [np.copy(value) if isinstance(value, np.ndarray) else value for value in found]


def _to_float64(model: ir.Model) -> None:
    for graph in model.graphs():
        for node in graph:
            _widen_node(node)
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _wide_tensor(value.const_value)


def _wide_array(array: Array) -> Array:
    narrow = array.dtype.name in ("float32", "float16", "bfloat16")
    return array.astype(np.float64) if narrow else array


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype not in _NARROW:
        return tensor
    return ir.tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_node(node: ir.Node) -> None:
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
