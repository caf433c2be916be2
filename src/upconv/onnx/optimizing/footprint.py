"""How much memory a layer's form takes while it runs, by its shapes alone.

1. Weights count all the time, every other value from the node that makes it to the last reader.
2. What only gives the same elements another shape makes nothing new.

Runtimes do better where they fuse nodes, and worse where they copy into layouts of their own; what
the figure tells is how forms compare: what a shuffle or an unfolded kernel holds beside the result.
What lives here: counting. What never does: measuring what a process takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import onnx

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


def peak_bytes(model: onnx.ModelProto, sizes: Mapping[str, Sequence[int]]) -> int | None:
    """The most bytes that a model's values and weights take at once; None if a shape is unknown.

    model: without subgraphs. sizes: the shapes of its inputs, by name.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y)'
    >>> text += "{ a = Relu(x) b = Neg(a) y = Add(a, b) }"
    >>> peak_bytes(onnx.parser.parse_model(text), {"x": (5,)})
    60
    """
    nbytes = _sizes(model, sizes)
    if nbytes is None:
        return None
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    home, last = _homes(graph), {}
    for at, node in enumerate(graph.node):
        last.update({home.get(name, name): at for name in node.input})
    last.update({home.get(value.name, value.name): len(graph.node) for value in graph.output})
    live = {value.name for value in graph.input if value.name not in weights}
    always = sum(nbytes[name] for name in weights)
    peak = sum(nbytes[name] for name in live)
    for at, node in enumerate(graph.node):
        live |= {name for name in node.output if name and home.get(name, name) == name}
        peak = max(peak, sum(nbytes[name] for name in live))
        live = {name for name in live if last.get(name, -1) > at}
    return always + peak


def _homes(graph: onnx.GraphProto) -> dict[str, str]:
    """Value that is another one in a different shape -> that one."""
    home: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in _VIEWS:
            home[node.output[0]] = home.get(node.input[0], node.input[0])
    return home


def _sizes(model: onnx.ModelProto, sizes: Mapping[str, Sequence[int]]) -> dict[str, int] | None:
    """Value -> its bytes."""
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for value in sized.graph.input:
        for dim, n in zip(
            value.type.tensor_type.shape.dim, sizes.get(value.name, ()), strict=False
        ):
            dim.dim_value = n
    for value in sized.graph.output:  # what was open follows from the inputs
        value.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    except (RuntimeError, ValueError):
        return None
    found = {tensor.name: len(tensor.raw_data) or _bytes(tensor) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            shape = [d.dim_value for d in dims]
            found[value.name] = prod(shape) * _itemsize(value.type.tensor_type.elem_type)
    made = {name for node in graph.node for name in node.output if name}
    return found if made <= found.keys() else None


def _bytes(tensor: onnx.TensorProto) -> int:
    return int(prod(tensor.dims)) * _itemsize(tensor.data_type)


def _itemsize(element: int) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(element).itemsize)
