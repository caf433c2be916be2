"""Single convolutions as plans, for element types that networks do not support.

ONNX Runtime has no ConvTranspose in float64, float16 or bfloat16; plans let such models run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy's name bfloat16
import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...dialects import from_onnx
from ...dialects.onnx import Rule
from ...plans import Plan, conv_plan, plan
from ..constants import constant_value
from ..graphs import is_op, named
from ..nodes import ConvTransposeNode, read
from ..operators import conv_keywords
from .computations import Part, Run, Shapes

_MAX_KNOWN, _MAX_PLANS = 4, 64
_DTYPES = ("float16", "float64", "bfloat16")


class Layer:
    """A convolution with a plan for each shape; the plans share the packed weight."""

    def __init__(
        self, node: ir.Node, opset: int, weight: Array, bias: Array | None, threads: int
    ) -> None:
        self._operands = weight, bias
        self._transposed = node.op_type == "ConvTranspose"
        attributes = {name: entry.value for name, entry in node.attributes.items()}
        self._attributes = attributes | {"kernel_shape": weight.shape[2:]}
        self._opset, self._threads = opset, threads
        self._known: list[tuple[Mapping[str, Any], Plan]] = []
        self._plan = lru_cache(_MAX_PLANS)(self._new_plan)

    def prepared(self, shapes: Shapes) -> tuple[Shapes, Run]:
        """Prepare the layer for input shapes; see `Part`."""
        chosen = self._plan(shapes[0])
        return (chosen.output_shape,), lambda xs, ys: chosen(xs[0], out=ys[0])

    def _new_plan(self, shape: tuple[int, ...]) -> Plan:
        if self._transposed:
            rule = {"opset": self._opset, "rule": Rule.ONNXRUNTIME.value}
            keywords = from_onnx(shape[2:], **self._attributes, **rule).keywords()
        else:
            keywords = conv_keywords(self._attributes)
        for others, first in self._known:
            if others == keywords:
                return first.resized(shape)
        make = plan if self._transposed else conv_plan
        # Threads of other engines would compete with ONNX Runtime's spinning threads.
        new = make(shape, *self._operands, **keywords, threads=self._threads, engine="jit")
        self._known[:] = [*self._known[1 - _MAX_KNOWN :], (keywords, new)]
        return new


def parts_of(model: ir.Model, kinds: Sequence[str], threads: int) -> list[Part]:
    """Return the parts of a model that are single layers."""
    opset = model.graph.opset_imports.get("", 0)
    nodes = (node for node in model.graph if is_op(node, *kinds))
    return [part for node in nodes if (part := _part(node, opset, threads)) is not None]


def _part(node: ir.Node, opset: int, threads: int) -> Part | None:
    x, w, b = [*node.inputs, None, None, None][:3]
    weight, bias = constant_value(w).array, constant_value(b).array
    if x is None or weight is None or weight.ndim < 3 or not weight.size:
        return None
    if weight.dtype.name not in _DTYPES or not np.isfinite(weight).all():
        return None
    kernel = node.attributes.get_ints("kernel_shape", weight.shape[2:])
    if list(kernel) != [*weight.shape[2:]]:
        return None
    if b is not None and (bias is None or bias.dtype != weight.dtype):
        return None
    if node.op_type == "ConvTranspose" and not isinstance(
        read(node, opset, Rule.ONNXRUNTIME), ConvTransposeNode
    ):
        return None
    names = (str(node.outputs[0].name),)
    layer, dtype = Layer(node, opset, weight, bias, threads), weight.dtype.name
    return Part(named(node), node.op_type, 1, names, (str(x.name),), names, layer.prepared, dtype)
