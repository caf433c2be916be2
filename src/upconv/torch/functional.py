"""`conv` and `conv_transpose` with the signatures of PyTorch's functions, for any rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..errors import DTypeError, ShapeError
from ..geometry import same_padding
from .operators import CONVOLUTION, FUSED
from .problems import ResultMask
from .tensors import Tensor

Sizes = int | Sequence[int]
"""One number per axis, or a single number for all axes."""

Arguments = tuple[Any, ...]
"""The arguments of `aten::convolution` after its operands. If the padding is a string, only
PyTorch's function can compute the call or raise the error for it."""


def conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Compute `torch.nn.functional.conv1d`, `conv2d` or `conv3d` with upconv.

    input: (N, C, *size) or (C, *size). weight: (F, C/groups, *kernel). bias: (F,). upconv computes
    float16, bfloat16, float32 and float64 on the CPU. Other tensors and invalid arguments go to
    PyTorch's function, which raises its own errors.

    Raises `DTypeError` for a weight that is not a tensor, and `ShapeError` for a weight that does
    not have 3 to 5 axes.

    >>> import torch
    >>> conv(torch.tensor([[[1.0, 2.0, 4.0]]]), torch.tensor([[[-1.0, 1.0]]]))
    tensor([[[1., 2.]]])
    """
    arguments = geometry(_kernel(weight), stride, padding, dilation, False, 0, groups)
    return _computed(input, weight, bias, arguments)


def conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Compute `torch.nn.functional.conv_transpose1d`, `2d` or `3d` with upconv; see `conv`.

    input: (N, C, *size) or (C, *size). weight: (C, F/groups, *kernel). bias: (F,).

    >>> import torch
    >>> x, w = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 10.0, 100.0]]])
    >>> conv_transpose(x, w, stride=2, padding=1, output_padding=1)
    tensor([[[ 10., 102.,  20., 203.,  30., 300.]]])
    """
    arguments = geometry(_kernel(weight), stride, padding, dilation, True, output_padding, groups)
    return _computed(input, weight, bias, arguments)


def _kernel(weight: Tensor) -> Sequence[int]:
    """Return a weight's spatial sizes."""
    if not isinstance(weight, torch.Tensor):
        remedy = (
            "For NumPy arrays, call upconv.conv_transpose or convert them with torch.from_numpy."
        )
        raise DTypeError("weight", f"of type {type(weight).__name__}", "a torch.Tensor", remedy)
    if not 3 <= weight.dim() <= 5:
        raise ShapeError("weight", f"of {weight.dim()} axes", "3, 4 or 5 axes")
    return weight.shape[2:]  # type: ignore[no-any-return]


def geometry(
    kernel: Sequence[int],
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> Arguments:
    """Return the operators' six arguments, given single ints or ints per axis.

    padding: may be "valid" or "same". It stays a string if its two sides differ or PyTorch refuses
    it.
    """
    rank = len(kernel)
    stride, dilation = _per_axis(stride, rank), _per_axis(dilation, rank)
    output_padding = _per_axis(output_padding, rank)
    if not isinstance(padding, str):
        padding = _per_axis(padding, rank)
    elif padding == "valid" and not transposed:
        padding = (0,) * rank
    elif padding == "same" and not transposed and all(step == 1 for step in stride):
        pads = same_pads(kernel, dilation)
        if all(begin == end for begin, end in pads):
            padding = tuple(begin for begin, _ in pads)
    return stride, padding, dilation, transposed, output_padding, groups


def same_pads(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the zero padding at both ends of each axis that keeps the input's size."""
    axes = zip(kernel, dilation, strict=True)
    return tuple(same_padding(1, k, 1, d, upper=True) for k, d in axes)


def _per_axis(value: Any, rank: int) -> Any:
    """Return one entry per axis; a single entry applies to all axes, as in PyTorch."""
    if not isinstance(value, (list, tuple)):
        return (value,) * rank
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def only_pytorch(x: Tensor, weight: Tensor, bias: Tensor | None, arguments: Arguments) -> bool:
    """Whether only PyTorch's function can compute a call or its derivative.

    `register_autograd` supports neither transforms of `torch.func` nor forward-mode
    differentiation, and `torch.onnx.export` knows only PyTorch's operators.
    """
    if not isinstance(x, torch.Tensor) or isinstance(arguments[1], str) or weight.is_complex():
        return True
    if bias is not None and bias.dtype is not weight.dtype:
        return True
    return not torch.compiler.is_compiling() and bool(
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or (torch.jit.is_tracing() and torch.onnx.is_in_onnx_export())
    )


def _computed(x: Tensor, weight: Tensor, bias: Tensor | None, arguments: Arguments) -> Tensor:
    if only_pytorch(x, weight, bias, arguments):
        return by_function(x, weight, bias, arguments)
    return convolved(x, weight, bias, arguments)


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, arguments: Arguments, mask: int = ResultMask.ALL
) -> Tensor:
    """Compute a convolution of an input with or without a batch axis.

    mask: the results that upconv computes if gradients are recorded.
    """
    batched = x.dim() != weight.dim() - 1
    if not batched:
        x = x.unsqueeze(0)
    if recorded(x, weight, bias):
        y = CONVOLUTION(x, weight, bias, *arguments, int(mask))
    else:
        y = FUSED(x, weight, bias, *arguments)
    return y if batched else y.squeeze(0)


def by_function(x: Tensor, weight: Tensor, bias: Tensor | None, arguments: Arguments) -> Tensor:
    """Compute a convolution with PyTorch's function."""
    stride, padding, dilation, transposed, output_padding, groups = arguments
    name = f"conv{'_transpose' if transposed else ''}{weight.dim() - 2}d"
    rest = (output_padding, groups, dilation) if transposed else (dilation, groups)
    return getattr(torch.nn.functional, name)(x, weight, bias, stride, padding, *rest)


def recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records a call on these tensors."""
    given = (tensor for tensor in tensors if tensor is not None)
    return bool(torch.is_grad_enabled()) and any(tensor.requires_grad for tensor in given)
