"""Graphs: `rewrite` for exported ATen graphs, and the backend of `torch.compile`.

Both read the same nodes: PyTorch's functions in the graphs that Dynamo captures, ATen's operators
in those that `torch.export` makes. A convolution, transposed or not, becomes an operator of ours;
where no gradient is asked for, a residual that is added and an activation go into it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from ..errors import DTypeError, brief
from . import packing, trials
from .functional import geometry
from .operators import CONVOLUTION, FUSED
from .tensors import DTYPES, Tensor, thread_count

_ATEN = torch.ops.aten
_PLAIN = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (*_PLAIN[:5], "output_padding", "groups", "dilation")
_WHOLE = (*_PLAIN[:6], "transposed", "output_padding", "groups")

_ORDINARY_CALLS: dict[Any, int] = {
    call: n
    for n in (1, 2, 3)
    for aten in (getattr(_ATEN, f"conv{n}d"),)
    for call in (getattr(torch, f"conv{n}d"), aten.default, aten.padding)
}
_TRANSPOSED_CALLS: dict[Any, int] = {
    **{getattr(torch, f"conv_transpose{n}d"): n for n in (1, 2, 3)},
    _ATEN.conv_transpose1d.default: 1,
    _ATEN.conv_transpose2d.input: 2,
    _ATEN.conv_transpose3d.input: 3,
}
_ACTIVATIONS: dict[Any, str] = {
    call: name
    for name in ("relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu")
    for each in (name, f"{name}_")  # methods go by their names
    for aten in (getattr(_ATEN, each, None),)
    for call in (
        each,
        getattr(torch, each, None),
        getattr(functional, each, None),
        aten and aten.default,
    )
    if call is not None
}
_SUMS = {operator.add, torch.add, _ATEN.add.Tensor}


@dataclass(frozen=True, slots=True)
class _Found:
    """A convolution in a graph with what is computed with it, up to `last`."""

    x: Any
    weight: Any
    bias: Any
    how: tuple[Any, ...]
    last: Any
    residual: Any = None
    activation: str = ""
    between: tuple[Any, ...] = ()
    """The nodes before `last` that the new operator replaces."""


def rewrite(program: Any) -> Any:
    """Have upconv compute the convolutions of an exported program, for inference, in place.

    program: what `torch.export.export` made, before or after `run_decompositions`. Convolutions on
    the CPU in floating types become `torch.ops.upconv.fused_convolution`, with a residual of the
    same shape and an activation that follow. Nothing is measured. Returns `program`.

    Raises `DTypeError` for anything else.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.ConvTranspose1d(1, 1, 2, stride=2), nn.ReLU()).eval()
    >>> program = rewrite(torch.export.export(model, (torch.ones(1, 1, 3),)))
    >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    ['upconv.fused_convolution.default']
    """
    if not isinstance(program, torch.export.ExportedProgram):
        expected, remedy = "a torch.export.ExportedProgram", "Use accelerate for modules."
        raise DTypeError("program", f"of type {type(program).__name__}", expected, remedy)
    _rewritten(program.graph_module, graded=False, measured=False)
    return program


def backend(
    module: fx.GraphModule, example_inputs: list[Tensor], *, options: Any = None, **others: Any
) -> Any:
    """`torch.compile(model, backend="upconv")`: convolutions by upconv where it is faster.

    Each convolution is measured once for its shapes, as PyTorch's and as upconv's; the graph then
    goes to Inductor, or to the backend that `options={"then": name}` names.

    >>> model = torch.nn.ConvTranspose1d(1, 1, 2, stride=2).eval()
    >>> fast = torch.compile(model, backend=backend, options={"then": "eager"})
    >>> with torch.no_grad():
    ...     fast(torch.ones(1, 1, 3)).shape
    torch.Size([1, 1, 6])
    """
    unknown = set(options or ()) - {"then"}
    if unknown:
        raise DTypeError("options", brief(sorted(unknown)), "no option but 'then'")
    graded = torch.is_grad_enabled() and any(
        isinstance(each, torch.Tensor) and each.requires_grad for each in example_inputs
    )
    weights = _rewritten(module, graded=graded, measured=True)
    given = zip(module.graph.find_nodes(op="placeholder"), example_inputs, strict=True)
    constant = [x for node, x in given if node in weights and isinstance(x, torch.nn.Parameter)]
    then = torch._dynamo.lookup_backend((options or {}).get("then", "inductor"))
    call = partial(then(module, example_inputs, **others))
    # What is packed of the model's weights lasts as long as the call, however much it is.
    call.packed = [] if graded else [packing.owned(weight, None) for weight in constant]  # type: ignore[attr-defined]
    return call


def _rewritten(module: fx.GraphModule, *, graded: bool, measured: bool) -> set[Any]:
    """Put upconv's operators into a graph; returns the nodes of their weights."""
    graph, weights = module.graph, set()
    for node in list(graph.nodes):
        found = _convolution(node)
        if found is None:
            continue
        if not graded:
            found = _with_end(found)
        ours = _choice(found, graded) if measured else 7
        if ours:
            _replace(graph, found, ours, graded)
            weights.add(found.weight)
    graph.lint()
    module.recompile()
    return weights


def _replace(graph: Any, found: _Found, ours: int, graded: bool) -> None:
    """Turn the last node into the new operator; its name stays, as graph signatures hold it."""
    last = found.last
    operands = (found.x, found.weight, found.bias, *found.how)
    last.op, last.kwargs = "call_function", {}
    if graded:
        last.target, last.args = CONVOLUTION, (*operands, ours)
    else:
        last.target, last.args = FUSED, (*operands, found.residual, found.activation)
    for node in reversed(found.between):
        graph.erase_node(node)


def _value(node: Any) -> Any:
    """What a node is known to give: a tensor without data, from either kind of graph."""
    meta = node.meta if isinstance(node, fx.Node) else {}
    return meta.get("val", meta.get("example_value"))


def _convolution(node: Any) -> _Found | None:
    """The convolution that a node is, if upconv computes it."""
    if node.op != "call_function":
        return None
    if node.target is _ATEN.convolution.default:
        names: tuple[str, ...] = _WHOLE
        transposed = None
        rank = len(node.args[3])
    elif node.target in _ORDINARY_CALLS:
        names, transposed, rank = _PLAIN, False, _ORDINARY_CALLS[node.target]
    elif node.target in _TRANSPOSED_CALLS:
        names, transposed, rank = _TRANSPOSED, True, _TRANSPOSED_CALLS[node.target]
    else:
        return None
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    x, weight = given["input"], given["weight"]
    if not _computable(x, weight, rank):
        return None
    how = geometry(
        _value(weight).shape[2:],
        given.get("stride", 1),
        given.get("padding", 0),
        given.get("dilation", 1),
        given["transposed"] if transposed is None else transposed,
        given.get("output_padding", 0),
        given.get("groups", 1),
    )
    if isinstance(how[1], str):
        return None
    return _Found(x, weight, given.get("bias"), how, node)


def _computable(x: Any, weight: Any, rank: int) -> bool:
    return all(
        isinstance(each, torch.Tensor)
        and each.device.type == "cpu"
        and each.dtype in DTYPES
        and each.dim() == rank + 2
        for each in map(_value, (x, weight))
    )


def _with_end(found: _Found) -> _Found:
    """A convolution with the residual and the activation that follow it."""
    user = _only_user(found.last)
    if user is not None and found.residual is None and _is_sum(user, found.last):
        first, second = user.args
        other = second if first is found.last else first
        found = replace(found, last=user, residual=other, between=(*found.between, found.last))
        user = _only_user(user)
    if user is not None:
        activation = _activation(user, found.last)
        if activation:
            between = (*found.between, found.last)
            found = replace(found, last=user, activation=activation, between=between)
    return found


def _only_user(node: Any) -> Any:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op in ("call_function", "call_method") else None


def _is_sum(node: Any, part: Any) -> bool:
    """Whether a node adds another tensor of the same kind to a part."""
    if node.target not in _SUMS or len(node.args) != 2 or node.kwargs:
        return False
    one, other = map(_value, node.args)
    known = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    alike = known and one.dtype is other.dtype and one.shape == other.shape
    return bool(alike and part in node.args and node.args[0] is not node.args[1])


def _activation(node: Any, part: Any) -> str:
    """The activation that a node computes of a part, in upconv's words; "" for none."""
    name = _ACTIVATIONS.get(node.target, "")
    if not name or not node.args or node.args[0] is not part:
        return ""
    given = {**dict(zip(("input", "slope"), node.args, strict=False)), **node.kwargs}
    if name == "leaky_relu":
        slope = given.get("negative_slope", given.get("slope", 0.01))
        return f"leaky_relu:{float(slope)!r}" if isinstance(slope, (int, float)) else ""
    return name if given.get("approximate", "none") == "none" else ""


def _choice(found: _Found, graded: bool) -> int:
    """Which results upconv computes faster on random data of the known shapes; 0 for none."""
    x, weight = _value(found.x), _value(found.weight)
    how = tuple(tuple(each) if isinstance(each, (list, tuple)) else each for each in found.how)
    if any(isinstance(each, torch.SymInt) for axes in how[:3] for each in axes):
        return 0
    shapes = [(_sizes(each.shape), _sizes(each.stride())) for each in (x, weight)]
    flows = graded and bool(x.requires_grad)
    trained = graded and bool(weight.requires_grad)
    with torch.no_grad():
        return _measured(*shapes, x.dtype, how, graded, flows, trained, thread_count())


def _sizes(sizes: Any) -> tuple[int, ...]:
    """Sizes as numbers, a symbol by the value that it was traced with."""
    return tuple(each if type(each) is int else int(each.node.hint) for each in sizes)


@lru_cache(maxsize=1024)
def _measured(
    x: Any, weight: Any, dtype: Any, how: Any, graded: bool, flows: bool, trained: bool, _: int
) -> int:
    operands = [torch.empty_strided(*each, dtype=dtype).normal_() for each in (x, weight)]
    if graded:
        return int(trials.choice([trials.Case(operands[0], operands[1], flows, how, trained)]))
    slow, fast = trials.best_of(
        [
            lambda: _ATEN.convolution.default(*operands, None, *how),
            lambda: FUSED(*operands, None, *how),
        ],
        0.1,
    )
    return 7 if fast < trials.GAIN * slow else 0
