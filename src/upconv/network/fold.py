"""Folding: what a convolution can do by its weight, its bias and its padding.

1.  What a convolution's end begins with, if it is a number or one per channel, becomes part of the
    weight and the bias: batch norm, scales, offsets.
2.  A chain that begins with a positive factor, goes on with what keeps factors (ReLU, leaky ReLU),
    and is read by convolutions alone, gives the factor to the weights of these.
3.  Channels that are put into another order are written in it, by another order of weights.
4.  Zeros around an input, or a crop of it, become part of the padding of the convolution behind.
5.  A crop behind a transposed convolution becomes part of its padding. A stream then knows that no
    later input changes what the crop leaves.

Weights of a convolution that keeps an order of sums stay as they are, as other bits would follow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..keywords import Same, paddings
from .fuse import end_of, with_end
from .graph import Array, Convolution, Graph, Input, Node, Op, Pad, Permute

HOMOGENEOUS = {"relu", "leaky_relu", "prelu"}
"""f(a * v) = a * f(v) for a > 0."""


def fold(graph: Graph) -> Graph:
    """Fold numbers into the weights behind and before them."""
    graph = _factors_forward(_padded(_cropped(graph)))
    return graph.with_nodes([_folded(node) for node in graph.nodes])


def reordered(graph: Graph) -> Graph:
    """Convolutions whose channels are written in the order in which they are read (case 3)."""
    readers, writers = graph.readers(), graph.writers()
    nodes = list(graph.nodes)
    for node in graph.nodes:
        maker = writers.get(node.inputs[0]) if isinstance(node.operation, Permute) else None
        value = node.inputs[0]
        if maker is None or len(readers[value]) > 1 or value in graph.outputs:
            continue
        operation = maker.operation
        if isinstance(operation, Convolution) and operation.keywords.groups == 1:
            order = list(node.operation.order)  # type: ignore[attr-defined]  # a Permute
            weight, bias = operation.weight, operation.bias
            operation = replace(
                operation,
                weight=weight[:, order] if operation.transposed else weight[order],
                bias=None if bias is None else bias[order],
                end=tuple(
                    replace(op, operand=op.operand[order])
                    if isinstance(op.operand, np.ndarray)
                    else op
                    for op in operation.end
                ),
            )
            nodes[nodes.index(maker)] = replace(maker, operation=operation, outputs=node.outputs)
            nodes.remove(node)
    return graph.with_nodes(nodes)


def _cropped(graph: Graph) -> Graph:
    """Transposed convolutions that leave out what a crop behind them takes off (case 5)."""
    nodes = list(graph.nodes)
    for crop in [node for node in nodes if isinstance(node.operation, Pad)]:
        value = crop.inputs[0]
        index = next((i for i, node in enumerate(nodes) if value in node.outputs), None)
        readers = sum(node.inputs.count(value) for node in nodes)
        if index is None or readers > 1 or value in graph.outputs:
            continue
        shorter = _with_crop(nodes[index], crop.operation)  # type: ignore[arg-type]  # a Pad
        if shorter is not None:
            nodes[index] = replace(nodes[index], operation=shorter, outputs=crop.outputs)
            nodes.remove(crop)
    return graph.with_nodes(nodes)


def _with_crop(node: Node, crop: Pad) -> Convolution | None:
    """A transposed convolution with a crop behind it as one; None where it reads other values."""
    operation = node.operation
    if not isinstance(operation, Convolution) or not operation.transposed or len(node.inputs) > 1:
        return None
    pairs = paddings(operation.keywords.padding, len(crop.amounts))
    if isinstance(pairs, Same) or len(node.outputs) > 1 or max(map(max, crop.amounts)) > 0:
        return None
    both = zip(pairs, crop.amounts, strict=True)
    ends = tuple((begin - cut, end - last) for (begin, end), (cut, last) in both)
    return replace(operation, keywords=operation.keywords._replace(padding=ends))


def _padded(graph: Graph) -> Graph:
    """Convolutions that pad by themselves, and no `Pad` that nobody reads any more (case 4)."""
    writers = graph.writers()
    nodes = [_with_padding(node, writers.get(node.inputs[0])) for node in graph.nodes]
    read = {value for node in nodes for value in node.inputs} | set(graph.outputs)
    return graph.with_nodes([
        node for node in nodes if not isinstance(node.operation, Pad) or node.outputs[0] in read
    ])  # fmt: skip


def _with_padding(node: Node, before: Node | None) -> Node:
    operation, pad = node.operation, before.operation if before else None
    if not isinstance(operation, Convolution) or operation.transposed or before is None:
        return node
    if not isinstance(pad, Pad) or pad.mode != "constant" or pad.value:
        return node
    pairs = paddings(operation.keywords.padding, len(pad.amounts))
    if isinstance(pairs, Same):
        return node
    ends = [
        pair for both in zip(pad.amounts, pairs, strict=True) for pair in zip(*both, strict=True)
    ]
    if any(crop < 0 < zeros for crop, zeros in ends):
        return node  # what was cropped would come back where zeros should be
    sums = [crop + zeros for crop, zeros in ends]
    total = tuple(zip(sums[::2], sums[1::2], strict=True))
    operation = replace(operation, keywords=operation.keywords._replace(padding=total))
    return replace(node, operation=operation, inputs=(*before.inputs, *node.inputs[1:]))


def _folded(node: Node) -> Node:
    """A convolution without numbers at the beginning of its end."""
    operation = node.operation
    if not isinstance(operation, Convolution) or operation.sums is not None:
        return node
    weight, bias, end = operation.weight, operation.bias, list(operation.end)
    while end and end[0].name in ("add", "mul") and not isinstance(end[0].operand, Input | None):
        op = end.pop(0)
        factor = np.asarray(op.operand, np.float64)
        if op.name == "add":
            bias = _shifted(operation, bias, factor)
        else:
            weight = _scaled(operation, weight, factor)
            bias = None if bias is None else (bias * factor).astype(bias.dtype)
    return replace(node, operation=replace(operation, weight=weight, bias=bias, end=tuple(end)))


def out_channels(operation: Convolution) -> int:
    """The number of channels of a convolution's result."""
    if not operation.transposed:
        return len(operation.weight)
    return int(operation.weight.shape[1]) * int(operation.keywords.groups)


def _shifted(operation: Convolution, bias: Array | None, offset: Array) -> Array:
    before = 0.0 if bias is None else bias
    total = np.broadcast_to(before + offset, (out_channels(operation),))
    return total.astype(operation.weight.dtype)


def _scaled(operation: Convolution, weight: Array, factor: Array) -> Array:
    """The weight with each output channel multiplied by its factor."""
    if factor.ndim == 0:
        return (weight * factor).astype(weight.dtype)
    rest = (1,) * (weight.ndim - 2)
    if not operation.transposed:
        return (weight * factor.reshape(-1, 1, *rest)).astype(weight.dtype)
    made = weight.shape[1]
    by_group = factor.reshape(-1, 1, made).repeat(len(weight) * made // len(factor), axis=1)
    return (weight * by_group.reshape(len(weight), made, *rest)).astype(weight.dtype)


def _factors_forward(graph: Graph) -> Graph:
    """Positive factors moved from chains to the convolutions that read them (case 2)."""
    nodes = list(graph.nodes)
    for number, node in enumerate(nodes):
        end = end_of(node)
        start = None if end is None else _factor_start(end)
        value = node.outputs[-1]
        indices = [i for i, other in enumerate(nodes) if value in other.inputs]
        if start is None or end is None or value in graph.outputs or not indices:
            continue
        if not all(_only_convolved(nodes[i], value) for i in indices):
            continue
        factor = float(end[start].operand)  # type: ignore[arg-type]  # a number
        nodes[number] = with_end(node, end[:start] + end[start + 1 :], node.inputs, node.outputs)
        for i in indices:
            operation = nodes[i].operation
            weight = operation.weight  # type: ignore[attr-defined]  # a Convolution
            scaled = (weight * factor).astype(weight.dtype)
            nodes[i] = replace(nodes[i], operation=replace(operation, weight=scaled))  # type: ignore[type-var]
    return graph.with_nodes(nodes)


def _factor_start(end: tuple[Op, ...]) -> int | None:
    """The step of a chain that multiplies by a positive number and may as well come last."""
    for start in range(len(end) - 1, -1, -1):
        op = end[start]
        if op.name == "mul" and isinstance(op.operand, int | float):
            return start if op.operand > 0 else None
        if op.name not in HOMOGENEOUS:
            return None
    return None


def _only_convolved(node: Node, value: int) -> bool:
    return (
        isinstance(node.operation, Convolution)
        and node.operation.sums is None
        and node.inputs.index(value) == 0
        and (node.inputs.count(value) == 1)
    )
