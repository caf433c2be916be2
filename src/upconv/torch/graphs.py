"""Graphs: `rewrite` for exported ATen graphs, and the backend of `torch.compile`.

Both read the same nodes: PyTorch's functions in the graphs that Dynamo captures, ATen's operators
in those that `torch.export` makes. The backend hands the largest parts to networks where no
gradient is asked for. A convolution that is in no part becomes an operator of ours by itself; so
does each in an exported graph, with a residual that is added and an activation.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import fx

from ..errors import DTypeError, brief
from ..measuring import Way, choose
from . import packing, trials
from .functional import geometry
from .nodes import is_convolution, name_of
from .operators import CONVOLUTION, FUSED
from .parts import Part, hand_over
from .support import value_of
from .tensors import DTYPES, Tensor, array, thread_count

_ATEN = torch.ops.aten
_PLAIN = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (*_PLAIN[:5], "output_padding", "groups", "dilation")
_COMPLETE = (*_PLAIN[:6], "transposed", "output_padding", "groups")
_ACTIVATIONS = ("relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu")
_LOG = logging.getLogger("upconv.torch")


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
    """`torch.compile(model, backend="upconv")`: what upconv computes faster, and PyTorch the rest.

    Without gradients the largest parts that a `Network` computes become one call each; with
    gradients single convolutions do. Each is measured once for its shapes, as PyTorch's and as
    upconv's. The graph then goes to Inductor, or to the backend that `options={"then": name}`
    names. The logger "upconv.torch" says at level INFO what was taken and why the rest was not.

    >>> model = torch.nn.ConvTranspose1d(1, 1, 2, stride=2).eval()
    >>> fast = torch.compile(model, backend=backend, options={"then": "eager"})
    >>> with torch.no_grad():
    ...     fast(torch.ones(1, 1, 3)).shape
    torch.Size([1, 1, 6])
    """
    unknown = set(options or ()) - {"then"}
    if unknown:
        raise DTypeError("options", brief(sorted(unknown)), "no option but 'then'")
    graded = _is_graded(module, example_inputs)
    parts = [] if graded else _parts(module, example_inputs)
    weights = _rewritten(module, graded=graded, measured=True)
    pairs = zip(module.graph.find_nodes(op="placeholder"), example_inputs, strict=True)
    constant = [x for node, x in pairs if node in weights and isinstance(x, torch.nn.Parameter)]
    then = torch._dynamo.lookup_backend((options or {}).get("then", "inductor"))
    call = partial(then(module, example_inputs, **others))
    # What is packed of the model's weights lasts as long as the call, however much it is.
    packed = [] if graded else [packing.owned(weight, None) for weight in constant]
    call.held = (parts, packed)  # type: ignore[attr-defined]
    return call


def _is_graded(module: fx.GraphModule, inputs: list[Tensor]) -> bool:
    """Whether gradients of a graph may be asked for."""
    recording = torch.is_grad_enabled() or any(
        node.target is torch._C._set_grad_enabled and node.args[0] is True
        for node in module.graph.nodes
    )
    return recording and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def _parts(module: fx.GraphModule, inputs: list[Tensor]) -> list[Part]:
    """Hand over the parts that are right and faster; the others stay PyTorch's."""
    left: dict[str, str] = {}
    parts, kept = hand_over(module, left=left), []
    for name, reason in left.items():
        _LOG.info("%s stays PyTorch's: %s", name, reason)
    known = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for part in parts:
        reason = _slower(part, known)
        what = f"A part of {part.layers} convolutions"
        if reason:
            _LOG.info("%s stays PyTorch's: %s", what, reason)
            part.put_back()
        else:
            _LOG.info("%s is computed by a network.", what)
            kept.append(part)
    return kept


def _slower(part: Part, known: dict[fx.Node, Tensor]) -> str:
    """Why PyTorch computes a part better, on random data of the known sizes; "" if it does not."""
    inputs, weights = (list(nodes) for nodes in part.node.args[:2])
    operands = [_random(value_of(node)) for node in inputs]
    constants = [known[node] if node in known else _attribute(node) for node in weights]
    with torch.no_grad():
        choice = choose(
            [
                Way("PyTorch", lambda: part.by_pytorch(operands, constants)),
                Way("upconv", lambda: part.run(operands, constants)),
            ],
            seconds=1.0,
            arrays=lambda results: map(array, results),
        )
    return part.reason or choice["upconv"].why


def _attribute(node: fx.Node) -> Any:
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _random(like: Tensor) -> Tensor:
    """Random data of the sizes and strides of a tensor without data."""
    sizes = _sizes(like.shape), _sizes(like.stride())
    return torch.empty_strided(*sizes, dtype=like.dtype).normal_()


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


def _convolution(node: Any) -> _Found | None:
    """The convolution that a node is, if upconv computes it."""
    name = name_of(node)
    if node.op != "call_function" or not is_convolution(node):
        return None
    if name == "convolution":
        names: tuple[str, ...] = _COMPLETE
        transposed, rank = None, len(node.args[3])
    else:
        transposed = "transpose" in name
        names, rank = _TRANSPOSED if transposed else _PLAIN, int(name[-2])
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    x, weight = given["input"], given["weight"]
    if not _computable(x, weight, rank):
        return None
    how = geometry(
        value_of(weight).shape[2:],
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
        for each in map(value_of, (x, weight))
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
    if name_of(node) != "add" or len(node.args) != 2 or node.kwargs:
        return False
    one, other = map(value_of, node.args)
    known = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    alike = known and one.dtype is other.dtype and one.shape == other.shape
    return bool(alike and part in node.args and node.args[0] is not node.args[1])


def _activation(node: Any, part: Any) -> str:
    """The activation that a node computes of a part, in upconv's words; "" for none."""
    name = name_of(node).removesuffix("_")
    if name not in _ACTIVATIONS or not node.args or node.args[0] is not part:
        return ""
    given = {**dict(zip(("input", "slope"), node.args, strict=False)), **node.kwargs}
    if name == "leaky_relu":
        slope = given.get("negative_slope", given.get("slope", 0.01))
        return f"leaky_relu:{float(slope)!r}" if isinstance(slope, (int, float)) else ""
    return name if given.get("approximate", "none") == "none" else ""


def _choice(found: _Found, graded: bool) -> int:
    """Which results upconv computes faster on random data of the known shapes; 0 for none."""
    x, weight = value_of(found.x), value_of(found.weight)
    how = tuple(tuple(each) if isinstance(each, (list, tuple)) else each for each in found.how)
    if any(isinstance(axis, torch.SymInt) for axes in how[:3] for axis in axes):
        return 0
    shapes = [(_sizes(each.shape), _sizes(each.stride())) for each in (x, weight)]
    flows = graded and bool(x.requires_grad)
    trained = graded and bool(weight.requires_grad)
    with torch.no_grad():
        return _measured(*shapes, x.dtype, how, graded, flows, trained, thread_count())


def _sizes(sizes: Any) -> tuple[int, ...]:
    """Sizes as numbers, a symbol by the value that it was traced with."""
    return tuple(size if type(size) is int else int(size.node.hint) for size in sizes)


@lru_cache(maxsize=1024)
def _measured(
    x: Any, weight: Any, dtype: Any, how: Any, graded: bool, flows: bool, trained: bool, _: int
) -> int:
    operands = [torch.empty_strided(*each, dtype=dtype).normal_() for each in (x, weight)]
    if graded:
        return int(trials.choice([trials.Case(operands[0], operands[1], flows, how, trained)]))
    faster = trials.is_faster(
        lambda: _ATEN.convolution.default(*operands, None, *how),
        lambda: FUSED(*operands, None, *how),
        0.1,
    )
    return 7 if faster else 0
