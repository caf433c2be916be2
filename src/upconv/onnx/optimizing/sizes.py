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
from ..bodies import Body, bodies
from ..constants import DEFAULT_DOMAINS, declared_shape
from ..known import inferred
from ..models import to_proto
from ..nodes import ConvTransposeNode, Unreadable
from ..runtimes import Runtime


def input_shapes(
    model: ir.Model,
    found: Sequence[ConvTransposeNode | Unreadable],
    runtime: Runtime,
    feeds: Mapping[str, Array],
) -> dict[int, tuple[int, ...]]:
    """Shapes of the inputs of deconvolutions, by their place in `found`, where they can be told."""
    declared = {
        i: shape for i, one in enumerate(found) if (shape := declared_shape(_first(one.node)))
    }
    asked = [i for i, one in enumerate(found) if one.node.graph is model.graph]
    if len(asked) < len(found):
        within = _inferred(model, feeds)
        declared |= {i: within[one.node] for i, one in enumerate(found) if one.node in within}
    asking = {i: x.name for i in asked if (x := _first(found[i].node)) is not None and x.name}
    if not asking:
        return declared
    proto, names = _asking(model, asking)
    with runtime.session(proto, threads=1) as session:
        outputs = session.run(feeds)
    return declared | {i: tuple(int(n) for n in outputs[name]) for i, name in names.items()}


def _first(node: ir.Node) -> ir.Value | None:
    return next(iter(node.inputs), None)


def _asking(model: ir.Model, asked: Mapping[int, str]) -> tuple[onnx.ModelProto, Mapping[int, str]]:
    """A copy whose only outputs are the shapes of the values asked for, and their names."""
    proto, prefix = to_proto(model), "upconv.shape"
    while any(name.startswith(prefix) for body in bodies(proto) for name in _names(body)):
        prefix += "_"
    names = {index: f"{prefix}.{index}" for index in asked}
    del proto.graph.output[:]
    for index, name in names.items():
        proto.graph.node.append(onnx.helper.make_node("Shape", [asked[index]], [name]))
        proto.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [None])
        )
    return proto, names


def _names(body: Body) -> Iterator[str]:
    """The names of a body's values."""
    if isinstance(body, onnx.GraphProto):
        yield from (info.name for info in body.input)
        yield from (tensor.name for tensor in body.initializer)
        yield from (sparse.values.name for sparse in body.sparse_initializer)
    for node in body.node:
        yield from node.output


def _inferred(model: ir.Model, feeds: Mapping[str, Array]) -> dict[ir.Node, tuple[int, ...]]:
    """The deconvolutions within nodes -> the shapes of their inputs, where inference finds them."""
    graph = inferred(to_proto(model), {name: array.shape for name, array in feeds.items()})
    return {} if graph is None else dict(_within(model.graph, graph, {}))


def _within(
    graph: ir.Graph, told: onnx.GraphProto, around: Mapping[str, onnx.ValueInfoProto]
) -> Iterator[tuple[ir.Node, tuple[int, ...]]]:
    values = {info.name: info for info in (*told.input, *told.value_info, *told.output)}
    scope = {**around, **values}
    protos = {name: proto for proto in told.node for name in proto.output if name}
    for node in graph:  # the protos may be fewer: a sparse initialiser is a node here alone
        proto = next((protos[y.name] for y in node.outputs if y.name in protos), None)
        if proto is None:
            continue
        x = _first(node)
        info = None if x is None else scope.get(str(x.name))
        if node.op_type == "ConvTranspose" and node.domain in DEFAULT_DOMAINS and info is not None:
            shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            if shape and all(shape):
                yield node, tuple(shape)
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                body = node.attributes[attribute.name].as_graph()
                yield from _within(body, attribute.g, scope)
