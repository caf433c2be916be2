"""Rules about what runtimes refuse. Without a target each is a warning; with one, that runtime's
are errors and the others' are silent.

Facts: found by running ONNX Runtime 1.31.1 (CPU) and OpenVINO 2026.4.1 (CPU).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from ....dialects.onnx import LIMITS, Rule, to_onnx
from ....errors import TranslationError
from ...nodes import Unreadable
from ..findings import Severity
from ..places import Place, shape_of
from ..wording import along
from .attributes import integers
from .base import Observation
from .meaning import READERS

_REFUSED_TYPES = {Rule.ONNXRUNTIME: (ir.DataType.DOUBLE, ir.DataType.BFLOAT16)}
"""Runtime -> element types that ONNX allows and it has no ConvTranspose of."""

_LOWERED_TYPES = {Rule.OPENVINO: (ir.DataType.DOUBLE,)}
"""Runtime -> element types that it takes, and computes in float32."""


def output_padding(place: Place) -> Iterator[Observation]:
    """Output padding of a stride or more."""
    extra = integers(place.node, "output_padding")
    if extra is None or not place.aims(Rule.ONNXRUNTIME):
        return
    strides = integers(place.node, "strides") or (1,) * len(extra)
    pairs = list(zip(extra, strides, strict=False))
    axes = [i for i, (a, s) in enumerate(pairs) if a >= s and a > 0]
    if not axes:
        return
    found = place.found
    forbidden = isinstance(found, Unreadable) and found.wrong and "output_padding" in found.reason
    words = f"Its output_padding {list(extra)} is not below its strides {list(strides)}"
    yield _refused(
        place,
        Rule.ONNXRUNTIME,
        f"{words} {along(axes)}" + (", nor below its dilations" if forbidden else ""),
        {"axes": axes, "output_padding": list(extra), "strides": list(strides)},
        forbidden=forbidden,
    )


def empty_bias_name(place: Place) -> Iterator[Observation]:
    """A bias that is named "" instead of left out."""
    inputs = place.node.inputs
    if len(inputs) > 2 and inputs[2] is None and place.aims(Rule.OPENVINO):
        yield _refused(place, Rule.OPENVINO, "Its bias is left out by an empty name", {})


def many_axes(place: Place) -> Iterator[Observation]:
    """More spatial axes than a runtime has."""
    shape = shape_of(place.node.inputs[1]) if len(place.node.inputs) > 1 else None
    most = LIMITS[Rule.OPENVINO].most_axes
    if shape is not None and len(shape) - 2 > most and place.aims(Rule.OPENVINO):
        words = f"It has {len(shape) - 2} spatial axes, more than {most}"
        yield _refused(place, Rule.OPENVINO, words, {"axes": len(shape) - 2, "most": most})


def element_type(place: Place) -> Iterator[Observation]:
    """An element type that a runtime has no kernel for, or computes lower."""
    inputs = [value for value in place.node.inputs[:2] if value is not None]
    dtype = next((value.dtype for value in inputs if value.dtype is not None), None)
    if dtype is None:
        return
    for runtime, refused in _REFUSED_TYPES.items():
        if dtype in refused and place.aims(runtime):
            words = f"It computes in {dtype.name}, for which there is no kernel on the CPU"
            yield _refused(place, runtime, words, {"dtype": dtype.name})
    for runtime, lowered in _LOWERED_TYPES.items():
        if dtype in lowered and place.target is runtime:
            yield Observation(
                f"It computes in {dtype.name}; {READERS[runtime]} takes that and computes lower.",
                {"runtime": runtime.value, "dtype": dtype.name},
                Severity.NOTE,
            )


def weight_of_unknown_shape(place: Place) -> Iterator[Observation]:
    """A weight that comes in while running, without a stated shape."""
    w = place.node.inputs[1] if len(place.node.inputs) > 1 else None
    if w is None or not w.is_graph_input() or not place.aims(Rule.OPENVINO):
        return
    shape = shape_of(w)
    if shape is None or None in shape:
        stated = None if shape is None else list(shape)
        words = "Its weight is an input of the model without a full shape"
        yield _refused(place, Rule.OPENVINO, words, {"shape": stated})


def geometry(place: Place) -> Iterator[Observation]:
    """Sizes that ONNX allows and a runtime refuses, other than by the rules above."""
    site, runtime = place.site, Rule.ONNXRUNTIME
    if site is None or None in site.sizes or not place.aims(runtime) or any(output_padding(place)):
        return
    try:
        to_onnx(site.layer, rule=runtime.value)
    except TranslationError as error:
        reason = " ".join(str(error).split())
        outs = [axis.out for axis in site.axes]
        yield _refused(
            place,
            runtime,
            f"With outputs of {outs} from inputs of {list(site.sizes)}: {reason}",
            {"outputs": outs, "inputs": list(site.sizes), "reason": reason},
        )


def _refused(
    place: Place, runtime: Rule, words: str, facts: dict[str, Any], *, forbidden: bool = False
) -> Observation:
    """forbidden: ONNX's text does not allow it either."""
    severity = Severity.ERROR if forbidden or place.target is runtime else None
    sentence = words.rstrip(".")
    return Observation(
        f"{sentence}; {READERS[runtime]} refuses that.",
        {"runtime": runtime.value, **facts},
        severity,
    )
