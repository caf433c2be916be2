"""Rules about what runtimes refuse: warnings, and errors where the model is judged for the runtime.

Found by running ONNX Runtime 1.31.1 and OpenVINO 2026.4.1 on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ....dialects.onnx import Rule as Reading
from ....dialects.onnx import to_onnx
from ....errors import TranslationError
from ..context import READERS, Context
from ..findings import Observation, Severity

_UNSUPPORTED = (ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
"""Element types that ONNX allows and ONNX Runtime has no ConvTranspose of on the CPU."""


def refused_geometry(context: Context) -> Iterator[Observation]:
    """A runtime refuses padding, sizes or a number of axes that ONNX allows.

    ONNX Runtime refuses, when it runs, an output_padding that is not smaller than the stride, which
    ONNX allows below the dilation and PyTorch exports; an output_shape that exceeds the computed
    size by a stride or more; and empty outputs. OpenVINO has at most three spatial axes.

    Fix: `upconv lint --fix`, or `upconv rewrite IN OUT --passes no_output_padding`, writes such an
    output padding as a Pad after the node. Otherwise ask for a size that the input produces, or
    run the model in the other runtime.
    """
    for runtime in (Reading.ONNXRUNTIME, Reading.OPENVINO):
        if context.conv is not None and context.concerns(runtime):
            try:
                to_onnx(context.conv.layer, rule=runtime.value)
            except TranslationError as error:
                reason = " ".join(str(error).split()).rstrip(".")
                yield _refused(context, runtime, reason[0].upper() + reason[1:])


def empty_bias_name(context: Context) -> Iterator[Observation]:
    """The node has an empty name as its bias instead of no bias.

    ONNX allows it; OpenVINO fails when it compiles the model.

    Fix: Remove the empty third input: `upconv lint --fix`.
    """
    inputs = context.node.inputs
    if len(inputs) > 2 and inputs[2] is None and context.concerns(Reading.OPENVINO):
        yield _refused(context, Reading.OPENVINO, "The bias is an empty name")


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
        yield _refused(context, Reading.ONNXRUNTIME, words)
    if dtype is ir.DataType.DOUBLE and context.runtime is Reading.OPENVINO:
        yield Observation(
            f"The element type is {dtype}; OpenVINO computes it in a lower precision.",
            {"runtime": Reading.OPENVINO.value, "dtype": str(dtype)},
            Severity.NOTE,
        )


def _refused(context: Context, runtime: Reading, words: str) -> Observation:
    """An error where the model is judged for the runtime."""
    return Observation(
        f"{words}; {READERS[runtime]} refuses that.",
        {"runtime": runtime.value, "reason": words},
        Severity.ERROR if context.runtime is runtime else None,
    )
