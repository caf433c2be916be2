"""Shapes and element types in a graph, inferred from inputs to outputs and back.

Each operator infers again when one of its values becomes known, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialects import mxnet_attributes as kinds
from ..errors import DTypeError
from .base import raised_by
from .operators import Shape, unified
from .params import TYPES

Key = tuple[int, int]
"""A value in the graph: its node's id and the output's number."""


def infer_shapes(nodes: Sequence[Any], shapes: Mapping[str, Shape]) -> dict[Key, Shape | None]:
    """Infer the shapes of all values in a graph from the variables' shapes; 0 is unknown.

    nodes: the result of `Symbol.nodes`. Raises `MXNetError` for shapes that contradict each other.
    """
    known: dict[Key, Shape | None] = {}
    for node in nodes:
        if node.operator is None:
            shape = shapes.get(node.name, node.attrs.get("__shape__"))
            sizes = kinds.KINDS["shape"]("shape", shape) if shape else None
            known[id(node), 0] = sizes and tuple(max(0, size) for size in sizes)
    infer = lambda node, inputs, outputs: node.operator.infer(node.p, inputs, outputs)  # noqa: E731
    _propagate(nodes, known, infer, lambda name, a, b: unified(f"the shape of {name}", a, b))
    return known


def infer_types(nodes: Sequence[Any], types: Mapping[str, Any]) -> dict[Key, np.dtype[Any] | None]:
    """Infer the element types of all values in a graph, as `infer_shapes` infers shapes."""
    known: dict[Key, Any] = {}
    for node in nodes:
        if node.operator is None:
            kind = types.get(node.name, node.attrs.get("__dtype__"))
            if isinstance(kind, str) and kind.isdigit() and int(kind) < len(TYPES):
                kind = TYPES[int(kind)]  # a number, as in files
            known[id(node), 0] = None if kind is None else kinds.KINDS["dtype"](node.name, kind)
    _propagate(nodes, known, lambda node, *known: node.operator.types(node.p, *known), _same_type)
    return known


def _same_type(name: str, first: Any, second: Any) -> Any:
    if None not in (first, second) and first != second:
        raise DTypeError(f"the type of {name}", str(second), str(first))
    return second if first is None else first


def _propagate(
    nodes: Sequence[Any], known: dict[Key, Any], infer: Callable[..., Any], unify: Any
) -> None:
    """Add to `known` the shapes or types that operators infer for their inputs and outputs."""
    operators = [node for node in nodes if node.operator is not None]
    seen: dict[int, list[Any]] = {}
    changed = True
    while changed:
        changed = False
        for node in operators:
            inputs = [(id(parent), i) for parent, i in node.inputs]
            names = (*node.named_inputs(), *node.outputs())
            keys = [*inputs, *((id(node), i) for i in range(len(names) - len(inputs)))]
            values = [known.get(key) for key in keys]
            if seen.get(id(node)) == values:
                continue
            changed, seen[id(node)] = True, values
            with raised_by(f"{node.name} ({node.op})"):
                first, second = infer(node, values[: len(inputs)], values[len(inputs) :])
                for name, key, value in zip(names, keys, (*first, *second), strict=False):
                    known[key] = unify(name, known.get(key), value)
        operators.reverse()  # then infer inputs from outputs
