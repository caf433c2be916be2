"""Folding of other operations into a convolution's weight, bias and padding.

1.  Numbers, or arrays with one number per channel, at the beginning of a convolution's epilogue
    become part of its weight and bias: batch norm, scales, offsets.
2.  A positive factor in a chain moves into the weights of the convolutions that read the chain. The
    rest of the chain must commute with the factor (ReLU, leaky ReLU), and only convolutions may
    read the chain's value.
3.  A permutation of channels becomes a permutation of the previous convolution's weight.
4.  Zeros around an input, or a crop of it, become part of the next convolution's padding.
5.  A crop after a transposed convolution becomes part of its padding. A stream can then return
    results earlier, as no later input changes the remaining positions.

A convolution with a fixed summation order keeps its weight, because folding would change its bits.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import numpy as np

from ..keywords import Same, paddings
from .fuse import chain_of, with_chain, with_operands
from .graph import Array, Convolution, Graph, Input, Node, Op, Pad, Permute

HOMOGENEOUS = {"relu", "leaky_relu", "prelu"}
"""f(a * v) = a * f(v) for a > 0."""


def fold(graph: Graph) -> Graph:
    """Apply folds 1, 2, 4 and 5."""
    graph = _factors_forward(_padded(_cropped(graph)))
    return graph.with_nodes([_folded(node) for node in graph.nodes])


def reordered(graph: Graph) -> Graph:
    """Make convolutions write channels in the order in which they are read (case 3)."""
    readers, writers = graph.readers(), graph.writers()
    nodes = list(graph.nodes)
    for node in graph.nodes:
        writer = writers.get(node.inputs[0]) if isinstance(node.operation, Permute) else None
        value = node.inputs[0]
        if writer is None or len(readers[value]) > 1 or value in graph.outputs:
            continue
        operation = writer.operation
        if isinstance(operation, Convolution) and operation.keywords.groups == 1:
            order = list(node.operation.order)  # type: ignore[attr-defined]  # a Permute
            weight, bias = operation.weight, operation.bias
            operation = replace(
                operation,
                weight=weight[:, order] if operation.transposed else weight[order],
                bias=None if bias is None else bias[order],
                epilogue=with_operands(operation.epilogue, np.ndarray, itemgetter(order)),
            )
            nodes[nodes.index(writer)] = replace(writer, operation=operation, outputs=node.outputs)
            nodes.remove(node)
    return graph.with_nodes(nodes)


def _cropped(graph: Graph) -> Graph:
    """Merge crops into the padding of the transposed convolutions before them (case 5)."""
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
    """Merge the crop after a transposed convolution into it; return None if that is impossible."""
    operation = node.operation
    if not isinstance(operation, Convolution) or not operation.transposed or len(node.inputs) > 1:
        return None
    pairs = paddings(operation.keywords.padding, len(crop.amounts))
    if isinstance(pairs, Same) or len(node.outputs) > 1 or max(map(max, crop.amounts)) > 0:
        return None
    padding = tuple(
        (before - cut_before, after - cut_after)
        for (before, after), (cut_before, cut_after) in zip(pairs, crop.amounts, strict=True)
    )
    return replace(operation, keywords=operation.keywords._replace(padding=padding))


def _padded(graph: Graph) -> Graph:
    """Merge zero padding into convolutions, and drop unread `Pad` nodes (case 4)."""
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
    total = []
    for amounts, zeros in zip(pad.amounts, pairs, strict=True):
        if any(a < 0 < b for a, b in zip(amounts, zeros, strict=True)):
            return node  # cropped positions would reappear where zeros should be
        total.append((amounts[0] + zeros[0], amounts[1] + zeros[1]))
    operation = replace(operation, keywords=operation.keywords._replace(padding=tuple(total)))
    return replace(node, operation=operation, inputs=(*before.inputs, *node.inputs[1:]))


def _folded(node: Node) -> Node:
    """Fold the leading numbers of a convolution's epilogue into its weight and bias (case 1)."""
    operation = node.operation
    if not isinstance(operation, Convolution) or operation.sums is not None:
        return node
    weight, bias, chain = operation.weight, operation.bias, list(operation.epilogue)
    while chain and _is_affine(chain[0]):
        op = chain.pop(0)
        factor = np.asarray(op.operand, np.float64)
        if op.name == "add":
            bias = _shifted(operation, bias, factor)
        else:
            weight = _scaled(operation, weight, factor)
            bias = None if bias is None else (bias * factor).astype(bias.dtype)
    operation = replace(operation, weight=weight, bias=bias, epilogue=tuple(chain))
    return replace(node, operation=operation)


def _is_affine(op: Op) -> bool:
    return op.name in ("add", "mul") and not isinstance(op.operand, Input | None)


def _shifted(operation: Convolution, bias: Array | None, offset: Array) -> Array:
    before, weight = 0.0 if bias is None else bias, operation.weight
    groups = int(operation.keywords.groups)
    channels = weight.shape[1] * groups if operation.transposed else len(weight)
    return np.broadcast_to(before + offset, (channels,)).astype(weight.dtype)


def _scaled(operation: Convolution, weight: Array, factor: Array) -> Array:
    """Multiply each output channel of the weight by its factor."""
    if operation.transposed and factor.ndim:  # the group of an input channel determines its outputs
        groups = int(operation.keywords.groups)
        factor = factor.reshape(groups, -1).repeat(len(weight) // groups, axis=0)
    factor = np.expand_dims(factor, tuple(range(factor.ndim, weight.ndim)))
    return (weight * factor).astype(weight.dtype)


def _factors_forward(graph: Graph) -> Graph:
    """Move positive factors from chains to the convolutions that read them (case 2)."""
    nodes = list(graph.nodes)
    for number, node in enumerate(nodes):
        chain, value = chain_of(node) or (), node.outputs[-1]
        start = _factor_start(chain)
        indices = [i for i, other in enumerate(nodes) if value in other.inputs]
        convolved = indices and all(_only_convolved(nodes[i], value) for i in indices)
        if start is None or value in graph.outputs or not convolved:
            continue
        factor = float(chain[start].operand)  # type: ignore[arg-type]  # a number
        rest = chain[:start] + chain[start + 1 :]
        nodes[number] = with_chain(node, rest, node.inputs, node.outputs)
        for i in indices:
            operation = nodes[i].operation
            weight = operation.weight  # type: ignore[attr-defined]  # a Convolution
            scaled = (weight * factor).astype(weight.dtype)
            nodes[i] = replace(nodes[i], operation=replace(operation, weight=scaled))  # type: ignore[type-var]
    return graph.with_nodes(nodes)


def _factor_start(chain: tuple[Op, ...]) -> int | None:
    """Return the index of a positive factor that can be applied last; None if there is none."""
    for start in range(len(chain) - 1, -1, -1):
        op = chain[start]
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
