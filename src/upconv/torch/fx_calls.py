"""What nodes of a graph are: deconvolutions, batch normalisations, activations, sums.

Two kinds of graphs are read: those of `torch.fx.symbolic_trace`, whose nodes call modules and
functions, and those of `torch.export`, whose nodes call operators of ATen and know shapes.

What lives here: tables of targets, and reading of nodes. What never does: changing a graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from .accelerate_layers import KINDS, refusal
from .fused import Ending, ending_of, leaky
from .fused_weights import foldable
from .layers import FUNCTIONS

Node = Any
"""A `torch.fx.Node`."""

_ATEN = torch.ops.aten
_ARGUMENTS = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"
)  # fmt: skip
_DEFAULTS = (None, None, None, 1, 0, 0, 1, 1)
_RANKS: dict[Any, int] = {
    **{function: rank for rank, function in FUNCTIONS.items()},
    _ATEN.conv_transpose1d.default: 1,
    _ATEN.conv_transpose2d.input: 2,
    _ATEN.conv_transpose3d.input: 3,
}


@dataclass(frozen=True, slots=True)
class Deconvolution:
    """A transposed convolution in a graph, its operands being nodes, or names of attributes.

    layer is the module that a node calls, or None.
    """

    rank: int
    x: Node
    weight: Any
    bias: Any
    stride: Any
    padding: Any
    output_padding: Any
    groups: int
    dilation: Any
    layer: Any = None

    @property
    def how(self) -> tuple[Any, ...]:
        """Stride, padding, output padding, dilation, one number per axis, and groups."""

        def each(value: Any) -> list[Any]:
            entries = list(value) if isinstance(value, list | tuple) else [value]
            return entries * self.rank if len(entries) == 1 else entries

        axes = (self.stride, self.padding, self.output_padding, self.dilation)
        return (*map(each, axes), self.groups)


@dataclass(frozen=True, slots=True)
class Norm:
    """A batch normalisation by running statistics: nodes, or names of attributes."""

    mean: Any
    var: Any
    gamma: Any
    beta: Any
    eps: float


def module_of(node: Node) -> Any:
    """The module that a node calls, or None."""
    if node.op != "call_module":
        return None
    return node.graph.owning_module.get_submodule(node.target)


def value_of(node: Any) -> Any:
    """What an exported graph knows of a node's result: a tensor without data, or None."""
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def deconvolution_of(node: Node) -> Deconvolution | None:
    """The transposed convolution that a node is; None if it is none, or is not ours to replace."""
    if node.op == "call_module":
        return _of_module(node, module_of(node))
    if node.op != "call_function":
        return None
    if node.target is _ATEN.convolution.default:
        return _of_convolution(node)
    rank = _rank(node.target)
    if rank is None or len(node.args) > len(_ARGUMENTS):
        return None
    given: dict[str, Any] = dict(zip(_ARGUMENTS, _DEFAULTS, strict=True))
    given |= dict(zip(_ARGUMENTS, node.args, strict=False)) | dict(node.kwargs)
    return Deconvolution(rank, *(given[name] for name in _ARGUMENTS))


def _rank(target: Any) -> int | None:
    return _RANKS.get(target) if isinstance(target, Hashable) else None


def _of_module(node: Node, layer: Any) -> Deconvolution | None:
    if not isinstance(layer, KINDS) or refusal(layer, measured=True):
        return None
    # A hook would not run, and `output_size` is a list that nobody knows here.
    if layer._forward_pre_hooks or layer._forward_hooks or len(node.args) != 1 or node.kwargs:
        return None
    if "weight" not in layer._parameters:  # but made by a parametrization: no graph has its name
        return None
    names = f"{node.target}.weight", None if layer.bias is None else f"{node.target}.bias"
    axes = layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation
    return Deconvolution(len(layer.kernel_size), node.args[0], *names, *axes, layer)


def _of_convolution(node: Node) -> Deconvolution | None:
    given = _bound(node)
    if not given["transposed"]:
        return None
    return Deconvolution(len(given["stride"]), *(given[name] for name in _ARGUMENTS))


def _bound(node: Node) -> dict[str, Any]:
    """The arguments of a call of an operator by their names, given by place, by name or not."""
    arguments = node.target._schema.arguments
    given = {each.name: each.default_value for each in arguments}
    return given | dict(zip(given, node.args, strict=False)) | dict(node.kwargs)


_NORMS = (_ATEN.batch_norm.default, _ATEN._native_batch_norm_legit_no_training.default)


def norm_of(node: Node, source: Node, call: Deconvolution) -> Norm | None:
    """The batch normalisation that a node does to `source`, by running statistics; or None."""
    module = module_of(node)
    if module is not None:
        hooked = module._forward_hooks or module._forward_pre_hooks
        if module.training or hooked or call.layer is None or not foldable(module, call.layer):
            return None
        name, affine = node.target, module.weight is not None
        gamma, beta = (f"{name}.weight", f"{name}.bias") if affine else (None, None)
        return Norm(f"{name}.running_mean", f"{name}.running_var", gamma, beta, module.eps)
    if node.op != "call_function" or node.target not in _NORMS:
        return None
    given = _bound(node)
    mean, var = given["running_mean"], given["running_var"]
    if given.get("training") or mean is None or var is None:
        return None
    if [name for name, value in given.items() if value is source] != ["input"]:
        return None
    return Norm(mean, var, given["weight"], given["bias"], given["eps"])


def _leaky(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ending | None:
    slope = args[0] if args else kwargs.get("negative_slope", 0.01)
    return leaky(float(slope)) if isinstance(slope, int | float) else None


def _gelu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ending | None:
    how = args[0] if args else kwargs.get("approximate", "none")
    return Ending("gelu") if how == "none" else None


def _always(name: str) -> Callable[[Any, Any], Ending]:
    return lambda *_: Ending(name)


_ENDINGS: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Ending | None]] = {
    _ATEN.relu.default: _always("relu"),
    _ATEN.relu_.default: _always("relu"),
    _ATEN.leaky_relu.default: _leaky,
    _ATEN.leaky_relu_.default: _leaky,
    _ATEN.tanh.default: _always("tanh"),
    _ATEN.sigmoid.default: _always("sigmoid"),
    _ATEN.silu.default: _always("silu"),
    _ATEN.silu_.default: _always("silu"),
    _ATEN.gelu.default: _gelu,
    functional.relu: _always("relu"),
    torch.relu: _always("relu"),
    functional.leaky_relu: _leaky,
    torch.tanh: _always("tanh"),
    functional.tanh: _always("tanh"),
    torch.sigmoid: _always("sigmoid"),
    functional.sigmoid: _always("sigmoid"),
    functional.silu: _always("silu"),
    functional.gelu: _gelu,
    "relu": _always("relu"),
    "relu_": _always("relu"),
    "tanh": _always("tanh"),
    "sigmoid": _always("sigmoid"),
}
"""By function, operator or name of a method."""


def ending_at(node: Node, source: Node) -> Ending | None:
    """The activation that a node does to `source`; None for everything else."""
    module = module_of(node)
    if module is not None:
        if module._forward_hooks or module._forward_pre_hooks or isinstance(module, nn.PReLU):
            return None
        return ending_of(module)
    if node.op not in ("call_function", "call_method") or node.args[:1] != (source,):
        return None
    return ending_of_function(node.target, node.args[1:], node.kwargs)


def ending_of_function(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ending | None:
    """The activation that a function, or the method of a name, is with arguments after the first.

    >>> ending_of_function(functional.leaky_relu, (0.2,), {}), ending_of_function(len, (), {})
    (Ending(name='leaky_relu', slope=0.2), None)
    """
    if "out" in kwargs or not isinstance(target, Hashable):
        return None
    told = _ENDINGS.get(target)
    return told(args, kwargs) if told else None


_SUMS = (_ATEN.add.Tensor, _ATEN.add_.Tensor, operator.add, operator.iadd, torch.add)


def residual_at(node: Node, source: Node) -> Node | None:
    """What a node adds to `source`: a tensor known to be of the same shape."""
    if node.op != "call_function" or node.target not in _SUMS or len(node.args) != 2:
        return None
    if node.kwargs.get("alpha", 1) != 1 or set(node.kwargs) - {"alpha"}:
        return None
    first, second = node.args
    if (first is source) == (second is source):
        return None
    if node.target in (_ATEN.add_.Tensor, operator.iadd) and first is not source:
        return None
    other = second if first is source else first
    mine, theirs = value_of(source), value_of(other)
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return None
    same = mine.shape == theirs.shape and mine.dtype == theirs.dtype
    if first is other and mine.stride() != theirs.stride():
        return None  # the sum has the order of what stands first
    return other if same and mine.device == theirs.device else None
