"""The operators of `torch.ops.upconv`, transposed convolution and ordinary alike.

    convolution              y from x, w and b; differentiable
    convolution_input_grad   dx from g and w
    convolution_weight_grad  dw from g and x
    fused_convolution        activation(y + residual), for inference: it has no derivative, and a
                             weight that is given to it again is packed once

Every operator takes the arguments of `aten::convolution` (stride, padding, dilation, transposed,
output_padding, groups) after its operands. `convolution` takes at its end which of its results
upconv computes, as `problems.Ours`; PyTorch's operators compute the others. On a GPU upconv
computes where that was measured to be faster (`cuda`), on other devices PyTorch's operators do.

Derivatives of the gradients are made of PyTorch's operators, so there are derivatives of every
order. Loading this module registers: PyTorch's registry is the only one there is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from . import compute, cuda, packing
from .compute import (
    ATEN,
    ATEN_BACKWARD,
    by_pytorch,
    input_grad,
    input_grad_by_pytorch,
    weight_grad,
    weight_grad_by_pytorch,
)
from .problems import Ours
from .tensors import DTYPES, Tensor, channels_last, new_result

_HOW = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed,"
    " SymInt[] output_padding, SymInt groups"
)
_X = "Tensor input, Tensor weight, Tensor? bias"
_SCHEMAS = {
    "convolution": f"({_X}, {_HOW}, int ours=7) -> Tensor",
    "fused_convolution": f'({_X}, {_HOW}, Tensor? residual=None, str activation="") -> Tensor',
    "convolution_input_grad": f"(Tensor grad, Tensor weight, SymInt[] size, {_HOW}) -> Tensor",
    "convolution_weight_grad": f"(Tensor grad, Tensor input, SymInt[] kernel, {_HOW}) -> Tensor",
}


# CPU kernels are in `compute`; these are for other devices, where PyTorch's operators compute.


def _convolution(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    if rest[6:] and not rest[6] & Ours.FORWARD:
        return by_pytorch(x, weight, bias, rest[:6])
    return compute.forward(x, weight, bias, rest[:6], keep=False)


def _fused(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return compute.forward(x, weight, bias, rest[:6], *rest[6:])


def _anywhere(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return ATEN(x, weight, bias, *rest[:6])


def _fused_anywhere(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return by_pytorch(x, weight, bias, rest[:6], *rest[6:])


# CUDA kernels, of which those in `cuda` choose.


def _on_cuda(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    if rest[6:] and not rest[6] & Ours.FORWARD:
        return ATEN(x, weight, bias, *rest[:6])
    return cuda.forward(x, weight, bias, rest[:6])


def _fused_on_cuda(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return cuda.forward(x, weight, bias, rest[:6], *rest[6:])


# Fake kernels: PyTorch's shapes and checks; on the CPU our memory formats.


def _format(result: Tensor, last: bool) -> Tensor:
    return new_result(result.shape, result, last) if result.device.type == "cpu" else result


def _fake(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    y = ATEN(x, weight, bias, *rest[:6])
    return _format(y, channels_last(x) or channels_last(weight))


def _fake_input_grad(g: Tensor, weight: Tensor, size: Any, *how: Any) -> Tensor:
    result = input_grad_by_pytorch(g, weight, size, *how)
    return _format(result, channels_last(g) or channels_last(weight))


def _fake_weight_grad(g: Tensor, x: Tensor, kernel: Any, *how: Any) -> Tensor:
    result = weight_grad_by_pytorch(g, x, kernel, *how)
    return _format(result, channels_last(g) and channels_last(x))


# Derivatives.


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    first, second, _, *how = inputs
    ctx.save_for_backward(first, second)
    ctx.how = how


def _backward(ctx: Any, g: Tensor) -> Any:
    """Gradients of x, weight and bias, each by upconv where that is asked for."""
    x, weight = ctx.saved_tensors
    how, ours = ctx.how[:6], Ours(ctx.how[6])
    wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    dx = dw = None
    if wants_x and ours & Ours.INPUT_GRAD:
        dx = INPUT_GRAD(g, weight, x.shape[2:], *how)
    if wants_weight and ours & Ours.WEIGHT_GRAD:
        dw = WEIGHT_GRAD(g, x, weight.shape[2:], *how)
    left = wants_x and dx is None, wants_weight and dw is None, False
    if any(left):
        others = ATEN_BACKWARD(g, x, weight, None, *how, left)
        dx, dw = (others[0] if left[0] else dx), (others[1] if left[1] else dw)
    db = g.sum((0, *range(2, g.dim()))) if wants_bias else None
    return dx, dw, db, *(None,) * 7


def _gradient_backward(by_weight: bool, ctx: Any, u: Tensor) -> Any:
    """dx = I(g, w) and dw = W(g, x) are linear in both: u stands for x in the one, w in the other.

    by_weight: whether the second operand is w, and u stands for x.
    """
    g, other = ctx.saved_tensors
    operands = (u, other) if by_weight else (other, u)
    first = second = None
    if ctx.needs_input_grad[0]:
        first = ATEN(*operands, None, *ctx.how)
    if ctx.needs_input_grad[1]:
        mask = (not by_weight, by_weight, False)
        second = ATEN_BACKWARD(g, *operands, None, *ctx.how, mask)[int(by_weight)]
    return first, second, *(None,) * 7


# Autocast: as PyTorch's rule for its own operator, the lower precision for all.


def _autocast(name: str) -> Any:
    def cast(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu")
        kept = None
        if name == "fused_convolution" and weight.dtype in DTYPES:
            kept = packing.found(weight)
        if kept is not None and weight.dtype is not torch.float64:
            weight = kept.cast(dtype)  # one tensor for all calls, so that it is packed once
        x, weight, bias, *others = (_lowered(each, dtype) for each in (x, weight, bias, *rest[6:]))
        with torch.autocast("cpu", enabled=False):
            return getattr(torch.ops.upconv, name).default(x, weight, bias, *rest[:6], *others)

    return cast


def _lowered(value: Any, dtype: Any) -> Any:
    """A tensor in the dtype; float64 keeps its precision, as under PyTorch's rule."""
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES:
        return value if value.dtype is torch.float64 else value.to(dtype)
    return value


_LIBRARY = torch.library.Library("upconv", "DEF")
_KERNELS: dict[str, tuple[Any, ...]] = {  # on the CPU, on GPUs, on other devices, fake
    "convolution": (_convolution, _on_cuda, _anywhere, _fake),
    "fused_convolution": (_fused, _fused_on_cuda, _fused_anywhere, _fake),
    "convolution_input_grad": (
        input_grad, cuda.input_grad, input_grad_by_pytorch, _fake_input_grad,
    ),
    "convolution_weight_grad": (
        weight_grad, cuda.weight_grad, weight_grad_by_pytorch, _fake_weight_grad,
    ),
}  # fmt: skip
_DERIVATIVES = {
    "convolution": _backward,
    "convolution_input_grad": partial(_gradient_backward, True),
    "convolution_weight_grad": partial(_gradient_backward, False),
}


def _register() -> None:
    # Results have strides that follow from the operands', so compilers must not change those.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    for name, (on_cpu, on_cuda, anywhere, fake) in _KERNELS.items():
        _LIBRARY.define(name + _SCHEMAS[name], tags=tags)
        _LIBRARY.impl(name, on_cpu, "CPU")
        _LIBRARY.impl(name, on_cuda, "CUDA")
        _LIBRARY.impl(name, anywhere, "CompositeExplicitAutograd")
        torch.library.register_fake(f"upconv::{name}", fake, lib=_LIBRARY)
    for name, derivative in _DERIVATIVES.items():
        autograd = {"setup_context": _save, "lib": _LIBRARY}
        torch.library.register_autograd(f"upconv::{name}", derivative, **autograd)
    for name in ("convolution", "fused_convolution"):
        _LIBRARY.impl(name, _autocast(name), "AutocastCPU")


_register()

CONVOLUTION = torch.ops.upconv.convolution.default
FUSED = torch.ops.upconv.fused_convolution.default
INPUT_GRAD = torch.ops.upconv.convolution_input_grad.default
WEIGHT_GRAD = torch.ops.upconv.convolution_weight_grad.default
