"""Chains of nodes that become one: a deconvolution and what follows it in a graph.

What lives here: which nodes belong together. What never does: changing a graph.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch

from .fused import Ending
from .fx_calls import (
    Deconvolution,
    Node,
    Norm,
    ending_at,
    module_of,
    norm_of,
    residual_at,
)


@dataclass(slots=True)
class Chain:
    """Nodes that become one; `nodes` in the order of the graph, the deconvolution first.

    `taken` belong to other chains: where two meet in a sum, the first has it.
    """

    call: Deconvolution
    nodes: list[Node]
    shapes: bool = True
    taken: AbstractSet[Node] = frozenset()
    norm: Norm | None = None
    residual: Node | None = None
    ending: Ending = field(default_factory=Ending)

    @property
    def last(self) -> Node:
        """The node whose result the chain's is."""
        return self.nodes[-1]

    def grown(self) -> bool:
        """Take in the node that follows, if there is one that can be; whether that was so."""
        if len(self.last.users) != 1 or self.ending.name:
            return False
        node = next(iter(self.last.users))
        if node in self.taken:
            return False
        if self.norm is None and self.residual is None:
            self.norm = norm_of(node, self.last, self.call)
            if self.norm is not None:
                return self._with(*_results(node))
        if self.residual is None:
            self.residual = residual_at(node, self.last, self.shapes)
            if self.residual is not None:
                return self._with(node)
        self.ending = ending_at(node, self.last) or Ending()
        return self._with(node) if self.ending.name else False

    def _with(self, *nodes: Node) -> bool:
        self.nodes += nodes
        return True


def _results(norm: Node) -> tuple[Node, ...]:
    """A normalisation's node, and the one that picks its result where it has several."""
    if norm.target is torch.ops.aten._native_batch_norm_legit_no_training.default:
        return (norm, *norm.users)
    return (norm,)


def chain_of(
    node: Node,
    call: Deconvolution,
    *,
    fuse: bool,
    shapes: bool = True,
    taken: AbstractSet[Node] = frozenset(),
) -> Chain:
    """As much of what follows as can be computed at once.

    shapes: whether a residual must be known to have the shape of the result. taken: nodes of other
    chains.
    """
    chain = Chain(call, [node], shapes, taken)
    while fuse:
        before = chain.norm, chain.residual, chain.ending, list(chain.nodes)
        if not chain.grown() or _writes_between(chain) or _several(chain):
            chain.norm, chain.residual, chain.ending, chain.nodes = before
            break
    return chain


def _several(chain: Chain) -> bool:
    """Whether a normalisation's other results are used too."""
    picks = [node for node in chain.nodes if _is_pick(node)]
    return len(picks) > 1 or any(node.args[1] != 0 for node in picks)


def _is_pick(node: Node) -> bool:
    return bool(node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem")


def _writes_between(chain: Chain) -> bool:
    """Whether something that is not of the chain may write in place while it lasts."""
    node = chain.nodes[0]
    while node is not chain.last:
        if node not in chain.nodes and _writes(node):
            return True
        node = node.next
    return False


def _writes(node: Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(module_of(node), "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_")
    schema = getattr(node.target, "_schema", None)
    name = getattr(node.target, "__name__", "")
    in_place = name.startswith("i") and name[1:] in ("add", "sub", "mul", "truediv")
    return bool(in_place or node.kwargs.get("inplace") or (schema and schema.is_mutable))
