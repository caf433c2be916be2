"""Fold a normalization into the preceding ConvTranspose, with `upconv.fold_batch_norm`.

    z = (y - mean) * gamma / sqrt(var + eps) + beta,   y = conv_transpose(x, w) + b

is a transposed convolution with another weight and bias. Arithmetic is in float64, rounded once.

Cases: 1. BatchNormalization in inference. 2. Mul, Add, Sub and Div with one constant per channel,
which some exporters write instead. 3. Several of these in a row, which are folded together.

Weight, bias and all parameters must be constant floats, and nothing else may read y.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...errors import UpconvError
from ...normalization import fold_batch_norm as folded
from ..building import Builder
from ..graphs import follower, is_op
from ..nodes import ConvTransposeNode
from .base import Refusal, Rewriting
from .legalise import attributes
from .quantised import Operand, constant, operand, weight

_Affine = tuple[Array, Array, Array, Array, float]  # gamma, beta, mean and var per channel; eps


def fold_batch_norm(conv: ConvTransposeNode) -> Rewriting:
    """Fold the normalization that follows (cases 1 to 3)."""
    original = _floats(weight(conv)).array
    words = attributes(conv.axes, conv.groups)
    w = original.astype(np.float64)
    b = np.zeros(conv.groups * int(w.shape[1]))
    if conv.b is not None:
        b = _floats(operand(conv.b, "bias")).array.astype(np.float64)
    nodes: list[ir.Node] = []
    value, reason = conv.y, "no node, or more than one, reads its output"
    while (node := follower(value)) is not None:
        try:
            if is_op(node, "BatchNormalization") and node.outputs:
                *vectors, eps = _batch_norm(node, value, len(b))
            elif is_op(node, "Mul", "Div", "Add", "Sub") and node.outputs:
                *vectors, eps = _arithmetic(node, value, conv.rank, len(b))
            else:
                raise Refusal(f"a {node.op_type} reads its output, which is not a normalization")
            w, b = folded(w, b, *vectors, eps=eps, groups=conv.groups)
        except UpconvError as refusal:
            reason = str(refusal)
            break
        nodes.append(node)
        value = node.outputs[0]
    if not nodes:
        raise Refusal(reason)
    new_w, new_b = _rounded(w, original.dtype), _rounded(b, original.dtype)

    def write(builder: Builder) -> None:
        operands = conv.x, builder.constant(new_w, "weight"), builder.constant(new_b, "bias")
        y = builder.deconv(operands, words)
        builder.replace(nodes[-1].outputs[0], y, [*nodes[::-1], conv.node])

    return write


def _floats(tensor: Operand) -> Operand:
    if tensor.scale is not None:
        raise Refusal("it is quantized; fold the normalization before quantizing the model")
    return tensor


def _rounded(array: Array, dtype: np.dtype) -> Array:
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype)
    if not np.isfinite(rounded.astype(np.float64)).all():
        raise Refusal(f"the folded weight or bias is not finite in {dtype}")
    return rounded


def _batch_norm(node: ir.Node, y: ir.Value, channels: int) -> _Affine:
    """Return the parameters of a BatchNormalization (case 1)."""
    if len(node.inputs) != 5 or node.inputs[0] is not y:
        raise Refusal("the BatchNormalization after it has another input, or lacks parameters")
    if _number(node, "training_mode", 0) or any(value.name for value in node.outputs[1:]):
        raise Refusal("the BatchNormalization after it is in training mode")
    gamma, beta, mean, var = map(_constant, node.inputs[1:])
    for vector in (gamma, beta, mean, var):
        if vector.shape != (channels,):
            raise Refusal(f"the BatchNormalization after it has parameters of shape {vector.shape}")
    return gamma, beta, mean, var, _number(node, "epsilon", 1e-5)


def _arithmetic(node: ir.Node, y: ir.Value, rank: int, channels: int) -> _Affine:
    """Return the parameters of an operator on y and a constant c, in either order (case 2)."""
    kind, first = node.op_type, node.inputs[0] is y
    if len(node.inputs) != 2 or node.inputs[0] is node.inputs[1] or (kind == "Div" and not first):
        raise Refusal(f"the {kind} after it is not linear in its output")
    c = _constant(node.inputs[1 if first else 0])
    shape = (1,) * (rank + 2 - c.ndim) + c.shape
    if len(shape) != rank + 2 or shape[1] not in (1, channels) or c.size != shape[1]:
        raise Refusal(f"the constant of the {kind} after it is {c.shape}, not one per channel")
    c = np.broadcast_to(c.reshape(-1), (channels,))
    none, one = np.zeros_like(c), np.ones_like(c)
    if kind in ("Mul", "Div"):
        with np.errstate(divide="ignore"):
            return c if kind == "Mul" else 1 / c, none, none, one, 0.0
    sign = 1 if kind == "Add" or first else -1
    return sign * one, -c if kind == "Sub" and first else c, none, one, 0.0


def _constant(value: ir.Value | None) -> Array:
    array = constant(value, "the normalization of its output")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise Refusal("the normalization after it has non-numeric parameters") from None


def _number(node: ir.Node, name: str, absent: float) -> float:
    attribute = node.attributes.get(name)
    if attribute is None:
        return absent
    if attribute.is_ref() or not isinstance(attribute.value, (int, float)):
        raise Refusal(f"the {name} of the {node.op_type} after it is not a known number")
    return float(attribute.value)
