"""Placing: values that lie in a part of another value's array, so that nobody copies them.

1.  The inputs of a channels-first concatenation are written into their channels of its result.
2.  A channels-first slice of channels is a part of the value that it reads.

A value lies in one place. Where a concatenation needs one that lies elsewhere already, or that the
caller gives or gets, a `Convert` copies it. Channels-last data keeps its nodes: parts would have
gaps between positions, which the kernels of convolutions do not step over.
"""

from __future__ import annotations

from dataclasses import replace

from ..problem import DataLayout
from .graph import Concat, Convert, Graph, Node, Slice


def place(graph: Graph) -> Graph:
    """Turn concatenations and slices into views."""
    shapes, forms = dict(graph.shapes), dict(graph.forms)
    views = dict(graph.views)
    fixed = {*graph.inputs.values(), *graph.outputs}
    viewed: set[int] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        operation, output = node.operation, node.outputs[0]
        if graph.form(output).layout is DataLayout.NXC or not isinstance(operation, Concat | Slice):
            nodes.append(node)
        elif isinstance(operation, Slice):
            if output in fixed:
                nodes.append(replace(node, operation=operation))
                continue
            views[output] = (node.inputs[0], operation.start)
        else:
            first = 0
            for value in node.inputs:
                part = value
                if value in views or value in fixed or value in viewed:
                    part = max(shapes) + 1
                    shapes[part], forms[part] = shapes[value], graph.form(value)
                    nodes.append(Node(Convert(), (value,), (part,), node.line))
                views[part] = (output, first)
                viewed.add(value)
                first += shapes[value][1]
    return replace(graph, nodes=tuple(nodes), shapes=shapes, forms=forms, views=views)


def root(graph: Graph, value: int) -> tuple[int, int]:
    """The value whose array holds this one, and its first channel there."""
    first = 0
    while value in graph.views:
        value, offset = graph.views[value]
        first += offset
    return value, first
