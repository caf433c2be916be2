"""`rewrite`: transposed convolutions in graphs replaced by upconv's operators.

A node is replaced together with what follows it, where its result goes nowhere else: a batch
normalisation by running statistics, a residual of the same shape, an activation, in this order.

What lives here: changing graphs. What never does: reading them (`fx_calls`, `fx_chains`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..errors import brief
from .fused_operator import FUSED
from .fx_calls import Deconvolution, deconvolution_of, value_of
from .fx_chains import Chain, chain_of
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
            _replace(chain_of(node, call, fuse=fuse))
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
        return bool(x.dim() == call.rank + 2 and x.dtype == weight.dtype)
    return True


def _replace(chain: Chain) -> None:
    """Turn the chain's last node into all of it: names of results stay, which signatures know."""
    last, graph = chain.last, chain.last.graph
    with graph.inserting_before(last):
        call = _exported(chain) if "val" in last.meta and not chain.named else _traced(graph, chain)
    last.op, last.target, last.kwargs = "call_function", call[0], {}
    last.args = call[1]
    for node in reversed(chain.nodes[:-1]):
        graph.erase_node(node)


def _exported(chain: Chain) -> tuple[Any, tuple[Any, ...]]:
    """upconv's operator and its arguments."""
    call, norm, ending = chain.call, chain.norm, chain.ending.spelled
    operands = (call.x, call.weight, call.bias)
    if norm is None:
        # What was packed of a weight is kept while it is at rest: parameters are, results are not.
        kept = call.weight.op in ("placeholder", "get_attr")
        return FORWARD, (*operands, *call.how, chain.residual, ending, kept)
    numbers = (norm.mean, norm.var, norm.gamma, norm.beta, norm.eps)
    return FUSED, (*operands, *numbers, *call.how, chain.residual, ending)


def _traced(graph: Any, chain: Chain) -> tuple[Any, tuple[Any, ...]]:
    """`step`, which also takes inputs without a batch axis, and its arguments."""

    def operand(value: Any) -> Any:
        return graph.get_attr(value) if isinstance(value, str) else value

    call, norm = chain.call, chain.norm
    operands = (call.x, operand(call.weight), operand(call.bias))
    numbers = None
    if norm is not None:
        numbers = (*map(operand, (norm.mean, norm.var, norm.gamma, norm.beta)), norm.eps)
    return step, (*operands, *call.how, numbers, chain.ending.spelled)
