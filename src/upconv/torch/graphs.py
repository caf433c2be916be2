"""Graphs: `rewrite` for exported ATen graphs, and the backend of `torch.compile`.

Both read the same nodes: PyTorch's functions in Dynamo's graphs, ATen's operators in those of
`torch.export`. If no gradient is needed, the backend hands the largest parts to networks. It
replaces other convolutions with upconv's operators where these are faster. `rewrite` replaces all
convolutions. For inference, a following residual and activation are fused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import fx

from ..errors import DTypeError, brief
from . import packing, trials
from .functional import geometry
from .nodes import is_convolution, name_of
from .operators import CONVOLUTION, FUSED
from .parts import Part, hand_over
from .supported_nodes import value_of
from .tensors import DTYPES, Tensor, numbers, thread_count

_ATEN = torch.ops.aten
_PLAIN = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (*_PLAIN[:5], "output_padding", "groups", "dilation")
_COMPLETE = (*_PLAIN[:6], "transposed", "output_padding", "groups")
_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1}
_ACTIVATIONS = {
    **{name: name for name in ("relu", "relu6", "leaky_relu", "tanh", "sigmoid", "silu", "gelu")},
    "hardswish": "hard_swish",
}
"""PyTorch's name of an activation -> upconv's."""
_LOG = logging.getLogger("upconv.torch")


@dataclass(frozen=True, slots=True)
class _Match:
    """A convolution in a graph and the nodes that are fused into it, up to `last`."""

    x: Any
    weight: Any
    bias: Any
    arguments: tuple[Any, ...]
    last: Any
    residual: Any = None
    activation: str = ""
    between: tuple[Any, ...] = ()
    """The nodes before `last` that the new operator replaces."""

    def with_next(self, node: Any, **fused: Any) -> _Match:
        """Return this match with one more node at its end."""
        return replace(self, last=node, between=(*self.between, self.last), **fused)


def rewrite(program: Any) -> Any:
    """Replace an exported program's convolutions with upconv's operators, in place.

    program: the result of `torch.export.export`, before or after `run_decompositions`. Convolutions
    on the CPU in floating types become `torch.ops.upconv.fused_convolution`, which includes a
    following residual of the same shape and a following activation. The operator has no gradient.
    Nothing is measured.

    Returns `program`. Raises `DTypeError` if it is not an exported program.

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
    """Compile a graph for `torch.compile(model, backend="upconv")`.

    Without gradients, each of the largest parts that a `Network` can compute becomes one call. With
    gradients, single convolutions do. Each is measured once for its shapes, in PyTorch and upconv.
    The graph then goes to Inductor, or to the backend that `options={"then": name}` names. The
    logger "upconv.torch" reports at level INFO which parts upconv computes, and why not the others.

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
    # The call keeps the packed weights alive, regardless of their size.
    packed = [] if graded else [packing.owned(weight, None) for weight in constant]
    call.held = (parts, packed)  # type: ignore[attr-defined]
    return call


def _is_graded(module: fx.GraphModule, inputs: list[Tensor]) -> bool:
    """Whether the caller may request a graph's gradients."""
    recording = torch.is_grad_enabled() or any(
        node.target is torch._C._set_grad_enabled and node.args[0] is True
        for node in module.graph.nodes
    )
    return recording and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def _parts(module: fx.GraphModule, inputs: list[Tensor]) -> list[Part]:
    """Hand over the parts that are correct and faster; leave the others to PyTorch."""
    parts, left = hand_over(module)
    kept = []
    for name, reason in left.items():
        _LOG.info("%s stays with PyTorch: %s", name, reason)
    known = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for part in parts:
        reason = trials.measured_part(part, known, 1.0).why
        how = f"stays with PyTorch: {reason}" if reason else "is computed by a network."
        _LOG.info("A part of %d convolutions %s", part.layers, how)
        if reason:
            part.put_back()
        else:
            kept.append(part)
    return kept


def _rewritten(module: fx.GraphModule, *, graded: bool, measured: bool) -> set[Any]:
    """Insert upconv's operators into a graph; return the nodes of their weights."""
    graph, weights = module.graph, set()
    for node in list(graph.nodes):
        match = _convolution(node)
        if match is None:
            continue
        if not graded:
            match = _with_epilogue(match)
        mask = _choice(match, graded) if measured else 7
        if mask:
            _replace(graph, match, mask, graded)
            weights.add(match.weight)
    graph.lint()
    module.recompile()
    return weights


def _replace(graph: Any, match: _Match, mask: int, graded: bool) -> None:
    """Turn the last node into the new operator, under the name that graph signatures use."""
    last = match.last
    operands = (match.x, match.weight, match.bias, *match.arguments)
    last.op, last.kwargs = "call_function", {}
    if graded:
        last.target, last.args = CONVOLUTION, (*operands, mask)
    else:
        last.target, last.args = FUSED, (*operands, match.residual, match.activation)
    for node in reversed(match.between):
        graph.erase_node(node)


def _convolution(node: Any) -> _Match | None:
    """Return a node's match; None unless it is a convolution that upconv computes."""
    name = name_of(node)
    if node.op != "call_function" or not is_convolution(node):
        return None
    complete, transposed = name == "convolution", "transpose" in name
    names = _COMPLETE if complete else _TRANSPOSED if transposed else _PLAIN
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    values: dict[str, Any] = {"bias": None, "transposed": transposed, **_DEFAULTS, **given}
    x, weight, bias, *axes = (values[name] for name in _COMPLETE)
    if not _computable(x, weight, len(values["stride"]) if complete else int(name[-2])):
        return None
    arguments = geometry(value_of(weight).shape[2:], *axes)
    if isinstance(arguments[1], str):
        return None
    return _Match(x, weight, bias, arguments, node)


def _computable(x: Any, weight: Any, rank: int) -> bool:
    return all(
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.dtype in DTYPES
        and value.dim() == rank + 2
        for value in map(value_of, (x, weight))
    )


def _with_epilogue(match: _Match) -> _Match:
    """Add the residual and the activation that follow a convolution."""
    user = _only_user(match.last)
    if user is not None and _is_sum(user, match.last):
        first, second = user.args
        match = match.with_next(user, residual=second if first is match.last else first)
        user = _only_user(user)
    activation = "" if user is None else _activation(user, match.last)
    return match.with_next(user, activation=activation) if activation else match


def _only_user(node: Any) -> Any:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op in ("call_function", "call_method") else None


def _is_sum(node: Any, part: Any) -> bool:
    """Whether a node adds another tensor of the same dtype and shape to a part."""
    if name_of(node) != "add" or len(node.args) != 2 or node.kwargs:
        return False
    one, other = map(value_of, node.args)
    known = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    alike = known and one.dtype is other.dtype and one.shape == other.shape
    return bool(alike and part in node.args and node.args[0] is not node.args[1])


def _activation(node: Any, part: Any) -> str:
    """Return the activation that a node applies to a part, as upconv names it; "" for none."""
    name = name_of(node).removesuffix("_")
    if name not in _ACTIVATIONS or not node.args or node.args[0] is not part:
        return ""
    values = {**dict(zip(("input", "slope"), node.args, strict=False)), **node.kwargs}
    if name == "leaky_relu":
        slope = values.get("negative_slope", values.get("slope", 0.01))
        return f"leaky_relu:{float(slope)!r}" if isinstance(slope, (int, float)) else ""
    return _ACTIVATIONS[name] if values.get("approximate", "none") == "none" else ""


def _choice(match: _Match, graded: bool) -> int:
    """Return the mask of the results that upconv computes faster on random data; 0 if none."""
    x, weight = value_of(match.x), value_of(match.weight)
    arguments = tuple(tuple(v) if isinstance(v, (list, tuple)) else v for v in match.arguments)
    stride, padding, dilation, _, output_padding, _ = arguments
    if not all(isinstance(axis, int) for axis in (*stride, *padding, *dilation, *output_padding)):
        return 0  # an entry depends on a dynamic size: it is a graph node, not a number
    shapes = [(numbers(tensor.shape), numbers(tensor.stride())) for tensor in (x, weight)]
    flows = graded and bool(x.requires_grad)
    trained = graded and bool(weight.requires_grad)
    with torch.no_grad():
        return _measured(*shapes, x.dtype, arguments, graded, flows, trained, thread_count())


@lru_cache(maxsize=1024)
def _measured(
    x: Any, weight: Any, dtype: Any, arguments: Any, graded: bool, flows: bool, trained: bool,
    threads: int,
) -> int:  # fmt: skip
    """Measure once per set of arguments, for `_choice`; x, weight: sizes and strides."""
    operands = [torch.empty_strided(*layout, dtype=dtype).normal_() for layout in (x, weight)]
    if graded:
        case = trials.Case(operands[0], operands[1], flows, arguments, trained)
        return int(trials.choice([case]))
    faster = trials.is_faster(
        lambda: _ATEN.convolution.default(*operands, None, *arguments),
        lambda: FUSED(*operands, None, *arguments),
        0.1,
    )
    return 7 if faster else 0
