"""The parts of a model that hold nodes, and the values in them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def roots(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """The model's own graph, and its functions: all other graphs are in these."""
    yield model.graph
    yield from model.functions.values()


def values(model: ir.Model) -> Iterator[ir.Value]:
    """All values of a model, those of subgraphs and functions included."""
    for body in (*model.graphs(), *(function.graph for function in model.functions.values())):
        yield from body.inputs
        yield from body.initializers.values()
        for node in body:
            yield from node.outputs
