"""A model's graphs: their nodes and values, and the removal of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard, cast

import onnx_ir as ir

DEFAULT_DOMAINS = ("", "ai.onnx")  # two spellings of the domain of ONNX's own operators


def roots(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """Yield the model's own graph and its functions, which contain all other graphs."""
    yield model.graph
    yield from model.functions.values()


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield all graphs of a model, including those in functions."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        yield root
        yield from root.subgraphs()


def opset_of(model: ir.Model, body: ir.Graph | ir.Function) -> int:
    """Return the opset of ONNX's own operators in a graph or function."""
    return body.opset_imports.get("", model.opset_imports.get("", 0))


def values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield all values of a model, including those in subgraphs and functions."""
    for body in graphs(model):
        yield from body.inputs
        yield from body.initializers.values()
        for node in body:
            yield from node.outputs


def is_op(node: ir.Node | None, *kinds: str) -> TypeGuard[ir.Node]:
    """Return whether a node is one of these operators of ONNX's own domain."""
    return node is not None and node.op_type in kinds and node.domain in DEFAULT_DOMAINS


def named(node: ir.Node) -> str:
    """Return a node's name or, if it has none, its first output's name, else its operator."""
    return node.name or next((str(y.name) for y in node.outputs), node.op_type)


def follower(y: ir.Value) -> ir.Node | None:
    """Return the node that alone reads y, in y's own graph; None if y has other uses."""
    uses, producer = list(y.uses()), y.producer()
    if len(uses) != 1 or y.is_graph_output() or producer is None:
        return None
    return uses[0].node if uses[0].node.graph is producer.graph else None


def remove(dead: Iterable[ir.Node]) -> None:
    """Remove nodes, last first, and the nodes and initializers that only they used."""
    waiting = list(dead)[::-1]
    while waiting:
        node = waiting.pop()
        if node.graph is None:
            continue  # already removed: two nodes used it, or `dead` contains it
        read = dict.fromkeys(value for value in node.inputs if value is not None)
        node.graph.remove(node, safe=True)
        for value in read:
            producer = value.producer()
            if value.is_initializer() and not _wanted(value):
                cast(ir.Graph, value.graph).initializers.pop(str(value.name), None)
            elif producer is not None and not any(map(_wanted, producer.outputs)):
                waiting.append(producer)


def _wanted(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_input() or value.is_graph_output()
