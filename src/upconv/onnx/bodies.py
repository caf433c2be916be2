"""The parts of a ModelProto that hold nodes, found without recursion.

A body is a GraphProto or a FunctionProto: both have nodes. Graphs hang on attributes of nodes, and
on the defaults of a function's attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from ..errors import brief

Body: TypeAlias = GraphProto | FunctionProto


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor, and where it stands, in words."""

    place: str
    tensor: TensorProto


def bodies(model: ModelProto) -> Iterator[Body]:
    """Every graph and function of a model, outer ones before those in them."""
    waiting: list[Body] = [model.graph, *model.functions]
    while waiting:
        body = waiting.pop()
        yield body
        for attribute in attributes(body):
            waiting.extend(graphs(attribute))


def attributes(body: Body) -> Iterator[AttributeProto]:
    """The attributes of a body's own nodes; of a function, the defaults of its own as well."""
    if isinstance(body, FunctionProto):
        yield from body.attribute_proto
    for node in body.node:
        yield from node.attribute


def placed_attributes(body: Body) -> Iterator[tuple[str, AttributeProto]]:
    """The same with whose they are, in words."""
    if isinstance(body, FunctionProto):
        yield from ((f"Function {brief(body.name)}", default) for default in body.attribute_proto)
    for node in body.node:
        yield from ((called(node), attribute) for attribute in node.attribute)


def graphs(attribute: AttributeProto) -> Iterable[GraphProto]:
    """The graphs an attribute holds."""
    return [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def tensors(body: Body) -> Iterator[Placed]:
    """The tensors of a body, not of graphs in it: initialisers first, then those of attributes."""
    if isinstance(body, GraphProto):
        for tensor in body.initializer:
            yield Placed(f"Initialiser {brief(tensor.name)}", tensor)
    for place, attribute in placed_attributes(body):
        for tensor in [attribute.t] if attribute.HasField("t") else attribute.tensors:
            yield Placed(f"{place}, {attribute.name}", tensor)


def sparse_tensors(body: Body) -> Iterator[Placed]:
    """The tensors that sparse tensors are made of, values and indices."""
    found: list[tuple[str, Any]] = []
    if isinstance(body, GraphProto):
        found += [("Sparse initialiser", sparse) for sparse in body.sparse_initializer]
    for place, attribute in placed_attributes(body):
        held = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        found += [(place, sparse) for sparse in [*held, *attribute.sparse_tensors]]
    for place, sparse in found:
        yield Placed(f"{place}, values {brief(sparse.values.name)}", sparse.values)
        yield Placed(f"{place}, indices of {brief(sparse.values.name)}", sparse.indices)


def called(node: NodeProto) -> str:
    """What people know a node by: its operator, and its name or the name of its result.

    >>> called(NodeProto(op_type="Relu", output=["y"]))
    "Relu node that makes 'y'"
    """
    if node.name:
        return f"{node.op_type} node {brief(node.name)}"
    made = next(filter(None, node.output), None)
    return f"{node.op_type} node" + (f" that makes {brief(made)}" if made else "")
