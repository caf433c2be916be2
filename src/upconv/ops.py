"""Transposed convolution, convolution and their gradients on NumPy arrays.

A call checks its arrays (`arrays`), freezes its keywords (`keywords`) and runs the prepared call of
these (`execution`). The first call of its kind is checked (`shapes`) and prepared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .arrays import Array, as_operand, optional_operand
from .checks import frozen
from .engines.base import Engine
from .execution import delivered, engine_for, prepared, result_array
from .gradients import NEEDS, Gradients, gradients
from .keywords import Keywords
from .shapes import (
    activation_of,
    convolution,
    convolution_gradient,
    transposed,
    transposed_gradient,
)


def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: str = "NCX",
    weight_layout: str = "IOX",
    activation: Any = None,
    residual: Any = None,
    engine: str | Engine | None = None,
    algorithm: str = "auto",
    precision: str | None = None,
    out: Array | None = None,
) -> Array:
    """Transposed convolution: every input position adds `weight` times its value to the output.

    Along one axis of `size` inputs, output `o` is the sum of `x[i] * weight[t]` over all pairs with
    `stride*i + dilation*t = o + begin`, as in PyTorch and in ONNX's ConvTranspose. There are
    `(size-1)*stride + dilation*(kernel-1) + 1 - begin - end + output_padding` outputs.

    x: (N, C, *size), or (C, *size) without a batch; (N, *size, C) with layout "NXC".
    weight: (C, F/groups, *kernel) in "IOX", (F/groups, C, *kernel) in "OIX", (*kernel, C, F/groups)
        in "XIO", (*kernel, F/groups, C) in "XOI"; "IXO" and "OXI" alike. Axis I always holds all
        input channels, axis O the output channels of one group; group j owns each j-th block.
    bias: (F,). residual: the shape of the result.
    stride, dilation, output_padding: an int, or one per axis; output_padding may exceed the stride.
    padding: what is cut off the full result: an int, one per axis, one (begin, end) pair per axis,
        "valid", "same_upper" or "same_lower" (out = size*stride; the odd position is cut from the
        end, or from the begin). Negative values add positions that hold the bias alone.
    output_size: the size, an int or one per axis; `padding` cuts the begin, the end fits.
    activation: None, "relu", "leaky_relu" (slope 0.01; else ("leaky_relu", slope) or
        "leaky_relu:slope"), ("prelu", slopes) with slopes: (F,), "tanh", "sigmoid", "silu", "gelu"
        (with erf); it comes last, after bias and residual.
    engine: None lets upconv choose; a name from `upconv.engines()`; or an `Engine` object.
    algorithm: "direct" sums every product; "winograd" needs fewer for kernels of two or more taps
        per phase, in float32, and rounds differently (`EngineRefusal` elsewhere); "auto" takes it
        where it is expected to be faster, the weight's transform included, and about as exact.
    precision: "bfloat16" multiplies float32 arrays rounded to bfloat16 (to nearest even). Sums and
        all else stay float32, and so does the result. It is faster where the processor multiplies
        bfloat16 faster; a product errs by up to 0.0078 of it.
    out: a NumPy array of the result's shape and dtype to write into; it may overlap the inputs.

    Arrays are float16, bfloat16 (ml_dtypes), float32 or float64, all of one dtype, of any strides;
    anything with `__array__` or `__dlpack__` is taken. 16-bit types are summed in float32.

    Returns (N, F, *out_size), without N if x had none, in `layout`; `out` itself if given.
    Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arguments that do not fit together,
    `EngineRefusal` when the engine asked for cannot do it, `MemoryLimitError` before allocating.

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
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: str = "NCX",
    weight_layout: str = "IOX",
    needs: Iterable[str] = NEEDS,
    engine: str | Engine | None = None,
    algorithm: str = "auto",
    precision: str | None = None,
    out: Gradients | None = None,
    accumulate: bool = False,
) -> Gradients:
    """The gradients of `conv_transpose` with respect to x, weight and bias.

    grad: the gradient of a scalar with respect to the forward result, and of its shape.
    x, weight and the keywords: as in the forward call (without bias, activation and residual).
    needs: which gradients to compute, any of "x", "weight", "bias".
    algorithm: of the gradient of x, as in the forward call. precision: of both products.
    out: a `Gradients` holding the arrays to write into, for all needed or some.
    accumulate: add to what `out` holds; every needed gradient must then be in `out`.

    Returns `Gradients`: `.x` of x's shape, `.weight` of weight's, `.bias` (F,), None where not
    needed. Raises what `conv_transpose` raises.

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
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCX",
    weight_layout: str = "OIX",
    activation: Any = None,
    residual: Any = None,
    engine: str | Engine | None = None,
    algorithm: str = "auto",
    precision: str | None = None,
    out: Array | None = None,
) -> Array:
    """Ordinary convolution (cross-correlation, as in every deep-learning framework).

    Along one axis output `i` is the sum of `x[stride*i + dilation*t - begin] * weight[t]`, x being
    0 outside; there are `(size + begin + end - dilation*(kernel-1) - 1) // stride + 1` outputs.

    x: (N, C, *size), or without N; (N, *size, C) with layout "NXC".
    weight: (F, C/groups, *kernel) in "OIX"; the other five orders as in `conv_transpose`, but here
        axis O holds all output channels and axis I the input channels of one group.
    padding: zeros around x: as in `conv_transpose`; a negative value cuts x. "same_upper" and
        "same_lower" give ceil(size / stride) outputs.
    The rest, the return value and the errors are `conv_transpose`'s.

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
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCX",
    weight_layout: str = "OIX",
    needs: Iterable[str] = NEEDS,
    engine: str | Engine | None = None,
    algorithm: str = "auto",
    precision: str | None = None,
    out: Gradients | None = None,
    accumulate: bool = False,
) -> Gradients:
    """The gradients of `conv` with respect to x, weight and bias; see `conv_transpose_backward`.

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
