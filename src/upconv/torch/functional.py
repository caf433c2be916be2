"""`conv` and `conv_transpose` with the signatures of PyTorch's functions, for any rank."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from .compute import activated
from .operators import CONVOLUTION, FUSED
from .problems import Ours
from .tensors import Tensor


def conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.nn.functional.conv1d`, `conv2d` or `conv3d`, by the weight's axes, by upconv.

    input: (N, C, *size) or (C, *size). weight: (F, C/groups, *kernel). bias: (F,). float16,
    bfloat16, float32 and float64 on the CPU; other tensors, and what PyTorch refuses, go to
    PyTorch's operator, which raises its errors.

    >>> import torch
    >>> conv(torch.tensor([[[1.0, 2.0, 4.0]]]), torch.tensor([[[-1.0, 1.0]]]))
    tensor([[[1., 2.]]])
    """
    rank = weight.dim() - 2
    if isinstance(padding, str):
        padding = symmetric(padding, weight.shape[2:], _each(dilation, rank))
        if padding is None:  # one position more at the end: PyTorch's function pads the input
            function = getattr(torch.nn.functional, f"conv{rank}d")
            return function(input, weight, bias, stride, "same", dilation, groups)
    how = geometry(rank, stride, padding, dilation, False, 0, groups)
    return convolved(rank, input, weight, bias, how)


def conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose1d`, `2d` or `3d`, by the weight's axes; see `conv`.

    input: (N, C, *size) or (C, *size). weight: (C, F/groups, *kernel). bias: (F,).

    >>> import torch
    >>> x, w = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 10.0, 100.0]]])
    >>> conv_transpose(x, w, stride=2, padding=1, output_padding=1)
    tensor([[[ 10., 102.,  20., 203.,  30., 300.]]])
    """
    rank = weight.dim() - 2
    how = geometry(rank, stride, padding, dilation, True, output_padding, groups)
    return convolved(rank, input, weight, bias, how)


def symmetric(padding: str, kernel: Any, dilation: Any) -> list[int] | None:
    """The padding "same" or "valid" as numbers; None where the two sides differ."""
    if padding == "valid":
        return [0] * len(kernel)
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if padding != "same" or any(total % 2 for total in totals):
        return None
    return [total // 2 for total in totals]


def _each(value: Any, rank: int) -> Any:
    """One entry per axis; one alone stands for all, as in PyTorch."""
    if not isinstance(value, (list, tuple)):
        return (value,) * rank
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def geometry(
    rank: int,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> tuple[Any, ...]:
    """The six arguments of the operators, from ints or one int per axis."""
    axes = [_each(each, rank) for each in (stride, padding, dilation, output_padding)]
    return (*axes[:3], transposed, axes[3], groups)


def derived_otherwise() -> bool:
    """Whether PyTorch's function has to be called, as something else than autograd looks at it."""
    # `register_autograd` serves neither transforms of `torch.func` nor forward-mode
    # differentiation; `torch.onnx.export` knows PyTorch's operators only.
    return bool(
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or (torch.jit.is_tracing() and torch.onnx.is_in_onnx_export())
    )


def convolved(
    rank: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    how: tuple[Any, ...],
    ours: int = Ours.ALL,
    activation: str = "",
) -> Tensor:
    """A convolution with or without a batch axis; `ours` counts where gradients are recorded."""
    batched = x.dim() != rank + 1
    if not batched:
        x = x.unsqueeze(0)
    if weight.is_complex() or (not torch.compiler.is_compiling() and derived_otherwise()):
        y = activated(_by_function(rank, x, weight, bias, *how), activation)
    elif recorded(x, weight, bias):
        y = CONVOLUTION(x, weight, bias, *how, int(ours))
    elif activation:
        y = FUSED(x, weight, bias, *how, None, activation)
    else:
        y = FUSED(x, weight, bias, *how)
    return y if batched else y.squeeze(0)


def _by_function(rank: int, x: Tensor, weight: Tensor, bias: Tensor, *how: Any) -> Tensor:
    stride, padding, dilation, transposed, output_padding, groups = how
    function = getattr(torch.nn.functional, f"conv{'_transpose' if transposed else ''}{rank}d")
    rest = (output_padding, groups, dilation) if transposed else (dilation, groups)
    return function(x, weight, bias, stride, padding, *rest)


def recorded(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether autograd records a call on these tensors."""
    return bool(
        torch.is_grad_enabled()
        and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad))
    )
