"""`partition`: the largest connected groups of nodes that networks compute.

PyTorch's partitioner proposes them. A group reads and returns only values whose axes are in the
order (N, C, *size).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from itertools import count

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

from .nodes import is_convolution
from .supported_nodes import Support, value_of

_ANOTHER_ORDER = "its axes are in another order where a part ends"
_MAX_CHOICES = 8
"""Attempts to choose parts before all operations that move axes stay with PyTorch."""


def partition(
    module: fx.GraphModule, weights: set[fx.Node], refused: Mapping[fx.Node, str]
) -> tuple[Support, list[list[fx.Node]]]:
    """Return the final support, and the nodes of each part that has a convolution.

    If a value would cross a part's border in another order of axes, its node and its readers in
    that order are left to PyTorch. The parts are then chosen again.
    """
    _turn_slices_into_methods(module.graph)
    order = {node: number for number, node in enumerate(module.graph.nodes)}
    for attempt in count(1):
        support = Support(module, weights, refused)
        chosen: list[list[fx.Node]] = []
        for dtype in (torch.float32, torch.bfloat16):
            support.dtype = dtype
            if support.any():
                partitioner = CapabilityBasedPartitioner(module, support, True)
                proposed = (
                    sorted(p.nodes, key=order.__getitem__) for p in partitioner.propose_partitions()
                )
                chosen += [nodes for nodes in proposed if any(map(is_convolution, nodes))]
        ends = {node for nodes in chosen for node in _arranged_ends(nodes, support, refused)}
        ends |= _lost(module.graph, chosen, support)
        for node in reversed(module.graph.nodes) if ends else ():
            lonely = all(user in ends or not support.fits(user) for user in node.users)
            if node in support.arranged and node.users and lonely:
                ends.add(node)
        if ends <= refused.keys():
            break
        more = support.moves() if attempt >= _MAX_CHOICES else {}
        refused = {**more, **dict.fromkeys(ends, _ANOTHER_ORDER), **refused}
    return support, chosen


def _arranged_ends(
    nodes: list[fx.Node], support: Support, refused: Mapping[fx.Node, str]
) -> Iterator[fx.Node]:
    """Yield the nodes whose values would enter or leave a part with axes in another order.

    The partitioner includes the entries of a list of tensors, even if they are refused.
    """
    inside = set(nodes)
    for node in nodes:
        if node in support.arranged and not set(node.users) <= inside:
            yield node
        for source in node.all_input_nodes:
            enters = source in support.arranged and source not in inside
            if enters or (node in refused and source in inside):
                yield source


def _lost(graph: fx.Graph, chosen: list[list[fx.Node]], support: Support) -> set[fx.Node]:
    """Return nodes in no part whose values a refused node reads with axes in another order."""
    inside = {node for nodes in chosen for node in nodes}
    return {
        source
        for node in graph.nodes
        if node.op.startswith("call_") and not support.fits(node)
        for source in node.all_input_nodes
        if source in support.arranged and source not in inside
    }


def _turn_slices_into_methods(graph: fx.Graph) -> None:
    """Hide slices of tensors from the partitioner, which treats each `getitem` as a tuple's entry.

    It would endlessly move a slice between the part of its tensor and the part of its size.
    """
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        if isinstance(value_of(node.args[0]), torch.Tensor):
            node.op, node.target = "call_method", "__getitem__"


def obstacle(nodes: list[fx.Node], support: Support) -> str:
    """Return why some nodes cannot become one call; "" if they can."""
    inside = set(nodes)
    for node in nodes:
        if not isinstance(value_of(node), torch.Tensor) and not set(node.users) <= inside:
            return "a list of tensors would be its result"
    last = nodes[-1]
    outside = {user for node in nodes for user in node.users} - inside
    moved = False
    for node in nodes[0].graph.nodes:
        moved |= node in outside
        if node is last:
            return ""
        if moved and node not in inside and support.is_ordered(node):
            return "nodes that write in place are between its nodes"
    return ""
