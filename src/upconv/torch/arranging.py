"""The table of operations for tensors with any order of axes.

A row takes a network and the arguments of PyTorch's function, with `Arranged` in place of tensors.
`MOVES` holds operators that may move axes. `LAST_AXIS` holds functions over the channels.
`FUNCTIONS` holds functions that a stream traces before PyTorch decomposes them. All other rows come
from `network_rules`: they are pointwise, work along one axis, or accept only (N, C, *size).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from ..errors import ArgumentError, EngineRefusal
from ..network import Network
from ..network.axes import Arranged, common_axes
from .network_rules import ROWS, constant
from .tensors import array

Row = Callable[..., Any]

_POINTWISE = {
    "relu", "relu6", "silu", "tanh", "sigmoid", "mish", "selu", "abs", "exp", "sin", "cos",
    "square", "sqrt", "hardswish", "hardsigmoid", "hardtanh", "pow", "clamp", "clip", "clamp_min",
    "clamp_max", "leaky_relu", "gelu", "softplus", "elu", "neg", "add", "sub", "rsub", "mul", "div",
    "maximum", "minimum", "functional.elu", "truediv", "divide", "negative", "logsigmoid",
    "log_sigmoid", "clone", "contiguous", "detach", "alias", "dropout",
}  # fmt: skip
"""Rows whose results do not depend on the order of axes."""
_ALONG = {
    **dict.fromkeys(("cat", "concat", "concatenate", "slice", "narrow", "softmax", "_softmax"), 1),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), 2),
}
"""Name of a row that works along one axis -> index of that argument."""
_RENAMED = {"_softmax": "softmax", "fused_convolution": "convolution"}


def moves_axes(name: str) -> bool:
    """Whether an operator's result may have its axes in a different order from its operand's."""
    return name in MOVES and name != "getitem"


def suits_any_axes(name: str) -> bool:
    """Whether an operator accepts operands with their axes in any order.

    Such an operator does not show which axis holds the channels.
    """
    return name in _POINTWISE or name in _ALONG or name in MOVES


def row_of(name: str) -> Row | None:
    """Return an ATen operator's row; None if networks have no such operation."""
    if name in MOVES or _RENAMED.get(name, name) not in ROWS:
        return MOVES.get(name)
    row = ROWS[_RENAMED.get(name, name)]
    if name in _POINTWISE:
        return partial(_pointwise, row)
    return partial(_along, row, _ALONG[name]) if name in _ALONG else partial(_plain, row)


def _pointwise(row: Row, network: Network, *args: Any, **kwargs: Any) -> Arranged:
    """Call a pointwise row on values, numbers, and tensors with one number per channel."""
    operands = _operands(args)
    axes = common_axes(operands)
    like = Arranged(operands[0].value, axes)
    args = tree_map_only(torch.Tensor, lambda x: like.per_channel(x.detach().float().numpy()), args)
    return Arranged(row(network, *_values(args), **kwargs), axes)


def _along(row: Row, index: int, network: Network, *args: Any, **kwargs: Any) -> Any:
    """Call a row that works along one axis, wherever that axis comes in the order.

    index: the position of that axis among the arguments; its default is 0.
    """
    number = kwargs.pop("dim", 0)
    while len(args) < index and kwargs:  # operands before the axis, by name
        args = (*args, kwargs.pop(next(iter(kwargs))))
    number = args[index] if len(args) > index else number
    operands = _operands(args)
    axes = common_axes(operands)
    args = (*args[:index], operands[0].axis(number), *args[index + 1 :])
    results = row(network, *_values(args), **kwargs)
    if isinstance(results, list):
        return [Arranged(value, axes) for value in results]
    return Arranged(results, axes)


def _plain(row: Row, network: Network, *args: Any, **kwargs: Any) -> Arranged:
    """Call a row that takes only (N, C, *size)."""
    axes = tuple(range(len(_operands(args)[0].plain().shape)))
    args = tree_map_only(Arranged, Arranged.plain, args)
    return Arranged(row(network, *args, **kwargs), axes)


def _operands(args: Any) -> list[Arranged]:
    return [leaf for leaf in tree_flatten(args)[0] if isinstance(leaf, Arranged)]


def _values(args: Any) -> Any:
    return tree_map_only(Arranged, lambda x: x.value, args)


# Axes ---------------------------------------------------------------------------------------------


def _transpose(_: Network, x: Arranged, first: int = 0, second: int = 1) -> Arranged:
    order = list(range(len(x.axes)))
    order[first], order[second] = order[second], order[first]
    return x.permuted(order)


def _squeeze(_: Network, x: Arranged, dim: Any = None) -> Arranged:
    rank = len(x.axes)
    dims = range(rank) if dim is None else dim if isinstance(dim, (list, tuple)) else (dim,)
    gone = {number % rank for number in dims if x.shape[number] == 1}
    return Arranged(x.value, tuple(axis for i, axis in enumerate(x.axes) if i not in gone))


def _unsqueeze(_: Network, x: Arranged, dim: int) -> Arranged:
    number = dim % (len(x.axes) + 1)
    return Arranged(x.value, (*x.axes[:number], None, *x.axes[number:]))


def _sequence(numbers: Sequence[Any]) -> tuple[int, ...]:
    """Return the numbers passed to a call like permute(0, 2, 1) or permute((0, 2, 1))."""
    (first, *rest) = numbers
    return (first, *rest) if isinstance(first, int) else tuple(first)


def _permute(_: Network, x: Arranged, *dims: Any, **named: Any) -> Arranged:
    return x.permuted(_sequence([*dims, *named.values()]))


def _reshape(_: Network, x: Arranged, *shape: Any, **named: Any) -> Arranged:
    sizes = _sequence([*shape, *named.values()])
    sizes = tuple(torch.empty(x.shape, device="meta").reshape(sizes).shape)
    return x if sizes == x.shape else x.reshaped(sizes)


def _expand(_: Network, x: Arranged, *shape: Any, implicit: bool = False) -> Arranged:
    sizes = tuple(torch.empty(x.shape, device="meta").expand(_sequence(shape)).shape)
    if sizes != x.shape:
        raise ArgumentError("the shape", str(sizes), f"{x.shape}, the shape of x")
    return x


def _flatten(network: Network, x: Arranged, start_dim: int = 0, end_dim: int = -1) -> Arranged:
    sizes = torch.empty(x.shape, device="meta").flatten(start_dim, end_dim).shape
    return _reshape(network, x, sizes)


def _getitem(network: Network, x: Any, index: Any) -> Any:
    """Return an entry of a list, or a slice of a value."""
    return x[index] if isinstance(x, list) else _plain(ROWS["getitem"], network, x, index)


def _select(network: Network, x: Arranged, dim: int, index: int) -> Arranged:
    if x.axis(dim) != 1:
        raise ArgumentError("the axis", str(dim), "the channel axis")
    start = index % x.value.channels
    part = Arranged(network.slice(x.value, start, start + 1), x.axes)
    return _squeeze(network, part, dim)


MOVES: dict[str, Row] = {
    "transpose": _transpose, "t": _transpose, "permute": _permute,
    "squeeze": _squeeze, "unsqueeze": _unsqueeze, "select": _select, "expand": _expand,
    "flatten": _flatten, "getitem": _getitem,
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), _reshape),
}  # fmt: skip


# Functions ----------------------------------------------------------------------------------------


def _linear(network: Network, x: Arranged, weight: Any, bias: Any = None) -> Arranged:
    """Add a fully connected layer over the last axis: a convolution with one tap."""
    _require_channels_last(x)
    matrix = constant("weight", weight)
    kernel = matrix.reshape(*matrix.shape, *[1] * (len(x.value.shape) - 2))
    return Arranged(network.conv(x.value, kernel, constant("bias", bias)), (*x.axes[:-1], 1))


def _layer_norm(
    network: Network, x: Arranged, normalized_shape: Sequence[int], weight: Any = None,
    bias: Any = None, eps: float = 1e-5, cudnn: Any = False,
) -> Arranged:  # fmt: skip
    _require_channels_last(x)
    if len(normalized_shape) > 1:
        raise ArgumentError("normalized_shape", str(tuple(normalized_shape)), "only the channels")
    scale, offset = constant("weight", weight), constant("bias", bias)
    return Arranged(network.layer_norm(x.value, scale, offset, eps), x.axes)


def _require_channels_last(x: Arranged) -> None:
    if not x.channels_last():
        raise EngineRefusal("its last axis is not the channel axis, so it reads positions")


def _glu(network: Network, x: Arranged, dim: int = -1) -> Arranged:
    if x.axis(dim) != 1:
        raise ArgumentError("dim", str(dim), "the channel axis")
    half = x.value.channels // 2
    gate = network.activation(network.slice(x.value, half, 2 * half), "sigmoid")
    return Arranged(network.slice(x.value, 0, half) * gate, x.axes)


def _attention(*_: Any, **__: Any) -> Any:
    raise EngineRefusal("attention reads all positions")


class LastState:
    """Placeholder for a recurrent layer's state after the last position."""


def _lstm(
    network: Network, x: Arranged, state: Any, weights: Sequence[Any], has_biases: bool,
    layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """Add an LSTM's layers one after another, along the only spatial axis."""
    if bidirectional:
        raise EngineRefusal("it runs in both directions, so it reads all positions")
    if dropout and train:
        raise EngineRefusal("its dropout is random. Call model.eval()")
    per_layer = 4 if has_biases else 2
    if len(weights) != per_layer * layers:
        raise EngineRefusal("its results are projected")
    if any(isinstance(tensor, Arranged) or bool(tensor.any()) for tensor in state):
        raise EngineRefusal("its initial state is not 0")
    _require_channels_last(x)
    if x.axes[1 if batch_first else 0] != 2 or len(x.value.shape) != 3:
        raise EngineRefusal("it does not run along time")
    value, arrays = x.value, [array(tensor.detach()) for tensor in weights]
    for first in range(0, len(arrays), per_layer):
        weight, hidden, *biases = arrays[first : first + per_layer]
        value = network.lstm(value, weight, hidden, sum(biases) if biases else None)
    return Arranged(value, x.axes), LastState(), LastState()


def _recurrent(*_: Any, **__: Any) -> Any:
    raise EngineRefusal(
        "the only recurrent layer of a network is the LSTM. Stream the layers before and after "
        "this one, and call this one with its state in between"
    )


_NAMES = {"batch_norm": "functional.batch_norm", "instance_norm": "functional.instance_norm"}
LAST_AXIS: dict[str, Row] = {"linear": _linear, "layer_norm": _layer_norm, "glu": _glu}
"""PyTorch's functions over the last axis, which must hold the channels."""
FUNCTIONS: dict[str, Row] = {
    **LAST_AXIS,
    **{name: partial(_plain, ROWS[row]) for name, row in _NAMES.items()},
    **{name: partial(_plain, ROWS[name]) for name in ("group_norm", "conv1d", "conv2d", "conv3d")},
    "lstm": _lstm, **dict.fromkeys(("gru", "rnn_tanh", "rnn_relu"), _recurrent),
    "dropout": partial(_pointwise, ROWS["dropout"]),
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward"), _attention),
}  # fmt: skip
"""PyTorch's functions by name."""
