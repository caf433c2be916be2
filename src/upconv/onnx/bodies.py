"""The parts of a ModelProto that hold nodes, found without recursion.

A body is a GraphProto or a FunctionProto: both have nodes. Graphs hang on attributes of nodes, and
on the defaults of a function's attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto

Body: TypeAlias = GraphProto | FunctionProto


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


def graphs(attribute: AttributeProto) -> Iterable[GraphProto]:
    """The graphs an attribute holds."""
    return [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def tensors(body: Body) -> Iterator[TensorProto]:
    """The tensors of a body, not of graphs in it: initialisers first, then those of attributes."""
    if isinstance(body, GraphProto):
        yield from body.initializer
    for attribute in attributes(body):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
