"""Fusion of pointwise chains with the nodes that write their first value.

1.  A chain joins the convolution, norm or chain that writes its first value, if its other inputs
    exist before that node runs.
2.  If other nodes also read the first value, the fused node stores it as a second result.
3.  An operation on two values may start with either operand. It starts with the one that is written
    last, so that it can join that node.
4.  Equal chains on one value are computed once. If a value has both a ReLU and a leaky ReLU, the
    ReLU is computed from the leaky ReLU's result: U-Nets need both where a skip connection starts.
5.  Chains join chains first. A chain that reads a value again later, such as v + sin(v), therefore
    remains a single pass over it.
6.  A chain without numbers per channel moves before a concatenation, into its inputs.

A convolution's epilogue may then hold more operations than its kernel can compute. `split` leaves
the operations that the kernel can compute there, and moves the others to a new node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..activations import Activation
from .graph import EXCHANGED, Chain, Concat, Convolution, Graph, Input, Node, Norm, Op, Pointwise

STORE = Op("store")
ACTIVATIONS = {activation.value for activation in Activation if activation.value}
"""Activations that kernels apply to the result or a second result; PReLU is for the former only."""


def fuse(graph: Graph) -> Graph:
    """Fuse every chain with the node before it, if possible."""
    graph = _deduplicate(_before_concat(graph))
    for chains_only in (True, False):
        while (joined := _joined(graph, chains_only=chains_only)) is not None:
            graph = graph.with_nodes(joined)
    return graph


def chain_of(node: Node) -> Chain | None:
    """Return the chain at the end of a node, or None if the node cannot have one."""
    operation = node.operation
    if isinstance(operation, Pointwise):
        return operation.chain
    return operation.epilogue if isinstance(operation, Convolution | Norm) else None


def with_chain(node: Node, chain: Chain, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Node:
    """Return the node with another chain at its end."""
    field = "chain" if isinstance(node.operation, Pointwise) else "epilogue"
    operation = replace(node.operation, **{field: chain})  # type: ignore[type-var]  # a dataclass
    return replace(node, operation=operation, inputs=inputs, outputs=outputs)


def with_operands(chain: Chain, kind: type, change: Callable[[Any], Any]) -> Chain:
    """Return the chain with `change` applied to all operands of a type."""
    return tuple(
        replace(op, operand=change(op.operand)) if isinstance(op.operand, kind) else op
        for op in chain
    )


def _joined(graph: Graph, *, chains_only: bool) -> list[Node] | None:
    """Return the nodes after the first possible fusion; None if there is none.

    chains_only: fuse chains only with chains whose value no other node reads.
    """
    readers, writers = graph.readers(), graph.writers()
    order = {value: number for number, node in enumerate(graph.nodes) for value in node.outputs}
    for node in graph.nodes:
        if not isinstance(node.operation, Pointwise):
            continue
        node = _latest_first(node, order)
        first = node.inputs[0]
        writer = writers.get(first)
        epilogue = chain_of(writer) if writer else None
        if writer is None or epilogue is None or writer.outputs[-1] != first:
            continue
        rest = node.inputs[1:]
        if first in rest or any(order.get(value, -1) >= order[first] for value in rest):
            continue
        shared = len(readers[first]) > 1 or first in graph.outputs
        if chains_only and (shared or not isinstance(writer.operation, Pointwise)):
            continue
        both = _appended(writer, epilogue, node, stored=shared)
        return [
            both if other is writer else other
            for other in graph.nodes
            if other.outputs != node.outputs
        ]
    return None


def _appended(writer: Node, epilogue: Chain, node: Node, *, stored: bool) -> Node:
    """Append `node` to `writer`; `stored`: also store the value between them."""
    chain = node.operation.chain  # type: ignore[attr-defined]  # a Pointwise
    offset = len(writer.inputs) - 1
    moved = with_operands(chain, Input, lambda x: x._replace(number=x.number + offset))
    outputs = writer.outputs if stored else writer.outputs[:-1]
    joined = (*epilogue, *((STORE,) if stored else ()), *moved)
    return with_chain(writer, joined, (*writer.inputs, *node.inputs[1:]), (*outputs, *node.outputs))


def _latest_first(node: Node, order: dict[int, int]) -> Node:
    """Exchange a node's first two operands if the second is written later."""
    chain: Chain = node.operation.chain  # type: ignore[attr-defined]  # a Pointwise
    head = chain[0] if chain else STORE
    if not isinstance(head.operand, Input) or head.operand.broadcast:
        return node
    number = head.operand.number
    first, second = node.inputs[0], node.inputs[number]
    if order.get(second, -1) <= order.get(first, -1):
        return node
    inputs = list(node.inputs)
    inputs[0], inputs[number] = second, first
    if node.inputs.count(first) + node.inputs.count(second) > 2:
        return node
    chain = (replace(head, name=EXCHANGED[head.name]), *chain[1:])
    return replace(node, operation=Pointwise(chain), inputs=tuple(inputs))


def _deduplicate(graph: Graph) -> Graph:
    """Compute equal chains on equal values only once (case 4)."""
    seen: dict[object, int] = {}
    same: dict[int, int] = {}
    leaky: dict[int, int] = {}
    nodes = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(same.get(value, value) for value in node.inputs))
        first, output = node.inputs[0], node.outputs[-1]
        if isinstance(node.operation, Pointwise) and output not in graph.outputs:
            chain = node.operation.chain
            if chain and chain[0].name == "relu" and first in leaky:
                node = replace(node, inputs=(leaky[first], *node.inputs[1:]))
            ops = tuple((op.name, _key(op.operand)) for op in chain)
            equal = seen.setdefault((ops, node.inputs), output)
            if equal != output:
                same[output] = equal
                continue
            if [op.name for op in chain] == ["leaky_relu"] and chain[0].operand >= 0:  # type: ignore[operator]
                leaky[first] = output
        nodes.append(node)
    return graph.with_nodes(nodes)


def _key(operand: object) -> object:
    return ("array", id(operand)) if isinstance(operand, np.ndarray) else operand


def _before_concat(graph: Graph) -> Graph:
    """Move chains from after a concatenation to each of its inputs (case 6)."""
    readers, writers = graph.readers(), graph.writers()
    nodes, shapes = list(graph.nodes), dict(graph.shapes)
    for node in graph.nodes:
        writer = writers.get(node.inputs[0]) if isinstance(node.operation, Pointwise) else None
        if writer is None or not isinstance(writer.operation, Concat):
            continue
        value = node.inputs[0]
        if len(readers[value]) > 1 or value in graph.outputs or not _same_everywhere(node):
            continue
        parts = []
        for part in writer.inputs:
            number = max(shapes) + 1
            shapes[number] = shapes[part]
            parts.append(replace(node, inputs=(part,), outputs=(number,)))
        concat = replace(writer, inputs=tuple(p.outputs[0] for p in parts), outputs=node.outputs)
        index = next(i for i, other in enumerate(nodes) if other.outputs == writer.outputs)
        nodes[index : index + 1] = [*parts, concat]
        nodes = [other for other in nodes if other is concat or other.outputs != node.outputs]
    return replace(graph, nodes=tuple(nodes), shapes=shapes)


def _same_everywhere(node: Node) -> bool:
    """Return whether a chain treats all channels alike and reads no other values."""
    chain: Chain = node.operation.chain  # type: ignore[attr-defined]  # a Pointwise
    return (
        len(node.inputs) == 1
        and len(node.outputs) == 1
        and not any(isinstance(op.operand, np.ndarray | Input) for op in chain)
    )


def split(graph: Graph) -> Graph:
    """Keep what the kernel can compute in each epilogue, and move the rest to a new node."""
    nodes: list[Node] = []
    shapes = dict(graph.shapes)
    for node in graph.nodes:
        chain = node.operation.epilogue if isinstance(node.operation, Convolution) else ()
        count = kernel_part(chain)
        head, rest = chain[:count], chain[count:]
        if not rest:
            nodes.append(node)
            continue
        stores = sum(op.name == "store" for op in head)
        if rest[0].name == "store":
            # The value between the two nodes is already an output.
            between, *after = node.outputs[stores:]
            rest = rest[1:]
        else:
            between, after = max(shapes) + 1, list(node.outputs[stores:])
            shapes[between] = shapes[node.outputs[0]]
        first = (*node.outputs[:stores], between)
        behind, inputs = _renumbered(rest, node.inputs)
        ahead, before = _renumbered(head, node.inputs)
        nodes.append(with_chain(node, ahead, (node.inputs[0], *before), first))
        nodes.append(Node(Pointwise(behind), (between, *inputs), tuple(after), node.line))
    return replace(graph, nodes=tuple(nodes), shapes=shapes)


def _renumbered(chain: Chain, inputs: tuple[int, ...]) -> tuple[Chain, tuple[int, ...]]:
    """Renumber the operands of a part of a chain; return it and the operands' values."""
    values: list[int] = []

    def renumbered(operand: Input) -> Input:
        values.append(inputs[operand.number])
        return operand._replace(number=len(values))

    return with_operands(chain, Input, renumbered), tuple(values)


def sums(chain: Chain) -> int:
    """Count the values that a chain adds first: a residual, and the previous result."""
    added = [
        op.name == "add" and isinstance(op.operand, Input) and not op.operand.broadcast
        for op in chain[:2]
    ]
    return added.index(False) if False in added else len(added)


def kernel_part(chain: Chain) -> int:
    """Count the leading operations of a chain that a convolution's kernel can compute.

    These are up to two residuals, an activation, and a second result with another activation.
    """
    count = sums(chain)
    if count < len(chain) and chain[count].name in {*ACTIVATIONS, "prelu"}:
        count += 1
    rest = [op.name for op in chain[count:]]
    if len(rest) == 2 and rest[0] == "store" and rest[1] in ACTIVATIONS:
        count += 2
    return count
