"""ONNX: the ConvTranspose operator, by its specification and as two runtimes read it.

Per axis, ek = d*(k-1) + 1, full = (I-1)*s + ek, output padding a, pads (P, Q):

    no auto_pad, no output_shape    p = P    q = Q - a    O = full + a - P - Q      (1)
    output_shape                    O given, T = full + a - O, split                (2)
    auto_pad SAME_*                 O = I*s, T = full + a - O, split                (3)

In (2) pads are ignored, and VALID is (1) with pads 0. T < 0 extends the end. The odd position of T
is cut from the end ("upper") or the start; specifications and runtimes differ in this:

    rule          (2) upper if            (3) upper if      (3) O
    spec, >= 11   SAME_UPPER              SAME_UPPER        I*s
    spec, < 11    not SAME_UPPER          not SAME_UPPER    I*s
    onnxruntime   SAME_UPPER              SAME_UPPER        min(I*s, full + a)
    openvino      never; p = 0 if group>1 SAME_UPPER        min(I*s, full + a)

Sources: the ConvTranspose page of opsets 1, 11 and 22; the lower rows were found by running ONNX
Runtime 1.31.1 and OpenVINO 2026.4.1 on models of opset 1, 11 and 22 (each reads all three alike).
ONNX's reference evaluator follows (1) and (3), but starts at a negative position if T < 0, and
cannot run (2) without auto_pad. Data is NCX, the weight (C_in, C_out/group, *k).
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any

from ..errors import ArgumentError, ShapeError
from ..geometry import Axis, centred, fitted, padded, scaled
from . import arguments
from .layer import Layer, require_layer
from .limits import Limits


class AutoPad(Enum):
    """The values of auto_pad."""

    NOTSET = "NOTSET"
    VALID = "VALID"
    SAME_UPPER = "SAME_UPPER"
    SAME_LOWER = "SAME_LOWER"

    @property
    def same(self) -> bool:
        """Whether the output size is a multiple of the input size."""
        return self in (AutoPad.SAME_UPPER, AutoPad.SAME_LOWER)


class Rule(Enum):
    """The interpretation of the attributes, by the specification or by a runtime."""

    SPEC = "spec"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


LIMITS = {
    Rule.SPEC: Limits("ONNX", 0, False, "max(stride, dilation)"),
    Rule.ONNXRUNTIME: Limits("ONNX Runtime", 0, False, "the stride", least_out=1),
    Rule.OPENVINO: Limits("OpenVINO", 3, False, "2**49"),
}

INVERTED_BEFORE = 11
"""The opset whose specification reversed the rule for odd totals (onnx/onnx#1609)."""


def from_onnx(
    size: object,
    kernel_shape: object,
    *,
    strides: object = None,
    pads: object = None,
    dilations: object = None,
    output_padding: object = None,
    output_shape: object = None,
    auto_pad: object = "NOTSET",
    group: object = 1,
    opset: object = 22,
    rule: object = "spec",
) -> Layer:
    """Return the layer of a ConvTranspose node, interpreted by `rule`.

    size: the spatial input size, `x.shape[2:]`. pads: all begins, then all ends. rule: "spec",
    "onnxruntime" or "openvino"; only "spec" depends on `opset`. Attributes may be lists and bytes,
    as in a model; None means an absent attribute.

    Raises `ArgumentError` or `ShapeError` for attributes that this rule refuses.

    >>> from_onnx((5,), [3], strides=[2], auto_pad="SAME_UPPER").crops
    ((0, 1),)
    >>> from_onnx((5,), [3], strides=[2], auto_pad="SAME_UPPER", opset=1).crops
    ((1, 0),)
    """
    size = arguments.sizes(size)
    rank = len(size)
    reader, opset = arguments.member("rule", rule, Rule), arguments.integer("opset", opset, low=1)
    mode = arguments.member("auto_pad", auto_pad, AutoPad, "ONNX spells it in capitals.")
    kernel = arguments.per_axis("kernel_shape", kernel_shape, rank, low=1)
    s = arguments.per_axis("strides", strides, rank, low=1, absent=1)
    d = arguments.per_axis("dilations", dilations, rank, low=1, absent=1)
    extra = arguments.per_axis("output_padding", output_padding, rank, low=0, absent=0)
    begins, ends = _pads(pads, rank, mode)
    groups = arguments.integer("group", group, low=1)
    if output_shape is None and not mode.same:
        axes = arguments.axes(padded, size, kernel, s, d, begins, ends, extra)
    else:
        shaped = output_shape is not None
        outs: Any = (None,) * rank
        if shaped:
            expected, remedy = f"{rank} spatial sizes", "Leave N and C out of it."
            outs = arguments.integers("output_shape", output_shape, 0, (rank,), expected, remedy)
        begins_at_0 = shaped and reader is Rule.OPENVINO and groups > 1
        upper = mode is AutoPad.SAME_UPPER
        if reader is Rule.OPENVINO:
            upper = upper and not shaped
        elif reader is Rule.SPEC:
            upper = upper == (opset >= INVERTED_BEFORE)
        make = partial(_shared, reader, upper, begins_at_0)
        axes = arguments.axes(make, size, kernel, s, d, extra, outs)
    _check(reader, axes, extra)
    return Layer(axes, groups)


def to_onnx(layer: Layer, *, rule: object = "spec") -> dict[str, Any]:
    """Return a ConvTranspose node's attributes for any opset; raise `TranslationError`.

    It uses only `pads` and `output_padding`, which all runtimes read alike; `rule` selects the
    limits. `from_onnx(size, **to_onnx(layer))` has the same axes.

    >>> to_onnx(from_onnx((5,), [3], strides=[2], auto_pad="SAME_UPPER"))["pads"]
    (0, 1)
    """
    require_layer(layer)
    padding = LIMITS[arguments.member("rule", rule, Rule)].padding(layer)
    return {
        "kernel_shape": layer.kernel,
        "strides": layer.strides,
        "pads": (*padding.begins, *padding.ends),
        "output_padding": padding.extra,
        "dilations": layer.dilations,
        "group": layer.groups,
    }


def _pads(pads: object, rank: int, mode: AutoPad) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if pads is None:
        return (0,) * rank, (0,) * rank
    if mode is not AutoPad.NOTSET:
        raise ArgumentError(
            "pads",
            f"given together with auto_pad {mode.value}",
            "absent unless auto_pad is NOTSET",
            "Runtimes disagree on which of the two takes precedence: remove one.",
        )
    entries = arguments.integers("pads", pads, low=0)
    if len(entries) != 2 * rank:
        raise ArgumentError(
            "pads",
            f"{entries} ({len(entries)} of them)",
            f"{2 * rank} integers: {rank} begins, then {rank} ends",
        )
    return entries[:rank], entries[rank:]


def _shared(
    rule: Rule, upper: bool, begins_at_0: bool, size: int, k: int, s: int, d: int, extra: int,
    out: int | None,
) -> Axis:  # fmt: skip
    """Return an axis by row (2) of the module's first table, or by row (3) without `out`."""
    if out is None:
        full, out = padded(size, k, s, d, 0, 0, extra), scaled(size, s)
        out = out if rule is Rule.SPEC else min(out, full.out)
    if begins_at_0:
        return fitted(size, k, s, d, 0, out)
    return centred(size, k, s, d, out, upper=upper, output_padding=extra)


def _check(rule: Rule, axes: tuple[Axis, ...], extra: tuple[int, ...]) -> None:
    limits = LIMITS[rule]
    limits.check_size(tuple(axis.size for axis in axes))
    limits.check_output_padding(axes, extra)
    for i, axis in enumerate(axes):
        if rule is Rule.ONNXRUNTIME and -axis.crop_end >= axis.stride:
            raise ShapeError(
                f"output_shape[{i}]",
                f"{axis.out}, which is {-axis.crop_end} more than is computed",
                f"an excess less than the stride, {axis.stride}",
                "ONNX Runtime refuses it.",
            )
    limits.check_outputs(axes)
