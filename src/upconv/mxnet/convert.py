"""Conversion of transposed layers from Gluon to PyTorch and back, without importing PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import brief
from .base import MXNetError, raised_by
from .gluon import nn
from .operators import Array

_SHARED = {"num_filter": "out_channels", "kernel": "kernel_size", "stride": "stride",
           "pad": "padding", "adj": "output_padding", "dilate": "dilation",
           "num_group": "groups"}  # fmt: skip


def to_torch(layer: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the arguments of `torch.nn.ConvTranspose1d/2d/3d`, and its "weight" and "bias".

    layer: a Gluon layer such as Conv2DTranspose whose parameters have values. PyTorch has channels
        first: a weight (C, kernel, F/G) of layout NHWC or NDHWC becomes (C, F/G, kernel).

    Raises `MXNetError` for any other layer, and for a layer with an activation.

    >>> layer = nn.Conv1DTranspose(2, 3, strides=2, in_channels=4, use_bias=False)
    >>> layer.initialize()
    >>> arguments, values = to_torch(layer)
    >>> arguments["in_channels"], arguments["stride"], values["weight"].shape
    (4, (2,), (4, 2, 3))
    """
    attributes = getattr(layer, "attributes", {})
    if "adj" not in attributes:
        raise MXNetError(f"{brief(layer)} is not a transposed convolution of Gluon.")
    if layer.act is not None:
        raise MXNetError(f"{brief(layer)} has an activation; move it after the layer.")
    arrays = {name: getattr(layer, name) for name in ("weight", "bias")}
    values: dict[str, Array] = {k: v.data().asnumpy() for k, v in arrays.items() if v is not None}
    if attributes["layout"][-1] == "C":
        values["weight"] = np.ascontiguousarray(np.moveaxis(values["weight"], -1, 1))
    arguments = {name: attributes[key] for key, name in _SHARED.items()}
    return {"in_channels": len(values["weight"]), **arguments, "bias": "bias" in values}, values


def from_torch(module: Any) -> Any:
    """Return a `torch.nn.ConvTranspose1d/2d/3d` as a Gluon layer with the same values.

    Raises `MXNetError` for any other module, and for an output padding that is not less than the
    stride, which MXNet refuses.

    >>> from_torch("Linear")
    Traceback (most recent call last):
    upconv.mxnet.base.MXNetError: 'Linear' is not a transposed convolution of PyTorch.
    """
    if not getattr(module, "transposed", False) or module.padding_mode != "zeros":
        raise MXNetError(f"{brief(module)} is not a transposed convolution of PyTorch.")
    channels, kernel, *others = (getattr(module, name) for name in _SHARED.values())
    stride, adj, bias = others[0], others[2], module.bias is not None
    if any(a >= s for a, s in zip(adj, stride, strict=True)):
        raise MXNetError(f"output_padding is {adj}; MXNet takes less than the stride, {stride}.")
    kind = getattr(nn, f"Conv{len(kernel)}DTranspose")
    layer = kind(channels, kernel, *others, use_bias=bias, in_channels=module.in_channels)
    for name in ("weight", "bias") if bias else ("weight",):
        with raised_by(name):  # bfloat16 has no type in NumPy
            array = getattr(module, name).detach().cpu().numpy()
        parameter = getattr(layer, name)
        parameter.dtype = array.dtype
        parameter.initialize()
        parameter.set_data(array)
    return layer
