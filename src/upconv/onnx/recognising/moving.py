"""Where a chain of data-moving nodes puts the elements of one value, by running it on numbers.

1. Nodes of `_DATA` copy, drop and repeat elements and put others between them; where each goes is
   decided by their other inputs alone. If those, and all elements but x's, are constants, a run on
   the numbers 1, 2, ... tells the place of every element for any x.
2. A second run on other numbers tells constants from elements.
3. Shapes count as constants where the model tells them.

So it makes no difference how an exporter writes an assignment to a strided slice or nearest
neighbours: as ScatterND between transpositions, as Concat with zeros, as Expand.

What lives here: chains and their runs. What never does: what the places mean (`raising`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ..constants import DEFAULT_DOMAINS, declared_shape, supposed

_DATA: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"), (0,)),
    **dict.fromkeys(("Slice", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Gather"), (0,)),
    **dict.fromkeys(("ScatterND", "ScatterElements"), (0, 2)),
    "Pad": (0, 2),
    "Where": (1, 2),
    "Concat": tuple(range(64)),
}
"""Operator -> which of its inputs are elements that it moves."""

_MOST_NODES = 64
_MOST_ELEMENTS = 1 << 20
_MOST_BYTES = 1 << 28
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that hold the numbers of so many elements."""


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """A value made of x's elements: `places` holds their numbers from 1, and 0 for a zero."""

    x: ir.Value
    nodes: tuple[ir.Node, ...]
    shape: tuple[int, ...]
    places: Array

    @property
    def numbers(self) -> Array:
        """Of x's elements, where they lie in x."""
        return np.arange(1, prod(self.shape) + 1).reshape(self.shape)


def moved(value: ir.Value, opset: int) -> Moved | None:
    """How the elements of one value, the only one that is no constant, come to lie in `value`."""
    chain = _chain(value, opset)
    if chain is None:
        return None
    x, nodes = chain
    shape = declared_shape(x)
    if shape is None or x.dtype not in _TYPES:
        return None
    count = prod(shape)
    if not 0 < count <= _MOST_ELEMENTS:
        return None
    numbers = np.arange(1, count + 1, dtype=x.dtype.numpy()).reshape(shape)
    first, second = (_run(value, {x: each}, opset) for each in (numbers, numbers + count))
    if first is None or second is None or first.shape != second.shape:
        return None
    elements, zeros = second - first == count, (first == 0) & (second == 0)
    if not (elements | zeros).all():
        return None
    return Moved(x, nodes, shape, first.astype(np.int64))


def _run(value: ir.Value, given: Mapping[ir.Value, Array], opset: int) -> Array | None:
    return supposed(value, given, opset=opset, most_bytes=_MOST_BYTES)


def _chain(value: ir.Value, opset: int) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """The one value that is moved, and the nodes that do it, the first of them first."""
    nodes: dict[ir.Node, None] = {}
    sources: dict[ir.Value, None] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        node = one.producer()
        if node is not None and node in nodes:
            continue
        if node is None or not _moves(node):
            if _run(one, {}, opset) is None:
                sources[one] = None
        elif _run(one, {}, opset) is None:
            nodes[node] = None
            data = _DATA[node.op_type]
            waiting += [x for i, x in enumerate(node.inputs) if i in data and x is not None]
            others = [x for i, x in enumerate(node.inputs) if i not in data and x is not None]
            if any(_run(x, {}, opset) is None for x in others):
                return None
        if len(sources) > 1 or len(nodes) > _MOST_NODES:
            return None
    if not nodes or not sources:
        return None
    return next(iter(sources)), tuple(reversed(nodes))


def _moves(node: ir.Node) -> bool:
    """Whether a node moves elements, and adds nothing to what is there."""
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in _DATA:
        return False
    words = {name: one.value for name, one in node.attributes.items() if not one.is_ref()}
    constant = words.get("mode", "constant") in ("constant", "DCR", "CRD")
    return (
        len(words) == len(node.attributes)
        and constant
        and (words.get("reduction", "none") == "none")
    )
