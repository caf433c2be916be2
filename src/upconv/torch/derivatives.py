"""Derivatives of the operators, to any order and in both modes: the trilinear form t(g, x, w).

Each operator makes one of the three operands from the other two:

    conv_transpose              g = F(x, w)     dt/dg
    conv_transpose_input_grad   x = I(g, w)     dt/dx
    conv_transpose_weight_grad  w = W(g, x)     dt/dw

t is linear in each operand. So, u being the gradient of an operator's result (it stands where the
result stands), the gradient of one operand is the operator that makes it, on u and the other
operand: F's are I(u, w) and W(u, x); I's are F(u, w) and W(g, u); W's are F(x, u) and I(g, u). And
the tangent of a result is the operator itself with either operand replaced by its tangent, both
added up. That is all there is; a derivative is again made of operators, so it has derivatives too.

F also adds a bias, whose gradient is the sum of u. A residual or an activation is fused where no
derivative can be asked for, and follows as PyTorch's own operators where one can.

What lives here: the kernel for PyTorch's autograd key. What never does: numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import _C
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from . import compute
from .layers import Geometry, geometry_of
from .observers import plain, recording, unobserved
from .tensors import Tensor, result_last

# The operand that an operator makes, and the two that it takes, in their order.
ROLES = {
    "conv_transpose": ("g", "x", "w"),
    "conv_transpose_input_grad": ("x", "g", "w"),
    "conv_transpose_weight_grad": ("w", "g", "x"),
}
_MAKES = {roles[0]: name for name, roles in ROLES.items()}
_TAKES = {roles[0]: roles[1:] for roles in ROLES.values()}

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


def made(
    role: str, operands: dict[str, Tensor], extra: Any, how: Any, last: bool | None = None
) -> Tensor:
    """The operand of a role from the other two.

    extra: F's bias or None, else the spatial size of the result. how: the operators' next five.
    last: whether a gradient is channels-last; None as in the operators.
    """
    first, second = (operands[each] for each in _TAKES[role])
    tensors = (first, second, extra if role == "g" else None)
    more = () if role == "g" or last is None else (last,)
    if unobserved() and plain(tensors) and not recording(tensors):
        return _COMPUTED[role](first, second, extra, how, *more)
    op = getattr(torch.ops.upconv, _MAKES[role]).default
    if not torch.is_autocast_enabled("cpu"):
        return op(first, second, extra, *how, *more)
    with torch.autocast("cpu", enabled=False):  # operands have the dtype of the call derived from
        return op(first, second, extra, *how, *more)


_COMPUTED: dict[str, Callable[..., Tensor]] = {
    "g": lambda x, w, bias, how: compute.forward(x, w, bias, geometry_of(how)),
    "x": lambda g, w, size, how, *last: compute.input_grad(
        g, w, tuple(size), geometry_of(how), *last
    ),
    "w": lambda g, x, kernel, how, *last: compute.weight_grad(
        g, x, tuple(kernel), geometry_of(how), *last
    ),
}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an operator: where in PyTorch's dispatcher it is, and the modes it began in.

    A call that goes round the dispatcher has no key set.
    """

    name: str
    keyset: Any
    graded: bool
    forward_graded: bool

    def below(self, arguments: Any) -> Tensor:
        """The operator below autograd, in the modes in which the call began.

        A Function runs its forward with both modes off, but below this level of torch.func there
        may be another one, which has to record too.
        """
        if self.keyset is None:
            x, weight, bias, *rest = arguments
            return compute.forward(x, weight, bias, geometry_of(rest[:5]), *rest[5:])
        with (
            torch.set_grad_enabled(self.graded),
            forward_ad._set_fwd_grad_enabled(self.forward_graded),
            _C._AutoDispatchBelowAutograd(),
        ):
            op = getattr(torch.ops.upconv, self.name).default
            return op.redispatch(self.keyset & _C._after_autograd_keyset, *arguments)


class _Trilinear(_SingleLevelFunction):  # type: ignore[misc]  # PyTorch is untyped here
    """One operator: result = op(a, b, extra, *how), any further arguments having no derivative."""

    @staticmethod
    def forward(ctx: Any, call: _Call, a: Tensor, b: Tensor, extra: Any, *rest: Any) -> Tensor:
        """The result, from below autograd."""
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        ctx.roles, ctx.extra, ctx.how, ctx.count = ROLES[call.name], extra, rest[:5], len(rest)
        ctx.last = rest[5] if ctx.roles[0] != "g" and len(rest) > 5 else None
        return call.below((a, b, extra, *rest))

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        """Gradients of a and b, and of F's bias."""
        (a, b), (result, first, second) = ctx.saved_tensors, ctx.roles
        _, wants_a, wants_b, wants_bias = ctx.needs_input_grad[:4]
        operands = {result: u, first: a, second: b}
        da = db = bias = None
        if wants_a:
            da = _gradient(first, operands, ctx.how)
        if wants_b:
            db = _gradient(second, operands, ctx.how)
        if wants_bias:
            bias = u.sum((0, *range(2, u.dim())))
        return (None, da, db, bias, *(None,) * ctx.count)

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        """What PyTorch's compiled autograd tells functions apart by, as in `autograd.Function`."""
        return (ctx._autograd_function_id,)

    @staticmethod
    def jvp(ctx: Any, _: Any, da: Tensor, db: Tensor, dbias: Tensor, *_rest: Any) -> Tensor:
        """The tangent of the result."""
        (a, b), (result, first, second) = ctx.saved_tensors, ctx.roles
        # F's extra is its bias, which enters the tangent as its own; the others' is a size.
        extra = None if result == "g" else ctx.extra
        parts = []
        if da is not None:
            parts.append(made(result, {first: da, second: b}, extra, ctx.how, ctx.last))
        if db is not None:
            parts.append(made(result, {first: a, second: db}, extra, ctx.how, ctx.last))
        if result == "g" and dbias is not None:
            parts.append(_spread(dbias, a, b, geometry_of(ctx.how)))
        return sum(parts[1:], start=parts[0])


def _gradient(role: str, operands: dict[str, Tensor], how: Any) -> Tensor:
    """The gradient of the operand of a role, in the format that PyTorch gives it."""
    if role == "g":
        return made(role, operands, None, how)
    x, weight = operands["x"], operands["w"]
    last = result_last(role, x.shape, x.stride(), weight.shape, weight.stride())
    own = operands[role]
    gradient = made(role, operands, own.shape[2:], how, last)
    if unobserved() and recording((own,)) and not gradient.requires_grad:
        return _Recorded.apply(gradient, own)
    return gradient


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """A gradient, recorded because its operand is: PyTorch's are, though it is linear in it."""

    @staticmethod
    def forward(_ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        """The gradient as it is."""
        return gradient.view_as(gradient)

    @staticmethod
    def backward(_ctx: Any, u: Tensor) -> Any:
        """Nothing depends on the operand."""
        return u, None


def _spread(bias: Tensor, x: Tensor, weight: Tensor, how: Geometry) -> Tensor:
    """A value per channel at every position of the result."""
    shape = (x.shape[0], bias.shape[0], *how.out_size(x.shape[2:], weight.shape[2:]))
    return bias.reshape(-1, *(1,) * (x.dim() - 2)).expand(shape).clone()


def kernel(name: str) -> Callable[..., Tensor]:
    """The kernel of an operator for the autograd key, to be registered with its key set."""

    def dispatched(keyset: Any, *arguments: Any) -> Tensor:
        modes = torch.is_grad_enabled(), forward_ad._is_fwd_grad_enabled()
        call = _Call(name, keyset, *modes)
        if not (forward_ad._current_level >= 0 or recording(arguments)):
            return call.below(arguments)
        if name == "conv_transpose" and _has_more(arguments):
            return _unfused(*arguments)
        # Transforms of torch.func run this kernel once per level, and each level is one function.
        with enable_single_level_autograd_function():
            return _Trilinear.apply(call, *arguments)

    return dispatched


def recorded(x: Tensor, weight: Tensor, bias: Tensor, how: Geometry, reuse_weight: bool) -> Tensor:
    """A forward call that autograd alone looks at, round the dispatcher."""
    return _Trilinear.apply(_DIRECT, x, weight, bias, *how, None, "", reuse_weight)


_DIRECT = _Call("conv_transpose", None, graded=True, forward_graded=True)


def _has_more(arguments: Any) -> bool:
    """Whether a forward call has a residual or an activation, its ninth and tenth argument."""
    residual, activation = _more(arguments)
    return residual is not None or bool(activation)


def _more(arguments: Any) -> tuple[Tensor, str]:
    """The residual and the activation; PyTorch leaves out arguments that are their defaults."""
    residual = arguments[8] if len(arguments) > 8 else None
    return residual, arguments[9] if len(arguments) > 9 else ""


def _unfused(*arguments: Any) -> Tensor:
    """A forward call with a residual or an activation, each as an operator of its own."""
    residual, activation = _more(arguments)
    y = torch.ops.upconv.conv_transpose.default(*arguments[:8], None, "", *arguments[10:])
    return activated(y if residual is None else y + residual, activation)


def activated(y: Tensor, activation: str) -> Tensor:
    """An activation, in `upconv.conv_transpose`'s words, by PyTorch's own function.

    >>> activated(torch.tensor([-1.0, 2.0]), "leaky_relu:0.5")
    tensor([-0.5000,  2.0000])
    """
    name, _, slope = activation.partition(":")
    if name == "leaky_relu":
        return torch.nn.functional.leaky_relu(y, float(slope or 0.01))
    return _ACTIVATIONS[name](y) if name else y
