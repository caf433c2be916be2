"""The operators' kernels for CPU tensors: they call upconv or PyTorch's operator.

PyTorch's operator handles other devices, and problems that only upconv's reference engine computes.
It also handles dtypes and shapes that upconv does not support, with its own errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..execution import PackedCall, Packings
from ..problem import Direction, Problem
from . import packing
from .problems import Geometry, Operands, axis_order, forward_problem, result_shape
from .tensors import Tensor, View, array, channels_last, dense_strides, new_result, thread_count

ATEN = torch.ops.aten.convolution.default
ATEN_BACKWARD = torch.ops.aten.convolution_backward.default


def activated(y: Tensor, activation: str) -> Tensor:
    """Apply an activation, named as in `upconv.conv_transpose`, with PyTorch's own function."""
    name, _, slope = activation.partition(":")
    parameters = (float(slope),) if slope else ()
    function = {"hard_swish": "hardswish"}.get(name, name)
    return getattr(torch.nn.functional, function)(y, *parameters) if name else y


def by_pytorch(
    x: Tensor, weight: Tensor, bias: Tensor, arguments: Any, residual: Tensor = None,
    activation: str = "",
) -> Tensor:  # fmt: skip
    """Compute the fused operator with PyTorch's operators; `arguments` as in `forward`."""
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


_BY_PYTORCH = "PyTorch's operator computes the call"


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, arguments: Any, residual: Tensor = None,
    activation: str = "", keep: bool = True,
) -> Tensor:  # fmt: skip
    """Return (N, F, *out_size), channels-last if x or weight is, else contiguous.

    x: (N, C, *size). weight: (C, F/groups, *kernel) if transposed, else (F, C/groups, *kernel).
    bias: (F,) or None. arguments: the six that `aten::convolution` takes after its
    operands. residual: None, or a tensor of the result's shape to add before the activation.
    keep: whether later calls may reuse the packed weight; not in training.
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
        result = forward_result(x, weight, bias, geometry, residual, activation)
        packings = None if table is None else table.packings
        call = None if result is None else _prepared(result, x, weight, bias, residual, packings)
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
    result: Result, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor,
    packings: Packings | None,
) -> _Call | None:  # fmt: skip
    """Prepare a call; None if PyTorch's operator must compute it."""
    call = packing.packed_call(result.problem, weight, thread_count(), packings)
    if call is None:
        return None
    order, shape = axis_order(result.problem), result.shape
    strides = dense_strides(shape, result.last)
    views = (
        View.of(x.shape, x.stride(), x.dtype, order),
        View.of(shape, strides, x.dtype, order),
        None if bias is None else View.of(bias.shape, bias.stride(), bias.dtype),
        None if residual is None else View.of(residual.shape, residual.stride(), x.dtype, order),
    )
    return _Call(call, shape, strides, *views)


def input_grad(g: Tensor, weight: Tensor, size: Any, *arguments: Any) -> Tensor:
    """Return the gradient of an input of this size; channels-last if g or the weight is."""
    result = input_result(g, weight, size, arguments)
    call = None if result is None else packing.packed_call(result.problem, weight, thread_count())
    if call is None or result is None:
        last = channels_last(g) or channels_last(weight)
        return formatted(input_grad_by_pytorch(g, weight, size, *arguments), last)
    dx, order = new_result(result.shape, g, result.last), axis_order(result.problem)
    call.run(array(dx, order), array(g, order))
    return dx


def weight_grad(g: Tensor, x: Tensor, kernel: Any, *arguments: Any) -> Tensor:
    """Return the gradient of a weight with `kernel` taps; channels-last if g and x are."""
    result = weight_result(g, x, kernel, arguments)
    call = None if result is None else packing.prepared(result.problem, thread_count())
    if call is None or result is None:
        last = channels_last(g) and channels_last(x)
        return formatted(weight_grad_by_pytorch(g, x, kernel, *arguments), last)
    dw, order = new_result(result.shape, g, result.last), axis_order(result.problem)
    operands = (x, g) if result.exchanged else (g, x)
    call.run(array(dw), *(array(operand, order) for operand in operands))
    return dw


def input_grad_by_pytorch(g: Tensor, weight: Tensor, size: Any, *arguments: Any) -> Tensor:
    """Compute `input_grad` with PyTorch's operator, on any device."""
    x = g.new_empty(1).expand(_input_shape(g, weight, size, Geometry.of(arguments)))
    return ATEN_BACKWARD(g, x, weight, None, *arguments, (True, False, False))[0]


def weight_grad_by_pytorch(g: Tensor, x: Tensor, kernel: Any, *arguments: Any) -> Tensor:
    """Compute `weight_grad` with PyTorch's operator, on any device."""
    weight = g.new_empty(1).expand(_weight_shape(g, x, kernel, Geometry.of(arguments)))
    return ATEN_BACKWARD(g, x, weight, None, *arguments, (False, True, False))[1]


def formatted(tensor: Tensor, last: bool) -> Tensor:
    """Return PyTorch's result in the memory format that the fake kernel declares."""
    if tensor.stride() == dense_strides(tensor.shape, last):
        return tensor
    return new_result(tensor.shape, tensor, last).copy_(tensor)


class Result(NamedTuple):
    """A result that upconv can compute: its problem, its shape in PyTorch and its memory format."""

    problem: Problem
    shape: tuple[int, ...]
    last: bool
    exchanged: bool = False
    """Whether the problem takes the operands in reverse order."""


def forward_result(
    x: Tensor, weight: Tensor, bias: Tensor, arguments: Any, residual: Tensor, activation: str
) -> Result | None:
    """Return the layer's result; None if PyTorch's operator must compute it."""
    last = channels_last(x) or channels_last(weight)
    epilogue = bias is not None, residual is not None, activation
    operands = Operands(tuple(x.shape), tuple(weight.shape), x.dtype, last, *epilogue)
    problem = forward_problem(operands, Geometry.of(arguments))
    if problem is None or x.dtype is not weight.dtype:
        return None
    shape = result_shape(problem)
    for tensor, expected in (bias, shape[1:2]), (residual, shape):
        if tensor is not None and (tuple(tensor.shape), tensor.dtype) != (expected, x.dtype):
            return None  # PyTorch broadcasts, converts or refuses
    return Result(problem, shape, last)


def input_result(g: Tensor, weight: Tensor, size: Any, arguments: Any) -> Result | None:
    """Return the gradient of the input; None if PyTorch's operator must compute it."""
    geometry, last = Geometry.of(arguments), channels_last(g) or channels_last(weight)
    direction = Direction.INPUT_GRAD if geometry.transposed else Direction.FORWARD
    shape = _input_shape(g, weight, size, geometry)
    operands = Operands(shape, tuple(weight.shape), weight.dtype, last)
    problem = _gradient_problem(operands, g, geometry, direction)
    return None if problem is None else Result(problem, shape, last)


def weight_result(g: Tensor, x: Tensor, kernel: Any, arguments: Any) -> Result | None:
    """Return the gradient of the weight; None if PyTorch's operator must compute it."""
    geometry, last = Geometry.of(arguments), channels_last(g) and channels_last(x)
    shape = _weight_shape(g, x, kernel, geometry)
    operands = Operands(tuple(x.shape), shape, x.dtype, last)
    problem = _gradient_problem(operands, g, geometry, Direction.WEIGHT_GRAD)
    return None if problem is None else Result(problem, shape, last, not geometry.transposed)


def _input_shape(g: Tensor, weight: Tensor, size: Any, geometry: Geometry) -> tuple[Any, ...]:
    """Return the input's shape, given the result's gradient and the weight."""
    channels = weight.shape[0] if geometry.transposed else weight.shape[1] * geometry.groups
    return (g.shape[0], channels, *size)


def _weight_shape(g: Tensor, x: Tensor, kernel: Any, geometry: Geometry) -> tuple[Any, ...]:
    """Return the weight's shape, given the result's gradient and the input."""
    first, second = (x, g) if geometry.transposed else (g, x)
    return (first.shape[1], second.shape[1] // geometry.groups, *kernel)


def _gradient_problem(
    operands: Operands, g: Tensor, geometry: Geometry, direction: Direction
) -> Problem | None:
    """Return a gradient's problem; None unless g fits the layer's result and operands."""
    forward = forward_problem(operands, geometry)
    if forward is None or (result_shape(forward), operands.dtype) != (tuple(g.shape), g.dtype):
        return None
    return forward.replace(direction=direction)
