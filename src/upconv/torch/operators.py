"""The operators of `torch.ops.upconv` for transposed and ordinary convolutions.

    convolution              y from x, w and b; differentiable
    convolution_input_grad   dx from g and w
    convolution_weight_grad  dw from g and x
    fused_convolution        activation(y + residual), for inference. It has no derivative, and
                             repeated calls share a packed weight.

Every operator takes the arguments of `aten::convolution` (stride, padding, dilation, transposed,
output_padding, groups) after its operands. The last argument of `convolution`, `ours`, is the
`ResultMask` of the results that upconv computes; PyTorch's operators compute the others. On a GPU
upconv computes a result if a measurement shows that it is faster (`cuda`). On other devices PyTorch
computes all. Derivatives of the gradients use PyTorch's operators, so those of every order exist.

Importing this module registers the operators, because PyTorch's registry is global.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from . import compute, cuda, packing
from .compute import ATEN, ATEN_BACKWARD, by_pytorch
from .problems import ResultMask
from .tensors import DTYPES, Tensor, channels_last, new_result

_LAYER = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed,"
    " SymInt[] output_padding, SymInt groups"
)
_INPUTS = "Tensor input, Tensor weight, Tensor? bias"
_EPILOGUE = 'Tensor? residual=None, str activation=""'
_SCHEMAS = {
    "convolution": f"({_INPUTS}, {_LAYER}, int ours=7) -> Tensor",
    "fused_convolution": f"({_INPUTS}, {_LAYER}, {_EPILOGUE}) -> Tensor",
    "convolution_input_grad": f"(Tensor grad, Tensor weight, SymInt[] size, {_LAYER}) -> Tensor",
    "convolution_weight_grad": f"(Tensor grad, Tensor input, SymInt[] kernel, {_LAYER}) -> Tensor",
}


# Kernels take PyTorch's flat arguments: the operands, the six arguments and any further ones.


def _differentiable(kernel: Any) -> Any:
    """Return the kernel of `convolution`; PyTorch computes the result if `ours` excludes it."""

    def call(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        by_upconv = not rest[6:] or rest[6] & ResultMask.FORWARD
        return (kernel if by_upconv else by_pytorch)(x, weight, bias, rest[:6])

    return call


def _fused(kernel: Any) -> Any:
    """Return the kernel of `fused_convolution`."""

    def call(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        return kernel(x, weight, bias, rest[:6], *rest[6:])

    return call


def _fake(kernel: Any, joined: Any) -> Any:
    """Return a fake kernel with PyTorch's shapes and checks, and upconv's formats on the CPU.

    joined: `any` or `all`. The result is channels-last if any or all of the first two operands are.
    """

    def call(*arguments: Any) -> Tensor:
        result = kernel(*arguments)
        if result.device.type != "cpu":
            return result
        return new_result(result.shape, result, joined(map(channels_last, arguments[:2])))

    return call


def _by_pytorch(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return ATEN(x, weight, bias, *rest[:6])


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    first, second, _, *arguments = inputs
    ctx.save_for_backward(first, second)
    ctx.arguments = arguments


def _backward(ctx: Any, g: Tensor) -> Any:
    """Return the gradients of x, weight and bias; upconv computes those in the mask."""
    x, weight = ctx.saved_tensors
    arguments, mask = ctx.arguments[:6], ResultMask(ctx.arguments[6])
    wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    dx = dw = None
    if wants_x and mask & ResultMask.INPUT_GRAD:
        dx = INPUT_GRAD(g, weight, x.shape[2:], *arguments)
    if wants_weight and mask & ResultMask.WEIGHT_GRAD:
        dw = WEIGHT_GRAD(g, x, weight.shape[2:], *arguments)
    remaining = wants_x and dx is None, wants_weight and dw is None, False
    if any(remaining):
        others = ATEN_BACKWARD(g, x, weight, None, *arguments, remaining)
        dx, dw = (others[0] if remaining[0] else dx), (others[1] if remaining[1] else dw)
    db = g.sum((0, *range(2, g.dim()))) if wants_bias else None
    return dx, dw, db, *(None,) * 7


def _gradient_backward(by_weight: bool, ctx: Any, u: Tensor) -> Any:
    """Return the gradients of dx = I(g, w), or of dw = W(g, x), which are linear in both operands.

    by_weight: whether the second operand is w. If so, u replaces x, else w.
    """
    g, other = ctx.saved_tensors
    operands = (u, other) if by_weight else (other, u)
    first = second = None
    if ctx.needs_input_grad[0]:
        first = ATEN(*operands, None, *ctx.arguments)
    if ctx.needs_input_grad[1]:
        mask = (not by_weight, by_weight, False)
        second = ATEN_BACKWARD(g, *operands, None, *ctx.arguments, mask)[int(by_weight)]
    return first, second, *(None,) * 7


# Autocast lowers the precision of all operands, as for PyTorch's own operator.


def _autocast(name: str) -> Any:
    def cast(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu")
        packed = None
        if name == "fused_convolution" and weight.dtype in DTYPES:
            packed = packing.look_up(weight)
        if packed is not None and weight.dtype is not torch.float64:
            weight = packed.cast(dtype)  # one tensor for all calls, so that it is packed once
        x, weight, bias, *others = (
            _lowered(value, dtype) for value in (x, weight, bias, *rest[6:])
        )
        with torch.autocast("cpu", enabled=False):
            return getattr(torch.ops.upconv, name).default(x, weight, bias, *rest[:6], *others)

    return cast


def _lowered(value: Any, dtype: Any) -> Any:
    """Return a tensor in the dtype; float64 keeps its precision, as under PyTorch's rule."""
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES:
        return value if value.dtype is torch.float64 else value.to(dtype)
    return value


_LIBRARY = torch.library.Library("upconv", "DEF")
_KERNELS: dict[str, tuple[Any, ...]] = {  # on the CPU, on GPUs, on other devices, fake
    "convolution": (
        _differentiable(partial(compute.forward, keep=False)), _differentiable(cuda.forward),
        _differentiable(by_pytorch), _fake(_by_pytorch, any),
    ),
    "fused_convolution": (
        _fused(compute.forward), _fused(cuda.forward), _fused(by_pytorch), _fake(_by_pytorch, any),
    ),
    "convolution_input_grad": (
        compute.input_grad, cuda.input_grad, compute.input_grad_by_pytorch,
        _fake(compute.input_grad_by_pytorch, any),
    ),
    "convolution_weight_grad": (
        compute.weight_grad, cuda.weight_grad, compute.weight_grad_by_pytorch,
        _fake(compute.weight_grad_by_pytorch, all),
    ),
}  # fmt: skip
_DERIVATIVES = {
    "convolution": _backward,
    "convolution_input_grad": partial(_gradient_backward, True),
    "convolution_weight_grad": partial(_gradient_backward, False),
}


def _register() -> None:
    # The strides of results follow from those of operands, which compilers must not change.
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
