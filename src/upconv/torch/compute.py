"""The three directions on tensors: PyTorch allocates the result, an engine fills it.

    forward      y  from x and w
    input_grad   dx from g and w
    weight_grad  dw from g and x

All tensors here are plain, batched and in main memory, as the kernels of operators get them.
Channels-last tensors are computed as NXC arrays, all others as NCX ones, both in place.

What lives here: running. What never does: derivatives, and the words of PyTorch's functions.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .. import memory
from ..engines.base import Primitive
from ..execution import packed
from ..problem import DataLayout, Problem
from .layers import Geometry, forward_problem, input_grad_problem, weight_grad_problem
from .packing import Ready, kept, leased, ready
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
    threads = thread_count()
    found = kept(weight) if reuse_weight else None
    if found is None:
        made = _ready(x, weight, bias, how, residual, activation, threads)
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
        made = found.calls.get(call)
        if made is None:
            made = _ready(x, weight, bias, how, residual, activation, threads, found.calls)
            found.keep(call, made)
    if bias is not None and bias.dtype is not x.dtype:
        same_kind("input", x, "bias", bias)
    if residual is not None and residual.dtype is not x.dtype:
        same_kind("input", x, "residual", residual)
    problem = made.problem
    last = problem.layout is DataLayout.NXC
    y = new_result((problem.batch, problem.out_channels, *problem.out_size), x, last)
    _run(made.primitive, problem, y, array(x), made.weight, bias, residual)
    return y


def _ready(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    how: Geometry,
    residual: Tensor,
    activation: str,
    threads: int,
    calls: dict[Any, Ready] | None = None,
) -> Ready:
    """The call made ready; a weight that another call packed for the same problem is shared."""
    require("input", x)
    require("weight", weight)
    same_kind("input", x, "weight", weight)
    problem = forward_problem(
        tuple(x.shape),
        tuple(weight.shape),
        None if bias is None else tuple(bias.shape),
        None if residual is None else tuple(residual.shape),
        DTYPES[x.dtype],
        channels_last(x) or channels_last(weight),
        how,
        activation,
    )
    for call, made in list((calls or {}).items()):
        if made.problem == problem and call[-1] == threads:
            return made
    return ready(problem, weight, threads)


def input_grad(g: Tensor, weight: Tensor, size: tuple[int, ...], how: Geometry) -> Tensor:
    """The gradient of x, of spatial size `size`, from g of the result's shape."""
    last = channels_last(g) or channels_last(weight)
    shapes = tuple(g.shape), tuple(weight.shape)
    problem = input_grad_problem(*shapes, size, DTYPES[g.dtype], last, how)
    dx = new_result((problem.batch, problem.in_channels, *problem.size), g, last)
    with leased(problem, thread_count()) as primitive:
        _run(primitive, problem, dx, array(g), packed(primitive, array(weight)))
    return dx


def weight_grad(g: Tensor, x: Tensor, kernel: tuple[int, ...], how: Geometry) -> Tensor:
    """The gradient of a weight with `kernel` taps, contiguous, from g and x."""
    last = channels_last(g) and channels_last(x)
    shapes = tuple(g.shape), tuple(x.shape)
    problem = weight_grad_problem(*shapes, kernel, DTYPES[g.dtype], last, how)
    dw = new_result(problem.weight_shape, g, False)
    with leased(problem, thread_count()) as primitive:
        b = _in_order(array(x), problem)
        _guarded(primitive, array(dw), _in_order(array(g), problem), b, None, None)
    return dw


def _run(
    primitive: Primitive,
    problem: Problem,
    out: Tensor,
    a: NDArray[Any],
    b: Any,
    bias: Tensor = None,
    residual: Tensor = None,
) -> None:
    """Run a primitive whose result and first operand are data, b being a packed weight."""
    _guarded(
        primitive,
        _in_order(array(out), problem),
        _in_order(a, problem),
        b,
        None if bias is None else array(bias),
        None if residual is None else _in_order(array(residual), problem),
    )


def _guarded(
    primitive: Primitive,
    out: NDArray[Any],
    a: NDArray[Any],
    b: Any,
    bias: NDArray[Any] | None,
    residual: NDArray[Any] | None,
) -> None:
    try:
        primitive.run(out, a, b, bias, residual)
    except MemoryError as error:
        raise memory.refused("the scratch memory of this call", error) from None


def _in_order(data: NDArray[Any], problem: Problem) -> NDArray[Any]:
    """A tensor's axes, which PyTorch always names N, C, X, in the problem's order."""
    if problem.layout is DataLayout.NCX:
        return data
    return data.transpose(0, *range(2, data.ndim), 1)
