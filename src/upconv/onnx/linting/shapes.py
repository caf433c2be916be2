"""Sizes that a model leaves open: given by the caller, or worked out by ONNX's shape inference.

Inference sees the model without its large weights. It only fills in: what a model states stays, and
where inference fails the sizes stay open. Its own mistakes about ConvTranspose are a rule's matter.

What lives here: writing shapes into a copy of a model. What never does: a model of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from ...errors import ArgumentError, ShapeError, brief
from ...geometry import LIMIT
from ..bodies import bodies
from ..inference import infer_shapes

_LARGE = 1 << 10  # bytes; shapes and axes that inference needs the values of are smaller

Sizes = Mapping[str, Sequence[int | None]]
"""The shape of an input by its name, None for what stays open; or one size by a symbol's name."""


def give(model: ir.Model, sizes: Sizes) -> None:
    """Write sizes into inputs; raises `ArgumentError` or `ShapeError` for what does not fit."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    symbols = {
        str(dim.value)
        for value in inputs.values()
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim) and dim.value
    }
    for name, shape in sizes.items():
        _require_sizes(name, shape)
        if name in inputs:
            _require_fits(name, shape, inputs[name])
            inputs[name].shape = ir.Shape(list(shape))
        elif name in symbols:
            _require_one(name, shape)
            _replace(inputs.values(), name, shape[0])
        else:
            known = ", ".join(brief(one) for one in sorted(inputs) + sorted(symbols)) or "none"
            raise ArgumentError("sizes", f"with {brief(name)}", f"inputs or symbols: {known[:400]}")


def infer(model: ir.Model) -> None:
    """Fill in the shapes that ONNX's inference finds."""
    try:
        inferred = infer_shapes(_light(model), data_prop=True)
    except Exception:  # foreign code; without its answer the sizes stay open, which is no error
        return
    found = _shapes(inferred)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            shape = found.get(str(value.name))
            if shape is not None:
                value.shape = _filled(value.shape, shape)


def _require_sizes(name: str, shape: Sequence[int | None]) -> None:
    for i, size in enumerate(shape):
        if size is not None and (type(size) is not int or not 0 <= size <= LIMIT):
            raise ArgumentError(
                f"sizes[{brief(name)}][{i}]", brief(size), "an integer from 0 to 2**48, or None"
            )


def _require_one(name: str, shape: Sequence[int | None]) -> None:
    if len(shape) != 1:
        raise ShapeError(f"sizes[{brief(name)}]", brief(tuple(shape)), "one size of a dimension")


def _require_fits(name: str, shape: Sequence[int | None], value: ir.Value) -> None:
    stated = value.shape
    if stated is None:
        return
    fits = len(stated) == len(shape) and all(
        not isinstance(a, int) or b is None or a == b for a, b in zip(stated, shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"sizes[{brief(name)}]", brief(tuple(shape)), f"what fits the model's {stated}"
        )


def _replace(inputs: Iterable[ir.Value], symbol: str, size: int | None) -> None:
    for value in inputs:
        if value.shape is not None:
            value.shape = ir.Shape(
                [
                    size if isinstance(dim, ir.SymbolicDim) and dim.value == symbol else dim
                    for dim in value.shape
                ]
            )


def _light(model: ir.Model) -> onnx.ModelProto:
    """The model with its large weights turned into inputs of the same shape."""
    light = model.clone()
    for graph in (light.graph, *light.graph.subgraphs()):
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if tensor is None or tensor.nbytes > _LARGE:
                if tensor is not None:
                    value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
                value.const_value = None
                graph.initializers.pop(name)
                if graph is light.graph and not value.is_graph_input():
                    graph.inputs.append(value)
    return ir.to_proto(light)


def _shapes(model: onnx.ModelProto) -> dict[str, ir.Shape]:
    """Value name -> shape; a name that two graphs give to different values is left out."""
    found: dict[str, ir.Shape | None] = {}
    for body in bodies(model):
        if isinstance(body, onnx.FunctionProto):
            continue
        for info in (*body.value_info, *body.output):
            if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
                shape = ir.serde.deserialize_type_proto_for_shape(info.type)
                found[info.name] = None if info.name in found else shape
    return {name: shape for name, shape in found.items() if shape is not None}


def _filled(stated: ir.Shape | None, inferred: ir.Shape) -> ir.Shape:
    if stated is None or len(stated) != len(inferred):
        return inferred if stated is None else stated
    return ir.Shape([a if isinstance(a, int) else b for a, b in zip(stated, inferred, strict=True)])
