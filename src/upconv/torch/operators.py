"""PyTorch's custom operators: the trilinear form t(g, x, w), one operator per direction.

    upconv::conv_transpose              y  = F(x, w)     dt/dg
    upconv::conv_transpose_input_grad   dx = I(g, w)     dt/dx
    upconv::conv_transpose_weight_grad  dw = W(g, x)     dt/dw

t is linear in each operand, so every derivative of an operator is one of the other two (or itself):

    F(x, w):  x -> I(u, w)    w -> W(u, x)     u being the gradient of the operator's result,
    I(g, w):  g -> F(u, w)    w -> W(g, u)     of the shape of the operand that it lacks
    W(g, x):  g -> F(x, u)    x -> I(g, u)

which holds for gradients and, with tangents in the place of u's partners, for forward-mode
derivatives: J(F)(x', w') = F(x', w) + F(x, w'). So derivatives exist to any order. The bias adds a
sum of u. A residual or an activation is fused where no derivative is asked for, and follows as
PyTorch's own operators where one is.

Every operator takes (stride, padding, output_padding, dilation, groups) after its operands. Loading
this module registers them: PyTorch's registry is the one that there is. Besides the CPU kernels
there are fake ones (shapes and strides without data), autograd, autocast and vmap (`batching`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _C

from . import batching, compute
from .layers import Geometry, forward_problem, input_grad_problem, weight_grad_problem
from .tensors import DTYPES, Tensor, channels_last, new_result, require, same_kind

_HOW = (
    "SymInt[] stride, SymInt[] padding, SymInt[] output_padding, SymInt[] dilation, SymInt groups"
)
_SCHEMAS = {
    "conv_transpose": (
        f"(Tensor x, Tensor weight, Tensor? bias, {_HOW}, Tensor? residual=None,"
        ' str activation="", bool reuse_weight=False) -> Tensor'
    ),
    "conv_transpose_input_grad": f"(Tensor g, Tensor weight, SymInt[] size, {_HOW}) -> Tensor",
    "conv_transpose_weight_grad": f"(Tensor g, Tensor x, SymInt[] kernel, {_HOW}) -> Tensor",
}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


def _how(arguments: Any) -> Geometry:
    """The five arguments of an operator that say how operands are combined."""
    *axes, groups = arguments
    return Geometry(*map(tuple, axes), groups)


# CPU kernels.


def _forward(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return compute.forward(x, weight, bias, _how(rest[:5]), *rest[5:])


def _input_grad(g: Tensor, weight: Tensor, size: Any, *how: Any) -> Tensor:
    _require_two("grad", g, "weight", weight)
    return compute.input_grad(g, weight, tuple(size), _how(how))


def _weight_grad(g: Tensor, x: Tensor, kernel: Any, *how: Any) -> Tensor:
    _require_two("grad", g, "input", x)
    return compute.weight_grad(g, x, tuple(kernel), _how(how))


def _require_two(first: str, a: Tensor, second: str, b: Tensor) -> None:
    require(first, a)
    require(second, b)
    same_kind(first, a, second, b)


# Fake kernels: the same checks where sizes are known numbers, and the same strides.


def _fake_forward(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    how = _how(rest[:5])
    residual, activation = (*rest[5:7], *(None, "")[len(rest[5:7]) :])
    _require_two("input", x, "weight", weight)
    for name, operand in (("bias", bias), ("residual", residual)):
        if operand is not None:
            same_kind("input", x, name, operand)
    last = channels_last(x) or channels_last(weight)
    shapes = [None if t is None else tuple(t.shape) for t in (x, weight, bias, residual)]
    if _known(shapes, how):
        forward_problem(*shapes, DTYPES[x.dtype], last, how, activation)
    size = how.out_size(x.shape[2:], weight.shape[2:])
    return new_result((x.shape[0], weight.shape[1] * how.groups, *size), x, last)


def _fake_input_grad(g: Tensor, weight: Tensor, size: Any, *how: Any) -> Tensor:
    _require_two("grad", g, "weight", weight)
    last = channels_last(g) or channels_last(weight)
    shapes = [tuple(g.shape), tuple(weight.shape), tuple(size)]
    if _known(shapes, _how(how)):
        input_grad_problem(*shapes, DTYPES[g.dtype], last, _how(how))
    return new_result((g.shape[0], weight.shape[0], *size), g, last)


def _fake_weight_grad(g: Tensor, x: Tensor, kernel: Any, *how: Any) -> Tensor:
    _require_two("grad", g, "input", x)
    shapes = [tuple(g.shape), tuple(x.shape), tuple(kernel)]
    if _known(shapes, _how(how)):
        weight_grad_problem(*shapes, DTYPES[g.dtype], False, _how(how))
    return new_result((x.shape[1], g.shape[1] // how[-1], *kernel), g, False)


def _known(shapes: list[Any], how: Geometry) -> bool:
    """Whether all sizes are plain numbers, none a compiler's symbol."""
    axes = [entry for entries in (*shapes, *how[:4]) if entries is not None for entry in entries]
    return all(type(entry) is int for entry in (*axes, how.groups))


# Autograd: the table of the module's docstring.


class _Forward(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is untyped here
    """F(x, w) + bias."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Tensor:
        """Below autograd."""
        x, weight, bias = arguments[:3]
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        ctx.how = arguments[3:8]
        ctx.count = len(arguments)
        return _below("conv_transpose", keyset, arguments)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        _, wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:4]
        dx = INPUT_GRAD(u, weight, x.shape[2:], *ctx.how) if wants_x else None
        dw = WEIGHT_GRAD(u, x, weight.shape[2:], *ctx.how) if wants_weight else None
        db = u.sum((0, *range(2, u.dim()))) if wants_bias else None
        return (None, dx, dw, db, *(None,) * (ctx.count - 3))

    @staticmethod
    def jvp(ctx: Any, _: Any, dx: Tensor, dw: Tensor, db: Tensor, *rest: Any) -> Tensor:
        """The tangent of the result."""
        x, weight = ctx.saved_tensors
        by_x = None if dx is None else FORWARD(dx, weight, db, *ctx.how)
        by_weight = None if dw is None else FORWARD(x, dw, db if dx is None else None, *ctx.how)
        if by_x is None and by_weight is None:
            shape = (
                x.shape[0],
                db.shape[0],
                *_how(ctx.how).out_size(x.shape[2:], weight.shape[2:]),
            )
            return db.reshape(-1, *(1,) * (x.dim() - 2)).expand(shape)
        return _sum(by_x, by_weight)


class _InputGrad(torch.autograd.Function):  # type: ignore[misc]
    """I(g, w)."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Tensor:
        """Below autograd."""
        g, weight, size = arguments[:3]
        ctx.save_for_backward(g, weight)
        ctx.save_for_forward(g, weight)
        ctx.size, ctx.how = size, arguments[3:]
        return _below("conv_transpose_input_grad", keyset, arguments)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        """Gradients of g and weight."""
        g, weight = ctx.saved_tensors
        _, wants_g, wants_weight = ctx.needs_input_grad[:3]
        dg = FORWARD(u, weight, None, *ctx.how) if wants_g else None
        dw = WEIGHT_GRAD(g, u, weight.shape[2:], *ctx.how) if wants_weight else None
        return (None, dg, dw, *(None,) * 6)

    @staticmethod
    def jvp(ctx: Any, _: Any, dg: Tensor, dw: Tensor, *rest: Any) -> Tensor:
        """The tangent of the result."""
        g, weight = ctx.saved_tensors
        by_g = None if dg is None else INPUT_GRAD(dg, weight, ctx.size, *ctx.how)
        by_weight = None if dw is None else INPUT_GRAD(g, dw, ctx.size, *ctx.how)
        return _sum(by_g, by_weight)


class _WeightGrad(torch.autograd.Function):  # type: ignore[misc]
    """W(g, x)."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Tensor:
        """Below autograd."""
        g, x, kernel = arguments[:3]
        ctx.save_for_backward(g, x)
        ctx.save_for_forward(g, x)
        ctx.kernel, ctx.how = kernel, arguments[3:]
        return _below("conv_transpose_weight_grad", keyset, arguments)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        """Gradients of g and x."""
        g, x = ctx.saved_tensors
        _, wants_g, wants_x = ctx.needs_input_grad[:3]
        dg = FORWARD(x, u, None, *ctx.how) if wants_g else None
        dx = INPUT_GRAD(g, u, x.shape[2:], *ctx.how) if wants_x else None
        return (None, dg, dx, *(None,) * 6)

    @staticmethod
    def jvp(ctx: Any, _: Any, dg: Tensor, dx: Tensor, *rest: Any) -> Tensor:
        """The tangent of the result."""
        g, x = ctx.saved_tensors
        by_g = None if dg is None else WEIGHT_GRAD(dg, x, ctx.kernel, *ctx.how)
        by_x = None if dx is None else WEIGHT_GRAD(g, dx, ctx.kernel, *ctx.how)
        return _sum(by_g, by_x)


def _sum(first: Tensor, second: Tensor) -> Tensor:
    """The sum of two tangents, either of which may be none."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _below(name: str, keyset: Any, arguments: Any) -> Tensor:
    """The operator's kernel below autograd."""
    with _C._AutoDispatchBelowAutograd():
        op = getattr(torch.ops.upconv, name).default
        return op.redispatch(keyset & _C._after_autograd_keyset, *arguments)


def _differentiated(arguments: Any) -> bool:
    """Whether a derivative may be asked for: reverse mode, or a level of forward mode."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    return bool(
        torch.is_grad_enabled()
        and any(isinstance(each, torch.Tensor) and each.requires_grad for each in arguments)
    )


def _autograd(name: str, function: Any) -> Callable[..., Tensor]:
    """The kernel that records how to differentiate, where that may be asked for."""

    def kernel(keyset: Any, *arguments: Any) -> Tensor:
        if not _differentiated(arguments):
            return _below(name, keyset, arguments)
        if any(arguments[8:10]) if name == "conv_transpose" else False:
            return _unfused(*arguments)
        return function.apply(keyset, *arguments)

    return kernel


def _unfused(*arguments: Any) -> Tensor:
    """A forward call with a residual or an activation, each as an operator of its own."""
    residual, activation = (*arguments[8:10], "")[:2]
    y = FORWARD(*arguments[:8], None, "", *arguments[10:])
    return activated(y if residual is None else y + residual, activation)


def activated(y: Tensor, activation: str) -> Tensor:
    """An activation, in `upconv.conv_transpose`'s words, by PyTorch's own function.

    >>> activated(torch.tensor([-1.0, 2.0]), "leaky_relu:0.5")
    tensor([-0.5000,  2.0000])
    """
    name, _, slope = activation.partition(":")
    if name == "leaky_relu":
        return torch.nn.functional.leaky_relu(y, float(slope or 0.01))
    return ACTIVATIONS[name](y) if name else y


# Autocast: PyTorch runs its own operator in the lower precision, and so is this one.


def _autocast(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    dtype = torch.get_autocast_dtype("cpu")
    how, residual = rest[:5], rest[5:6]
    x, weight, bias, *residual = (_cast(each, dtype) for each in (x, weight, bias, *residual))
    with _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.AutocastCPU)):
        return FORWARD(x, weight, bias, *how, *residual, *rest[6:])


def _cast(tensor: Tensor, dtype: Any) -> Tensor:
    """float64 keeps its precision, as under PyTorch's rule."""
    if tensor is None or tensor.dtype not in DTYPES or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(dtype)


_LIBRARY = torch.library.Library("upconv", "DEF")
_KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Any]] = {
    "conv_transpose": (_forward, _fake_forward, _Forward),
    "conv_transpose_input_grad": (_input_grad, _fake_input_grad, _InputGrad),
    "conv_transpose_weight_grad": (_weight_grad, _fake_weight_grad, _WeightGrad),
}


def _register() -> None:
    """Tell PyTorch's registry."""
    # Results have strides that follow from the operands', so compilers must not change those.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    for name, (kernel, fake, function) in _KERNELS.items():
        _LIBRARY.define(name + _SCHEMAS[name], tags=tags)
        _LIBRARY.impl(name, kernel, "CPU")
        torch.library.register_fake(f"upconv::{name}", fake, lib=_LIBRARY)
        _LIBRARY.impl(name, _autograd(name, function), "Autograd", with_keyset=True)
    _LIBRARY.impl("conv_transpose", _autocast, "AutocastCPU")
    if hasattr(torch.library, "register_vmap"):  # before PyTorch 2.5 vmap loops
        for name, rule in batching.RULES.items():
            torch.library.register_vmap(f"upconv::{name}", rule, lib=_LIBRARY)


_register()

FORWARD = torch.ops.upconv.conv_transpose.default
INPUT_GRAD = torch.ops.upconv.conv_transpose_input_grad.default
WEIGHT_GRAD = torch.ops.upconv.conv_transpose_weight_grad.default
