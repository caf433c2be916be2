"""Rules about a node's attributes, its neighbours, runtimes' refusals, and unknown geometry.

The behaviour of the runtimes was observed in ONNX Runtime 1.31.1 and OpenVINO 2026.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ...dialects.onnx import Rule as Reading
from ...dialects.onnx import to_onnx
from ...errors import TranslationError
from ..graphs import follower, is_op
from ..nodes import Sizes, Unreadable, known_sizes
from ..passes import PASSES
from .context import READERS, Context, attribute, axes_in_words, output_shape, shape_in_words
from .findings import quoted

_UNSUPPORTED = (ir.DataType.DOUBLE, ir.DataType.BFLOAT16)  # by ONNX Runtime on the CPU

_FOLDED = {
    **dict.fromkeys(("BatchNormalization", "Mul", "Div", "Add", "Sub"), "fold_batch_norm"),
    "Pad": "fold_pad",
    "Slice": "fold_slice",
}
"""Operator -> the pass that folds it into the node."""
FOLDS = tuple(dict.fromkeys(_FOLDED.values()))


def runtimes_disagree(context: Context) -> Iterator[str]:
    """Runtimes read auto_pad or output_shape of this node differently.

    They disagree on which end loses the odd position, and on the output size of SAME where the
    kernel is smaller than the stride. The output is shifted by one position, or has another shape.

    Fix: Write the padding as pads and output_padding, which all runtimes read alike: `upconv
    rewrite IN OUT --passes normalise:onnxruntime` keeps what ONNX Runtime computes,
    `normalise:openvino` what OpenVINO does. `upconv lint --fix --runtime NAME` does it in place.
    """
    readers: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for reading, conv in context.readings().items():
        readers.setdefault(conv.layer.crops, []).append(READERS[reading])
    if len(readers) > 1:
        word = "output_shape" if context.conv.has_output_shape else "auto_pad"
        lists = "; ".join(f"{' and '.join(who)}: {_crops(crops)}" for crops, who in readers.items())
        ways = f"{word} is read in {len(readers)} ways"
        yield f"{ways}. Positions cut off each axis as (begin, end): {lists}."


def same_of_open_size(context: Context) -> Iterator[str]:
    """auto_pad is SAME and the model leaves the input's size open.

    OpenVINO then ignores auto_pad and returns the whole output without cropping.

    Fix: Write the padding as pads (`upconv lint --fix`, or `upconv rewrite IN OUT --passes
    normalise`), or give the model's input a fixed size.
    """
    conv = context.conv
    if not context.concerns(Reading.OPENVINO):
        return
    open_axes = [i for i, size in enumerate(conv.sizes) if size is None]
    if conv.auto_pad.same and open_axes and any(any(crop) for crop in conv.layer.crops):
        yield (
            f"The input size is open along {axes_in_words(open_axes)}. OpenVINO then ignores"
            f" auto_pad {conv.auto_pad.value} and cuts nothing off; it should cut"
            f" {_crops(conv.layer.crops)} (begin, end) off the axes."
        )


def declared_shape(context: Context) -> Iterator[str]:
    """The shape that the model declares for the output is not the true one.

    Checkers and converters trust the declared shape; runtimes warn, plan memory by it, or fail.
    ONNX's own shape inference writes wrong shapes for auto_pad SAME with output_padding, or with a
    kernel smaller than the stride.

    Fix: Remove the declared shape (`upconv lint --fix`), or declare the true one.
    """
    true = [output_shape(conv) for conv in context.readings().values()]
    if context.declared and true and not any(_agree(context.declared, shape) for shape in true):
        stated, shape = shape_in_words(context.declared), shape_in_words(true[0])
        yield f"The model declares the output shape {stated}; it is {shape}."


def quantised_axis(context: Context) -> Iterator[str]:
    """A quantized weight has its scales along an axis other than the output channels.

    The weight of a ConvTranspose is (input channels, output channels / group, ...), so scales per
    output channel are along axis 1; a Conv has them along axis 0. Integer kernels cannot use
    scales per input channel: they are slow, refuse the model, or take the wrong axis.

    Fix: Quantize again with axis 1, or with one scale for the whole weight.
    """
    node = context.conv.w.producer()
    if not is_op(node, "DequantizeLinear"):
        return
    scale = known_sizes(node.inputs[1])
    axis = 1 if "axis" not in node.attributes else attribute(node, "axis")
    if scale is None or len(scale) != 1 or axis is None or attribute(node, "block_size"):
        return
    axis += context.conv.rank + 2 if axis < 0 else 0
    if axis != 1:
        yield (
            f"The weight is dequantized with {scale[0]} scales along axis {axis}; its output"
            " channels are along axis 1."
        )


def training_batch_norm(context: Context) -> Iterator[str]:
    """A BatchNormalization in training mode follows.

    It normalizes with the statistics of the current batch, so the output of one image depends on
    the others, and a single image can blow up. The model was exported in training mode.

    Fix: Export in evaluation mode (`model.eval()` in PyTorch).
    """
    stated = context.conv.opset >= 14  # opset 14 added the attribute
    for node in (use.node for use in context.conv.y.uses()):
        trained = any(value.name for value in node.outputs[1:])
        trains = attribute(node, "training_mode") if stated else trained
        if is_op(node, "BatchNormalization") and trains:
            yield (
                f"The BatchNormalization {quoted(node.name)} that follows is in training mode: it"
                " normalizes with the current batch and cannot be folded."
            )


def refused_geometry(context: Context) -> Iterator[str]:
    """A runtime refuses padding, sizes or a number of axes that ONNX allows.

    At run time ONNX Runtime refuses an output_padding that is not smaller than the stride, although
    ONNX allows it below the dilation and PyTorch exports it. It also refuses an output_shape that
    exceeds the computed size by a stride or more, and empty outputs. OpenVINO has at most three
    spatial axes.

    Fix: `upconv lint --fix`, or `upconv rewrite IN OUT --passes no_output_padding`, writes
    such an output padding as less padding, or as zero taps. Otherwise ask for a size that the input
    produces, or run the model in the other runtime.
    """
    for runtime in (Reading.ONNXRUNTIME, Reading.OPENVINO):
        if context.concerns(runtime):
            try:
                to_onnx(context.conv.layer, rule=runtime.value)
            except TranslationError as error:
                reason = " ".join(str(error).split()).rstrip(".")
                yield f"{reason[0].upper()}{reason[1:]}; {READERS[runtime]} refuses that."


def empty_bias_name(context: Context) -> Iterator[str]:
    """The node has an empty name as its bias instead of no bias.

    ONNX allows it; OpenVINO fails when it compiles the model.

    Fix: Remove the empty third input: `upconv lint --fix`.
    """
    inputs = context.conv.node.inputs
    if len(inputs) > 2 and inputs[2] is None and context.concerns(Reading.OPENVINO):
        yield "The bias is an empty name; OpenVINO refuses that."


def element_type(context: Context) -> Iterator[str]:
    """ONNX Runtime has no kernel for the element type.

    It has no ConvTranspose of float64 or bfloat16 on the CPU. OpenVINO accepts float64, but
    computes in a lower precision.

    Fix: Export in float32 or float16, or run the model with `upconv.onnx.Session`.
    """
    conv = context.conv
    dtype = conv.x.dtype or conv.w.dtype
    if dtype in _UNSUPPORTED and context.concerns(Reading.ONNXRUNTIME):
        yield f"The element type is {dtype}, for which ONNX Runtime has no kernel on the CPU."


def foldable_neighbour(context: Context) -> Iterator[str]:
    """A neighbouring operator can be folded into the node.

    A following BatchNormalization, scale or shift per channel can be folded into weight and bias; a
    Pad or a Slice before or after, into pads and output_padding. As a separate operator, each reads
    and writes the whole array once more.

    Fix: `upconv lint --fix`, or `upconv rewrite IN OUT --passes NAME` with the pass that the
    message names: fold_batch_norm, fold_pad or fold_slice.
    """
    conv = context.conv
    for where, node in (("precedes", conv.x.producer()), ("follows", follower(conv.y))):
        by = _FOLDED.get(node.op_type) if node and not conv.departures else None
        if node is None or by is None or (where == "precedes" and by == "fold_batch_norm"):
            continue
        if PASSES[by].refuses(conv) is None:
            who = f"{node.op_type} {quoted(node.name)}"
            yield f"{who} {where} and can be folded into the node by the pass {by}."
            return


def malformed(context: Context) -> Iterator[str]:
    """The node is not valid ONNX.

    Its attributes or shapes contradict the specification or each other: pads and auto_pad together,
    a kernel_shape that is not the weight's, negative pads. One runtime refuses such a node, another
    ignores the attribute.

    Fix: Correct the export; the message names the attribute.
    """
    if isinstance(context.parsed, Unreadable) and context.parsed.wrong:
        yield f"The node is not valid: {context.parsed.reason.rstrip('.')}."


def unknown_geometry(context: Context) -> Iterator[str]:
    """The node's geometry cannot be known from the model.

    Sizes or attributes that it depends on are known only when the model runs, so no other rule
    could check it.

    Fix: Give the shapes of the model's inputs (`--input-shape x:1,3,64,64`, `sizes=` in Python);
    inline functions whose attributes are parameters (`onnx.inliner`).
    """
    if isinstance(context.parsed, Unreadable) and not context.parsed.wrong:
        yield f"The node cannot be checked: {context.parsed.reason.rstrip('.')}."


def computed_weight(context: Context) -> Iterator[str]:
    """The weight is not constant.

    Rules about weights cannot check it, and no pass can fold or rewrite the node. An initializer
    that is also an input of the model may be replaced by the caller, so it is not constant.

    Fix: Remove initializers from the model's inputs; fold constants when exporting.
    """
    conv = context.conv
    if conv.weight.array is None and not is_op(conv.w.producer(), "DequantizeLinear"):
        yield f"The weight is not constant: {conv.weight.reason.rstrip('.')}."


def unreadable_file(context: Context) -> Iterator[str]:
    """The file cannot be read as an ONNX model.

    It is damaged or invalid, has an opset that upconv does not support, or lacks its weights. The
    other files are still checked; the exit code is 2.

    Fix: Give the path of an ONNX file, or export the model again.
    """
    return iter(())  # `upconv lint` reports it when it reads files: there is no node


def _agree(one: Sizes, other: Sizes) -> bool:
    """Whether two shapes can be the same."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _crops(crops: Sequence[tuple[int, int]]) -> str:
    return ", ".join(map(str, crops))
