"""Rules about what runtimes refuse: warnings, and errors where the model is judged for the runtime.

Found by running ONNX Runtime 1.31.1 and OpenVINO 2026.4.1 on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir

from ....dialects.onnx import Rule as Reading
from ....dialects.onnx import to_onnx
from ....errors import TranslationError
from ...nodes import Unreadable
from ..context import READERS, Context, Observation, attribute, axes_in_words
from ..findings import Severity

_UNSUPPORTED = (ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
"""Element types that ONNX allows and ONNX Runtime has no ConvTranspose of on the CPU."""


def output_padding(context: Context) -> Iterator[Observation]:
    """output_padding is not smaller than the stride.

    ONNX allows it where it is smaller than the dilation, and PyTorch exports it; ONNX Runtime
    refuses it when it runs. Where ONNX forbids it too, this is an error.

    Fix: Write it as a Pad after the node: `upconv lint --fix`, or `upconv rewrite IN OUT --passes
    no_output_padding`.
    """
    extra = attribute(context.node, "output_padding", ir.AttributeType.INTS)
    if extra is None or not context.concerns(Reading.ONNXRUNTIME):
        return
    strides = attribute(context.node, "strides", ir.AttributeType.INTS) or (1,) * len(extra)
    axes = [i for i, (a, s) in enumerate(zip(extra, strides, strict=False)) if a >= s and a > 0]
    found = context.found
    forbidden = isinstance(found, Unreadable) and found.wrong and "output_padding" in found.reason
    if axes:
        words = f"output_padding {list(extra)} is not smaller than the strides {list(strides)}"
        words += f"{' and the dilations' if forbidden else ''} along {axes_in_words(axes)}"
        facts = {"axes": axes, "output_padding": list(extra), "strides": list(strides)}
        yield _refused(context, Reading.ONNXRUNTIME, words, facts, forbidden=forbidden)


def empty_bias_name(context: Context) -> Iterator[Observation]:
    """The node has an empty name as its bias instead of no bias.

    ONNX allows it; OpenVINO fails when it compiles the model.

    Fix: Remove the empty third input: `upconv lint --fix`.
    """
    inputs = context.node.inputs
    if len(inputs) > 2 and inputs[2] is None and context.concerns(Reading.OPENVINO):
        yield _refused(context, Reading.OPENVINO, "The bias is an empty name", {})


def refused_geometry(context: Context) -> Iterator[Observation]:
    """A runtime refuses a size or a number of axes that ONNX allows.

    ONNX Runtime refuses empty outputs, and an output_shape that exceeds the computed size by a
    stride or more. OpenVINO has at most three spatial axes.

    Fix: Ask for a size that the input produces and add a Pad after the node; run layers of four
    spatial axes in ONNX Runtime.
    """
    conv = context.conv
    if conv is None or None in conv.sizes or any(output_padding(context)):
        return
    for runtime in (Reading.ONNXRUNTIME, Reading.OPENVINO):
        if context.concerns(runtime):
            try:
                to_onnx(conv.layer, rule=runtime.value)
            except TranslationError as error:
                reason = " ".join(str(error).split()).rstrip(".")
                outs = [axis.out for axis in conv.axes]
                words = f"The output is {outs} for an input of {list(conv.sizes)}: {reason}"
                yield _refused(context, runtime, words, {"outputs": outs, "reason": reason})


def element_type(context: Context) -> Iterator[Observation]:
    """A runtime has no kernel for the element type, or computes in a lower precision.

    ONNX Runtime has no ConvTranspose of float64 or bfloat16 on the CPU. OpenVINO takes float64 and
    computes in a lower precision: judged for it, this is a note.

    Fix: Export in float32 or float16.
    """
    inputs = [value for value in context.node.inputs[:2] if value is not None]
    dtype = next((value.dtype for value in inputs if value.dtype is not None), None)
    if dtype in _UNSUPPORTED and context.concerns(Reading.ONNXRUNTIME):
        words = f"The element type is {dtype}, which has no kernel on the CPU"
        yield _refused(context, Reading.ONNXRUNTIME, words, {"dtype": str(dtype)})
    if dtype is ir.DataType.DOUBLE and context.runtime is Reading.OPENVINO:
        yield Observation(
            f"The element type is {dtype}; OpenVINO computes it in a lower precision.",
            {"runtime": Reading.OPENVINO.value, "dtype": str(dtype)},
            Severity.NOTE,
        )


def _refused(
    context: Context,
    runtime: Reading,
    words: str,
    facts: Mapping[str, Any],
    *,
    forbidden: bool = False,
) -> Observation:
    """An error where the specification forbids it too, or the model is judged for the runtime."""
    return Observation(
        f"{words}; {READERS[runtime]} refuses that.",
        {"runtime": runtime.value, **facts},
        Severity.ERROR if forbidden or context.runtime is runtime else None,
    )
