"""`conv_transpose1d/2d/3d` with PyTorch's signatures, and `conv_transpose` for any of those ranks.

What lives here: the functions and the way of a call to a kernel. What never does: arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from . import compute, derivatives
from .layers import FUNCTIONS, Geometry, geometry
from .observers import plain, recording, unobserved
from .operators import FORWARD
from .refusals import TensorShapeError
from .tensors import Tensor, require, same_kind


def conv_transpose1d(
    input: Tensor,  # noqa: A002  # PyTorch's name
    weight: Tensor,
    bias: Tensor = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose1d`, computed by upconv.

    input: (N, C, L) or (C, L). weight: (C, F/groups, k). bias: (F,). The rest as in PyTorch's
    function. Raises errors that are upconv's and PyTorch's at once (`upconv.torch.refusals`).

    >>> import torch
    >>> x, w = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 10.0, 100.0]]])
    >>> conv_transpose1d(x, w, stride=2, padding=1, output_padding=1)
    tensor([[[ 10., 102.,  20., 203.,  30., 300.]]])
    """
    how = stride, padding, output_padding, groups, dilation
    return _called(conv_transpose1d, 1, input, weight, bias, *how)


def conv_transpose2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose2d`, computed by upconv; see `conv_transpose1d`.

    input: (N, C, H, W) or (C, H, W). weight: (C, F/groups, kH, kW).

    >>> import torch
    >>> x, w = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    >>> conv_transpose2d(x, w)[0, 0]
    tensor([[1., 2., 1.],
            [2., 4., 2.],
            [1., 2., 1.]])
    """
    how = stride, padding, output_padding, groups, dilation
    return _called(conv_transpose2d, 2, input, weight, bias, *how)


def conv_transpose3d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose3d`, computed by upconv; see `conv_transpose1d`.

    input: (N, C, D, H, W) or (C, D, H, W). weight: (C, F/groups, kD, kH, kW).

    >>> import torch
    >>> conv_transpose3d(torch.ones(1, 1, 2, 2, 2), torch.ones(1, 3, 2, 2, 2), stride=2).shape
    torch.Size([1, 3, 4, 4, 4])
    """
    how = stride, padding, output_padding, groups, dilation
    return _called(conv_transpose3d, 3, input, weight, bias, *how)


def conv_transpose(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The one of `conv_transpose1d/2d/3d` that the weight, of rank + 2 axes, asks for.

    >>> import torch
    >>> conv_transpose(torch.ones(1, 1, 3), torch.ones(1, 1, 2), stride=2)
    tensor([[[1., 1., 1., 1., 1., 1.]]])
    """
    how = stride, padding, output_padding, groups, dilation
    return _called(conv_transpose, None, input, weight, bias, *how)


def _called(
    function: Callable[..., Tensor],
    rank: int | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
) -> Tensor:
    """A call of a public function; rank: None for that of the weight."""
    tensors = x, weight, bias
    if has_torch_function(tensors):
        how = stride, padding, output_padding, groups, dilation
        return handle_torch_function(function, tensors, *tensors, *how)
    require("input", x)
    require("weight", weight)
    if bias is not None:
        require("bias", bias)
    if rank is None:
        rank = _rank_of(weight)
    layer = geometry(rank, stride, padding, output_padding, dilation, groups)
    return convolved(rank, x, weight, bias, layer)


def _rank_of(weight: Tensor) -> int:
    rank: int = weight.dim() - 2
    if not 1 <= rank <= 3:
        expected, remedy = "3, 4 or 5 axes", "PyTorch has layers of 1, 2 and 3 spatial axes."
        raise TensorShapeError("weight.shape", str(tuple(weight.shape)), expected, remedy)
    return rank


def convolved(
    rank: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    how: Geometry,
    residual: Tensor = None,
    activation: str = "",
    reuse_weight: bool = False,
) -> Tensor:
    """A transposed convolution on tensors with or without a batch axis, with what may be fused.

    residual: of the result's shape, or None. activation: as in `upconv.conv_transpose`, "" for
    none, "leaky_relu:0.2" with a slope. reuse_weight: the weight may stay packed between calls;
    see `packing` for what makes it packed anew.

    >>> import torch
    >>> how = Geometry((2,), (0,), (0,), (1,), 1)
    >>> convolved(1, torch.ones(1, 2), -torch.ones(1, 1, 2), None, how, activation="relu")
    tensor([[0., 0., 0., 0.]])
    """
    if has_torch_function((x, weight, bias, residual)):
        rest = (how, residual, activation, reuse_weight)
        tensors = (x, weight, bias, residual)
        return handle_torch_function(convolved, tensors, rank, x, weight, bias, *rest)
    axes = x.dim()
    if weight.dim() != rank + 2:
        expected = f"{rank + 2} axes: (in_channels, out_channels/groups, *kernel)"
        raise TensorShapeError("weight.shape", str(tuple(weight.shape)), expected)
    if axes == rank + 1:
        residual = None if residual is None else residual.unsqueeze(0)
        x = x.unsqueeze(0)
    elif axes != rank + 2:
        expected = f"{rank + 2} axes, or {rank + 1} without a batch"
        raise TensorShapeError("input.shape", str(tuple(x.shape)), expected)
    tensors = (x, weight, bias, residual)
    direct = unobserved() and plain(tensors)
    if direct and not recording(tensors):
        y = compute.forward(x, weight, bias, how, residual, activation, reuse_weight)
    elif direct and residual is None and not activation:
        y = derivatives.recorded(x, weight, bias, how, reuse_weight)
    else:
        require("input", x)
        require("weight", weight)
        if x.device != weight.device:
            same_kind("input", x, "weight", weight)
        if torch.onnx.is_in_onnx_export() and residual is None and not activation:
            y = _for_onnx(rank, x, weight, bias, how)
        else:
            y = FORWARD(x, weight, bias, *how, residual, activation, reuse_weight)
    return y if axes == rank + 2 else y.squeeze(0)


def _for_onnx(rank: int, x: Tensor, weight: Tensor, bias: Tensor, how: Geometry) -> Tensor:
    """PyTorch's own operator, which its exporters know."""
    axes = how.stride, how.padding, how.output_padding
    return FUNCTIONS[rank](x, weight, bias, *axes, how.groups, how.dilation)
