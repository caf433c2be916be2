"""ConvTranspose as ONNX specifies it, on NumPy arrays and in ONNX's evaluator.

Operands are checked here, so that errors name X, W, B and ONNX's attributes. The following
operators of the evaluator are wrong or missing, and are replaced:

    ConvTranspose       is wrong for groups with a bias or with several output channels; it ignores
                        `output_shape` without auto_pad
    Conv                does not pad as ONNX specifies
    BatchNormalization  in opset 13 always trains, whatever outputs the node has
    DequantizeLinear    is missing before opset 19
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from onnx import defs
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19

from .. import ops
from ..arrays import Array, as_array
from ..dialects import arguments, from_onnx
from ..dialects.onnx import AutoPad
from ..engines.base import Engine
from ..errors import ArgumentError, DTypeError, ModelError, ShapeError, UpconvError, brief

BFLOAT16_SINCE = 22  # the opset that added it to the operator

_ONNX_NAMES = {"x": "X", "weight": "W", "bias": "B", "groups": "group"}
_NAMES = re.compile(r"^(x|weight|bias|groups)\b")


def conv_transpose(
    X: Any,  # noqa: N803 - ONNX's names
    W: Any,  # noqa: N803
    B: Any = None,  # noqa: N803
    *,
    kernel_shape: object = None,
    opset: object = BFLOAT16_SINCE,
    engine: str | Engine | None = None,
    **attributes: Any,
) -> Array:
    """Compute ONNX's ConvTranspose, the output of a node with these attributes and operands.

    X: (N, C, *size). W: (C, M/group, *kernel). B: (M,) or None. All have one type: float16,
        float32, float64 or, from opset 22 on, bfloat16 (ml_dtypes).
    attributes: strides, pads, dilations, output_padding, output_shape, auto_pad and group, as in a
        model, including lists and bytes; None means absent. `pads` lists all begins, then all ends.
        `rule` selects a reading where runtimes differ: "spec", "onnxruntime" or "openvino".
    opset: the node's opset; opset 11 exchanged the sides of odd totals.
    engine: as in `upconv.conv_transpose`.

    Returns (N, M, *output_size), of X's type. Raises `ArgumentError` (`ShapeError`, `DTypeError`)
    naming the operand or attribute, and `MemoryLimitError` before allocating.

    >>> import numpy as np
    >>> X, W = np.float32([[[1, 2]]]), np.float32([[[1, 10, 100]]])
    >>> conv_transpose(X, W, strides=[2], auto_pad="SAME_UPPER")
    array([[[  1.,  10., 102.,  20.]]], dtype=float32)
    >>> conv_transpose(X, W, strides=[2], pads=[1, 0], output_shape=None)
    array([[[ 10., 102.,  20., 200.]]], dtype=float32)
    """
    x, w, b = as_array("X", X), as_array("W", W), None if B is None else as_array("B", B)
    rank = max(3, len(x.shape))
    for name, operand, axes in (("X", x, "(N, C, *size)"), ("W", w, "(C, M/group, *kernel)")):
        if len(operand.shape) != rank:
            words = f"{rank} axes: {axes}", "One of length 1 is an axis."
            raise ShapeError(f"{name}.shape", str(operand.shape), *words)
    if str(x.dtype) == "bfloat16" and opset in range(BFLOAT16_SINCE):
        raise DTypeError("X.dtype", "bfloat16", f"a type of opset {opset}")
    kernel = w.shape[2:] if kernel_shape is None else kernel_shape
    layer = from_onnx(x.shape[2:], kernel, opset=opset, **attributes)
    if layer.kernel != w.shape[2:]:
        raise ShapeError("kernel_shape", str(layer.kernel), f"{w.shape[2:]}, that of W, or absent")
    try:
        return ops.conv_transpose(x, w, b, **layer.keywords(), engine=engine)
    except ArgumentError as error:
        name = _NAMES.sub(lambda match: _ONNX_NAMES[match[0]], error.argument)
        raise type(error)(name, error.got, error.expected, error.remedy) from None


def conv_keywords(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a Conv's attributes, except kernel_shape, to keywords of `upconv.conv`."""
    mode = arguments.member("auto_pad", attributes.get("auto_pad") or "NOTSET", AutoPad)
    pads = attributes.get("pads") or ()
    padding: Any = tuple(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=False)) or 0
    if mode is not AutoPad.NOTSET:
        padding = mode.value.lower()
    keywords = {"padding": padding, "groups": attributes.get("group") or 1}
    for name, keyword in (("strides", "stride"), ("dilations", "dilation")):
        if attributes.get(name) is not None:
            keywords[keyword] = tuple(attributes[name])
    return keywords


def conv(x: Array, w: Array, b: Array | None = None, **attributes: Any) -> Array:
    """Compute a Conv: x (N, C, *size), w (M, C/group, *kernel), b (M,)."""
    rank, kernel, pads = x.ndim - 2, attributes.get("kernel_shape"), attributes.get("pads")
    if x.ndim != w.ndim:  # upconv would accept x without a batch
        raise ShapeError("X.shape", str(x.shape), f"{w.ndim} axes, like the weight")
    if kernel is not None and tuple(kernel) != w.shape[2:]:
        raise ShapeError("kernel_shape", str(list(kernel)), f"{w.shape[2:]}, the weight's")
    if pads is not None and len(pads) != 2 * rank:
        raise ShapeError("pads", str(list(pads)), f"{rank} begins, then {rank} ends")
    return ops.conv(x, w, b, **conv_keywords(attributes), engine="reference")


def evaluator_operators(rule: str, opset: int) -> list[type[Any]]:
    """Return operator classes for `onnx.reference.ReferenceEvaluator(new_ops=...)`."""

    def operator(name: str, compute: Callable[..., Array], **options: Any) -> type[Any]:
        def run(self: Any, *arrays: Array, **attributes: Any) -> tuple[Array]:
            try:
                return (compute(*arrays, **options, **attributes),)
            except UpconvError as error:  # name the node: the evaluator does not
                node = self.onnx_node
                where = f"{node.op_type} node {brief(node.name or 'without a name')}"
                raise ModelError(f"{where}: {error}") from error

        return type(name, (OpRun,), {"op_domain": "", "_run": run})

    options = {"rule": rule, "opset": opset, "engine": "reference"}
    classes = [operator("Conv", conv), operator("ConvTranspose", conv_transpose, **options)]
    # The newer operator also suits older nodes, because its defaults match their meaning.
    for kind, since in ((BatchNormalization_14, 14), (DequantizeLinear_19, 19)):
        if opset < since:
            name = kind.__name__.partition("_")[0]
            schema = defs.get_schema(name, since)
            classes.append(type(name, (kind,), {"op_domain": "", "op_schema": schema}))
    return classes
