"""The rules of every dialect, worked by hand. NumPy only.

Columns: input size, keywords, crops expected per axis, output size expected.
"""

import numpy as np
import pytest

from upconv.dialects import (
    from_jax,
    from_keras,
    from_mxnet,
    from_onednn_graph,
    from_onnx,
    from_torch,
)
from upconv.errors import ArgumentError
from upconv.problem import DataLayout, WeightLayout

K3S2 = {"kernel_shape": [3], "strides": [2]}
K2S3 = {"kernel_shape": [2], "strides": [3]}
GRAPH = {"kernel": (3,), "strides": (2,)}
GRAPH_SHORT = {"kernel": (2,), "strides": (3,)}
JAX = {"kernel": (3,), "strides": (2,)}

TABLE = [
    # PyTorch: p = P, q = P - a.
    (from_torch, (5,), {"kernel_size": 3}, ((0, 0),), (7,)),
    (from_torch, 5, {"kernel_size": 3, "stride": 2, "padding": 1}, ((1, 1),), (9,)),
    (from_torch, (5, 7),
     {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)},
     ((1, 0), (0, -2)), (10, 22)),
    (from_torch, (3,), {"kernel_size": 3, "stride": 2, "dilation": 3, "output_padding": 2},
     ((0, -2),), (13,)),
    (from_torch, (5,), {"kernel_size": 3, "stride": 2, "padding": 1, "output_size": (10,)},
     ((1, 0),), (10,)),
    (from_torch, (5, 7), {"kernel_size": 3, "stride": 2, "output_size": (2, 6, 11, 16)},
     ((0, 0), (0, -1)), (11, 16)),
    (from_torch, (5,), {"kernel_size": 3, "stride": 2, "output_size": [6, 12]}, ((0, -1),), (12,)),
    (from_torch, (5,), {"kernel_size": 3, "padding": 3}, ((3, 3),), (1,)),
    # ONNX, row (1): pads are crops; begins first.
    (from_onnx, (5,), {**K3S2, "pads": [1, 0]}, ((1, 0),), (10,)),
    (from_onnx, (5, 7), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]},
     ((1, 2), (0, 1)), (8, 19)),
    (from_onnx, (5,), {**K3S2, "pads": [1, 2], "output_padding": [1]}, ((1, 1),), (9,)),
    (from_onnx, (5,), {**K3S2, "auto_pad": b"VALID", "output_padding": [1]}, ((0, -1),), (12,)),
    # ONNX, row (2): T = 11 - 10 = 1, the begin's unless SAME_UPPER; inverted before opset 11.
    (from_onnx, (5,), {**K3S2, "output_shape": [10]}, ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "pads": [9, 9]}, ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "auto_pad": "VALID"}, ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "auto_pad": "SAME_LOWER"}, ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "auto_pad": "SAME_UPPER"}, ((0, 1),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "opset": 10}, ((0, 1),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "opset": 11}, ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "opset": 1, "auto_pad": "SAME_UPPER"},
     ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "opset": 1, "auto_pad": "SAME_LOWER"},
     ((0, 1),), (10,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [8]}, ((2, 1),), (8,)),
    (from_onnx, (5,), {**K3S2, "output_shape": [12]}, ((0, -1),), (12,)),
    # output_padding shifts the crop (T = 11 + 1 - 10 = 2) and never enlarges O.
    (from_onnx, (5,), {**K3S2, "output_shape": [10], "output_padding": [1]}, ((1, 0),), (10,)),
    *(
        (from_onnx, (5,), {**K3S2, "output_shape": [10], "auto_pad": pad, "rule": rule}, c, (10,))
        for rule, pad, c in (
            ("onnxruntime", "NOTSET", ((1, 0),)),
            ("onnxruntime", "SAME_UPPER", ((0, 1),)),
            ("openvino", "NOTSET", ((1, 0),)),
            ("openvino", "SAME_UPPER", ((1, 0),)),
            ("openvino", "SAME_LOWER", ((1, 0),)),
        )
    ),
    (from_onnx, (5,), {**K3S2, "output_shape": [8], "group": 2, "rule": "openvino"}, ((0, 3),),
     (8,)),
    # ONNX, row (3): O = I*s; with ek < s runtimes stop at full.
    (from_onnx, (5,), {**K3S2, "auto_pad": "SAME_UPPER"}, ((0, 1),), (10,)),
    (from_onnx, (5,), {**K3S2, "auto_pad": "SAME_LOWER"}, ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "auto_pad": "SAME_UPPER", "opset": 1}, ((1, 0),), (10,)),
    (from_onnx, (5,), {**K3S2, "auto_pad": "SAME_LOWER", "opset": 1}, ((0, 1),), (10,)),
    (from_onnx, (5,), {**K2S3, "auto_pad": "SAME_UPPER"}, ((0, -1),), (15,)),
    (from_onnx, (5,), {**K2S3, "auto_pad": "SAME_UPPER", "rule": "onnxruntime"}, ((0, 0),), (14,)),
    (from_onnx, (5,), {**K2S3, "auto_pad": "SAME_UPPER", "rule": "openvino"}, ((0, 0),), (14,)),
    *(
        (from_onnx, (5,), {**K3S2, "auto_pad": "SAME_UPPER", "opset": opset, "rule": rule},
         ((0, 1),), (10,))
        for rule in ("onnxruntime", "openvino") for opset in (1, 11)
    ),
    (from_onnx, (5,), {**K3S2, "auto_pad": "SAME_UPPER", "output_padding": [1]}, ((1, 0),), (10,)),
    # MXNet: p = pad, q = pad - adj; or T = full - t shared out, the odd one at the begin.
    (from_mxnet, (5,), {"kernel": (3,), "stride": 2, "pad": 1, "adj": 1}, ((1, 0),), (10,)),
    (from_mxnet, (3,), {"kernel": 3, "stride": "(2,)", "pad": "[1]", "adj": "1"}, ((1, 0),), (6,)),
    (from_mxnet, (4, 4),
     {"kernel": (4, 4), "stride": (2, 2), "target_shape": (8, 9), "pad": (99, 99)},
     ((1, 1), (1, 0)), (8, 9)),
    (from_mxnet, (4,), {"kernel": (4,), "stride": (2,), "target_shape": (7,)}, ((2, 1),), (7,)),
    (from_mxnet, (4,), {"kernel": 4, "target_shape": (0,), "pad": 1}, ((1, 1),), (5,)),
    (from_mxnet, (3, 3, 3), {"kernel": (2, 2, 2), "dilate": (2, 2, 2)}, ((0, 0),) * 3, (5, 5, 5)),
    (from_mxnet, (3,), {"kernel": (1,), "target_shape": (3, 7)}, ((0, 0),), (3,)),
    (from_mxnet, (2,), {"kernel": (2,), "pad": (1,)}, ((1, 1),), (1,)),
    # oneDNN Graph.
    (from_onednn_graph, (5,), {**GRAPH, "pads_begin": (1,), "pads_end": (0,)}, ((1, 0),), (10,)),
    (from_onednn_graph, (5,), {**GRAPH, "output_padding": (1,)}, ((0, -1),), (12,)),
    (from_onednn_graph, (5,),
     {**GRAPH, "pads_begin": (1,), "pads_end": (1,), "dst_shape": (2, 10, 6)}, ((1, 0),), (10,)),
    (from_onednn_graph, (5,),
     {**GRAPH, "data_format": "NCX", "dst_shape": (2, 6, 12), "output_padding": (0,)}, ((0, -1),),
     (12,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "VALID", "pads_begin": (1,)}, ((0, 0),), (11,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_UPPER"}, ((0, 1),), (10,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_LOWER"}, ((1, 0),), (10,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_UPPER", "rule": "document"}, ((1, 0),),
     (10,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_LOWER", "rule": "document"}, ((0, 1),),
     (10,)),
    # T = max(ek - s, 0): O stops at full = 14; output padding adds to it.
    (from_onednn_graph, (5,), {**GRAPH_SHORT, "auto_pad": "SAME_UPPER"}, ((0, 0),), (14,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_UPPER", "output_padding": (1,)},
     ((0, 0),), (11,)),
    # T = ek - O mod s = 3 - 1 = 2 for O = 9; 1 for O = 10.
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_UPPER", "dst_shape": (1, 9, 4)},
     ((1, 1),), (9,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_UPPER", "dst_shape": (1, 10, 4)},
     ((0, 1),), (10,)),
    (from_onednn_graph, (5,), {**GRAPH, "auto_pad": "SAME_LOWER", "dst_shape": (1, 10, 4)},
     ((1, 0),), (10,)),
    (from_onednn_graph, (5,), {**GRAPH_SHORT, "auto_pad": "SAME_UPPER", "dst_shape": (1, 15, 4)},
     ((0, -1),), (15,)),
    *(
        (from_onednn_graph, (5,),
         {**GRAPH, "auto_pad": pad, "dst_shape": (1, 10, 4), "rule": "document"}, crops, (10,))
        for pad, crops in (("SAME_UPPER", ((1, 0),)), ("SAME_LOWER", ((0, 1),)))
    ),
    # Keras, and TensorFlow's output_shape.
    (from_keras, (5,), {"kernel_size": 3, "strides": 2}, ((0, 0),), (11,)),
    (from_keras, (5,), {"kernel_size": 2, "strides": 3}, ((0, -1),), (15,)),
    (from_keras, (5,), {"kernel_size": 2, "strides": 3, "output_padding": 0}, ((0, 0),), (14,)),
    (from_keras, (5,), {"kernel_size": 3, "strides": 2, "padding": "same"}, ((0, 1),), (10,)),
    (from_keras, (5,), {"kernel_size": 4, "strides": 2, "padding": "SAME"}, ((1, 1),), (10,)),
    (from_keras, (5,), {"kernel_size": 2, "strides": 3, "padding": "same"}, ((0, -1),), (15,)),
    *(
        (from_keras, (5,), {"kernel_size": k, "strides": 2, "padding": "same", "output_padding": a},
         crops, (out,))
        for k, a, crops, out in (
            (3, 0, ((1, 1),), 9), (3, 1, ((0, 1),), 10), (4, 0, ((2, 2),), 8), (4, 1, ((1, 2),), 9),
        )
    ),
    (from_keras, (3,), {"kernel_size": 3, "strides": 2, "dilation_rate": 2, "padding": "same"},
     ((1, 2),), (6,)),
    (from_keras, (5,), {"kernel_size": 3, "strides": 2, "padding": "SAME", "output_shape": 9},
     ((1, 1),), (9,)),
    (from_keras, (5,), {"kernel_size": 3, "strides": 2, "padding": "SAME", "output_shape": (10,)},
     ((0, 1),), (10,)),
    (from_keras, (5, 7),
     {"kernel_size": 3, "strides": 2, "padding": "VALID", "output_shape": (12, 15)},
     ((0, -1), (0, 0)), (12, 15)),
    # JAX: strings as Keras', pairs around the dilated input, or crops.
    (from_jax, (5,), {**JAX, "padding": "SAME"}, ((0, 1),), (10,)),
    (from_jax, (5,), {**JAX, "padding": "VALID"}, ((0, 0),), (11,)),
    (from_jax, (5,), {"kernel": 2, "strides": 3, "padding": "VALID"}, ((0, -1),), (15,)),
    (from_jax, (5,), {"kernel": 2, "strides": 3, "padding": "SAME"}, ((0, -1),), (15,)),
    (from_jax, (5,), {**JAX, "padding": [(1, 2)]}, ((1, 0),), (10,)),
    (from_jax, (5,), {**JAX, "padding": [(-1, 1)]}, ((3, 1),), (7,)),
    (from_jax, (5,), {**JAX, "padding": [(1, 2)], "rhs_dilation": (2,)}, ((3, 2),), (8,)),
    (from_jax, (5,), {**JAX, "padding": [(1, 2)], "use_consistent_padding": True}, ((1, 2),), (8,)),
    (from_jax, (5,), {**JAX, "padding": [(-1, 1)], "use_consistent_padding": True}, ((-1, 1),),
     (11,)),
]  # fmt: skip


@pytest.mark.parametrize(("read", "size", "keywords", "crops", "out"), TABLE)
def test_rules_worked_by_hand(read, size, keywords, crops, out):
    layer = read(size, **keywords)
    assert layer.crops == crops
    assert layer.output_size == out


LAYOUTS = [
    (from_torch((5,), 3), "NCX", "IOX", False),
    (from_onnx((5,), 3), "NCX", "IOX", False),
    (from_mxnet((5, 5), kernel=(3, 3)), "NCX", "IOX", False),
    (from_mxnet((5, 5), kernel=(3, 3), layout="NHWC"), "NXC", "IXO", False),
    (from_mxnet((5, 5, 5), kernel="(3, 3, 3)", layout="NDHWC"), "NXC", "IXO", False),
    (from_mxnet((5,), kernel=3, layout="None"), "NCX", "IOX", False),
    (from_onednn_graph((5,), 3, strides=1), "NXC", "XOI", False),
    (from_onednn_graph((5,), 3, strides=1, weights_format="IOX"), "NXC", "IOX", False),
    *(
        (from_onednn_graph((5,), 3, strides=1, operation="ConvolutionBackwardData",
                           weights_format=name), "NXC", ours, False)
        for name, ours in ((None, "XOI"), ("XIO", "XOI"), ("OIX", "IOX"))
    ),
    (from_onednn_graph((5,), 3, strides=1, data_format="NCX"), "NCX", "XOI", False),
    (from_keras((5,), 3), "NXC", "XOI", False),
    (from_keras((5,), 3, data_format="channels_first"), "NCX", "XOI", False),
    (from_jax((5,), 3, strides=1, padding="SAME"), "NXC", "XIO", True),
    (from_jax((5,), 3, strides=1, padding="SAME", transpose_kernel=True), "NXC", "XOI", False),
    *(
        (from_jax((5, 7), (3, 3), strides=(1, 1), padding="SAME", transpose_kernel=transposed,
                  dimension_numbers=("NCHW", spec, "NCHW")), "NCX", ours, not transposed)
        for spec, transposed, ours in (
            ("OIHW", False, "OIX"), ("OIHW", True, "IOX"), ("IOHW", False, "IOX"),
            ("IHWO", True, "OXI"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "data", "weights", "flipped"), LAYOUTS)
def test_layouts(layer, data, weights, flipped):
    assert layer.layout is DataLayout(data)
    assert layer.weight_layout is WeightLayout(weights)
    assert layer.flipped is flipped


@pytest.mark.parametrize(
    "integer", [np.int64(3), np.uint8(3), np.array(3)], ids=["int64", "uint8", "array"]
)
def test_numpy_integers_are_integers(integer):
    assert from_torch((integer,), integer).axes == from_torch((3,), 3).axes
    assert type(from_torch((integer,), integer).axes[0].kernel) is int


@pytest.mark.parametrize("wrong", [True, np.True_, 3.0, np.float32(3), "3", None, [[3]], {3}])
def test_nothing_else_is_an_integer(wrong):
    with pytest.raises(ArgumentError, match="kernel"):
        from_torch((5,), wrong)
    with pytest.raises(ArgumentError, match="group"):
        from_onnx((5,), [3], group=wrong)
