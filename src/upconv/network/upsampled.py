"""Nearest upsampling before a convolution, as part of the convolution.

A convolution of stride 1 with k taps reads each element of a value, upsampled by a factor s, up to
s times. It equals a transposed convolution of the value itself, of stride s, with k + s - 1 taps
that are sums of the k:

    y[o] = sum_i w[i - o + p] x[i // s] = sum_j u[o - s j + k - 1 - p] x[j],
    u[m] = sum of w[r - m + k - 1] over 0 <= r < s

In two dimensions this takes (k + s - 1)^2 products per element of x instead of (s k)^2, and no
upsampled array. A pointwise convolution (k = 1) runs before the upsampling instead.

Where a convolution reads a concatenation in which some values are upsampled, as in many U-Nets, it
is divided into a convolution of the others and one of each of these, whose result it adds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..geometry import same_padding
from ..keywords import Same, paddings
from .fuse import with_chain, with_operands
from .graph import Array, Chain, Concat, Convolution, Graph, Input, Node, Op, Pointwise, Resample

_MOST_GROWTH = 4  # of the weight, whose panels may come from memory


def upsampled(graph: Graph) -> Graph:
    """Merge nearest upsampling into the convolutions that read it, and drop what nothing reads."""
    nodes: list[Node] = []
    shapes = dict(graph.shapes)
    writers = graph.writers()
    for node in graph.nodes:
        parts = _divided(node, writers, shapes)
        nodes += [each for part in parts for each in _merged(part, writers, shapes)]
    return _read(replace(graph, nodes=tuple(nodes), shapes=shapes))


def _new(shapes: dict[int, tuple[int, ...]], shape: tuple[int, ...]) -> int:
    number = max(shapes) + 1
    shapes[number] = shape
    return number


def _read(graph: Graph) -> Graph:
    """The graph without upsampling and concatenation that nothing reads any more."""
    read, nodes = set(graph.outputs), []
    for node in reversed(graph.nodes):
        idle = isinstance(node.operation, Resample | Concat) and node.outputs[0] not in read
        if not idle:
            nodes.append(node)
            read.update(node.inputs)
    return graph.with_nodes(nodes[::-1])


def _factors(value: int, writers: dict[int, Node]) -> tuple[int, ...]:
    """The factors of a value that is nearest upsampling, or ()."""
    operation = writers[value].operation if value in writers else None
    nearest = isinstance(operation, Resample) and operation.mode == "nearest"
    return operation.factors if nearest and not operation.sizes else ()  # type: ignore[union-attr]


def _fits(operation: object, factors: tuple[int, ...]) -> bool:
    """Whether upsampling by these factors can be a part of a convolution."""
    if not isinstance(operation, Convolution) or operation.transposed or not factors:
        return False
    keywords, kernel = operation.keywords, operation.weight.shape[2:]
    plain = all(np.all(np.array(getattr(keywords, name)) == 1) for name in ("stride", "dilation"))
    taps = [k + s - 1 for k, s in zip(kernel, factors, strict=True)]
    small = prod(kernel) == 1 or prod(taps) <= _MOST_GROWTH * prod(kernel)
    return plain and small and keywords.groups == 1 and operation.sums is None


# Merging ------------------------------------------------------------------------------------------


def _merged(node: Node, writers: dict[int, Node], shapes: dict[int, Any]) -> list[Node]:
    """A convolution that reads an upsampled value as one that reads the value before, or as it is.

    A pointwise one becomes a convolution, the upsampling, and what its epilogue does with others.
    """
    first = node.inputs[0]
    factors = _factors(first, writers)
    if not _fits(node.operation, factors):
        return [node]
    operation: Any = node.operation
    before = writers[first].inputs[0]
    if prod(operation.weight.shape[2:]) > 1:
        merged = _transposed(operation, factors)
        return [replace(node, operation=merged, inputs=(before, *node.inputs[1:]))]
    if any(map(any, _pairs(operation))) or len(node.outputs) > 1:
        return [node]  # one with padding, or with a second result
    chain: Chain = operation.epilogue
    others = [isinstance(op.operand, Input) for op in chain]
    count = others.index(True) if True in others else len(chain)
    batch, _, *size = shapes[before]
    small = _new(shapes, (batch, operation.weight.shape[0], *size))
    head = Node(replace(operation, epilogue=chain[:count]), (before,), (small,), node.line)
    if count == len(chain):
        return [head, Node(Resample(factors), (small,), node.outputs, node.line)]
    large = _new(shapes, shapes[node.outputs[-1]])
    resampled = Node(Resample(factors), (small,), (large,), node.line)
    rest = Node(Pointwise(chain[count:]), (large, *node.inputs[1:]), node.outputs, node.line)
    return [head, resampled, rest]


def _pairs(operation: Convolution) -> tuple[tuple[int, int], ...]:
    """The padding at both ends of each axis; the operation has stride 1."""
    kernel = operation.weight.shape[2:]
    padding = paddings(operation.keywords.padding, len(kernel))
    if isinstance(padding, Same):
        upper = padding is Same.UPPER
        return tuple(same_padding(1 << 40, k, 1, 1, upper=upper) for k in kernel)
    return padding


def _transposed(operation: Convolution, factors: tuple[int, ...]) -> Convolution:
    """The transposed convolution of the value before the upsampling."""
    kernel = operation.weight.shape[2:]
    pairs = zip(kernel, _pairs(operation), strict=True)
    padding = tuple((k - 1 - begin, k - 1 - end) for k, (begin, end) in pairs)
    keywords = operation.keywords._replace(
        stride=factors, padding=padding, output_padding=0, weight_layout="IOX"
    )
    weight = _summed(operation.weight, factors)
    return replace(operation, weight=weight, keywords=keywords, transposed=True)


def _summed(weight: Array, factors: tuple[int, ...]) -> Array:
    """u of the module's docstring for all axes, (C, F, *kernel), from w, (F, C, *kernel)."""
    kernel = weight.shape[2:]
    axes = [
        [slice(max(0, k - 1 - m), min(k, k - 1 - m + s)) for m in range(k + s - 1)]
        for k, s in zip(kernel, factors, strict=True)
    ]
    wide: Any = weight.astype(np.float64)
    spatial = tuple(range(2, weight.ndim))
    taps = [wide[(..., *part)].sum(axis=spatial) for part in product(*axes)]
    result = np.stack(taps, -1).reshape(*weight.shape[:2], *map(len, axes))
    return np.ascontiguousarray(result.swapaxes(0, 1), weight.dtype)


# Dividing -----------------------------------------------------------------------------------------


def _divided(node: Node, writers: dict[int, Node], shapes: dict[int, Any]) -> list[Node]:
    """A convolution of a concatenation, divided if that contains upsampled values."""
    before = writers.get(node.inputs[0])
    operation = node.operation
    if before is None or before.operation != Concat(1) or not isinstance(operation, Convolution):
        return [node]
    large = {value for value in before.inputs if _fits(operation, _factors(value, writers))}
    if not large:
        return [node]
    stops = np.cumsum([shapes[value][1] for value in before.inputs]).tolist()
    starts = [0, *stops[:-1]]
    weights = [operation.weight[:, a:b] for a, b in zip(starts, stops, strict=True)]
    parts = [([v], w) for v, w in zip(before.inputs, weights, strict=True) if v in large]
    others = [(v, w) for v, w in zip(before.inputs, weights, strict=True) if v not in large]
    nodes = []
    if others:
        values, kept = [v for v, _ in others], [w for _, w in others]
        if len(values) > 1:
            batch, _, *size = shapes[before.outputs[0]]
            joined = _new(shapes, (batch, sum(w.shape[1] for w in kept), *size))
            nodes.append(Node(Concat(1), tuple(values), (joined,), before.line))
            values = [joined]
        parts.append((values, np.concatenate(kept, axis=1)))
    total: tuple[int, ...] = ()
    for (value,), weight in parts[:-1]:
        part = replace(operation, weight=weight, bias=None, epilogue=_added(total))
        result = _new(shapes, shapes[node.outputs[0]])
        nodes.append(Node(part, (value, *total), (result,), node.line))
        total = (result,)
    (value,), weight = parts[-1]
    chain = with_operands(operation.epilogue, Input, lambda one: _moved(one, len(total)))
    last = replace(node, operation=replace(operation, weight=weight))
    inputs = (value, *total, *node.inputs[1:])
    return [*nodes, with_chain(last, (*_added(total), *chain), inputs, node.outputs)]


def _added(total: tuple[int, ...]) -> Chain:
    return (Op("add", Input(1)),) if total else ()


def _moved(one: Input, count: int) -> Input:
    return one._replace(number=one.number + count)
