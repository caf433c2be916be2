"""Operators for ONNX's reference evaluator in place of its own, where those are wrong or missing.

    ConvTranspose       its own is wrong for groups with a bias or with several output channels, and
                        does not do `output_shape` without auto_pad
    Conv                its own pads by rules of its own
    BatchNormalization  before opset 14 its own trains, whatever the node's outputs say
    DequantizeLinear    before opset 19 it has none

The first two are computed by upconv's reference engine and follow the operators' texts;
ConvTranspose (`backend`), if so asked, a runtime's reading of it.

What lives here: Conv and BatchNormalization as functions of arrays and attributes, None being one
that a node does not have, and all four operators as the classes that the evaluator wants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...arrays import Array
from ...dialects import values
from ...dialects.onnx import AutoPad
from ...errors import EngineRefusal, ModelError, ShapeError, UpconvError
from ...ops import conv as _conv
from ..backend import conv_transpose
from ..bodies import called
from ..checker import NEWEST_OPSET

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


def batch_norm(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    spatial: int | None = 1,
) -> Array:
    """BatchNormalization as inference has it, computed in float64, in the dtype of x.

    scale, b, mean, var: (C,), or (C, *size) where `spatial` is 0, as opsets below 9 may have it.

    >>> one = np.ones(1)
    >>> batch_norm(np.array([[3.0, 5.0]]).T, 2 * one, one, 3 * one, 4 * one, epsilon=0.0).T
    array([[1., 3.]])
    """
    shape = (-1,) + (1,) * (x.ndim - 2)
    scale, b, mean, var = (
        a.astype(np.float64).reshape(a.shape if spatial == 0 else shape)
        for a in (scale, b, mean, var)
    )
    y: Array = (x.astype(np.float64) - mean) * (scale / np.sqrt(var + epsilon)) + b
    return y.astype(x.dtype)


def evaluator_operators(rule: str, opset: int = NEWEST_OPSET) -> list[type[Any]]:
    """The classes for `onnx.reference.ReferenceEvaluator(new_ops=...)`; it goes by their names.

    opset: of the model; of operators that ONNX changed it says which to replace.
    """

    def run_conv(self: Any, *arrays: Array, **attributes: Any) -> tuple[Array]:
        return (_at(self.onnx_node, conv, *arrays, **attributes),)

    def run_conv_transpose(self: Any, *arrays: Array, **attributes: Any) -> tuple[Array]:
        opset = self.run_params["opsets"].get("", NEWEST_OPSET)
        how = {"rule": rule, "opset": opset, "engine": _ENGINE, **attributes}
        return (_at(self.onnx_node, conv_transpose, *arrays, **how),)

    made = [_operator("Conv", run_conv), _operator("ConvTranspose", run_conv_transpose)]
    if opset < _NORM_BY_MODE:
        made.append(_operator("BatchNormalization", _run_batch_norm, opset))
    if _FIRST_DEQUANTISED <= opset < _DEQUANTISED:
        made.append(_operator("DequantizeLinear", _run_dequantize, opset))
    return made


_NORM_BY_MODE = 14
"""From this opset on BatchNormalization has `training_mode`, and the evaluator's own is right."""

_FIRST_DEQUANTISED, _DEQUANTISED = 10, 19
"""DequantizeLinear as ONNX has it first, and as the evaluator has it first."""


def _operator(name: str, run: Callable[..., Any], opset: int | None = None) -> type[Any]:
    """A class for the evaluator, with the attributes of the operator as it was in `opset`."""
    from onnx import defs
    from onnx.reference.op_run import OpRun

    body: dict[str, Any] = {"op_domain": "", "_run": run}
    if opset is not None:
        body["op_schema"] = defs.get_schema(name, opset)
    return type(name, (OpRun,), body)


def _run_batch_norm(self: Any, *arrays: Array, **attributes: Any) -> tuple[Array]:
    """Below opset 14 a node that asks for more than one output trains."""
    if len([name for name in self.onnx_node.output if name]) > 1:
        raise EngineRefusal(
            f"{called(self.onnx_node)}: It is in training mode, which is not computed here."
        )
    said = {key: attributes[key] for key in ("epsilon", "spatial") if key in attributes}
    return (_at(self.onnx_node, batch_norm, *arrays, **said),)


def _run_dequantize(
    self: Any, x: Array, scale: Array, zero: Array | None = None, axis: int = 1
) -> tuple[Array]:
    """As from opset 19 on; integers of 32 bits keep all of theirs in float64."""
    shape = [1] * x.ndim
    if scale.ndim:
        shape[axis] = -1
    y = x.astype(np.float64)
    if zero is not None:
        y -= zero.astype(np.float64).reshape(shape)
    return ((y * scale.astype(np.float64).reshape(shape)).astype(scale.dtype),)


def _at(node: Any, compute: Callable[..., Array], *arrays: Any, **attributes: Any) -> Array:
    """The result; an error says at which node, because nobody called this by hand."""
    try:
        return compute(*arrays, **attributes)
    except UpconvError as error:
        raise ModelError(f"{called(node)}: {error}") from error
