"""The sizes that the deconvolutions of a model really have, when it is fed certain arrays.

1. Seen in a run: a copy of the model has a Shape node behind the input of every deconvolution and
   nothing else for outputs, so nothing large is kept.
2. In the bodies of If, Loop and Scan nodes, which cannot be asked that way: what ONNX's shape
   inference makes of the sizes fed, else what the model declares.
3. In functions: what the model declares.

What lives here: shapes of inputs. What never does: what is open in them, which the model decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from ...arrays import Array
from ..known import inferred
from ..models import to_proto
from ..runtimes import Runtime
from ..sites import Site, Unreadable


def input_shapes(
    model: ir.Model,
    found: Sequence[Site | Unreadable],
    runtime: Runtime,
    feeds: Mapping[str, Array],
) -> dict[int, tuple[int, ...]]:
    """Shapes of the inputs of deconvolutions, by their place in `found`, where they can be told."""
    declared = {i: shape for i, one in enumerate(found) if (shape := _declared(one.node))}
    asked = [i for i, one in enumerate(found) if one.node.graph is model.graph]
    if len(asked) < len(found):
        within = _inferred(model, feeds)
        declared |= {i: within[one.node] for i, one in enumerate(found) if one.node in within}
    if not asked:
        return declared
    with runtime.session(_asking(model, asked), threads=1) as session:
        outputs = session.run(feeds)
    seen = {i: tuple(int(n) for n in outputs[_shape_name(i)]) for i in asked}
    return declared | seen


def _declared(node: ir.Node) -> tuple[int, ...] | None:
    x = node.inputs[0] if node.inputs else None
    if x is None or x.shape is None or not all(isinstance(d, int) for d in x.shape):
        return None
    return tuple(int(d) for d in x.shape if isinstance(d, int))


def _asking(model: ir.Model, asked: Sequence[int]) -> onnx.ModelProto:
    """A copy whose only outputs are the shapes of the inputs of the deconvolutions asked for."""
    proto = to_proto(model)
    nodes = [node for node in proto.graph.node if node.op_type == "ConvTranspose"]
    del proto.graph.output[:]
    for index, node in zip(asked, nodes, strict=True):
        name = _shape_name(index)
        proto.graph.node.append(onnx.helper.make_node("Shape", [node.input[0]], [name]))
        proto.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [None])
        )
    return proto


def _shape_name(index: int) -> str:
    return f"upconv.shape.{index}"


def _inferred(model: ir.Model, feeds: Mapping[str, Array]) -> dict[ir.Node, tuple[int, ...]]:
    """The deconvolutions within nodes -> the shapes of their inputs, where inference finds them."""
    graph = inferred(to_proto(model), {name: array.shape for name, array in feeds.items()})
    return {} if graph is None else dict(_within(model.graph, graph, {}))


def _within(
    graph: ir.Graph, told: onnx.GraphProto, around: Mapping[str, onnx.ValueInfoProto]
) -> Iterator[tuple[ir.Node, tuple[int, ...]]]:
    values = {info.name: info for info in (*told.input, *told.value_info, *told.output)}
    scope = {**around, **values}
    for node, proto in zip(graph, told.node, strict=True):
        if node.op_type == "ConvTranspose" and (info := scope.get(proto.input[0])) is not None:
            shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            if shape and all(shape):
                yield node, tuple(shape)
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                body = node.attributes[attribute.name].as_graph()
                yield from _within(body, attribute.g, scope)
