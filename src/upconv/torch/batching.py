"""vmap: one call for a batch of calls, by folding the new axis V into an axis that is there.

The operands of the trilinear form have the axes

    g (N, J, O)    x (N, J, I)    w (J, I, O)

and kernels or positions after them, J being the groups, which PyTorch joins with the axis of
channels that follows. Each of N, I and O is lacked by one operand: N by w, O by x, I by g. An
operator takes two operands and makes the third, which gets V. If one of the two has no V, then V is
folded into the axis which that one lacks, and both others have it. If both have V, it is folded
into J: separate groups.

What lives here: the rules. What never does: the operators themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .derivatives import ROLES, activated
from .tensors import Tensor

_AXES = {"g": "NJO", "x": "NJI", "w": "JIO"}
_LACKED_BY = {"w": "N", "x": "O", "g": "I"}


def _folded(tensor: Tensor, place: int | None, role: str, into: str, groups: int) -> Tensor:
    """An operand of the one call: the new axis, at `place`, folded into another; None: no V."""
    if place is None:
        return tensor
    groups_at, target = _AXES[role].index("J"), _AXES[role].index(into)
    split = tensor.movedim(place, 0).unflatten(1 + groups_at, (groups, -1))
    folded = split.movedim(0, target).flatten(target, target + 1)
    return folded.flatten(groups_at, groups_at + 1)


def _unfolded(result: Tensor, role: str, into: str, groups: int, size: int) -> Tensor:
    """The result of the one call, V taken out of the axis it was folded into and put first."""
    groups_at, target = _AXES[role].index("J"), _AXES[role].index(into)
    grown = groups * size if into == "J" else groups
    split = result.unflatten(groups_at, (grown, -1)).unflatten(target, (size, -1))
    return split.movedim(target, 0).flatten(1 + groups_at, 2 + groups_at)


def _rule(name: str) -> Callable[..., tuple[Tensor, int | None]]:
    """The rule of an operator: two operands, one more argument, the five, and what may follow."""
    result, first, second = ROLES[name]

    def rule(info: Any, in_dims: Any, a: Tensor, b: Tensor, extra: Any, *rest: Any) -> Any:
        size, how, groups = info.batch_size, rest[:4], rest[4]
        without = [
            role for role, place in zip((first, second), in_dims, strict=False) if place is None
        ]
        into = _LACKED_BY[without[0]] if without else "J"
        a = _folded(a, in_dims[0], first, into, groups)
        b = _folded(b, in_dims[1], second, into, groups)
        grown = groups * size if into == "J" else groups
        y = getattr(torch.ops.upconv, name).default(a, b, extra, *how, grown, *rest[5:])
        return _unfolded(y, result, into, groups, size), 0

    return rule


_PRODUCT = _rule("conv_transpose")


def _forward(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
    """The forward rule: bias, residual and activation follow as operators of their own."""
    how = rest[:5]
    residual = rest[5] if len(rest) > 5 else None
    activation = rest[6] if len(rest) > 6 else ""
    if in_dims[0] is None and in_dims[1] is None:
        y = torch.ops.upconv.conv_transpose.default(x, weight, None, *how).unsqueeze(0)
    else:
        y, _ = _PRODUCT(info, in_dims[:2], x, weight, None, *how)
    if bias is not None:
        values = bias.unsqueeze(0) if in_dims[2] is None else bias.movedim(in_dims[2], 0)
        y = y + values.reshape(len(values), 1, -1, *(1,) * (y.dim() - 3))
    if residual is not None:
        place = in_dims[8]
        y = y + (residual.unsqueeze(0) if place is None else residual.movedim(place, 0))
    return activated(y, activation), 0


def _complete(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for axes that may be empty.

    An empty axis cannot be told from the one it is folded into: one entry is, and is then left out.
    """

    def complete(info: Any, in_dims: Any, *arguments: Any) -> Any:
        if info.batch_size:
            return rule(info, in_dims, *arguments)
        given = [
            _with_one(each, place) if isinstance(each, torch.Tensor) else each
            for each, place in zip(arguments, in_dims, strict=True)
        ]
        y, place = rule(info._replace(batch_size=1), in_dims, *given)
        return y.narrow(place, 0, 0), place

    return complete


def _with_one(tensor: Tensor, place: int | None) -> Tensor:
    """A tensor whose mapped axis, which is empty, has one entry of zeros."""
    if place is None:
        return tensor
    shape = (*tensor.shape[:place], 1, *tensor.shape[place + 1 :])
    return torch.cat((tensor, tensor.new_zeros(shape)), place)


RULES: dict[str, Callable[..., Any]] = {
    "conv_transpose": _complete(_forward),
    "conv_transpose_input_grad": _complete(_rule("conv_transpose_input_grad")),
    "conv_transpose_weight_grad": _complete(_rule("conv_transpose_weight_grad")),
}
