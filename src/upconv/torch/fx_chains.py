"""Chains of nodes that become one: a deconvolution and what follows it in a graph.

What lives here: which nodes belong together. What never does: changing a graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from .fused import Ending, Module
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
    """Nodes that become one; `nodes` in the order of the graph, the deconvolution first."""

    call: Deconvolution
    nodes: list[Node]
    norm: Norm | None = None
    residual: Node | None = None
    ending: Ending = field(default_factory=Ending)

    @property
    def last(self) -> Node:
        """The node whose result the chain's is."""
        return self.nodes[-1]

    @property
    def named(self) -> bool:
        """Whether operands are names of attributes, as of modules that a traced graph calls."""
        call, norm = self.call, self.norm
        held = [call.weight, call.bias]
        if norm is not None:
            held += [norm.mean, norm.var, norm.gamma, norm.beta]
        return any(isinstance(each, str) for each in held)

    def grown(self) -> bool:
        """Take in the node that follows, if there is one that can be; whether that was so."""
        if len(self.last.users) != 1 or self.ending.name:
            return False
        node = next(iter(self.last.users))
        if self.norm is None and self.residual is None:
            self.norm = norm_of(node, self.last, self.call)
            if self.norm is not None:
                return self._with(*_results(node))
        if self.residual is None and not self.named:
            self.residual = residual_at(node, self.last)
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


def chain_of(node: Node, call: Deconvolution, *, fuse: bool) -> Chain:
    """As much of what follows as can be computed at once."""
    chain = Chain(call, [node])
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
    """Whether a node may write to what it is given."""
    if node.op == "call_module":
        return any(map(_may_write, module_of(node).modules()))
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    if name.endswith("_") or node.kwargs.get("out") is not None:
        return True
    if node.kwargs.get("inplace") or (True in node.args and "inplace" in _parameters(node.target)):
        return True
    schema = getattr(node.target, "_schema", None)
    return name in _IN_PLACE or bool(schema and schema.is_mutable)


_IN_PLACE = {"setitem", "delitem"} | {
    name for name in dir(operator) if name.startswith("i") and hasattr(operator, f"__{name}__")
} - {"index", "inv", "invert"}


def _may_write(module: Module) -> bool:
    """Whether a module is set to compute in place, or is not PyTorch's, so that nobody knows."""
    return getattr(module, "inplace", False) or not type(module).__module__.startswith("torch.nn.")


def _parameters(function: Any) -> tuple[str, ...]:
    return function.__code__.co_varnames if isinstance(function, FunctionType) else ()
