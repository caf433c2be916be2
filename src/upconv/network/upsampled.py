"""Nearest upsampling before a convolution, merged into the convolution.

Upsampling by a factor s repeats each element s times. A convolution of the result with stride 1 and
k taps equals a transposed convolution of the original value with stride s and k + s - 1 taps, which
are sums of the k taps:

    y[o] = sum_i w[i - o + p] x[i // s] = sum_j u[o - s j + k - 1 - p] x[j],
    u[m] = sum of w[r - m + k - 1] over 0 <= r < s

In two dimensions this takes (k + s - 1)^2 products per element of x instead of (s k)^2, and needs
no upsampled array. A pointwise convolution (k = 1) moves before the upsampling instead.

Many U-Nets concatenate an upsampled value with others. A convolution of such a concatenation is
divided into one convolution per part, and the results are added.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..keywords import paddings_of_stride_1
from .fuse import with_chain, with_operands
from .graph import Array, Chain, Concat, Convolution, Graph, Input, Node, Op, Pointwise, Resample

_MAX_GROWTH = 4
"""Maximum ratio of new weights to old: reading a larger weight would take longer than it saves."""


def upsampled(graph: Graph) -> Graph:
    """Merge nearest upsampling into the convolutions that read it."""
    merging = _Merging(graph)
    for node in graph.nodes:
        for part in merging.divided(node):
            merging.merge(part)
    return merging.graph()


class _Merging:
    """The nodes so far, in the order in which they run."""

    def __init__(self, graph: Graph) -> None:
        self._before, self._shapes = graph, dict(graph.shapes)
        self._nodes: list[Node] = []
        self._writers: dict[int, Node] = {}

    def graph(self) -> Graph:
        """Return the graph, without upsampling and concatenation that nothing reads any more."""
        read, nodes = set(self._before.outputs), []
        for node in reversed(self._nodes):
            if isinstance(node.operation, Resample | Concat) and node.outputs[0] not in read:
                continue
            nodes.append(node)
            read.update(node.inputs)
        return replace(self._before, nodes=tuple(nodes[::-1]), shapes=self._shapes)

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        self._writers |= dict.fromkeys(node.outputs, node)

    def _value(self, like: int, channels: int) -> int:
        """Create a value with the batch and size of another."""
        number, shape = max(self._shapes) + 1, self._shapes[like]
        self._shapes[number] = (shape[0], channels, *shape[2:])
        return number

    def _fits(self, node: Node, value: int) -> bool:
        """Return whether the upsampling that writes a value can be merged into a convolution."""
        operation, writer = node.operation, self._writers.get(value)
        if not isinstance(operation, Convolution) or operation.transposed or writer is None:
            return False
        before, kernel = writer.operation, operation.weight.shape[2:]
        if not isinstance(before, Resample) or before.mode != "nearest" or before.sizes:
            return False
        words = operation.keywords
        if operation.sums or words.groups != 1 or np.any(np.array(words.stride) != 1):
            return False
        if prod(kernel) == 1:
            return not np.any(_padding(operation)) and len(node.outputs) == 1
        taps = prod(k + s - 1 for k, s in zip(kernel, before.factors, strict=True))
        return bool(np.all(np.array(words.dilation) == 1)) and taps <= _MAX_GROWTH * prod(kernel)

    def merge(self, node: Node) -> None:
        """Add a node, or the nodes that replace a convolution of an upsampled value.

        A pointwise convolution moves before the upsampling, together with the beginning of its
        epilogue, which reads no other value; the rest follows the upsampling.
        """
        value = node.inputs[0]
        if not self._fits(node, value):
            self._add(node)
            return
        operation: Any = node.operation
        upsampling: Any = self._writers[value]
        small, factors = upsampling.inputs[0], upsampling.operation.factors
        if prod(operation.weight.shape[2:]) > 1:
            merged = _transposed(operation, factors)
            self._add(replace(node, operation=merged, inputs=(small, *node.inputs[1:])))
            return
        chain: Chain = operation.epilogue
        others = (i for i, op in enumerate(chain) if isinstance(op.operand, Input))
        count = next(others, len(chain))
        result = self._value(small, len(operation.weight))
        head = replace(operation, epilogue=chain[:count])
        self._add(Node(head, (small,), (result,), node.line))
        if count == len(chain):
            self._add(Node(Resample(factors), (result,), node.outputs, node.line))
            return
        large = self._value(node.outputs[0], len(operation.weight))
        self._add(Node(Resample(factors), (result,), (large,), node.line))
        inputs = (large, *node.inputs[1:])
        self._add(Node(Pointwise(chain[count:]), inputs, node.outputs, node.line))

    def divided(self, node: Node) -> list[Node]:
        """Divide a convolution of a concatenation with upsampled values; return its nodes."""
        writer, operation = self._writers.get(node.inputs[0]), node.operation
        if writer is None or writer.operation != Concat(1):
            return [node]
        values = writer.inputs
        merged = [self._fits(node, value) for value in values]
        if not any(merged) or not isinstance(operation, Convolution):
            return [node]
        stops = np.cumsum([self._shapes[value][1] for value in values])[:-1]
        weights = np.split(operation.weight, stops, axis=1)
        parts = [(v, w) for v, w, fits in zip(values, weights, merged, strict=True) if fits]
        others = [(v, w) for v, w, fits in zip(values, weights, merged, strict=True) if not fits]
        if others:
            parts.append((
                self._joined([value for value, _ in others], writer.line),
                np.concatenate([weight for _, weight in others], axis=1),
            ))  # fmt: skip
        nodes: list[Node] = []
        total: tuple[int, ...] = ()
        for value, weight in parts[:-1]:
            part = replace(operation, weight=weight, bias=None, epilogue=_sum_with(total))
            result = self._value(node.outputs[0], len(weight))
            nodes.append(Node(part, (value, *total), (result,), node.line))
            total = (result,)
        value, weight = parts[-1]
        last = replace(node, operation=replace(operation, weight=weight))
        chain = with_operands(
            operation.epilogue, Input, lambda x: x._replace(number=x.number + len(total))
        )
        inputs = (value, *total, *node.inputs[1:])
        return [*nodes, with_chain(last, (*_sum_with(total), *chain), inputs, node.outputs)]

    def _joined(self, values: list[int], line: str) -> int:
        """Concatenate some values; return a single value as it is."""
        if len(values) == 1:
            return values[0]
        joined = self._value(values[0], sum(self._shapes[value][1] for value in values))
        self._add(Node(Concat(1), tuple(values), (joined,), line))
        return joined


def _sum_with(total: tuple[int, ...]) -> Chain:
    """Return the beginning of an epilogue that adds the previous parts' total."""
    return (Op("add", Input(1)),) if total else ()


def _padding(operation: Convolution) -> tuple[tuple[int, int], ...]:
    """Return (begin, end) per axis for a convolution of stride 1 without dilation."""
    kernel = operation.weight.shape[2:]
    return paddings_of_stride_1(operation.keywords.padding, kernel, [1] * len(kernel))


def _transposed(operation: Convolution, factors: tuple[int, ...]) -> Convolution:
    """Return the equivalent transposed convolution of the value before upsampling."""
    pairs = zip(operation.weight.shape[2:], _padding(operation), strict=True)
    padding = tuple((k - 1 - begin, k - 1 - end) for k, (begin, end) in pairs)
    keywords = operation.keywords._replace(
        stride=factors, padding=padding, output_padding=0, weight_layout="IOX"
    )
    weight = _summed(operation.weight, factors)
    return replace(operation, weight=weight, keywords=keywords, transposed=True)


def _summed(weight: Array, factors: tuple[int, ...]) -> Array:
    """Compute u (see the module) for all axes, (C, F, *kernel), from w, (F, C, *kernel)."""
    kernel, spatial = weight.shape[2:], tuple(range(2, weight.ndim))
    axes = [
        [slice(max(0, k - 1 - m), min(k, k - 1 - m + s)) for m in range(k + s - 1)]
        for k, s in zip(kernel, factors, strict=True)
    ]
    wide: Any = weight.astype(np.float64)
    taps = [wide[(..., *part)].sum(axis=spatial) for part in product(*axes)]
    result = np.stack(taps, -1).reshape(*weight.shape[:2], *map(len, axes))
    return np.ascontiguousarray(result.swapaxes(0, 1), weight.dtype)
