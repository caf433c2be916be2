"""Kernels of the operators for CPU tensors: upconv computes, or PyTorch's operator does.

PyTorch's operator is called for other devices, and where upconv only has its reference engine. It
is also called for dtypes and shapes that upconv does not take, so that it raises its errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..execution import PackedCall, Packings
from ..problem import Direction, Problem
from . import packing
from .problems import Geometry, Operands, axis_order, forward_problem, result_shape
from .tensors import (
    Tensor,
    View,
    array,
    channels_last,
    dense_strides,
    new_result,
    thread_count,
)

ATEN = torch.ops.aten.convolution.default
ATEN_BACKWARD = torch.ops.aten.convolution_backward.default


def activated(y: Tensor, activation: str) -> Tensor:
    """Apply an activation, named as in `upconv.conv_transpose`, by PyTorch's own function."""
    name, _, slope = activation.partition(":")
    parameters = (float(slope),) if slope else ()
    return getattr(torch.nn.functional, name)(y, *parameters) if name else y


def by_pytorch(
    x: Tensor, weight: Tensor, bias: Tensor, arguments: Any, residual: Tensor = None,
    activation: str = "",
) -> Tensor:  # fmt: skip
    """Return the fused operator's result by PyTorch's operators; `arguments`: see `forward`."""
    y = ATEN(x, weight, bias, *arguments)
    if y.device.type == "cpu":
        y = formatted(y, channels_last(x) or channels_last(weight))
    return activated(y if residual is None else y + residual, activation)


class _Call(NamedTuple):
    """A call prepared for its signature: the packed call, and views of the tensors."""

    packed: PackedCall
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    x: View
    out: View
    bias: View | None
    residual: View | None


_BY_PYTORCH = "PyTorch's operator is to be called"


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, arguments: Any, residual: Tensor = None,
    activation: str = "", keep: bool = True,
) -> Tensor:  # fmt: skip
    """Return (N, F, *out_size), channels-last if x or weight is, else contiguous.

    x: (N, C, *size). weight: (C, F/groups, *kernel) if transposed, else (F, C/groups, *kernel).
    bias: (F,) or None. arguments: the six of `aten::convolution` after its operands.
    residual: None, or of the result's shape; it is added before the activation.
    keep: whether the packed weight may be kept for the next call, as it may not in training.
    """
    if x.dtype is not weight.dtype or not weight.numel():
        return by_pytorch(x, weight, bias, arguments, residual, activation)
    table = packing.look_up(weight) if keep else None
    geometry = Geometry.of(arguments)
    signature = (
        x.shape,
        x.stride(),
        None if bias is None else (bias.shape, bias.stride(), bias.dtype),
        None if residual is None else (residual.shape, residual.stride(), residual.dtype),
        geometry,
        activation,
        thread_count(),
    )
    call = None if table is None else table.calls.get(signature)
    if call is None:
        packings = None if table is None else table.packings
        call = _prepared(x, weight, bias, geometry, residual, activation, packings)
        if table is not None:
            table.keep(signature, call or _BY_PYTORCH)
    if not isinstance(call, _Call):
        return by_pytorch(x, weight, bias, arguments, residual, activation)
    y = torch.empty_strided(call.shape, call.strides, dtype=x.dtype, device="cpu")
    residual_array = None if call.residual is None else call.residual.on(residual)
    bias_array = None if call.bias is None else call.bias.on(bias)
    call.packed.run(call.out.on(y), call.x.on(x), bias_array, residual_array)
    return y


def _prepared(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    geometry: Geometry,
    residual: Tensor,
    activation: str,
    packings: Packings | None,
) -> _Call | None:
    """Prepare a call; None where PyTorch's operator is to be called."""
    last = channels_last(x) or channels_last(weight)
    epilogue = bias is not None, residual is not None, activation
    operands = Operands(tuple(x.shape), tuple(weight.shape), x.dtype, last, *epilogue)
    problem = forward_problem(operands, geometry)
    if problem is None:
        return None
    shape = result_shape(problem)
    if bias is not None and (tuple(bias.shape) != shape[1:2] or bias.dtype is not x.dtype):
        return None
    if residual is not None and (tuple(residual.shape) != shape or residual.dtype is not x.dtype):
        return None
    call = packing.packed_call(problem, weight, thread_count(), packings)
    if call is None:
        return None
    order = axis_order(problem)
    strides = dense_strides(shape, last)
    views = (
        View.of(x.shape, x.stride(), x.dtype, order),
        View.of(shape, strides, x.dtype, order),
        None if bias is None else View.of(bias.shape, bias.stride(), bias.dtype),
        None if residual is None else View.of(residual.shape, residual.stride(), x.dtype, order),
    )
    return _Call(call, shape, strides, *views)


def input_grad(g: Tensor, weight: Tensor, size: Any, *arguments: Any) -> Tensor:
    """The gradient of an input of spatial size `size`; channels-last if g or the weight is."""
    geometry, last = Geometry.of(arguments), channels_last(g) or channels_last(weight)
    shape = input_shape(g, weight, size, geometry)
    direction = Direction.INPUT_GRAD if geometry.transposed else Direction.FORWARD
    problem = gradient_problem(shape, weight.shape, g, last, geometry, direction)
    call = None
    if problem is not None and g.dtype is weight.dtype:
        call = packing.packed_call(problem, weight, thread_count())
    if call is None or problem is None:
        return formatted(input_grad_by_pytorch(g, weight, size, *arguments), last)
    dx, order = new_result(shape, g, last), axis_order(problem)
    call.run(array(dx, order), array(g, order))
    return dx


def weight_grad(g: Tensor, x: Tensor, kernel: Any, *arguments: Any) -> Tensor:
    """The gradient of a weight with `kernel` taps; channels-last if g and x are."""
    geometry, last = Geometry.of(arguments), channels_last(g) and channels_last(x)
    shape = weight_shape(g, x, kernel, geometry)
    problem = gradient_problem(x.shape, shape, g, last, geometry, Direction.WEIGHT_GRAD)
    call = None
    if problem is not None and g.dtype is x.dtype:
        call = packing.prepared(problem, thread_count())
    if call is None or problem is None:
        return formatted(weight_grad_by_pytorch(g, x, kernel, *arguments), last)
    dw, order = new_result(shape, g, last), axis_order(problem)
    operands = (g, x) if geometry.transposed else (x, g)
    call.run(array(dw), *(array(operand, order) for operand in operands))
    return dw


def input_grad_by_pytorch(g: Tensor, weight: Tensor, size: Any, *arguments: Any) -> Tensor:
    """`input_grad` by PyTorch's operator, on any device."""
    x = g.new_empty(1).expand(input_shape(g, weight, size, Geometry.of(arguments)))
    return ATEN_BACKWARD(g, x, weight, None, *arguments, (True, False, False))[0]


def weight_grad_by_pytorch(g: Tensor, x: Tensor, kernel: Any, *arguments: Any) -> Tensor:
    """`weight_grad` by PyTorch's operator, on any device."""
    weight = g.new_empty(1).expand(weight_shape(g, x, kernel, Geometry.of(arguments)))
    return ATEN_BACKWARD(g, x, weight, None, *arguments, (False, True, False))[1]


def input_shape(g: Tensor, weight: Tensor, size: Any, geometry: Geometry) -> tuple[Any, ...]:
    """Return the shape of the input that belongs to a result's gradient and a weight."""
    channels = weight.shape[0] if geometry.transposed else weight.shape[1] * geometry.groups
    return (g.shape[0], channels, *size)


def weight_shape(g: Tensor, x: Tensor, kernel: Any, geometry: Geometry) -> tuple[Any, ...]:
    """Return the shape of the weight that belongs to a result's gradient and an input."""
    first, second = (x, g) if geometry.transposed else (g, x)
    return (first.shape[1], second.shape[1] // geometry.groups, *kernel)


def formatted(tensor: Tensor, last: bool) -> Tensor:
    """Return PyTorch's result in the memory format that the fake kernel declares."""
    if tensor.stride() == dense_strides(tensor.shape, last):
        return tensor
    return new_result(tensor.shape, tensor, last).copy_(tensor)


def gradient_problem(
    x: Any, weight: Any, g: Tensor, last: bool, geometry: Geometry, direction: Direction
) -> Problem | None:
    """Return the problem of a gradient; None unless g has the shape of the layer's result."""
    forward = forward_problem(Operands(tuple(x), tuple(weight), g.dtype, last), geometry)
    if forward is None or result_shape(forward) != tuple(g.shape):
        return None
    return forward.replace(direction=direction)
