"""A model's constants, folded into initializers when the model is read.

A weight is constant if it is an initializer or the output of a Constant node. Exporters and weight
normalization compute weights from constants. `fold` evaluates such nodes (`FOLDED`) with ONNX's own
reference evaluator, and stores their results as initializers.

1. An initializer that is also an input of its graph is not constant: a caller may replace it.
2. DequantizeLinear is not folded, so that quantized pairs stay intact.
3. Folding adds little data: the result of a broadcast may have at most twice the bytes of its
   operands, or `_SMALL` bytes.
4. 16-bit floats are computed in float32 and rounded once. A node whose result is not finite stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from ..arrays import Array
from ..errors import brief
from .graphs import is_op, remove

_SMALL = 1 << 16
_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_BROADCAST = ("Mul", "Div", "Add", "Sub", "Pow")
FOLDED = (
    *("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice"),
    *("Neg", "Sqrt", *_BROADCAST, "ReduceL2", "ReduceSum", "Concat"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant's read-only `array`, or a sentence that gives the `reason` why there is none."""

    array: Array | None
    reason: str = ""


def constant_value(value: ir.Value | None) -> Constant:
    """Return the constant array of `value`, or the reason why it has none; never raise."""
    if value is None:
        return Constant(None, "The input is absent.")
    name, node = brief(value.name), value.producer()
    if value.is_graph_input():
        return Constant(None, f"{name} is an input of its graph.")
    try:
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            array = tensor.numpy().view()
            array.flags.writeable = False
            return Constant(array)
    except Exception as error:  # a file may be missing, and onnx-ir may raise any error
        return Constant(None, f"{name} cannot be read: {brief(str(error))}.")
    if node is None:
        return Constant(None, f"{name} has no data.")
    return Constant(None, f"{name} is computed by a {node.op_type} node when the model runs.")


def fold(model: ir.Model) -> None:
    """Replace nodes that compute constants from constants with initializers."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            result = folded(node, model.opset_imports[""])
            if result is not None:
                replace(graph, node, result)


def folded(node: ir.Node, opset: int, kinds: Sequence[str] = FOLDED) -> Array | None:
    """Compute a node's result if its operands are constant; return None if it is not folded."""
    if not (is_op(node, *kinds) and node.inputs) or len(node.outputs) > 1:
        return None
    if node.outputs[0].is_graph_output():
        return None
    arrays = [constant_value(x).array for x in node.inputs]
    operands = [array for array in arrays if array is not None and not array.dtype.hasobject]
    if len(operands) < len(arrays):
        return None
    try:
        if node.op_type in _BROADCAST:
            size = prod(np.broadcast_shapes(*(array.shape for array in operands)))
            nbytes = sum(array.nbytes for array in operands)
            if size * operands[0].itemsize > max(_SMALL, 2 * nbytes):
                return None
        with np.errstate(all="ignore"):
            result = _evaluate(node, operands, opset)
            sound = result.dtype.kind not in "OSUc" and np.isfinite(result.astype(float)).all()
            return result if sound else None
    except Exception:  # the runtime will report a better error about this node
        return None


def _evaluate(node: ir.Node, arrays: Sequence[Array], opset: int) -> Array:
    """Compute the only output of `node` from `arrays` with ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    dtype = arrays[0].dtype
    narrow = dtype in _NARROW and node.op_type != "Cast"
    if narrow:
        arrays = [a.astype(np.float32) if a.dtype == dtype else a for a in arrays]
    proto = ir.serde.serialize_node(node)
    names = [f"i{i}" for i in range(len(arrays))]
    proto.input[:], proto.output[:] = names, ["o"]
    opsets = [onnx.helper.make_opsetid("", opset)]
    function = onnx.helper.make_function("", "folded", names, ["o"], [proto], opsets)
    feeds = dict(zip(names, arrays, strict=True))
    (result,) = ReferenceEvaluator(function).run(None, feeds, {})
    return np.asarray(result, dtype) if narrow else np.asarray(result)


def replace(graph: ir.Graph, node: ir.Node, result: Array) -> None:
    """Replace a node with an initializer that holds its result; remove unused operands."""
    y = node.outputs[0]
    name, y.name = y.name, None
    value = ir.val(name, const_value=ir.tensor(np.asarray(result, order="C"), name=name))
    y.replace_all_uses_with(value)
    remove([node])
    graph.register_initializer(value)
