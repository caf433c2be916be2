"""What every dialect but MXNet's refuses to read, and the words in which it does."""

from __future__ import annotations

import pytest

from upconv.dialects import (
    from_jax,
    from_keras,
    from_onednn_graph,
    from_onnx,
    from_torch,
)
from upconv.errors import ArgumentError, DTypeError, ShapeError

K3S2 = {"kernel_shape": [3], "strides": [2]}
K2S3 = {"kernel_shape": [2], "strides": [3]}
GRAPH = {"kernel": (3,), "strides": (2,)}
GRAPH_SHORT = {"kernel": (2,), "strides": (3,)}
JAX = {"kernel": (3,), "strides": (2,)}


REFUSALS = [
    # Kinds of value, common to all.
    (from_torch, (5,), {"kernel_size": 2.0}, "kernel_size is 2.0 (float); expected an integer."),
    (from_torch, (5, 7), {"kernel_size": (3, True)},
     "kernel_size[1] is True (bool); expected an integer."),
    (from_torch, (5,), {"kernel_size": 0}, "kernel_size is 0; expected an integer >= 1."),
    (from_torch, (-1,), {"kernel_size": 3}, "size[0] is -1; expected an integer >= 0."),
    (from_torch, (5,), {"kernel_size": 3, "stride": 2**49},
     "stride is 562949953421312; expected an integer <= 2**48 = 281474976710656."),
    (from_torch, (5, 7), {"kernel_size": (3, 3, 3)},
     ("kernel_size is (3, 3, 3) (3 of them); expected one integer per spatial axis, 2 here. "
     "The input size, given without N and C, decides how many axes there are.")),
    (from_torch, (), {"kernel_size": 3},
     "size is (); expected at least one spatial axis. Give x.shape without N and C."),
    (from_torch, (5,), {"kernel_size": 3, "groups": 0}, "groups is 0; expected an integer >= 1."),
    # PyTorch.
    (from_torch, (5,), {"kernel_size": 3, "padding": -1},
     "padding is -1; expected an integer >= 0."),
    (from_torch, (5, 7), {"kernel_size": 3, "stride": 2, "output_padding": (0, 2)},
     ("output_padding[1] is 2; expected less than max(stride, dilation) = 2. PyTorch refuses "
     "more.")),
    (from_torch, (5, 7), {"kernel_size": 3, "padding": (0, 5)},
     ("the output size on axis 1 is -1 = (7 - 1)*1 + 1*(3 - 1) + 1 - 5 - 5; expected at least "
     "0. Crop less, or take a larger input or kernel.")),
    (from_torch, (4,), {"kernel_size": 3, "padding": 3},
     ("the output size on axis 0 is 0 = (4 - 1)*1 + 1*(3 - 1) + 1 - 3 - 3; expected at least "
     "1. PyTorch refuses empty outputs.")),
    (from_torch, (5, 5), {"kernel_size": 3, "stride": 2, "padding": 1, "output_size": (9, 11)},
     ("output_size[1] is 11; expected from 9 to 10. Those are the sizes that an ordinary "
     "convolution maps to this input size.")),
    (from_torch, (5,), {"kernel_size": 3, "output_size": (1, 2, 3, 7)},
     ("output_size is (1, 2, 3, 7); expected 1 spatial sizes, with C or with N and C before "
     "them at most.")),
    (from_torch, (2, 2, 2, 2), {"kernel_size": 3},
     "size is (2, 2, 2, 2); expected at most 3 spatial axes. PyTorch has no more."),
    # ONNX.
    (from_onnx, (5,), {**K3S2, "pads": [0, 0], "auto_pad": "SAME_UPPER"},
     ("pads is given together with auto_pad SAME_UPPER; expected absent unless auto_pad is "
     "NOTSET. Runtimes disagree on which of the two wins: remove one.")),
    (from_onnx, (5,), {**K3S2, "pads": [1]},
     "pads is (1,) (1 of them); expected 2 integers: 1 begins, then 1 ends."),
    (from_onnx, (5,), {**K3S2, "pads": [0, -1]}, "pads[1] is -1; expected an integer >= 0."),
    (from_onnx, (5,), {**K3S2, "auto_pad": "same_upper"},
     ("auto_pad is 'same_upper'; expected one of 'NOTSET', 'VALID', 'SAME_UPPER', "
     "'SAME_LOWER'. ONNX spells it in capitals.")),
    (from_onnx, (5,), {**K3S2, "auto_pad": 1}, "auto_pad is 1 (int); expected text."),
    (from_onnx, (5,), {**K3S2, "output_shape": [1, 1, 10]},
     "output_shape is (1, 1, 10); expected 1 spatial sizes. Leave N and C out of it."),
    (from_onnx, (5,), {**K3S2, "output_padding": [2]},
     "output_padding[0] is 2; expected less than max(stride, dilation) = 2. ONNX refuses more."),
    (from_onnx, (5,), {**K3S2, "dilations": [4], "output_padding": [2], "rule": "onnxruntime"},
     "output_padding[0] is 2; expected less than the stride = 2. ONNX Runtime refuses more."),
    (from_onnx, (5,), {**K3S2, "output_shape": [13], "rule": "onnxruntime"},
     ("output_shape[0] is 13, 2 more than is computed; expected less than the stride, 2, more. "
     "ONNX Runtime refuses it.")),
    (from_onnx, (1,), {"kernel_shape": [3], "pads": [1, 2], "rule": "onnxruntime"},
     ("the output size on axis 0 is 0 = (1 - 1)*1 + 1*(3 - 1) + 1 - 1 - 2; expected at least "
     "1. ONNX Runtime refuses empty outputs.")),
    (from_onnx, (2,) * 4, {"kernel_shape": (1,) * 4, "rule": "openvino"},
     "size is (2, 2, 2, 2); expected at most 3 spatial axes. OpenVINO has no more."),
    (from_onnx, (5,), {**K3S2, "rule": "ort"},
     "rule is 'ort'; expected one of 'spec', 'onnxruntime', 'openvino'."),
    (from_onnx, (5,), {**K3S2, "opset": 0}, "opset is 0; expected an integer >= 1."),
    # oneDNN Graph.
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "same_upper"},
     ("auto_pad is 'same_upper'; expected one of 'None', 'VALID', 'SAME_UPPER', 'SAME_LOWER'. "
     "The library refuses other spellings.")),
    (from_onednn_graph, (5,), {**GRAPH, "output_padding": (2,)},
     "output_padding[0] is 2; expected less than the stride = 2. oneDNN Graph refuses more."),
    (from_onednn_graph, (5,), {**GRAPH, "pads_begin": (-1,)},
     "pads_begin[0] is -1; expected an integer >= 0."),
    (from_onednn_graph, (5,), {**GRAPH, "dst_shape": (1, 13, 4)},
     ("dst_shape on axis 0 is 13, which a convolution with these pads maps to 6 positions; "
     "expected a size that it maps to the input's 5. See the algebra at the head of "
     "upconv.dialects.onednn_graph.")),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_UPPER", "dst_shape": (1, 11, 4)},
     ("dst_shape on axis 0 is 11, which a convolution with these pads maps to 6 positions; "
     "expected a size that it maps to the input's 5. See the algebra at the head of "
     "upconv.dialects.onednn_graph.")),
    (from_onednn_graph, (5,), {**GRAPH, "dst_shape": (11,)},
     "dst_shape is (11,); expected 3 sizes, N and C included, in the order NXC."),
    (from_onednn_graph, (5,), {**GRAPH, "weights_format": "OIX"},
     ("weights_format is 'OIX'; expected one of XOI, IOX for ConvTranspose. The two operations "
     "name the same orders differently: see operation=.")),
    (from_onednn_graph, (5,), {**GRAPH, "strides": None},
     "strides is None (NoneType); expected an integer."),
    (from_onednn_graph, (5,), {**GRAPH, "operation": "Deconvolution"},
     "operation is 'Deconvolution'; expected one of 'ConvTranspose', 'ConvolutionBackwardData'."),
    # Keras.
    (from_keras, (5,), {"kernel_size": 3, "strides": 2, "output_padding": 2},
     "output_padding[0] is 2; expected less than the stride = 2. Keras refuses more."),
    (from_keras, (5,), {"kernel_size": 3, "padding": "full"},
     "padding is 'full'; expected one of 'valid', 'same'."),
    (from_keras, (5,), {"kernel_size": 3, "data_format": "NHWC"},
     "data_format is 'NHWC'; expected one of 'channels_last', 'channels_first'."),
    (from_keras, (5,), {"kernel_size": 3, "strides": 2, "padding": "same", "output_shape": (11,)},
     ("output_shape[0] is 11, which a convolution maps to 6 positions; expected a size that it "
     "maps to the input's 5. Those are the s sizes up to I*s with SAME, and from (I-1)*s + "
     "d*(k-1) + 1 with VALID.")),
    (from_keras, (5,), {"kernel_size": 3, "output_padding": 0, "output_shape": (7,)},
     "output_padding is given; expected None when output_shape is given."),
    # JAX.
    (from_jax, (5,), {**JAX, "padding": "same"},
     "padding is 'same'; expected one of 'SAME', 'VALID'. JAX spells it in capitals."),
    (from_jax, (5,), {**JAX, "padding": 1},
     "padding is 1; expected 'SAME', 'VALID' or 1 pairs (lo, hi)."),
    (from_jax, (5,), {**JAX, "padding": (1,)}, "padding[0] is 1; expected a pair (lo, hi)."),
    (from_jax, (5,), {**JAX, "padding": [(1, 2, 3)]},
     "padding[0] is (1, 2, 3); expected a pair (lo, hi)."),
    (from_jax, (5,), {**JAX, "padding": "SAME", "transpose_kernel": 1},
     "transpose_kernel is 1; expected a bool. Write True or False."),
    (from_jax, (5,), {**JAX, "padding": "SAME", "dimension_numbers": ("NWC", "WIO", "NCW")},
     ("dimension_numbers is ('NWC', 'WIO', 'NCW'); expected three strings, the input's and the "
     "output's equal. Transpose the output where the two should differ.")),
    (from_jax, (5,), {**JAX, "padding": "SAME", "dimension_numbers": ("WNC", "WIO", "WNC")},
     ("dimension_numbers is ('WNC', 'WIO', 'WNC'); expected 1 spatial letters together and in "
     "one order, N first and C next to them. For example ('NWC', 'WIO', 'NWC').")),
]  # fmt: skip


@pytest.mark.parametrize(("read", "size", "keywords", "message"), REFUSALS)
def test_refusals_say_what_where_and_what_to_do(read, size, keywords, message):
    with pytest.raises(ArgumentError) as caught:
        read(size, **keywords)
    assert str(caught.value) == message


def test_kinds_of_refusal():
    with pytest.raises(DTypeError):
        from_torch((5,), 2.0)
    with pytest.raises(ShapeError):
        from_torch((5,), 3, padding=9)
    with pytest.raises(TypeError):  # a name PyTorch does not have
        from_torch((5,), 3, pads=1)
