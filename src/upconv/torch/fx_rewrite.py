"""`rewrite`: transposed convolutions in graphs replaced by upconv's operators.

A node is replaced together with what follows it, where its result goes nowhere else: a batch
normalisation by running statistics, a residual of the same shape, an activation, in this order.

What lives here: matching chains and changing graphs. What never does: reading single nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..errors import brief
from .fused import Ending
from .fused_operator import FUSED
from .fx_calls import (
    Deconvolution,
    Node,
    Norm,
    deconvolution_of,
    ending_at,
    module_of,
    norm_of,
    residual_at,
    value_of,
)
from .fx_step import step
from .operators import FORWARD
from .refusals import TensorTypeError
from .tensors import DTYPES


def rewrite(program: Any, *, fuse: bool = True) -> Any:
    """Replace the transposed convolutions of a graph by upconv's operators, in place.

    program: a `torch.fx.GraphModule`, or the `ExportedProgram` of `torch.export.export`.
    fuse: also take in a batch normalisation by running statistics, a residual and an activation
        that follow. The graph is then one for inference: modules that train are not fused.

    Nodes that are known to be on other devices, or of dtypes that upconv does not have, stay.
    Returns `program`. Raises `TensorTypeError` for what is no graph.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.ConvTranspose1d(1, 1, 2, stride=2), nn.ReLU()).eval()
    >>> graph = rewrite(fx.symbolic_trace(model))
    >>> [node.op for node in graph.graph.nodes]
    ['placeholder', 'get_attr', 'get_attr', 'call_function', 'output']
    """
    module = _graph_module(program)
    for node in list(module.graph.nodes):
        call = deconvolution_of(node)
        if call is not None and _computable(call):
            _replace(_chain(node, call, fuse=fuse))
    module.graph.lint()
    module.recompile()
    return program


def _graph_module(program: Any) -> Any:
    if isinstance(program, fx.GraphModule):
        return program
    if isinstance(program, torch.export.ExportedProgram):
        return program.graph_module
    got = f"{brief(program)} ({type(program).__name__})"
    expected = "a torch.fx.GraphModule or a torch.export.ExportedProgram"
    remedy = "Use upconv.torch.accelerate for modules."
    raise TensorTypeError("program", got, expected, remedy)


def _computable(call: Deconvolution) -> bool:
    """Whether nothing that is known of the operands speaks against upconv."""
    for operand in (call.x, call.weight, call.bias):
        value = value_of(operand)
        if isinstance(value, torch.Tensor) and (
            value.device.type not in ("cpu", "meta") or value.dtype not in DTYPES
        ):
            return False
    x, weight = value_of(call.x), value_of(call.weight)
    if isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor):
        return x.dim() == call.rank + 2 and x.dtype == weight.dtype
    return True


@dataclass(slots=True)
class _Chain:
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

    def grown(self) -> bool:
        """Take in the node that follows, if there is one that can be; whether that was so."""
        if len(self.last.users) != 1 or self.ending.name:
            return False
        node = next(iter(self.last.users))
        if self.norm is None and self.residual is None:
            self.norm = norm_of(node, self.last, self.call)
            if self.norm is not None:
                return self._with(*_results(node))
        if self.residual is None:
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


def _chain(node: Node, call: Deconvolution, *, fuse: bool) -> _Chain:
    """As much of what follows as can be computed at once."""
    chain = _Chain(call, [node])
    while fuse:
        before = chain.norm, chain.residual, chain.ending, list(chain.nodes)
        if not chain.grown() or _writes_between(chain) or _several(chain):
            chain.norm, chain.residual, chain.ending, chain.nodes = before
            break
    return chain


def _several(chain: _Chain) -> bool:
    """Whether a normalisation's other results are used too."""
    picks = [node for node in chain.nodes if _is_pick(node)]
    return len(picks) > 1 or any(node.args[1] != 0 for node in picks)


def _is_pick(node: Node) -> bool:
    return bool(node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem")


def _writes_between(chain: _Chain) -> bool:
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


def _replace(chain: _Chain) -> None:
    """Turn the chain's last node into all of it: names of results stay, which signatures know."""
    last, graph = chain.last, chain.last.graph
    with graph.inserting_before(last):
        call = _exported(chain) if "val" in last.meta else _traced(graph, chain)
    last.op, last.target, last.kwargs = "call_function", call[0], {}
    last.args = call[1]
    for node in reversed(chain.nodes[:-1]):
        graph.erase_node(node)


def _exported(chain: _Chain) -> tuple[Any, tuple[Any, ...]]:
    """upconv's operator and its arguments."""
    call, norm, ending = chain.call, chain.norm, chain.ending.spelled
    operands = (call.x, call.weight, call.bias)
    if norm is None:
        # What was packed of a weight is kept while it is at rest: parameters are, results are not.
        kept = call.weight.op in ("placeholder", "get_attr")
        return FORWARD, (*operands, *call.how, chain.residual, ending, kept)
    numbers = (norm.mean, norm.var, norm.gamma, norm.beta, norm.eps)
    return FUSED, (*operands, *numbers, *call.how, chain.residual, ending)


def _traced(graph: Any, chain: _Chain) -> tuple[Any, tuple[Any, ...]]:
    """`step`, which also takes inputs without a batch axis, and its arguments."""

    def operand(value: Any) -> Any:
        return graph.get_attr(value) if isinstance(value, str) else value

    call, norm = chain.call, chain.norm
    operands = (call.x, operand(call.weight), operand(call.bias))
    numbers = None
    if norm is not None:
        numbers = (*map(operand, (norm.mean, norm.var, norm.gamma, norm.beta)), norm.eps)
    return step, (*operands, *call.how, numbers, chain.ending.spelled)
