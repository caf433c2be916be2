"""The three directions on tensors: PyTorch allocates the result, an engine fills it.

    forward      y  from x and w
    input_grad   dx from g and w
    weight_grad  dw from g and x

All tensors here are plain, batched and in main memory, as the kernels of operators get them.
Channels-last tensors are computed as NXC arrays, all others as NCX ones, both in place.

What lives here: running. What never does: derivatives, and the words of PyTorch's functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from .. import memory
from ..engines.base import Primitive
from ..execution import packed
from ..problem import Problem
from .layers import Geometry, input_grad_problem, weight_grad_problem
from .packing import Form, Kept, Ready, axis_order, form, kept, leased, ready
from .tensors import (
    DTYPES,
    Tensor,
    array,
    channels_last,
    new_result,
    require,
    same_kind,
    thread_count,
)

_HOST = torch.device("cpu")


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    how: Geometry,
    residual: Tensor = None,
    activation: str = "",
    reuse_weight: bool = False,
) -> Tensor:
    """The transposed convolution, then + bias, + residual, and the activation.

    x: (N, C, *size). weight: (C, F/groups, *kernel). bias: (F,) or None. residual: the shape of the
    result, or None. activation: as in `upconv.conv_transpose`, "" for none. reuse_weight: the
    weight may be packed once for many calls (`packing`).

    Returns (N, F, *out_size), channels-last if x or weight is, else contiguous.
    """
    if x.is_neg():  # lazily: its memory holds the opposite
        x = x.resolve_neg()
    found = kept(weight) if reuse_weight else None
    threads = thread_count()
    if found is None:
        made = ready(form_of(x, weight, bias, how, residual, activation), weight, threads)
    else:
        call = (
            x.shape,
            x.stride(),
            x.dtype,
            None if bias is None else bias.shape,
            None if residual is None else residual.shape,
            how,
            activation,
            threads,
        )
        looked_up = found.calls.get(call)
        if looked_up is None:
            formed = form_of(x, weight, bias, how, residual, activation)
            looked_up = _shared(found, call, formed, weight, threads)
        made = looked_up
    if (bias is not None and bias.dtype is not x.dtype) or residual is not None:
        _require_kinds(x, bias, residual)
    how_seen = made.form
    y = torch.empty_strided(how_seen.shape, how_seen.strides, dtype=x.dtype, device=_HOST)
    out, a = how_seen.filled.at(y.data_ptr(), y), how_seen.seen.on(x)
    more = None if residual is None else _ordered(residual, how_seen.order)
    offset = None if bias is None else array(bias) if found is None else found.view(bias)
    _run(made.primitive, out, a, made.weight, offset, more)
    return y


def _require_kinds(x: Tensor, bias: Tensor, residual: Tensor) -> None:
    for name, operand in (("bias", bias), ("residual", residual)):
        if operand is not None:
            require(name, operand)
            same_kind("input", x, name, operand)


def _shared(found: Kept, call: Any, formed: Form, weight: Tensor, threads: int) -> Ready:
    """A new call of a kept weight; what another call packed for the same problem is shared."""
    for made in found.calls.values():
        if made.form.problem == formed.problem and made.threads == threads:
            made = replace(made, form=formed)
            break
    else:
        made = ready(formed, weight, threads)
    found.keep(call, made)
    return made


def form_of(
    x: Tensor, weight: Tensor, bias: Tensor, how: Geometry, residual: Tensor, activation: str
) -> Form:
    """The form of a call whose operands are tensors that upconv computes on."""
    require("input", x)
    require("weight", weight)
    same_kind("input", x, "weight", weight)
    _require_kinds(x, bias, residual)
    return form(
        tuple(x.shape),
        x.stride(),
        tuple(weight.shape),
        weight.stride(),
        x.dtype,
        None if bias is None else tuple(bias.shape),
        None if residual is None else tuple(residual.shape),
        how,
        activation,
    )


def input_grad(
    g: Tensor, weight: Tensor, size: tuple[int, ...], how: Geometry, last: bool | None = None
) -> Tensor:
    """The gradient of x, of spatial size `size`, from g of the result's shape.

    last: whether it is channels-last; None: if g or the weight is.
    """
    if last is None:
        last = channels_last(g) or channels_last(weight)
    shapes = tuple(g.shape), tuple(weight.shape)
    problem = input_grad_problem(*shapes, size, DTYPES[g.dtype], last, how)
    dx = new_result((problem.batch, problem.in_channels, *problem.size), g, last)
    with leased(problem, thread_count()) as primitive:
        b = packed(primitive, array(weight))
        _run(primitive, _in_order(dx, problem), _in_order(g, problem), b)
    return dx


def weight_grad(
    g: Tensor, x: Tensor, kernel: tuple[int, ...], how: Geometry, last: bool = False
) -> Tensor:
    """The gradient of a weight with `kernel` taps, channels-last or contiguous, from g and x."""
    both = channels_last(g) and channels_last(x)
    shapes = tuple(g.shape), tuple(x.shape)
    problem = weight_grad_problem(*shapes, kernel, DTYPES[g.dtype], both, how)
    dw = new_result(problem.weight_shape, g, last)
    with leased(problem, thread_count()) as primitive:
        _run(primitive, array(dw), _in_order(g, problem), _in_order(x, problem))
    return dw


def _run(primitive: Primitive, out: NDArray[Any], *operands: Any) -> None:
    try:
        primitive.run(out, *operands)
    except MemoryError as error:
        raise memory.refused("the scratch memory of this call", error) from None


def _in_order(data: Tensor, problem: Problem) -> NDArray[Any]:
    """A tensor's memory with the axes in the problem's order."""
    return _ordered(data, axis_order(problem))


def _ordered(data: Tensor, order: tuple[int, ...] | None) -> NDArray[Any]:
    return array(data) if order is None else array(data).transpose(order)
