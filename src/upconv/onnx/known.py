"""What can be known of a model's values before it runs: types and shapes, for given input shapes.

ONNX's shape inference tells, on a skeleton of the model: the nodes, and of large weights only their
shapes. Where it can tell nothing, nothing is known; nobody may need it to be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx

from .inference import infer_shapes
from .runtimes.values import Value

_SMALL = 1024
"""Up to this many elements a weight is kept: it may be a shape that inference reads."""


@dataclass(frozen=True, slots=True)
class Known:
    """Types and shapes by the names of values, initialisers among them."""

    values: Mapping[str, Value]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The whole shape of a value, None where a part of it is open."""
        shape = self.values[name].shape if name in self.values else None
        if shape is None or not all(isinstance(dim, int) for dim in shape):
            return None
        return tuple(dim for dim in shape if isinstance(dim, int))

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The element type of a value, None where it is not known or no tensor of numbers."""
        return self.values[name].dtype if name in self.values else None

    def nbytes(self, name: str) -> int | None:
        """The bytes of a value, None where its shape or type is not known."""
        shape, dtype = self.shape(name), self.dtype(name)
        return None if shape is None or dtype is None else prod(shape) * dtype.itemsize

    def is_tensor(self, name: str) -> bool:
        """False for what is known to be a sequence, a map or an optional."""
        told = self.values.get(name)
        return told is None or told.kind.startswith(("tensor", "value"))


def known(model: onnx.ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> Known:
    """What is known of the values of `model` when its inputs have these shapes.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (y) {y = Neg(x)}'
    >>> known(onnx.parser.parse_model(text), {"x": (2, 3)}).shape("y")
    (2, 3)
    """
    graph = inferred(model, inputs) or model.graph  # what is declared must do
    infos = [*graph.value_info, *graph.output, *graph.input]
    values = {info.name: Value.of(info) for info in infos}
    values |= {tensor.name: Value.of(_described(tensor)) for tensor in model.graph.initializer}
    return Known(values)


def inferred(
    model: onnx.ModelProto, inputs: Mapping[str, tuple[int, ...]]
) -> onnx.GraphProto | None:
    """The model's graph with the shapes that inference finds, its large weights left out.

    None where it is damaged, or too large a message.
    """
    try:
        return infer_shapes(skeleton(model, inputs), data_prop=True).graph
    except (RuntimeError, ValueError):
        return None


def skeleton(model: onnx.ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """The model for inference: inputs of these shapes, of large weights only what they are."""
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = "skeleton"
    light.graph.node.extend(model.graph.node)
    given = {tensor.name for tensor in model.graph.initializer}
    for info in (info for info in model.graph.input if info.name not in given):
        light.graph.input.append(_fixed(info, inputs.get(info.name)))
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= _SMALL:
            light.graph.initializer.append(tensor)
        light.graph.input.append(_described(tensor))
    for info in model.graph.output:
        bare = light.graph.output.add()
        bare.CopyFrom(info)
        if bare.type.HasField("tensor_type"):
            bare.type.tensor_type.ClearField("shape")  # which may be for other inputs, or wrong
    return light


def _fixed(info: onnx.ValueInfoProto, shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    if shape is None or not info.type.HasField("tensor_type"):
        return info
    code = info.type.tensor_type.elem_type
    return onnx.helper.make_tensor_value_info(info.name, code, shape)


def _described(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
