"""Units of a graph: nodes, or patterns of nodes, for which a network has one operation.

Exporters write some operations as several nodes. `PATTERNS` recognizes these by their last node.
Every other node is a unit by itself, which the table in `network_rules.py` translates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ..constants import constant_value
from ..graphs import is_op

Operation = tuple[Any, ...]
"""A method of `Network`, or "linear" for a layer over the last axis; then the arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Nodes in order. `inputs` are the values that they read from outside, except constants.

    operation: the operation of a pattern, which reads one value; None for a single node.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    operation: Operation | None = None

    @property
    def last(self) -> ir.Node:
        """The node that produces the results."""
        return self.nodes[-1]


def units(graph: ir.Graph) -> list[Unit]:
    """Return the units of a graph, in an order in which they can run."""
    order = {node: number for number, node in enumerate(graph)}
    claimed: set[ir.Node] = set()
    result = []
    for node in reversed(list(graph)):
        if node in claimed:
            continue
        unit = _pattern(node, order) or Unit((node,), _inputs(node))
        claimed.update(unit.nodes)
        result.append(unit)
    return result[::-1]


def _inputs(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the non-constant values of the node's graph that it or its subgraphs read."""
    graphs = [graph for attribute in node.attributes.values() for graph in _graphs(attribute)]
    nodes = [node, *(deep for graph in graphs for deep in graph.all_nodes())]
    values = [value for reader in nodes for value in reader.inputs]
    values += [y for graph in graphs for y in graph.outputs]
    of_graph = [x for x in dict.fromkeys(values) if x is not None and x.graph is node.graph]
    read = (x for x in of_graph if x in node.inputs or not x.is_graph_input())
    return tuple(x for x in read if constant_value(x).array is None)


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.type is ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return [*attribute.as_graphs()] if attribute.type is ir.AttributeType.GRAPHS else []


# Patterns -----------------------------------------------------------------------------------------

Match = tuple[ir.Value, Operation, list[ir.Node | None]]
"""The value that a pattern reads, its operation, and all its nodes but the last."""


def _pattern(last: ir.Node, order: dict[ir.Node, int]) -> Unit | None:
    """Return the unit of the pattern that ends with this node, if any."""
    for pattern in PATTERNS.get(last.op_type, ()) if is_op(last, last.op_type) else ():
        match = pattern(last)
        if match is None:
            continue
        x, operation, inner = match
        nodes = tuple(
            sorted({node for node in inner if node in order} | {last}, key=order.__getitem__)
        )
        hidden = [y for node in nodes[:-1] for y in node.outputs]
        outside = (use.node for y in hidden for use in y.uses() if use.node not in nodes)
        if not any(y.is_graph_output() for y in hidden) and not any(outside):
            return Unit(nodes, (x,), operation)
    return None


def _maker(value: ir.Value | None, *kinds: str) -> ir.Node | None:
    """Return the node that produces a value, if it is of one of these kinds."""
    node = None if value is None else value.producer()
    return node if is_op(node, *kinds) else None


def _split(node: ir.Node | None) -> tuple[ir.Value | None, Array | None]:
    """Return a node's variable operand and its constant one; (None, None) without such a pair."""
    if node is not None and len(node.inputs) == 2:
        for x, c in (tuple(node.inputs), tuple(node.inputs[::-1])):
            array = constant_value(c).array
            if array is not None and constant_value(x).array is None:
                return x, array
    return None, None


def _by_number(node: ir.Node | None, number: float) -> ir.Value | None:
    """Return a node's variable operand if the other operand is this number."""
    x, array = _split(node)
    fits = array is not None and array.size == 1 and np.isclose(array.item(), number, rtol=1e-5)
    return x if fits else None


def _both(node: ir.Node | None) -> list[tuple[ir.Value | None, ir.Value | None]]:
    """Return a node's two operands in both orders."""
    return [] if node is None else [tuple(node.inputs), tuple(node.inputs[::-1])]  # type: ignore[list-item]


def _silu(last: ir.Node) -> Match | None:
    """Match x * sigmoid(x)."""
    for x, gate in _both(last):
        sigmoid = _maker(gate, "Sigmoid")
        if x is not None and sigmoid is not None and sigmoid.inputs[0] is x:
            return x, ("activation", "silu"), [sigmoid]
    return None


def _gelu(last: ir.Node) -> Match | None:
    """Match (x * (erf(x / sqrt 2) + 1)) * 0.5."""
    product = _maker(_by_number(last, 0.5), "Mul")
    for x, factor in _both(product):
        add = _maker(factor, "Add")
        erf = _maker(_by_number(add, 1.0), "Erf")
        scale = _maker(erf.inputs[0], "Div", "Mul") if erf is not None else None
        number = sqrt(2) if is_op(scale, "Div") else 1 / sqrt(2)
        if x is not None and _by_number(scale, number) is x:
            return x, ("activation", "gelu"), [product, add, erf, scale]
    return None


def _snake(last: ir.Node) -> Match | None:
    """Match x + sin(a x)^2 / a."""
    for x, term in _both(last):
        outer = _maker(term, "Mul")
        power, inverse = _split(outer)
        square = _maker(power, "Pow")
        sine = _maker(_by_number(square, 2.0), "Sin")
        inner = _maker(sine.inputs[0], "Mul") if sine is not None else None
        argument, a = _split(inner)
        if x is None or argument is not x or a is None or inverse is None:
            continue
        rank = a.ndim if x.shape is None else len(x.shape)
        if a.size > 1 and (1,) * (rank - a.ndim) + a.shape != (1, a.size, *(1,) * (rank - 2)):
            continue  # it differs between positions
        if a.shape == inverse.shape and np.allclose(a * inverse, 1, rtol=1e-5):
            return x, ("activation", ("snake", a.reshape(-1))), [outer, square, sine, inner]
    return None


def _group_norm(last: ir.Node) -> Match | None:
    """Match Reshape to (N, groups, -1), InstanceNormalization, Reshape to the original shape."""
    norm = _maker(last.inputs[0], "InstanceNormalization")
    first = _maker(norm.inputs[0], "Reshape") if norm is not None else None
    if norm is None or first is None or first.inputs[0] is None:
        return None
    x, target = first.inputs[0], constant_value(first.inputs[1]).array
    scale, offset = (constant_value(value).array for value in norm.inputs[1:3])
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 2 else None
    if target is None or scale is None or offset is None or not isinstance(channels, int):
        return None
    groups = len(scale)
    if target.tolist() != [0, groups, -1] or channels % groups or not _restores(last, x):
        return None
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    a, b = np.repeat(scale, channels // groups), np.repeat(offset, channels // groups)
    shape = _maker(last.inputs[1], "Shape")
    alone = shape is not None and len(shape.outputs[0].uses()) == 1
    return x, ("group_norm", groups, a, b, epsilon), [first, norm, shape if alone else None]


def _restores(reshape: ir.Node, x: ir.Value) -> bool:
    """Return whether a Reshape gives its input the shape of x."""
    shape = _maker(reshape.inputs[1], "Shape")
    if shape is not None and shape.inputs[0] is x and not shape.attributes:
        return True
    target = constant_value(reshape.inputs[1]).array
    known = [] if x.shape is None else [n if isinstance(n, int) else -1 for n in x.shape]
    return (
        target is not None and known.count(-1) <= 1 and target.tolist() in (known, [0, *known[1:]])
    )


def _layer_norm(last: ir.Node) -> Match | None:
    """Match Transpose of the channels to the end, LayerNormalization there, Transpose back."""
    norm = _maker(last.inputs[0], "LayerNormalization")
    first = _maker(norm.inputs[0], "Transpose") if norm is not None else None
    if norm is None or first is None or first.inputs[0] is None or len(norm.outputs) > 1:
        return None
    to, back = (list(node.attributes.get_ints("perm", ())) for node in (first, last))
    rank = len(to)
    there, here = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    if to != there or back != here or norm.attributes.get_int("axis", -1) not in (-1, rank - 1):
        return None
    several = [constant_value(value).array for value in norm.inputs[1:]]
    if any(array is None for array in several):
        return None
    scale, offset = [*several, None][:2]
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    return first.inputs[0], ("layer_norm", scale, offset, epsilon), [first, norm]


def is_bias(array: Array, count: int) -> bool:
    """Return whether an operand of a Gemm has one number for each of `count` channels."""
    return array.size == count and array.shape[-1] == count


def _linear(last: ir.Node) -> Match | None:
    """Match Reshape to rows, Gemm, Reshape back: how ONNX Runtime writes a layer over an axis."""
    gemm = _maker(last.inputs[0], "Gemm")
    first = _maker(gemm.inputs[0], "Reshape") if gemm is not None else None
    x = first.inputs[0] if first is not None else None
    if gemm is None or first is None or x is None or x.shape is None:
        return None
    shape = [n if isinstance(n, int) else 0 for n in x.shape]
    operands = (*gemm.inputs[1:], *first.inputs[1:])
    several: list[Any] = [constant_value(value).array for value in operands]
    back = constant_value(last.inputs[1]).array
    names = gemm.attributes
    scaled = names.get_float("alpha", 1.0) != 1 or names.get_float("beta", 1.0) != 1
    plain = not scaled and not names.get_int("transA", 0)
    if not (plain and all(shape)) or back is None or any(array is None for array in several):
        return None
    weight, *biases, rows = several
    weight = weight if names.get_int("transB", 0) else weight.T
    if rows.tolist() not in ([-1, shape[-1]], [prod(shape[:-1]), shape[-1]]):
        return None
    if back.tolist() != [*shape[:-1], len(weight)]:
        return None
    if not all(is_bias(bias, len(weight)) for bias in biases):
        return None
    return x, ("linear", weight, *(b.reshape(-1) for b in biases)), [first, gemm]


PATTERNS: dict[str, tuple[Callable[[ir.Node], Match | None], ...]] = {
    "Mul": (_silu, _gelu),
    "Add": (_snake,),
    "Reshape": (_group_norm, _linear),
    "Transpose": (_layer_norm,),
}
"""The patterns, by their last operator."""
