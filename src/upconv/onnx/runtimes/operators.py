"""Operators for ONNX's reference evaluator in place of its own, where those are wrong or missing.

    ConvTranspose       its own is wrong for groups with a bias or with several output channels, and
                        does not do `output_shape` without auto_pad
    Conv                its own pads by rules of its own
    BatchNormalization  in opset 13 its own trains, whatever the node's outputs say
    DequantizeLinear    before opset 19 it has none

The first two are computed by upconv's reference engine and follow the operators' texts;
ConvTranspose (`backend`), if so asked, a runtime's reading of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import defs
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19

from ...arrays import Array
from ...dialects import values
from ...dialects.onnx import AutoPad
from ...errors import ModelError, ShapeError, UpconvError
from ...ops import conv as _conv
from ..backend import conv_transpose
from .float64 import called

_ENGINE = "reference"
_PADDED = {
    AutoPad.VALID: "valid",
    AutoPad.SAME_UPPER: "same_upper",
    AutoPad.SAME_LOWER: "same_lower",
}


def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: Any = None,
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> Array:
    """Conv: x (N, C, *size), w (M, C/group, *kernel), b (M,).

    Raises `ArgumentError` and its kinds for what does not fit together.

    >>> import numpy as np
    >>> conv(np.arange(4.0).reshape(1, 1, 4), np.array([[[1.0, 10.0]]]), pads=[0, 1])
    array([[[10., 21., 32.,  3.]]])
    """
    rank = x.ndim - 2
    if x.ndim != w.ndim:  # upconv would take x without a batch
        raise ShapeError("X.shape", str(x.shape), f"{w.ndim} axes, as many as the weight has")
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise ShapeError("kernel_shape", str(list(kernel_shape)), f"{w.shape[2:]}, the weight's")
    mode = values.member("auto_pad", auto_pad or "NOTSET", AutoPad)
    return _conv(
        x,
        w,
        b,
        stride=1 if strides is None else tuple(strides),
        dilation=1 if dilations is None else tuple(dilations),
        padding=_PADDED[mode] if mode in _PADDED else _pairs(pads, rank),
        groups=group,
        engine=_ENGINE,
    )


def _pairs(pads: Any, rank: int) -> Any:
    if pads is None:
        return 0
    if len(pads) != 2 * rank:
        raise ShapeError("pads", str(list(pads)), f"{rank} begins, then {rank} ends")
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def evaluator_operators(rule: str, opset: int) -> list[type[Any]]:
    """The classes for `onnx.reference.ReferenceEvaluator(new_ops=...)`; it goes by their names.

    opset: of the model; of operators that ONNX changed it says which to replace.
    """

    def run_conv(self: Any, *arrays: Array, **attributes: Any) -> tuple[Array]:
        return (_at(self.onnx_node, conv, *arrays, **attributes),)

    def run_conv_transpose(self: Any, *arrays: Array, **attributes: Any) -> tuple[Array]:
        how = {"rule": rule, "opset": opset, "engine": _ENGINE, **attributes}
        return (_at(self.onnx_node, conv_transpose, *arrays, **how),)

    return [
        type("Conv", (OpRun,), {"op_domain": "", "_run": run_conv}),
        type("ConvTranspose", (OpRun,), {"op_domain": "", "_run": run_conv_transpose}),
        *(_newer(kind, since) for kind, since in _NEWER if opset < since),
    ]


_NEWER: tuple[tuple[type[Any], int], ...] = ((BatchNormalization_14, 14), (DequantizeLinear_19, 19))
"""What the evaluator has from an opset on, and right for the ones before: who says no more means it
as the newer operator does by default."""


def _newer(kind: type[Any], since: int) -> type[Any]:
    name = kind.__name__.partition("_")[0]
    return type(name, (kind,), {"op_domain": "", "op_schema": defs.get_schema(name, since)})


def _at(node: Any, compute: Callable[..., Array], *arrays: Any, **attributes: Any) -> Array:
    """The result; an error says at which node, because nobody called this by hand."""
    try:
        return compute(*arrays, **attributes)
    except UpconvError as error:
        raise ModelError(f"{called(node)}: {error}") from error
