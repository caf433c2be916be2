"""PyTorch: `torch.nn.functional.conv_transpose1d/2d/3d` and the ConvTranspose modules.

Per axis, with padding P and output padding a (0 <= a < max(s, d)), ek = d*(k-1) + 1:

    p = P    q = P - a    O = (I-1)*s + ek - 2*P + a >= 1

A module's `output_size` chooses a from [0, s-1] so that O is the size asked for. Data is NCX, the
weight (C_in, C_out/groups, *k). Sources: the documentation of `torch.nn.ConvTranspose2d`; every
rule and limit was run on torch 2.13. PyTorch refuses empty spatial inputs; here they follow the
formula. An output of 0 positions it computes in its kernels of oneDNN, and refuses in its others.
"""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..geometry import Axis, fitted, padded
from . import values
from .layer import Layer, require_layer
from .limits import Limits

LIMITS = Limits(
    dialect="PyTorch",
    most_axes=3,
    one_padding=True,
    bound=lambda axis: max(axis.stride, axis.dilation),
    bound_text="max(stride, dilation)",
    least_out=1,
)


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
    """The layer that PyTorch computes; an int stands for every axis.

    size: the spatial input size, `x.shape[2:]`. `output_size`: the spatial output size, or with C,
    or with N and C before it, as a module's forward takes it; it then decides the output padding,
    and one given is ignored, as a module does.

    Raises `ArgumentError` or `ShapeError` for what PyTorch refuses.

    >>> from_torch((5, 7), 3, stride=2, padding=1, output_padding=1).output_size
    (10, 14)
    """
    size = values.sizes(size)
    rank = len(size)
    LIMITS.check_size(size)
    kernel = values.per_axis_or_one("kernel_size", kernel_size, rank, low=1)
    strides = values.per_axis_or_one("stride", stride, rank, low=1)
    dilations = values.per_axis_or_one("dilation", dilation, rank, low=1)
    pads = values.per_axis_or_one("padding", padding, rank, low=0)
    extra = values.per_axis_or_one("output_padding", output_padding, rank, low=0)
    if output_size is None:
        axes = values.axes(padded, size, kernel, strides, dilations, pads, pads, extra)
        LIMITS.check_output_padding(axes, extra)
    else:
        outs = _spatial(output_size, rank)
        axes = values.axes(_sized, range(rank), size, kernel, strides, dilations, pads, outs)
    LIMITS.check_outputs(axes)
    return Layer(axes, values.integer("groups", groups, low=1))


def to_torch(layer: Layer) -> dict[str, Any]:
    """The arguments of PyTorch's layer; raises `TranslationError` when it has none for it.

    `from_torch(size, **to_torch(layer))` has the same axes. The functions `conv_transpose1d/2d/3d`
    take all of them but `kernel_size`, which they read off the weight.

    >>> to_torch(from_torch(5, 3, stride=2, padding=1, output_padding=1))["output_padding"]
    (1,)
    """
    require_layer(layer)
    paddings = LIMITS.paddings(layer)
    return {
        "kernel_size": layer.kernel,
        "stride": layer.strides,
        "padding": tuple(padding.begin for padding in paddings),
        "output_padding": tuple(padding.output_padding for padding in paddings),
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
    if not values.is_sequence(output_size):
        return values.per_axis_or_one("output_size", output_size, rank, low=0)
    entries = values.integers("output_size", output_size, low=0)
    if len(entries) not in (rank, rank + 1, rank + 2):
        raise ShapeError(
            "output_size",
            str(entries),
            f"{rank} spatial sizes, with C or with N and C before them at most",
        )
    return entries[-rank:]
