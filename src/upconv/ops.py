"""Transposed convolution, convolution and their gradients on NumPy arrays.

Each call checks its arrays (`arrays`), freezes its keywords (`keywords`) and runs a prepared call
(`execution`). The first call with given shapes and keywords is validated (`shape_checks`) and
prepared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .argument_checks import frozen
from .arrays import Array, as_operand, optional_operand
from .engines.base import Engine
from .execution import delivered, engine_for, prepared, result_array
from .gradients import NEEDS, Gradients, gradients
from .keywords import Keywords
from .shape_checks import (
    activation_of,
    convolution,
    convolution_gradient,
    transposed,
    transposed_gradient,
)
from .signatures import (
    AlgorithmName,
    GradientName,
    Layout,
    Padding,
    PrecisionName,
    Sizes,
    WeightOrder,
)


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
    residual: Any = None,
    engine: str | Engine | None = None,
    algorithm: AlgorithmName = "auto",
    precision: PrecisionName | None = None,
    out: Array | None = None,
) -> Array:
    """Compute a transposed convolution: each input adds its value times `weight` to the output.

    Along one axis of `size` inputs, output `o` is the sum of `x[i] * weight[t]` over all pairs with
    `stride*i + dilation*t = o + begin`, as in PyTorch and in ONNX's ConvTranspose. There are
    `(size-1)*stride + dilation*(kernel-1) + 1 - begin - end + output_padding` outputs.

    x: (N, C, *size), or (C, *size) without a batch; (N, *size, C) with layout "NXC".
    weight: (C, F/groups, *kernel) in "IOX", (F/groups, C, *kernel) in "OIX", (*kernel, C, F/groups)
        in "XIO", (*kernel, F/groups, C) in "XOI"; likewise "IXO" and "OXI". Axis I always holds all
        input channels, axis O the output channels of one group. Group j maps the j-th block of
        input channels to the j-th block of output channels.
    bias: (F,). residual: the shape of the result.
    stride, dilation, output_padding: an int, or one per axis; output_padding may exceed the stride.
    padding: positions cropped from the full result: an int, one per axis, a (begin, end) pair per
        axis, "valid", or "same_upper" or "same_lower" (out = size*stride; an odd position is cut at
        the end or the beginning, respectively). Negative values add positions with the bias alone.
    output_size: an int, or one per axis; `padding` then sets only the crop at the beginning.
    activation: None, "relu", "leaky_relu" (slope 0.01; else ("leaky_relu", slope) or
        "leaky_relu:slope"), ("prelu", slopes) with slopes: (F,), "tanh", "sigmoid", "silu", "gelu"
        (with erf), "relu6", "hard_swish". It is applied last, after bias and residual.
    engine: None lets upconv choose; a name from `upconv.engines()`; or an `Engine` object.
    algorithm: "direct" computes every product. "winograd" computes fewer for kernels of two or more
        taps per phase, and rounds differently; it raises `EngineRefusal` elsewhere. "auto" uses
        Winograd where it should be faster, weight transform included, and about as accurate.
    precision: "bfloat16" rounds float32 operands to bfloat16 (to nearest even); sums and results
        stay float32. It is faster on processors that multiply bfloat16 faster. The relative error
        of a product is at most 0.0078.
    out: a NumPy array of the result's shape and dtype to write into; it may overlap the inputs.

    All arrays have one dtype: float16, bfloat16 (ml_dtypes), float32 or float64. Any strides and
    any object with `__array__` or `__dlpack__` are accepted. 16-bit types are summed in float32.

    Returns (N, F, *out_size) in `layout`, without N if x had none; `out` itself if given.
    Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arguments that do not fit together,
    `EngineRefusal` if the requested engine cannot compute them, and `MemoryLimitError`, before
    allocating, if memory does not suffice.

    >>> import numpy as np
    >>> x = np.array([[[1, 2, 3]]], np.float32)
    >>> w = np.array([[[1, 10, 100]]], np.float32)
    >>> conv_transpose(x, w, stride=2, padding=1, output_padding=1)
    array([[[ 10., 102.,  20., 203.,  30., 300.]]], dtype=float32)
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout,
        precision,
    )  # fmt: skip
    x, weight = as_operand("x", x), as_operand("weight", weight)
    bias, residual = optional_operand("bias", bias), optional_operand("residual", residual)
    choice, (activation, slopes) = frozen("algorithm", algorithm), activation_of(activation)
    engine = engine_for(engine, x=x, weight=weight, bias=bias, residual=residual, slopes=slopes)
    call = prepared(transposed, engine, choice, keywords, activation, x, weight, bias, residual)
    target = result_array(call.signature, out, (x, weight, bias, residual, slopes))
    call.run(target, x, weight, bias, residual, slopes)
    return delivered(target, out)


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
    algorithm: AlgorithmName = "auto",
    precision: PrecisionName | None = None,
    out: Gradients | None = None,
    accumulate: bool = False,
) -> Gradients:
    """Compute the gradients of `conv_transpose` with respect to x, weight and bias.

    grad: the gradient of a scalar with respect to the forward result; it has that result's shape.
    x, weight and the keywords: as in the forward call (without bias, activation and residual).
    needs: which gradients to compute, any of "x", "weight", "bias".
    algorithm: for the gradient of x, as in the forward call. precision: for both products.
    out: a `Gradients` with arrays to write into, for some or all needed gradients.
    accumulate: add to the arrays in `out`, which must then hold every needed gradient.

    Returns `Gradients`: `.x` shaped like x, `.weight` like weight, `.bias` (F,), or None where not
    needed. Raises the same errors as `conv_transpose`.

    >>> import numpy as np
    >>> x, w = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 2), np.float32)
    >>> g = conv_transpose_backward(np.ones((1, 1, 6), np.float32), x, w, stride=2)
    >>> g.x, g.weight, g.bias
    (array([[[2., 2., 2.]]], dtype=float32), array([[[3., 3.]]], dtype=float32), array([6.],
    dtype=float32))
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout,
        precision,
    )  # fmt: skip
    choice, rule = frozen("algorithm", algorithm), transposed_gradient
    return gradients(rule, engine, choice, keywords, grad, x, weight, needs, out, accumulate)


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
    residual: Any = None,
    engine: str | Engine | None = None,
    algorithm: AlgorithmName = "auto",
    precision: PrecisionName | None = None,
    out: Array | None = None,
) -> Array:
    """Compute an ordinary convolution (cross-correlation, as in every deep-learning framework).

    Along one axis output `i` is the sum of `x[stride*i + dilation*t - begin] * weight[t]`, where x
    is 0 outside. There are `(size + begin + end - dilation*(kernel-1) - 1) // stride + 1` outputs.

    x: (N, C, *size), or without N; (N, *size, C) with layout "NXC".
    weight: (F, C/groups, *kernel) in "OIX"; the other five orders as in `conv_transpose`, but here
        axis O holds all output channels and axis I the input channels of one group.
    padding: zeros around x, in the forms of `conv_transpose`; negative values crop x. "same_upper"
        and "same_lower" give ceil(size / stride) outputs.
    All other arguments, the result and the errors are the same as for `conv_transpose`.

    >>> import numpy as np
    >>> conv(np.arange(5.0).reshape(1, 1, 5), np.array([[[1.0, 10.0]]]), stride=2)
    array([[[10., 32.]]])
    """
    geometry = stride, padding, 0, dilation, groups, None
    keywords = Keywords.of(*geometry, layout, weight_layout, precision)
    x, weight = as_operand("x", x), as_operand("weight", weight)
    bias, residual = optional_operand("bias", bias), optional_operand("residual", residual)
    choice, (activation, slopes) = frozen("algorithm", algorithm), activation_of(activation)
    engine = engine_for(engine, x=x, weight=weight, bias=bias, residual=residual, slopes=slopes)
    call = prepared(convolution, engine, choice, keywords, activation, x, weight, bias, residual)
    target = result_array(call.signature, out, (x, weight, bias, residual, slopes))
    call.run(target, x, weight, bias, residual, slopes)
    return delivered(target, out)


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
    algorithm: AlgorithmName = "auto",
    precision: PrecisionName | None = None,
    out: Gradients | None = None,
    accumulate: bool = False,
) -> Gradients:
    """Compute the gradients of `conv`, to x, weight and bias; see `conv_transpose_backward`.

    >>> import numpy as np
    >>> x, w = np.arange(4.0).reshape(1, 1, 4), np.array([[[1.0, 10.0]]])
    >>> g = conv_backward(np.ones((1, 1, 3)), x, w)
    >>> g.x, g.weight, g.bias
    (array([[[ 1., 11., 11., 10.]]]), array([[[3., 6.]]]), array([3.]))
    """
    geometry = stride, padding, 0, dilation, groups, None
    keywords = Keywords.of(*geometry, layout, weight_layout, precision)
    choice, rule = frozen("algorithm", algorithm), convolution_gradient
    return gradients(rule, engine, choice, keywords, grad, x, weight, needs, out, accumulate)
