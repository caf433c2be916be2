"""The six functions. Each is a transposed convolution, or one of its two gradients.

`operands` determines the axes; the functions of `upconv.ops` compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import numpy as np

from ..arrays import Array, as_array, check_out
from ..dialects.onednn_graph import Operation, Rule
from ..engines.base import Engine
from ..errors import ArgumentError, brief
from ..ops import conv, conv_transpose, conv_transpose_backward
from .operands import Attributes, Data, Operands, operands

EngineChoice = str | Engine | None
Read = Callable[..., Operands]
"""`operands` for one function; it takes the shapes of the weight and of the data."""
_CONV_TRANSPOSE, _CONVOLUTION = Operation.CONV_TRANSPOSE, Operation.CONVOLUTION_BACKWARD_DATA


def convtranspose(
    src: Any,
    weights: Any,
    bias: Any = None,
    *,
    output_padding: Any = None,
    engine: EngineChoice = None,
    out: Array | None = None,
    **attributes: Unpack[Attributes],
) -> Array:
    """Compute ConvTranspose, whose result has s(I-1) + d(k-1) + 1 - pads positions.

    src: (N, *size, C_in), or (N, C_in, *size) with data_format "NCX"; one to three spatial axes.
    weights: (*k, C_out/groups, C_in) in "XOI", (C_in, C_out/groups, *k) in "IOX". With
        rule="document", C_in is divided by the groups: (C_in/groups, C_out, *k).
    bias: (C_out,).
    output_padding: positions added at the end, less than the stride.
    attributes: see `Attributes`; strides are required.
    engine: a name or an `Engine`; None lets upconv choose. out: an array to write into.

    Arrays are float16, bfloat16, float32 or float64, with any strides and all of one dtype.

    Returns dst: (N, *out, C_out), or (N, C_out, *out).
    Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arguments that do not fit together, even
    where libdnnl aborts; `EngineRefusal`; `MemoryLimitError`.

    >>> x = np.array([1, 2, 3], np.float32).reshape(1, 3, 1)
    >>> w = np.array([1, 10, 100], np.float32).reshape(3, 1, 1)
    >>> convtranspose(x, w, strides=[2], pads_begin=[1]).ravel()
    array([ 10., 102.,  20., 203.,  30., 300.], dtype=float32)
    """
    read = partial(operands, _CONV_TRANSPOSE, attributes, output_padding=output_padding)
    return _forward(read, "src", src, weights, bias, engine, out)


def convtranspose_backward_data(
    diff_dst: Any,
    weights: Any,
    *,
    output_padding: Any = None,
    engine: EngineChoice = None,
    out: Array | None = None,
    **attributes: Unpack[Attributes],
) -> Array:
    """Compute ConvTransposeBackwardData: the gradient of `convtranspose` with respect to src.

    diff_dst: the gradient with respect to dst, with its shape. weights and attributes: as in
    `convtranspose`, but output_padding is accepted only with rule="document": the library has no
    such attribute, and the size follows from diff_dst. Dilations are supported; libdnnl aborts.

    Returns diff_src. Raises what `convtranspose` raises.

    >>> g, w = np.ones((1, 6, 1), np.float32), np.array([1, 10, 100], np.float32).reshape(3, 1, 1)
    >>> convtranspose_backward_data(g, w, strides=[2], pads_begin=[1]).ravel()
    array([110., 111., 111.], dtype=float32)
    """
    _require_documented(output_padding, attributes.get("rule"))
    read = partial(operands, _CONV_TRANSPOSE, attributes, output_padding=output_padding)
    return _input_gradient(read, "diff_dst", diff_dst, weights, None, engine, out)


def convtranspose_backward_weights(
    src: Any,
    diff_dst: Any,
    *,
    weights_shape: Any,
    output_padding: Any = None,
    engine: EngineChoice = None,
    out: Array | None = None,
    **attributes: Unpack[Attributes],
) -> Array:
    """Compute ConvTransposeBackwardWeights: the gradient of the weights of `convtranspose`.

    src: as in `convtranspose`. diff_dst: the gradient with respect to dst, with its shape.
    weights_shape: the shape of the weights, as in `convtranspose`. output_padding: only
    with rule="document". The pads of auto_pad are those of the forward operation; libdnnl sometimes
    uses others, and its gradient is then wrong.

    Returns diff_weights, of weights_shape. Raises what `convtranspose` raises.

    >>> x, g = np.ones((1, 3, 1), np.float32), np.arange(6, dtype=np.float32).reshape(1, 6, 1)
    >>> gradient = convtranspose_backward_weights(
    ...     x, g, weights_shape=(3, 1, 1), strides=[2], pads_begin=[1]
    ... )
    >>> gradient.ravel()
    array([4., 6., 9.], dtype=float32)
    """
    _require_documented(output_padding, attributes.get("rule"))
    src, diff_dst = as_array("src", src), as_array("diff_dst", diff_dst)
    both = {"x": Data("src", src.shape), "y": Data("diff_dst", diff_dst.shape)}
    read = partial(operands, _CONV_TRANSPOSE, attributes, output_padding=output_padding)
    return _weight_gradient(read(weights_shape, both), src, diff_dst, engine, out)


def convolution(
    src: Any,
    weights: Any,
    bias: Any = None,
    *,
    engine: EngineChoice = None,
    out: Array | None = None,
    **attributes: Unpack[Attributes],
) -> Array:
    """Compute Convolution, whose result has floor((size + pads - d(k-1) - 1) / s) + 1 positions.

    src: (N, *size, C), or (N, C, *size) with data_format "NCX".
    weights: (*k, C/groups, F) in "XIO", (F, C/groups, *k) in "OIX". bias: (F,).
    The attributes are those of `convtranspose`, without output_padding. Both rules use the
    library's SAME, because the document gives no formula here.

    Returns dst: (N, *out, F), or (N, F, *out). Raises what `convtranspose` raises.

    >>> x, w = np.arange(5.0).reshape(1, 5, 1), np.array([1.0, 10.0]).reshape(2, 1, 1)
    >>> convolution(x, w, strides=[2]).ravel()
    array([10., 32.])
    """
    read = partial(operands, _CONVOLUTION, attributes, library_same=True)
    return _input_gradient(read, "src", src, weights, bias, engine, out)


def convolution_backward_data(
    diff_dst: Any,
    weights: Any,
    *,
    output_padding: Any = None,
    dst_shape: Any = None,
    engine: EngineChoice = None,
    out: Array | None = None,
    **attributes: Unpack[Attributes],
) -> Array:
    """Compute ConvolutionBackwardData: the gradient of `convolution` with respect to src.

    It is the transposed convolution of diff_dst.

    diff_dst: the gradient with respect to dst, with its shape. weights: as in `convolution`.
    dst_shape: the full shape of the result in the order of data_format, including N and C; several
        are possible if the stride is more than 1. None is the size of `convtranspose`:
        s(I-1) + d(k-1) + 1 - pads + output_padding. If dst_shape is given, output_padding affects
        only the document's SAME.
    The other attributes are those of `convtranspose`. Any number of groups is supported; libdnnl
    refuses more than one.

    Returns diff_src. Raises what `convtranspose` raises.

    >>> g, w = np.array([1.0, 2.0]).reshape(1, 2, 1), np.array([1.0, 10.0]).reshape(2, 1, 1)
    >>> convolution_backward_data(g, w, strides=[2], dst_shape=(1, 5, 1)).ravel()
    array([ 1., 10.,  2., 20.,  0.])
    """
    more = {"output_padding": output_padding, "dst_shape": dst_shape}
    read = partial(operands, _CONVOLUTION, attributes, **more)
    return _forward(read, "diff_dst", diff_dst, weights, None, engine, out)


def convolution_backward_weights(
    src: Any,
    diff_dst: Any,
    *,
    weights_shape: Any,
    engine: EngineChoice = None,
    out: Array | None = None,
    **attributes: Unpack[Attributes],
) -> Array:
    """Compute ConvolutionBackwardWeights: the gradient of the weights of `convolution`.

    src and the attributes: as in `convolution`. diff_dst: the gradient with respect to dst, with
    its shape. weights_shape: the shape of the weights.

    Returns diff_weights, of weights_shape. Raises what `convtranspose` raises.

    >>> x, g = np.arange(5.0).reshape(1, 5, 1), np.ones((1, 2, 1))
    >>> convolution_backward_weights(x, g, weights_shape=(2, 1, 1), strides=[2]).ravel()
    array([2., 4.])
    """
    src, diff_dst = as_array("src", src), as_array("diff_dst", diff_dst)
    both = {"y": Data("src", src.shape), "x": Data("diff_dst", diff_dst.shape)}
    operation = operands(_CONVOLUTION, attributes, weights_shape, both, library_same=True)
    return _weight_gradient(operation, diff_dst, src, engine, out)


def _require_documented(output_padding: object, rule: object) -> None:
    """Refuse output_padding if only the document has it."""
    if output_padding is not None and rule != Rule.DOCUMENT.value:
        remedy = "The library has no such attribute for gradients; rule='document' does."
        raise ArgumentError("output_padding", brief(output_padding), "None", remedy)


def _forward(
    read: Read, name: str, x: Any, weights: Any, bias: Any, engine: EngineChoice, out: Array | None
) -> Array:
    """Compute y from x and the weight; `name` is the caller's name for x."""
    x, weights = as_array(name, x), as_array("weights", weights)
    operation = read(weights.shape, {"x": Data(name, x.shape)})
    weight = operation.library_weight(weights)
    return conv_transpose(x, weight, bias, **operation.layer.keywords(), engine=engine, out=out)


def _input_gradient(
    read: Read, name: str, y: Any, weights: Any, bias: Any, engine: EngineChoice, out: Array | None
) -> Array:
    """Compute x from y and the weight: an ordinary convolution, with O and I swapped."""
    y, weights = as_array(name, y), as_array("weights", weights)
    operation = read(weights.shape, {"y": Data(name, y.shape)})
    keywords = operation.layer.keywords()
    keywords["weight_layout"] = operation.layer.weight_layout.swapped().value
    return conv(y, operation.library_weight(weights), bias, **keywords, engine=engine, out=out)


def _weight_gradient(
    operation: Operands, x: Array, y: Array, engine: EngineChoice, out: Array | None
) -> Array:
    """Return the weight's gradient, in the caller's order."""
    layer = operation.layer
    channels = layer.layout.to_ncx(len(layer.axes))[1]
    shape = layer.weight_layout.shape(
        x.shape[channels], y.shape[channels] // layer.groups, layer.kernel
    )
    unread = np.broadcast_to(x.dtype.type(0), shape)  # only the weight's shape is used
    gradients = conv_transpose_backward(
        y, x, unread, **layer.keywords(), needs=("weight",), engine=engine
    )
    assert gradients.weight is not None  # noqa: S101 - it was asked for
    result = operation.caller_weight(gradients.weight)
    if out is None:
        return result
    check_out("out", out, result.shape, result.dtype)[...] = result
    return out
