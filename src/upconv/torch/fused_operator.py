"""The operator of a deconvolution and its batch normalisation, for graphs of compilers.

    upconv::conv_transpose_norm   y = activation(norm(conv_transpose(x, w) + bias) + residual)

It takes the parameters as they are trained and folds them itself, once while they are at rest, so
that a graph never holds a copy that could become stale. Derivatives, in either mode, transforms and
autocast are those of the operators one after the other.

What lives here: the operator. What never does: the operators of the trilinear form (`operators`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad

from .compute import form_of, forward
from .derivatives import activated
from .fused_weights import Normalization, Source, folded
from .layers import geometry_of
from .observers import recording
from .operators import FORWARD, fake_forward
from .refusals import TensorShapeError
from .tensors import Tensor

_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, Tensor mean, Tensor var, Tensor? gamma, Tensor? beta,"
    " float eps, SymInt[] stride, SymInt[] padding, SymInt[] output_padding, SymInt[] dilation,"
    ' SymInt groups, Tensor? residual=None, str activation="") -> Tensor'
)


def _kernel(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    norm, how = Normalization(*rest[:5]), geometry_of(rest[5:10])
    residual, activation = _extras(rest[10:])
    form_of(x, weight, bias, how, residual, activation)  # refuses what does not fit together
    _require_fitting(weight, norm, how.groups)
    used = folded(Source((weight,)), bias, norm, how.groups)
    return forward(x, used.weight, used.bias, how, residual, activation, reuse_weight=True)


def _extras(arguments: tuple[Any, ...]) -> tuple[Tensor, str]:
    """The residual and the activation of a call that may have left them out."""
    residual = arguments[0] if arguments else None
    return residual, arguments[1] if len(arguments) > 1 else ""


def _fake(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    _require_fitting(weight, Normalization(*rest[:5]), rest[9])
    return fake_forward(x, weight, bias, *rest[5:])


def _require_fitting(weight: Tensor, norm: Normalization, groups: int) -> None:
    """Raise `TensorShapeError` unless there is one number per channel of the result."""
    channels = weight.shape[1] * groups
    for name, numbers in zip(norm._fields, norm[:4], strict=False):
        if numbers is not None and tuple(numbers.shape) != (channels,):
            got = str(tuple(numbers.shape))
            raise TensorShapeError(f"{name}.shape", got, f"({channels},), one for each channel")


def _differentiable(keyset: Any, *arguments: Any) -> Tensor:
    """The fused kernel, or the operators one after the other where derivatives may be taken."""
    # Neither frozen parameters nor no_grad stop forward-mode derivatives and transforms.
    forward_mode = forward_ad._current_level >= 0 or _C._are_functorch_transforms_active()
    if forward_mode or recording(arguments):
        return _one_by_one(*arguments)
    with _C._AutoDispatchBelowAutograd():
        return FUSED.redispatch(keyset & _C._after_autograd_keyset, *arguments)


def _one_by_one(*arguments: Any) -> Tensor:
    """The operators one after the other, under the derivatives, transforms and autocast of now."""
    x, weight, bias, mean, var, gamma, beta, eps = arguments[:8]
    residual, activation = _extras(arguments[13:])
    y = FORWARD(x, weight, bias, *arguments[8:13])
    y = torch.nn.functional.batch_norm(y, mean, var, gamma, beta, eps=eps)
    return activated(y if residual is None else y + residual, activation)


_LIBRARY = torch.library.Library("upconv", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_LIBRARY.define(f"conv_transpose_norm{_SCHEMA}", tags=_TAGS)
_LIBRARY.impl("conv_transpose_norm", _kernel, "CPU")
torch.library.register_fake("upconv::conv_transpose_norm", _fake, lib=_LIBRARY)
_LIBRARY.impl("conv_transpose_norm", _differentiable, "Autograd", with_keyset=True)
_LIBRARY.impl("conv_transpose_norm", _one_by_one, "AutocastCPU")

FUSED = torch.ops.upconv.conv_transpose_norm.default
