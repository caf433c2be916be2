"""PyTorch: `torch.nn.functional.conv_transpose1d/2d/3d` and the ConvTranspose modules.

Per axis, with padding P and output padding a (0 <= a < max(s, d)), ek = d*(k-1) + 1:

    p = P    q = P - a    O = (I-1)*s + ek - 2*P + a >= 1

A module's `output_size` chooses a from [0, s-1] so that O is the requested size. Data is NCX, the
weight (C_in, C_out/groups, *k). Sources: the documentation of `torch.nn.ConvTranspose2d`; every
rule and limit was checked on torch 2.13. PyTorch refuses empty spatial inputs; here they follow the
formula. PyTorch's oneDNN kernels compute an output of 0 positions; its other kernels refuse it.
"""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..geometry import Axis, fitted, padded
from . import arguments
from .layer import Layer, require_layer
from .limits import Limits

LIMITS = Limits("PyTorch", 3, True, "max(stride, dilation)", least_out=1)


def from_torch(
    size: object,
    kernel_size: object,
    *,
    stride: object = 1,
    padding: object = 0,
    output_padding: object = 0,
    dilation: object = 1,
    groups: object = 1,
    output_size: object = None,
) -> Layer:
    """Return the layer that PyTorch computes; an int applies to every axis.

    size: the spatial input size, `x.shape[2:]`. output_size: the spatial output size, optionally
    preceded by C, or by N and C, as in a module's forward. It then determines the output padding,
    and `output_padding` is ignored, as in a module.

    Raises `ArgumentError` or `ShapeError` for arguments that PyTorch refuses.

    >>> from_torch((5, 7), 3, stride=2, padding=1, output_padding=1).output_size
    (10, 14)
    """
    size = arguments.sizes(size)
    rank = len(size)
    LIMITS.check_size(size)
    kernel = arguments.per_axis("kernel_size", kernel_size, rank, low=1, repeated=True)
    strides = arguments.per_axis("stride", stride, rank, low=1, repeated=True)
    dilations = arguments.per_axis("dilation", dilation, rank, low=1, repeated=True)
    pads = arguments.per_axis("padding", padding, rank, low=0, repeated=True)
    extra = arguments.per_axis("output_padding", output_padding, rank, low=0, repeated=True)
    if output_size is None:
        axes = arguments.axes(padded, size, kernel, strides, dilations, pads, pads, extra)
        LIMITS.check_output_padding(axes, extra)
    else:
        outs = _spatial(output_size, rank)
        axes = arguments.axes(_sized, range(rank), size, kernel, strides, dilations, pads, outs)
    LIMITS.check_outputs(axes)
    return Layer(axes, arguments.integer("groups", groups, low=1))


def to_torch(layer: Layer) -> dict[str, Any]:
    """Return the arguments of PyTorch's layer; raises `TranslationError` if none fit.

    `from_torch(size, **to_torch(layer))` has the same axes. The functions `conv_transpose1d/2d/3d`
    have all these arguments except `kernel_size`, which follows from the weight.

    >>> to_torch(from_torch(5, 3, stride=2, padding=1, output_padding=1))["output_padding"]
    (1,)
    """
    require_layer(layer)
    padding = LIMITS.padding(layer)
    return {
        "kernel_size": layer.kernel,
        "stride": layer.strides,
        "padding": padding.begins,
        "output_padding": padding.extra,
        "dilation": layer.dilations,
        "groups": layer.groups,
    }


def _sized(i: int, size: int, k: int, s: int, d: int, padding: int, out: int) -> Axis:
    axis = fitted(size, k, s, d, padding, out)
    if not 0 <= padding - axis.crop_end < s:
        least = padded(size, k, s, d, padding, padding, 0).out
        raise ShapeError(
            f"output_size[{i}]",
            str(out),
            f"from {least} to {least + s - 1}",
            "Those are the sizes that an ordinary convolution maps to this input size.",
        )
    return axis


def _spatial(output_size: object, rank: int) -> tuple[int, ...]:
    if not arguments.is_sequence(output_size):
        return arguments.per_axis("output_size", output_size, rank, low=0, repeated=True)
    expected = f"{rank} spatial sizes, optionally after C, or after N and C"
    counts = (rank, rank + 1, rank + 2)
    return arguments.integers("output_size", output_size, 0, counts, expected)[-rank:]
