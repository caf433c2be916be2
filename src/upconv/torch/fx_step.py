"""The function that traced graphs call in place of a deconvolution and what followed it.

What lives here: that function; graphs name it. What never does: graphs.
"""

from __future__ import annotations

from typing import Any

from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from .derivatives import activated
from .functional import convolved
from .fused_operator import FUSED
from .layers import FUNCTIONS, geometry
from .tensors import Tensor


def step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: Any,
    norm: Any = None,
    activation: str = "",
) -> Tensor:
    """A transposed convolution, then a batch normalisation and an activation where there are some.

    x: (N, C, *size), or (C, *size) without a normalisation. norm: (mean, var, gamma, beta, eps).
    activation: as in `upconv.conv_transpose`, "" for none. Tensors on other devices are computed by
    PyTorch's own operators.

    >>> import torch
    >>> step(-torch.ones(1, 1), torch.ones(1, 1, 2), None, [1], [0], [0], [1], 1, None, "relu")
    tensor([[0., 0.]])
    """
    if has_torch_function((x, weight)):  # tracers and subclasses of Tensor see one call
        how = stride, padding, output_padding, dilation, groups
        return handle_torch_function(
            step, (x, weight), x, weight, bias, *how, norm=norm, activation=activation
        )
    rank = weight.dim() - 2
    if not x.is_cpu:
        y = FUNCTIONS[rank](x, weight, bias, stride, padding, output_padding, groups, dilation)
        if norm is not None:
            mean, var, gamma, beta, eps = norm
            y = functional.batch_norm(y, mean, var, gamma, beta, eps=eps)
        return activated(y, activation)
    layer = geometry(rank, stride, padding, output_padding, dilation, groups)
    if norm is None:
        return convolved(rank, x, weight, bias, layer, None, activation, True)
    return FUSED(x, weight, bias, *norm, *layer, None, activation)
