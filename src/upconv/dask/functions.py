"""`upconv`'s functions on Dask arrays: arguments are checked at once, results computed lazily."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dask.array as da
import numpy as np

from .. import shape_checks
from ..arrays import Array, Operand, as_array, described, element_type
from ..engines.base import Engine
from ..errors import DTypeError, ShapeError, brief
from ..gradients import NEEDS, Gradients, gradient_targets
from ..keywords import Keywords, frozen_activation
from ..problem import DataLayout, Direction
from ..signatures import GradientName, Layout, Padding, Sizes, WeightOrder
from .overlaps import mapped, weight_gradient


def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "IOX",
    activation: Any = None,
    engine: str | Engine | None = None,
    chunks: Any = None,
) -> Any:
    """Compute `upconv.conv_transpose` of a Dask array lazily.

    x: a Dask array with any chunks, (N, C, *size), or (C, *size) without a batch.
    weight, bias: NumPy arrays. The other keywords: as in `upconv.conv_transpose`.
    engine: with None or "jit" the result is identical in every bit to `upconv.conv_transpose(...,
        engine="jit", algorithm="direct")` on the whole array, if that engine supports the layer.
        With other engines, rounding depends on the chunks.
    chunks: chunks of the result's spatial axes, in any form that Dask accepts (default: those of x,
        times the stride). Each chunk is one task that needs the memory of one call.

    Returns a Dask array of the result's shape. Raises the errors of `upconv.conv_transpose` at
    once, and `EngineMissing` if Dask is not installed.

    >>> import dask.array as da
    >>> volume = da.ones((1, 2, 60, 60), chunks=(1, 1, 20, 30), dtype="float32")
    >>> y = conv_transpose(volume, np.ones((2, 3, 4, 4), np.float32), stride=2, padding=1)
    >>> y.chunks
    ((1,), (3,), (40, 40, 40), (60, 60))
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout
    )
    return _called(shape_checks.transposed, x, weight, bias, keywords, activation, engine, chunks)


def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "OIX",
    activation: Any = None,
    engine: str | Engine | None = None,
    chunks: Any = None,
) -> Any:
    """Compute `upconv.conv` of a Dask array lazily; see `conv_transpose`.

    >>> import dask.array as da
    >>> image = da.ones((1, 2, 60, 60), chunks=(1, 1, 20, 30), dtype="float32")
    >>> conv(image, np.ones((3, 2, 3, 3), np.float32), stride=2, padding=1).chunks
    ((1,), (3,), (10, 10, 10), (15, 15))
    """
    keywords = Keywords.of(stride, padding, 0, dilation, groups, None, layout, weight_layout)
    return _called(shape_checks.convolution, x, weight, bias, keywords, activation, engine, chunks)


def conv_transpose_backward(
    grad: Any,
    x: Any,
    weight: Any,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "IOX",
    needs: Iterable[GradientName] = NEEDS,
    engine: str | Engine | None = None,
) -> Gradients:
    """Compute the gradients of `conv_transpose` lazily: `upconv.Gradients` of Dask arrays.

    grad, x: Dask arrays. The gradient of x needs only the shape and chunks of x. The gradient of
    the weight sums over the chunks of grad in a fixed order. It is the same with every scheduler,
    but its rounding differs from one call on the whole array.

    >>> import dask.array as da
    >>> x, g = da.ones((1, 1, 6), chunks=3), da.ones((1, 1, 12), chunks=5)
    >>> gradients = conv_transpose_backward(g, x, np.ones((1, 1, 2)), stride=2)
    >>> gradients.weight.compute(), gradients.x.chunks
    (array([[[6., 6.]]]), ((1,), (1,), (3, 3)))
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout
    )
    return _backward(shape_checks.transposed_gradient, grad, x, weight, keywords, needs, engine)


def conv_backward(
    grad: Any,
    x: Any,
    weight: Any,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "OIX",
    needs: Iterable[GradientName] = NEEDS,
    engine: str | Engine | None = None,
) -> Gradients:
    """Compute the gradients of `conv` lazily; see `conv_transpose_backward`.

    >>> import dask.array as da
    >>> x, g = da.ones((1, 1, 6), chunks=3), da.ones((1, 1, 5), chunks=2)
    >>> conv_backward(g, x, np.ones((1, 1, 2)), needs=("x", "bias")).x.compute()
    array([[[1., 2., 2., 2., 2., 1.]]])
    """
    keywords = Keywords.of(stride, padding, 0, dilation, groups, None, layout, weight_layout)
    return _backward(shape_checks.convolution_gradient, grad, x, weight, keywords, needs, engine)


def _called(
    signature_of: Any,
    x: Any,
    weight: Any,
    bias: Any,
    keywords: Keywords,
    activation: Any,
    engine: str | Engine | None,
    chunks: Any,
) -> Any:
    weight, bias = _in_memory("weight", weight), None if bias is None else _in_memory("bias", bias)
    operands = dask_operand("x", x), described(weight), described(bias), None
    signature = signature_of(*operands, keywords, frozen_activation(activation))
    return mapped(signature, x, weight, bias, engine, chunks)


def _backward(
    signatures_of: Any,
    grad: Any,
    x: Any,
    weight: Any,
    keywords: Keywords,
    needs: Iterable[str],
    engine: str | Engine | None,
) -> Gradients:
    weight = _in_memory("weight", weight)
    operands = dask_operand("grad", grad), dask_operand("x", x), described(weight)
    signatures = signatures_of(*operands, keywords, False)
    wanted = gradient_targets(NEEDS, Gradients, needs, None, accumulate=False)
    gradients: dict[str, Any] = {}
    first = signatures["x"].problem.layout is DataLayout.NCX
    rank = signatures["x"].problem.rank
    if "x" in wanted:
        spatial = slice(-rank, None) if first else slice(-rank - 1, -1)
        gradients["x"] = mapped(signatures["x"], grad, weight, None, engine, x.chunks[spatial])
    if "weight" in wanted:
        forward = signatures["x"].problem.direction is Direction.INPUT_GRAD
        g, other = (grad, x) if forward else (x, grad)
        gradients["weight"] = weight_gradient(signatures["weight"], g, other, engine)
    if "bias" in wanted:
        channels = grad.ndim - 1 - (rank if first else 0)
        axes = tuple(axis for axis in range(grad.ndim) if axis != channels)
        gradients["bias"] = grad.sum(axis=axes, dtype=np.float64).astype(grad.dtype)
    return Gradients(**gradients)


def dask_operand(name: str, value: Any) -> Operand:
    """Return the shape and dtype of a Dask array whose chunks are known."""
    if not isinstance(value, da.Array):
        remedy = "Create one with dask.array.from_array or from_zarr, or call upconv directly."
        raise DTypeError(name, f"of type {type(value).__name__}", "a dask.array.Array", remedy)
    element_type(f"{name}.dtype", value.dtype)
    if any(np.isnan(size) for size in value.shape):
        remedy = "Call compute_chunk_sizes() on it first."
        raise ShapeError(f"{name}.shape", brief(value.shape), "known sizes", remedy)
    return Operand(tuple(map(int, value.shape)), value.dtype)


def _in_memory(name: str, value: Any) -> Array:
    if isinstance(value, da.Array):
        remedy = f"Every task needs the whole array: pass {name}.compute()."
        raise DTypeError(name, "a dask.array.Array", "an array in memory", remedy)
    return as_array(name, value)
