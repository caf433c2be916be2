"""Models quantized as QDQ: the rules by which passes keep a layer suitable for integer kernels.

A runtime computes a layer in integers if DequantizeLinear produces its input and weight, and
QuantizeLinear reads its output, perhaps after an activation. Therefore,

1. a pass changes the integers of a weight or bias, and repeats or splits their scales and zero
   points (`Operand`). It never quantizes again, so no value changes. Missing taps become the zero
   point, which means 0;
2. the nodes that read the output stay directly after the new nodes (`finish`). Nodes that a pass
   adds after them (a shuffle, a cut) move integers, not floats;
3. nodes that a pass adds before the layer apply to the integers before dequantization.

In a floating-point model, operands have no scale, and the rules yield plain constants and nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ..building import Builder
from ..constants import constant_value
from ..graphs import follower, is_op
from ..nodes import ConvTransposeNode
from .base import Refusal, elementwise

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A constant weight or bias: `array` or, for a quantized operand, `array` * `scale`.

    array: floats, or int32 after subtracting the zero points. scale, zero: one element, or one per
    index along `axis`; None for floats. stored: the type of the stored integers.
    """

    array: Array
    scale: Array | None = None
    zero: Array | None = None
    axis: int = 0
    stored: np.dtype | None = None

    @property
    def per_channel(self) -> bool:
        """Whether each index along `axis` has its own scale."""
        return self.scale is not None and self.scale.size > 1

    def changed(
        self, array: Array, along: Callable[[Array], Array] = lambda v: v, axis: int | None = None
    ) -> Operand:
        """Replace the array, and map the scales and zero points with `along`."""
        if self.scale is None or self.zero is None or not self.per_channel:
            return replace(self, array=array)
        axis = self.axis if axis is None else axis
        scale, zero = along(self.scale), along(self.zero)
        return replace(self, array=array, scale=scale, zero=zero, axis=axis)

    def split(self, count: int) -> list[Operand]:
        """Split the operand into equal parts along axis 0."""

        def along(v: Array, i: int) -> Array:
            return v if self.axis else np.split(v, count)[i]

        parts = enumerate(np.split(self.array, count))
        return [self.changed(part, partial(along, i=i)) for i, part in parts]

    def write(self, builder: Builder, hint: str) -> ir.Value:
        """Write the operand as a constant, dequantized if it has scales."""
        if self.scale is None or self.zero is None:
            return builder.constant(self.array, hint)
        zero = _along(self.zero, self.array.ndim, self.axis)
        integers = (self.array + zero.astype(np.int32)).astype(self.stored)
        arrays = {hint: integers, f"{hint}_scale": self.scale, f"{hint}_zero_point": self.zero}
        inputs = [builder.constant(array, name) for name, array in arrays.items()]
        axis = self.axis if self.scale.ndim else None
        dtype = ir.DataType.from_numpy(self.scale.dtype)
        return builder.op("DequantizeLinear", inputs, dtype, axis=axis)


def constant(value: ir.Value | None, what: str) -> Array:
    """Return the array of a value; raise `Refusal` if the value is not constant."""
    known = constant_value(value)
    if known.array is None:
        raise Refusal(f"{what} is not constant: {known.reason}")
    return known.array


def operand(value: ir.Value, what: str) -> Operand:
    """Return a value as an operand; raise `Refusal` if it is computed or of an unknown form."""
    node = value.producer()
    if is_op(node, "DequantizeLinear"):
        return _quantized_operand(node, what)
    array = constant(value, f"its {what}")
    if ir.DataType.from_numpy(array.dtype) not in _FLOATS:
        raise Refusal(f"its {what} is of type {array.dtype}")
    return Operand(array)


def weight(conv: ConvTransposeNode) -> Operand:
    """Return the weight, (C, M/groups, *k); raise `Refusal` if it does not fit the node."""
    w = operand(conv.w, "weight")
    if w.array.shape[0] % conv.groups:
        raise Refusal(f"its weight has {w.array.shape[0]} channels for {conv.groups} groups")
    if w.per_channel and w.axis != 1:
        words = "quantize it along axis 1, its output channels"
        raise Refusal(f"its weight has scales along axis {w.axis}; {words}")
    return w


def bias(conv: ConvTransposeNode) -> Operand | None:
    """Return the bias, (M,), if there is one."""
    return None if conv.b is None else operand(conv.b, "bias")


def _quantized_operand(node: ir.Node, what: str) -> Operand:
    arrays = [constant(value, f"its {what}") for value in node.inputs if value is not None]
    array, scale = arrays[:2]
    zero = arrays[2] if len(arrays) > 2 else np.zeros(scale.shape, array.dtype)
    if scale.size == zero.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())  # such a vector means one scale for all
    if zero.shape != scale.shape:
        raise Refusal(f"its {what} has zero points of shape {zero.shape}, scales of {scale.shape}")
    axis = node.attributes.get_int("axis", 1) if array.ndim > 1 else 0
    axis += array.ndim if axis < 0 else 0
    named = [name for name in ("block_size", "output_dtype") if node.attributes.get_int(name, 0)]
    if named or array.dtype.kind not in "iu":
        raise Refusal(f"its {what} is dequantized with {', '.join(named)} from {array.dtype}")
    if scale.size != 1 and scale.shape != array.shape[axis : axis + 1]:
        raise Refusal(f"its {what} has scales of shape {scale.shape} along axis {axis}")
    centred = array.astype(np.int32) - _along(zero, array.ndim, axis).astype(np.int32)
    return Operand(centred, scale, zero, axis, array.dtype)


def _along(vector: Array, rank: int, axis: int) -> Array:
    return vector.reshape([-1 if i == axis and vector.size > 1 else 1 for i in range(rank)])


def is_transparent(node: ir.Node | None, *kinds: str) -> TypeGuard[ir.Node]:
    """Return whether a node maps 0 to 0 elementwise: a Cast, or (de)quantization by one scale."""
    kinds = kinds or ("QuantizeLinear", "DequantizeLinear", "Cast")
    if not is_op(node, *kinds) or any(a.is_ref() for a in node.attributes.values()):
        return False
    if is_op(node, "Cast"):
        return True
    scale = node.inputs[1]
    array = constant_value(scale).array
    if array is not None:
        return array.size == 1
    return scale is not None and scale.shape is not None and len(scale.shape) == 0


def again(builder: Builder, x: ir.Value, nodes: Sequence[ir.Node]) -> ir.Value:
    """Apply copies of elementwise nodes to x, one after the other."""
    for node in nodes:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        x = builder.op(node.op_type, [x, *node.inputs[1:]], **attributes)
        x.type = node.outputs[0].type
    return x


def before(
    builder: Builder, x: ir.Value, moved: Callable[[ir.Value], Sequence[ir.Value]]
) -> list[ir.Value]:
    """Apply `moved`, which only moves elements, to x or to the integers that x comes from."""
    node = x.producer()
    if not is_transparent(node, "DequantizeLinear") or node.inputs[0] is None:
        return list(moved(x))
    return [again(builder, part, [node]) for part in moved(node.inputs[0])]


def finish(
    conv: ConvTransposeNode,
    builder: Builder,
    ys: Sequence[ir.Value],
    moved: Callable[[Sequence[ir.Value]], ir.Value],
) -> None:
    """Apply `moved`, which only moves elements, to `ys`, and replace the node with the result.

    A following activation, and a QuantizeLinear with one scale, stay directly after the layer.
    """
    y, nodes = conv.y, list[ir.Node]()
    activation = elementwise(y)
    if activation is not None:
        y, nodes = activation.outputs[0], [activation]
    last = follower(y)
    if is_transparent(last, "QuantizeLinear"):
        y, nodes = last.outputs[0], [*nodes, last]
    result = moved([again(builder, part, nodes) for part in ys])
    builder.replace(y, result, [*reversed(nodes), conv.node])
