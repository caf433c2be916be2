"""vmap: one call for a batch of calls, by folding the new axis V into an axis that is there.

Operands of the trilinear form have the axes g (N, J, O), x (N, J, I), w (J, I, O), the group axis J
split from channels, kernels and positions left out. Each axis is shared by two operands. V goes to

    N   where g or x, or both, have V and w has not;
    O   where w, or w and g, ... have V and x has not: x is what lacks O;
    I   where g lacks V: g is what lacks I;
    J   where all operands have V: separate groups.

An operator has two of the three operands; its result has V, so the axis to fold into is the one
that the operand without V lacks. (N is what w lacks, O what x lacks, I what g lacks.)

What lives here: that. What never does: the operators themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .tensors import Tensor

# The axes of each operand, J being a part of the axis before which it is split off.
_AXES = {"g": "NJO", "x": "NJI", "w": "JIO"}
_LACKS = {"N": "w", "O": "x", "I": "g"}


def _split(tensor: Tensor, role: str, groups: int) -> Tensor:
    """(V, ..) with the axis that holds J split in two: axes V, then `_AXES[role]`, then the rest."""
    return tensor.unflatten(1 + (role != "w"), (groups, -1))


def _folded(tensor: Tensor, batch: int | None, role: str, into: str, groups: int) -> Tensor:
    """An operand of the one call, from one with the new axis at `batch`, or without (None)."""
    if batch is None:
        return tensor
    moved = _split(tensor.movedim(batch, 0), role, groups)
    place = _AXES[role].index(into)
    moved = moved.movedim(0, place if into != "J" else place)
    return _joined(moved.flatten(place, place + 1), role)


def _joined(tensor: Tensor, role: str) -> Tensor:
    """The two axes of channels that `_split` made, as one again."""
    start = 0 if role == "w" else 1
    return tensor.flatten(start, start + 1)


def _unfolded(result: Tensor, role: str, into: str, groups: int, size: int) -> Tensor:
    """The result of the one call with the new axis first."""
    all_groups = groups * size if into == "J" else groups
    start = 0 if role == "w" else 1
    split = result.unflatten(start, (all_groups, -1))
    place = _AXES[role].index(into)
    split = split.unflatten(place, (size, -1)).movedim(place, 0)
    return split.flatten(1 + start, 2 + start)


def _into(first: tuple[str, Any], second: tuple[str, Any]) -> str:
    """The axis to fold into: what the operand without the new axis lacks; J if both have it."""
    for role, batch in (first, second):
        if batch is None:
            return next(axis for axis, lacking in _LACKS.items() if lacking == role)
    return "J"


def _rule(name: str, roles: str, result: str) -> Callable[..., tuple[Tensor, int]]:
    """The rule of an operator of two operands and one more argument before the five."""

    def rule(info: Any, in_dims: Any, a: Tensor, b: Tensor, extra: Any, *how: Any) -> Any:
        *axes, groups = how
        size = info.batch_size
        into = _into((roles[0], in_dims[0]), (roles[1], in_dims[1]))
        a = _folded(a, in_dims[0], roles[0], into, groups)
        b = _folded(b, in_dims[1], roles[1], into, groups)
        grown = groups * size if into == "J" else groups
        y = getattr(torch.ops.upconv, name)(a, b, extra, *axes, grown)
        return _unfolded(y, result, into, groups, size), 0

    return rule


_PLAIN_FORWARD = _rule("conv_transpose", "xw", "g")


def _forward(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
    """The forward rule: bias, residual and activation follow as operators of their own."""
    from .operators import activated

    how = rest[:5]
    residual, activation = (*rest[5:7], *(None, "")[len(rest[5:7]) :])
    if in_dims[0] is None and in_dims[1] is None:
        y, batch = torch.ops.upconv.conv_transpose(x, weight, None, *how), None
    else:
        y, batch = _PLAIN_FORWARD(info, in_dims, x, weight, None, *how)
    spatial = (1,) * (y.dim() - 2 - (batch is not None))
    if bias is not None:
        moved = bias if in_dims[2] is None else bias.movedim(in_dims[2], 0).unsqueeze(1)
        y = y + moved.reshape(*moved.shape, *spatial)
        batch = 0 if in_dims[2] is not None else batch
    if residual is not None:
        y = y + (residual if in_dims[8] is None else residual.movedim(in_dims[8], 0))
        batch = 0 if in_dims[8] is not None else batch
    return activated(y, activation), batch


RULES: dict[str, Callable[..., Any]] = {
    "conv_transpose": _forward,
    "conv_transpose_input_grad": _rule("conv_transpose_input_grad", "gw", "x"),
    "conv_transpose_weight_grad": _rule("conv_transpose_weight_grad", "gx", "w"),
}
