"""Translations: exact ones compute the same numbers, the rest say what is nearest."""

import pytest

from upconv.dialects import Verdict, translate
from upconv.errors import ArgumentError

EXACT = [
    # (source, config, target, config expected)
    ("keras", {"kernel_size": (3,), "strides": 2, "padding": "same"}, "onnx",
     {"kernel_shape": (3,), "strides": (2,), "pads": (0, 1), "output_padding": (0,),
      "dilations": (1,), "group": 1}),
    ("keras", {"kernel_size": (4, 4), "strides": (2, 2), "padding": "same"}, "torch",
     {"kernel_size": (4, 4), "stride": (2, 2), "padding": (1, 1), "output_padding": (0, 0),
      "dilation": (1, 1), "groups": 1}),
    ("torch", {"kernel_size": (4,), "stride": 2, "padding": 1}, "keras",
     {"kernel_size": (4,), "strides": (2,), "padding": "same", "output_padding": None,
      "dilation_rate": (1,), "data_format": "channels_first"}),
    ("torch",
     {"kernel_size": 3, "stride": 2, "padding": 1, "output_size": (10,), "input_size": (5,)},
     "mxnet",
     {"kernel": (3,), "stride": (2,), "dilate": (1,), "pad": (1,), "adj": (1,), "num_group": 1,
      "layout": "NCW"}),
    ("mxnet", {"kernel": "(4, 4)", "stride": "(2, 2)", "target_shape": "(8, 7)", "size": (4, 4)},
     "onnx",
     {"kernel_shape": (4, 4), "strides": (2, 2), "pads": (1, 2, 1, 1), "output_padding": (0, 0),
      "dilations": (1, 1), "group": 1}),
    ("onnx", {"kernel_shape": [3], "strides": [2], "auto_pad": b"SAME_LOWER", "group": 2},
     "onednn_graph",
     {"kernel": (3,), "strides": (2,), "pads_begin": (1,), "pads_end": (0,), "dilations": (1,),
      "output_padding": (0,), "groups": 2, "data_format": "NCX", "weights_format": "IOX"}),
    ("torch", {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)}, "jax",
     {"kernel": (3, 2), "strides": (2, 1), "padding": ((1, 1), (0, 0)), "rhs_dilation": (1, 1),
      "dimension_numbers": ("NCHW", "OIHW", "NCHW"), "transpose_kernel": True,
      "use_consistent_padding": True}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "config", "target", "expected"), EXACT)
def test_exact_translations_worked_by_hand(source, config, target, expected):
    found = translate(config, source, target)
    assert found.verdict is Verdict.EXACT
    assert found.config == expected
    assert (found.reason, found.nearest, found.difference) == ("", None, "")
    assert str(found).startswith("exact: {")


IMPOSSIBLE = [
    # (source, config, target, part of the reason, nearest attributes or None, difference)
    ("keras", {"kernel_size": (3, 3), "strides": 2, "padding": "same"}, "torch",
     "PyTorch has one padding for both ends", {"padding": (0, 0), "output_padding": (0, 0)},
     ("1 more position at the end of axis 0, 1 more position at the end of axis 1; cropped "
      "off, the result is exact")),
    ("onnx", {"kernel_shape": [5], "pads": [0, 3]}, "mxnet", "MXNet has one padding for both ends",
     {"pad": (0,), "adj": (0,)},
     "3 more positions at the end of axis 0; cropped off, the result is exact"),
    ("onnx", {"kernel_shape": [5], "pads": [3, 0], "strides": [2]}, "torch",
     "would need output padding 3, which must be less than max(stride, dilation) = 2",
     {"padding": (1,), "output_padding": (1,)},
     "2 more positions at the start of axis 0; cropped off, the result is exact"),
    ("jax",
     {"kernel": (3,), "strides": (1,), "padding": ((-2, 0),), "use_consistent_padding": True},
     "onnx", "ONNX cannot add positions at the start", {"pads": (0, 0)},
     "2 fewer positions at the start of axis 0"),
    ("torch", {"kernel_size": (3,), "stride": 2, "padding": 1, "output_padding": 1}, "keras",
     "the nearest of those crops 0 and 0", {"padding": "valid", "output_padding": None},
     "1 more position at the start of axis 0; cropped off, the result is exact"),
    ("onnx", {"kernel_shape": [4], "strides": [3], "pads": [2, 1]}, "keras",
     "the nearest of those crops 1 and 1", {"padding": "same", "output_padding": (2,)},
     "1 more position at the start of axis 0; cropped off, the result is exact"),
    ("torch", {"kernel_size": (2,), "stride": 2, "groups": 3}, "jax", "the layer has 3 groups",
     {"padding": ((0, 0),)},
     "3 groups become 1: write the weight as one block-diagonal weight, zeros between the groups"),
    ("torch", {"kernel_size": (3,), "stride": 2, "dilation": 2}, "keras", "strided and dilated",
     None, ""),
    ("torch", {"kernel_size": (3, 3, 3), "dilation": 2}, "mxnet",
     "MXNet has no dilation with 3 spatial axes", None, ""),
    ("onnx", {"kernel_shape": (1,) * 4}, "torch", "PyTorch has at most 3", None, ""),
    ("onnx",
     {"kernel_shape": [1], "strides": [1], "output_padding": [9], "pads": [4, 0],
      "rule": "openvino", "input_size": 1}, "onednn_graph", "must be less than the stride = 1",
     None, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "config", "target", "reason", "nearest", "difference"), IMPOSSIBLE
)
def test_impossible_translations_name_the_nearest(
    source, config, target, reason, nearest, difference
):
    found = translate(config, source, target)
    assert found.verdict is Verdict.IMPOSSIBLE
    assert found.config is None
    assert reason in found.reason
    assert found.difference == difference
    if nearest is None:
        assert found.nearest is None
        assert str(found) == f"impossible: {found.reason}"
    else:
        assert found.nearest.items() >= nearest.items()
        assert difference in str(found)


WEIGHTS = [
    # (source, config, target, weight, permutation, reversed axes, data)
    ("torch", {"kernel_size": (3, 3)}, "onnx", "", (), (), ""),
    ("torch", {"kernel_size": (3, 3)}, "jax", "", (), (), ""),
    ("torch", {"kernel_size": (3, 3)}, "keras", "transpose (2, 3, 1, 0)", (2, 3, 1, 0), (), ""),
    ("keras", {"kernel_size": (3, 3)}, "torch", "transpose (3, 2, 0, 1)", (3, 2, 0, 1), (),
     "transpose the input (0, 3, 1, 2) and the output (0, 2, 3, 1)"),
    ("jax", {"kernel": (3, 3), "strides": (1, 1), "padding": "SAME"}, "onnx",
     "transpose (2, 3, 0, 1), then reverse axes (2, 3)", (2, 3, 0, 1), (2, 3),
     "transpose the input (0, 3, 1, 2) and the output (0, 2, 3, 1)"),
    ("mxnet", {"kernel": (3, 3), "layout": "NHWC"}, "onednn_graph", "transpose (0, 3, 1, 2)",
     (0, 3, 1, 2), (), ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "config", "target", "weight", "permutation", "turned", "data"), WEIGHTS
)
def test_what_to_do_with_arrays(source, config, target, weight, permutation, turned, data):
    found = translate(config, source, target)
    assert found.weight == weight
    assert found.weight_permutation == permutation
    assert found.weight_reversed == turned
    assert found.data == data


REFUSALS = [
    (({"kernel_size": (3,)}, "caffe", "onnx"),
     ("source is 'caffe'; expected one of 'torch', 'onnx', 'mxnet', 'onednn_graph', 'keras', "
      "'jax'.")),
    (({"kernel_size": (3,)}, "torch", None),
     "target is None; expected one of 'torch', 'onnx', 'mxnet', 'onednn_graph', 'keras', 'jax'."),
    ((3, "torch", "onnx"), "config is 3; expected a mapping from attribute names to values."),
    (({"kernel_size": (3,), "pads": 1}, "torch", "onnx"),
     ("a key of the torch config is 'pads'; expected one of kernel_size, stride, padding, "
      "output_padding, dilation, groups, output_size, input_size.")),
    (({"kernel": (3,), "padd": 1}, "mxnet", "onnx"),
     ("a key of the mxnet config is 'padd'; expected one of kernel, stride, dilate, pad, adj, "
      "target_shape, num_filter, num_group, workspace, no_bias, cudnn_tune, cudnn_off, layout, "
      "name, input_size.")),
    (({"stride": 2}, "torch", "onnx"),
     "the torch config is without 'kernel_size'; expected one that has 'kernel_size'."),
    (({"kernel_shape": [3], "output_shape": [10]}, "onnx", "torch"),
     ("input_size is not given; expected the spatial input size, because output_shape is an "
      "absolute size. Add 'input_size' to the config; the translation then holds for that size.")),
    (({"kernel": [3], "target_shape": "(0, 9)"}, "mxnet", "torch"),
     ("input_size is not given; expected the spatial input size, because target_shape is an "
      "absolute size. Add 'input_size' to the config; the translation then holds for that size.")),
    (({"kernel_size": 3}, "keras", "torch"),
     ("kernel_size of the keras config is 3; expected a tuple with one entry per spatial axis. "
      "An int fits any number of axes: give a tuple, or add 'input_size'.")),
    (({"kernel_size": 3, "size": 3, "input_size": 3}, "keras", "torch"),
     "config is with both input_size and size; expected one of them."),
    (({"kernel_size": (3,), "stride": 0}, "torch", "onnx"),
     "stride is 0; expected an integer >= 1."),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_refusals(arguments, message):
    with pytest.raises(ArgumentError) as caught:
        translate(*arguments)
    assert str(caught.value) == message


def test_inactive_targets_need_no_size():
    assert translate({"kernel": (3,), "target_shape": "(0,)"}, "mxnet", "torch").config
    assert translate({"kernel_size": (3,), "output_size": None}, "torch", "onnx").config
    assert translate({"kernel": 3}, "mxnet", "torch").config["kernel_size"] == (3,)
