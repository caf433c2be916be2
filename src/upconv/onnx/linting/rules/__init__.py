"""The rules, each by its number: numbers never change their meaning, and are never used again.

    UPC0..   the result: checkerboards, gaps, edges, idle weights
    UPC1..   what the node says: not ONNX, or not the same to all who read it
    UPC2..   what a runtime refuses
    UPC3..   what is likely slow on the target; silent without one
    UPC4..   neighbours that belong into the node
    UPC9..   what could not be looked at

`RULES` is the table; a new rule is a function beside the others, an entry below, its tests and its
section in docs/onnx-lint.md, which is checked against this table.
"""

from __future__ import annotations

from ..findings import Severity
from . import meaning, neighbours, overlap, reading, speed, support
from .base import Rule

_ODENA = "https://distill.pub/2016/deconv-checkerboard/"
_OPERATOR = "https://onnx.ai/onnx/operators/onnx__ConvTranspose.html"
_DEQUANTIZE = "https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html"
_NORMALIZATION = "https://onnx.ai/onnx/operators/onnx__BatchNormalization.html"

_MEASURE = (
    "`upconv optimize --target` measures it on your machine, and rewrites it where that is faster."
)
_OPTIMISE = "`upconv optimize` does it, and proves that the model still computes the same."

_ALL = (
    Rule(
        "UPC001",
        "uneven-overlap",
        Severity.WARNING,
        "Some outputs are made by more taps than their neighbours.",
        "Where the kernel is no multiple of the stride, windows overlap unevenly: every few outputs"
        " add up more products than those between them. Training can even that out, and often does"
        " not; what is left is a checkerboard in images, and a tone at the step's frequency in"
        " sound. Where the weights are known and do even it out, this is a note.",
        "Take a kernel that is a multiple of the stride (4 instead of 3 at stride 2) when the model"
        " is next trained, or upsample by interpolation and convolve.",
        overlap.uneven_overlap,
        (_ODENA,),
    ),
    Rule(
        "UPC002",
        "checkerboard-weights",
        Severity.WARNING,
        "The weights answer an input that is constant in space with a pattern.",
        "Of an input without any structure, outputs at some positions are louder than at others, by"
        " more than 25 % and by more than chance explains. Loudness is the root mean square of the"
        " sums of taps of one phase, over all pairs of input and output channels: which constants"
        " a layer sees in a network cannot be told, so it is the mean over all of them. A kernel"
        " that is a multiple of the stride can show it too. Borders are left out.",
        "Look at the layer's output for a flat input; train on from weights whose phases are alike,"
        " or scale each phase's taps to the same loudness and train on from there.",
        overlap.checkerboard_weights,
        (_ODENA,),
    ),
    Rule(
        "UPC003",
        "dead-phases",
        Severity.WARNING,
        "Outputs at regular places are reached by no tap and hold the bias alone.",
        "A kernel below the stride, or a dilation that shares a divisor with it, leaves gaps: what"
        " stands there does not depend on the input. Where every kernel is 1 the node only puts"
        " zeros between its inputs for a filter that follows, and this is a note.",
        "Take a kernel of at least the stride, and a dilation without a common divisor with it.",
        overlap.dead_phases,
    ),
    Rule(
        "UPC004",
        "bias-only-edge",
        Severity.WARNING,
        "Positions at a border lie beyond everything that the taps reach.",
        "Output padding, or an output_shape, beyond what the padding cuts off adds positions that"
        " no product reaches. They hold the bias alone: an edge that no input can change.",
        "Cut off more at that end (pads) or ask for less (output_padding, output_shape); or take a"
        " larger kernel, so that products reach the border.",
        overlap.bias_only_edge,
    ),
    Rule(
        "UPC005",
        "unused-taps",
        Severity.NOTE,
        "Part of the weight reaches no output.",
        "At the input's size, whatever some taps make is cut off: their weights are stored and"
        " multiplied for nothing.",
        "Take the taps out of the weight and the crop with them, if the size is always the same.",
        overlap.unused_taps,
    ),
    Rule(
        "UPC101",
        "runtimes-disagree",
        Severity.WARNING,
        "auto_pad or output_shape is read differently by ONNX's text and by runtimes.",
        "Which end loses the odd position, and how large SAME is when the kernel is below the"
        " stride, has more than one answer; opsets before 11 say the opposite of later ones. The"
        " result has the right shape and is off by one position, or has another shape.",
        "Say it in pads and output_padding, which everyone reads alike: the pass `normalise` does"
        " it, by the rule that you name.",
        meaning.runtimes_disagree,
        (_OPERATOR,),
    ),
    Rule(
        "UPC102",
        "same-of-open-size",
        Severity.WARNING,
        "auto_pad SAME on an input whose size the model leaves open.",
        "OpenVINO ignores auto_pad there: its output is the whole result, larger than meant.",
        "Say it in pads (the pass `normalise` does), or give the model's input a fixed size.",
        meaning.same_of_open_size,
        (_OPERATOR,),
    ),
    Rule(
        "UPC103",
        "pads-with-auto-pad",
        Severity.ERROR,
        "pads and auto_pad are stated together.",
        "ONNX forbids it, and readers disagree on which of the two wins, even if pads are 0.",
        "Remove one of the two: auto_pad if the pads are what is meant.",
        meaning.pads_with_auto_pad,
        (_OPERATOR,),
    ),
    Rule(
        "UPC104",
        "kernel-shape",
        Severity.ERROR,
        "kernel_shape contradicts the weight.",
        "Some runtimes refuse the node, others do not look at kernel_shape.",
        "Remove kernel_shape, which the weight tells anyway, or correct it.",
        meaning.kernel_shape,
        (_OPERATOR,),
    ),
    Rule(
        "UPC105",
        "declared-shape",
        Severity.ERROR,
        "The shape that the model states for the output is not the true one.",
        "Checkers and converters believe what is stated; runtimes warn, plan memory by it,"
        " or fail.",
        "Correct or remove the stated shape and have shapes inferred anew.",
        meaning.declared_shape,
    ),
    Rule(
        "UPC106",
        "inferred-shape",
        Severity.WARNING,
        "ONNX's own shape inference gives this node another shape than runtimes do.",
        "With auto_pad SAME its sizes are off where the kernel is below the stride or there is"
        " output_padding. Whatever trusts it, checks or exports, is wrong from here on.",
        "Say it in pads and output_padding: the pass `normalise` does it.",
        meaning.inferred_shape,
        (_OPERATOR,),
    ),
    Rule(
        "UPC107",
        "quantised-axis",
        Severity.WARNING,
        "A quantised weight has its scales along another axis than the output channels'.",
        "The weight of a ConvTranspose is (input channels, output channels, ...): axis 1, where a"
        " Conv has axis 0. Scales along axis 0 are a scale per input channel, which integer kernels"
        " cannot use: they are slow, refused, or taken for the other axis.",
        "Quantise again with axis 1, or with one scale for the whole weight.",
        meaning.quantised_axis,
        (_DEQUANTIZE,),
    ),
    Rule(
        "UPC108",
        "training-batch-norm",
        Severity.WARNING,
        "A batch normalisation in training mode follows.",
        "Its result depends on the whole batch, and on its size; with one image it can blow up. The"
        " model was exported while training.",
        "Export in evaluation mode.",
        meaning.training_batch_norm,
        (_NORMALIZATION,),
    ),
    Rule(
        "UPC109",
        "malformed",
        Severity.ERROR,
        "The node is not what ONNX allows.",
        "Attributes or shapes contradict ONNX's text or each other. What a runtime makes of it is"
        " its own.",
        "Correct the export; the message says which attribute.",
        reading.malformed,
        (_OPERATOR,),
    ),
    Rule(
        "UPC201",
        "output-padding",
        Severity.WARNING,
        "output_padding is a stride or more.",
        "ONNX allows it below the dilation and PyTorch exports it; ONNX Runtime refuses it while"
        " running. Where ONNX's text forbids it too, this is an error.",
        "Ask for less and put a Pad after it, or take the dilation away: the passes"
        " `no_output_padding` and `no_dilation` do.",
        support.output_padding,
        (_OPERATOR,),
    ),
    Rule(
        "UPC202",
        "empty-bias-name",
        Severity.WARNING,
        "The bias is left out by an empty name instead of not being there.",
        "ONNX allows it; OpenVINO fails while it compiles the model.",
        "Drop the empty third input.",
        support.empty_bias_name,
    ),
    Rule(
        "UPC203",
        "many-axes",
        Severity.WARNING,
        "There are more than three spatial axes.",
        "OpenVINO does not read the model; other converters end at three as well.",
        "Put axes together with a Reshape where they are computed one by one, or compute it with"
        " ONNX Runtime.",
        support.many_axes,
    ),
    Rule(
        "UPC204",
        "element-type",
        Severity.WARNING,
        "The element type has no kernel in a runtime, or is computed lower.",
        "ONNX Runtime has no ConvTranspose of float64 and of bfloat16 on the CPU. OpenVINO takes"
        " float64 and computes lower: with it as the target, that is a note.",
        "Export in float32 or float16.",
        support.element_type,
    ),
    Rule(
        "UPC205",
        "weight-of-unknown-shape",
        Severity.WARNING,
        "The weight is an input of the model and its shape is not stated.",
        "OpenVINO needs the weight's shape to compile the model.",
        "State the shape of the weight, or make it an initialiser.",
        support.weight_of_unknown_shape,
    ),
    Rule(
        "UPC206",
        "refused-size",
        Severity.WARNING,
        "At the sizes known, a runtime refuses what ONNX allows.",
        "ONNX Runtime refuses empty outputs, and an output_shape a stride or more beyond what is"
        " computed.",
        "Ask for a size that products reach, and pad afterwards.",
        support.geometry,
    ),
    Rule(
        "UPC301",
        "slow-stride-one",
        Severity.NOTE,
        "On ONNX Runtime: all strides are 1.",
        "ONNX Runtime adds the products into place one by one, which its convolutions do not have"
        " to; with stride 1 the two are the same thing.",
        _MEASURE,
        speed.stride_one,
    ),
    Rule(
        "UPC302",
        "slow-few-channels",
        Severity.NOTE,
        "On OpenVINO: a stride and at most four output channels.",
        "Its kernels work on blocks of channels, which are nearly empty here; a convolution with a"
        " channel per phase fills them.",
        _MEASURE,
        speed.few_output_channels,
    ),
    Rule(
        "UPC303",
        "slow-long-stride",
        Severity.NOTE,
        "On OpenVINO: one spatial axis and a stride of five or more.",
        "Layers of vocoders and codecs; a convolution with a channel per phase was faster on all"
        " that were tried.",
        _MEASURE,
        speed.long_stride,
    ),
    Rule(
        "UPC304",
        "slow-inverse-transform",
        Severity.NOTE,
        "On ONNX Runtime: hundreds of taps into one channel.",
        "An inverse Fourier transform written as a transposed convolution adds every product into"
        " place by itself; a convolution with a channel per phase multiplies matrices instead.",
        _MEASURE,
        speed.inverse_transform,
    ),
    Rule(
        "UPC401",
        "foldable-batch-norm",
        Severity.NOTE,
        "A normalisation that follows can be part of weight and bias.",
        "It multiplies and adds one number per channel, which weight and bias can do for nothing.",
        f"Fold it (the pass `fold_batch_norm`). {_OPTIMISE}",
        neighbours.foldable(("BatchNormalization",), "fold_batch_norm"),
    ),
    Rule(
        "UPC402",
        "foldable-pad",
        Severity.NOTE,
        "A Pad beside it can be part of its padding.",
        "The Pad copies the whole array to add zeros that pads and output_padding can add.",
        f"Fold it (the pass `fold_pad`). {_OPTIMISE}",
        neighbours.foldable(("Pad",), "fold_pad", before=True),
    ),
    Rule(
        "UPC403",
        "foldable-slice",
        Severity.NOTE,
        "A Slice beside it can be part of its padding.",
        "What the Slice cuts off was computed first, and what is left is copied; pads can cut it.",
        f"Fold it (the pass `fold_slice`). {_OPTIMISE}",
        neighbours.foldable(("Slice",), "fold_slice", before=True),
    ),
    Rule(
        "UPC404",
        "foldable-arithmetic",
        Severity.NOTE,
        "A scale or a shift per channel that follows can be part of weight and bias.",
        "It is one more pass over the whole result for what weight and bias can do for nothing.",
        f"Fold it (the pass `fold_batch_norm`). {_OPTIMISE}",
        neighbours.foldable(("Mul", "Div", "Add", "Sub"), "fold_batch_norm"),
    ),
    Rule(
        "UPC901",
        "unreadable",
        Severity.NOTE,
        "The node's geometry cannot be known from the model.",
        "Sizes or attributes that it depends on are known only while running, so no other rule"
        " could look at it.",
        "Give the sizes of the model's inputs (`--size`, `sizes=`); inline functions whose"
        " attributes are parameters.",
        reading.unreadable,
    ),
    Rule(
        "UPC902",
        "computed-weight",
        Severity.NOTE,
        "The weight is not constant.",
        "Rules about weights could not look, and nothing can be folded or rewritten. An initialiser"
        " that is also an input of the model counts as fed.",
        "Take initialisers out of the model's inputs; fold constants before exporting.",
        reading.computed_weight,
    ),
)

RULES: dict[str, Rule] = {rule.code: rule for rule in _ALL}
"""Number -> rule, in order."""
