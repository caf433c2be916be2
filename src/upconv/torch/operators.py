"""PyTorch's custom operators: the trilinear form t(g, x, w), one operator per direction.

    upconv::conv_transpose              y  from x and w
    upconv::conv_transpose_input_grad   dx from g and w
    upconv::conv_transpose_weight_grad  dw from g and x

Every operator takes (stride, padding, output_padding, dilation, groups) after its operands, those
of gradients then whether the result is channels-last: PyTorch decides by the operand that it is the
gradient of, which they do not see. By itself dx is if g or the weight is, dw never. Besides
the CPU kernels (`compute`) there are fake ones (shapes and strides without data), and rules for
autograd (`derivatives`), vmap (`batching`) and autocast.

What lives here: schemas, fake kernels, and the one place that registers. Loading this module
registers, since PyTorch's registry is the only one there is. What never does: arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _C

from . import batching, compute, derivatives
from .fused_weights import cast_once
from .layers import Geometry, forward_problem, geometry_of, input_grad_problem, weight_grad_problem
from .observers import plain, recording
from .tensors import (
    DTYPES,
    Tensor,
    channels_last,
    new_result,
    require,
    result_last,
    same_kind,
)

_HOW = (
    "SymInt[] stride, SymInt[] padding, SymInt[] output_padding, SymInt[] dilation, SymInt groups"
)
_SCHEMAS = {
    "conv_transpose": (
        f"(Tensor x, Tensor weight, Tensor? bias, {_HOW}, Tensor? residual=None,"
        ' str activation="", bool reuse_weight=False) -> Tensor'
    ),
    "conv_transpose_input_grad": (
        f"(Tensor g, Tensor weight, SymInt[] size, {_HOW}, bool? channels_last=None) -> Tensor"
    ),
    "conv_transpose_weight_grad": (
        f"(Tensor g, Tensor x, SymInt[] kernel, {_HOW}, bool channels_last=False) -> Tensor"
    ),
}


# CPU kernels.


def _forward(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return compute.forward(x, weight, bias, geometry_of(rest[:5]), *rest[5:])


def _input_grad(g: Tensor, weight: Tensor, size: Any, *rest: Any) -> Tensor:
    _require_two("grad", g, "weight", weight)
    return compute.input_grad(g, weight, tuple(size), geometry_of(rest[:5]), *rest[5:])


def _weight_grad(g: Tensor, x: Tensor, kernel: Any, *rest: Any) -> Tensor:
    _require_two("grad", g, "input", x)
    return compute.weight_grad(g, x, tuple(kernel), geometry_of(rest[:5]), *rest[5:])


def _require_two(first: str, a: Tensor, second: str, b: Tensor) -> None:
    require(first, a)
    require(second, b)
    same_kind(first, a, second, b)


# Fake kernels: the same checks where sizes are known numbers, and the same strides.


def fake_forward(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    """A result without data, of operands that are checked as those with data are."""
    how = geometry_of(rest[:5])
    residual = rest[5] if len(rest) > 5 else None
    activation = rest[6] if len(rest) > 6 else ""
    _require_two("input", x, "weight", weight)
    for name, operand in (("bias", bias), ("residual", residual)):
        if operand is not None:
            same_kind("input", x, name, operand)
    last = result_last("g", x.shape, x.stride(), weight.shape, weight.stride())
    shapes = [None if each is None else tuple(each.shape) for each in (x, weight, bias, residual)]
    if _known(shapes, how):
        forward_problem(*shapes, DTYPES[x.dtype], last, how, activation)
    size = how.out_size(x.shape[2:], weight.shape[2:])
    return new_result((x.shape[0], weight.shape[1] * how.groups, *size), x, last)


def _fake_input_grad(g: Tensor, weight: Tensor, size: Any, *rest: Any) -> Tensor:
    _require_two("grad", g, "weight", weight)
    how, last = geometry_of(rest[:5]), rest[5] if len(rest) > 5 else None
    if last is None:
        last = channels_last(g) or channels_last(weight)
    shapes = [tuple(g.shape), tuple(weight.shape), tuple(size)]
    if _known(shapes, how):
        input_grad_problem(*shapes, DTYPES[g.dtype], last, how)
    return new_result((g.shape[0], weight.shape[0], *size), g, last)


def _fake_weight_grad(g: Tensor, x: Tensor, kernel: Any, *rest: Any) -> Tensor:
    _require_two("grad", g, "input", x)
    how, last = geometry_of(rest[:5]), rest[5] if len(rest) > 5 else False
    shapes = [tuple(g.shape), tuple(x.shape), tuple(kernel)]
    if _known(shapes, how):
        weight_grad_problem(*shapes, DTYPES[g.dtype], False, how)
    return new_result((x.shape[1], g.shape[1] // how.groups, *kernel), g, last)


def _known(shapes: list[Any], how: Geometry) -> bool:
    """Whether all sizes are plain numbers, none a compiler's symbol."""
    axes = [entry for entries in (*shapes, *how[:4]) if entries is not None for entry in entries]
    return all(type(entry) is int for entry in (*axes, how.groups))


# Autocast: PyTorch runs its own operator in the lower precision, and so is this one.


def _autocast(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    dtype = torch.get_autocast_dtype("cpu")
    reused = rest[7:] == (True,) and plain((weight,)) and not recording((weight,))
    if reused and weight.dtype is not torch.float64 and not _C._are_functorch_transforms_active():
        weight = cast_once(weight, dtype)
    x, weight = _cast(x, dtype), _cast(weight, dtype)
    bias, *residual = [_added(_cast(each, dtype), x) for each in (bias, *rest[5:6])]
    with _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.AutocastCPU)):
        return FORWARD(x, weight, bias, *rest[:5], *residual, *rest[6:])


def _cast(tensor: Tensor, dtype: Any) -> Tensor:
    """float64 keeps its precision, as under PyTorch's rule."""
    if tensor is None or tensor.dtype not in DTYPES or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(dtype)


def _added(tensor: Tensor, x: Tensor) -> Tensor:
    """What is added to sums of float64, of any precision."""
    if tensor is None or x.dtype is not torch.float64 or tensor.dtype not in DTYPES:
        return tensor
    return tensor.to(x.dtype)


_LIBRARY = torch.library.Library("upconv", "DEF")
_KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "conv_transpose": (_forward, fake_forward),
    "conv_transpose_input_grad": (_input_grad, _fake_input_grad),
    "conv_transpose_weight_grad": (_weight_grad, _fake_weight_grad),
}


def _register() -> None:
    """Tell PyTorch's registry."""
    # Results have strides that follow from the operands', so compilers must not change those.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    for name, (computed, imagined) in _KERNELS.items():
        _LIBRARY.define(name + _SCHEMAS[name], tags=tags)
        _LIBRARY.impl(name, computed, "CPU")
        torch.library.register_fake(f"upconv::{name}", imagined, lib=_LIBRARY)
        _LIBRARY.impl(name, derivatives.kernel(name), "Autograd", with_keyset=True)
    _LIBRARY.impl("conv_transpose", _autocast, "AutocastCPU")
    if hasattr(torch.library, "register_vmap"):  # before PyTorch 2.5 vmap loops
        for name, rule in batching.RULES.items():
            torch.library.register_vmap(f"upconv::{name}", rule, lib=_LIBRARY)


_register()

FORWARD = torch.ops.upconv.conv_transpose.default
