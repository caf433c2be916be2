"""Types and shapes of a model's values before it runs, by ONNX's shape inference.

Inference gives a negative size to a transposed convolution whose pads exceed its output. A
subsequent Slice then fails an assertion in onnx's code, which ends the process (onnx issue 8481).
For models with both operators, inference therefore runs in a worker process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from .graphs import roots
from .models import SMALL
from .runtimes import borrowed


def inferred(
    model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> dict[str, ir.Value]:
    """Return the values of a model and its subgraphs by name, with inferred types and shapes.

    shapes: of inputs, instead of the declared ones. The result omits names that subgraphs give to
        different values. If inference fails, it has the declared shapes.
    """
    try:
        result = _infer(_skeleton(model, shapes or {}))
    except Exception:  # third-party code; the declared shapes are the fallback
        result = model
    table: dict[str, ir.Value] = {}
    ambiguous = set()
    for graph in result.graphs():
        outputs = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *outputs):
            other = table.setdefault(str(value.name), value)
            if (other.type, other.shape) != (value.type, value.shape):
                ambiguous.add(value.name)
    return {name: value for name, value in table.items() if name not in ambiguous}


def _skeleton(model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]]) -> ir.Model:
    """Copy a model for inference, with these input shapes and without the data of large weights."""
    copy = model.clone()
    for graph in copy.graphs():
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if tensor is not None:
                value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
            if tensor is None or tensor.nbytes > SMALL:  # a smaller one may be a shape
                value.const_value = None
                graph.initializers.pop(name)
                if not value.is_graph_input():
                    copy.graph.inputs.append(value)
    for value in copy.graph.inputs:
        if value.name is not None and value.name in shapes:
            value.shape = ir.Shape(list(shapes[value.name]))
    for value in copy.graph.outputs:
        if shapes and not value.is_graph_input():
            value.shape = None  # the declared shape may be for other inputs
    return copy


def _infer(model: ir.Model) -> ir.Model:
    kinds = {node.op_type for body in roots(model) for node in body.all_nodes()}
    proto: onnx.ModelProto = ir.to_proto(model)
    if {"Slice", "ConvTranspose"} <= kinds:
        with borrowed() as worker:
            proto = onnx.load_from_string(worker.call("infer", proto.SerializeToString()))
    else:
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return ir.serde.deserialize_model(proto)
