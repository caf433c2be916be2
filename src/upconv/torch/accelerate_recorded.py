"""A deconvolution in eval mode whose gradients are recorded: the backward pass is PyTorch's.

What lives here: that function. What never does: training, which is PyTorch's altogether.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .accelerate_swaps import is_as_swapped
from .compute import forward
from .fused import Module, geometry_of
from .layers import Geometry
from .observers import observed, plain_of
from .tensors import DTYPES, Tensor


class _Recorded(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is untyped here
    """A deconvolution forward by upconv, backward by PyTorch's own operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, how: Geometry) -> Tensor:
        """Of plain batched tensors; the weight is at rest."""
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.bias = how, None if bias is None else list(bias.shape)
        return forward(x, weight, bias, how, reuse_weight=True)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        """Gradients of x, weight and bias; they can be differentiated again."""
        x, weight = ctx.saved_tensors
        stride, padding, output_padding, dilation, groups = ctx.how
        wanted = list(ctx.needs_input_grad[:3])
        geometry = (stride, padding, dilation, True, output_padding, groups, wanted)
        dx, dw, db = torch.ops.aten.convolution_backward(g, x, weight, ctx.bias, *geometry)
        return dx, dw, db, None


def recordable(layer: Module, x: Tensor) -> bool:
    """Whether a call that gradients may be asked of can be computed by `recorded`."""
    if type(x) is not torch.Tensor or x.dtype not in DTYPES:
        return False
    if x.dim() != len(layer.kernel_size) + 2 or not is_as_swapped(layer):
        return False
    weight, bias = layer.weight, layer.bias
    if "parametrizations" in layer._modules or type(weight) is not nn.Parameter:
        return False
    return plain_of((x, weight, bias), x.dtype) and not observed()


def recorded(layer: Module, x: Tensor, output_size: Any) -> Tensor:
    """A layer in eval mode whose gradients are recorded: forward by upconv, backward by PyTorch."""
    how = geometry_of(layer, x, output_size)
    return _Recorded.apply(x, layer.weight, layer.bias, how)
