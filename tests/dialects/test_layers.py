"""Layers: what conv_transpose is handed, which layers a dialect cannot say, and round trips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.layer_oracle import layers
from upconv.dialects import (
    Layer,
    from_jax,
    from_keras,
    from_mxnet,
    from_onednn_graph,
    from_onnx,
    from_torch,
    to_jax,
    to_keras,
    to_mxnet,
    to_onednn_graph,
    to_onnx,
    to_torch,
)
from upconv.errors import ArgumentError, ShapeError, TranslationError
from upconv.geometry import Axis
from upconv.problem import DataLayout, WeightLayout

UNSAYABLE = [
    (to_torch, Layer((Axis(5, 3, 2, 1, 0, 1),)),
     ("axis 0 is cropped by 0 at its start and 1 at its end, and PyTorch has one padding for "
      "both ends, so it cannot crop the end more than the start.")),
    (to_torch, Layer((Axis(5, 3), Axis(5, 3, 2, 1, -1, 0))),
     ("axis 1 is cropped by -1 at its start and 0 at its end, and PyTorch cannot add positions "
      "at the start: its padding is >= 0.")),
    (to_torch, Layer((Axis(5, 3, 2, 1, 1, -1),)),
     ("axis 0 is cropped by 1 at its start and -1 at its end, and PyTorch would need output "
      "padding 2, which must be less than max(stride, dilation) = 2.")),
    (to_torch, Layer((Axis(1, 2, 1, 1, 1, 1),)),
     ("axis 0 is cropped by 1 at its start and 1 at its end, and PyTorch refuses an output of "
      "0 positions, fewer than 1.")),
    (to_torch, Layer((Axis(1, 1),) * 4),
     "the layer has 4 spatial axes, and PyTorch has at most 3."),
    (to_onnx, Layer((Axis(5, 3, 2, 1, 0, -2),)),
     ("axis 0 is cropped by 0 at its start and -2 at its end, and ONNX would need output "
      "padding 2, which must be less than max(stride, dilation) = 2.")),
    (to_mxnet, Layer((Axis(5, 3, 2, 3, 1, -1),)),
     ("axis 0 is cropped by 1 at its start and -1 at its end, and MXNet would need output "
      "padding 2, which must be less than the stride = 2.")),
    (to_mxnet, Layer((Axis(5, 3, 1, 2),) * 3),
     "the layer is dilated, and MXNet has no dilation with 3 spatial axes."),
    (to_onednn_graph, Layer((Axis(5, 3, 1, 1, 0, -1),)),
     ("axis 0 is cropped by 0 at its start and -1 at its end, and oneDNN Graph would need "
      "output padding 1, which must be less than the stride = 1.")),
    (to_keras, Layer((Axis(5, 3, 2, 1, 1, 0),)),
     ('axis 0 is cropped by 1 at its start and 0 at its end, and Keras has only "valid", '
      '"same" and an output_padding below the stride, one mode for all axes; the nearest of '
      "those crops 0 and 0.")),
    (to_keras, Layer((Axis(5, 3, 2, 2),)),
     "the layer is strided and dilated, and Keras' layers refuse the two together."),
    (to_keras, Layer((Axis(5, 3),), groups=2),
     "the layer has 2 groups, and Keras' layers have none."),
    (to_keras, Layer((Axis(0, 3),)),
     "the layer has an axis without input; read it at a size above 0."),
    (to_jax, Layer((Axis(5, 3),), groups=2),
     "the layer has 2 groups, and jax.lax.conv_transpose has none."),
]  # fmt: skip


@pytest.mark.parametrize(("write", "layer", "message"), UNSAYABLE)
def test_a_dialect_says_why_it_cannot_say_a_layer(write, layer, message):
    with pytest.raises(TranslationError) as caught:
        write(layer)
    assert str(caught.value) == message


def test_the_onnx_limits_are_the_rule_s():
    layer = Layer((Axis(5, 3, 2, 4, 0, -2),))
    assert to_onnx(layer)["output_padding"] == (2,)
    with pytest.raises(TranslationError, match="ONNX Runtime would need output padding 2"):
        to_onnx(layer, rule="onnxruntime")
    far = Layer((Axis(5, 3, 2, 1, 0, -9),))
    assert to_onnx(far, rule="openvino")["output_padding"] == (9,)


def test_layer_keywords_weight_and_text():
    axes = (Axis(5, 3, 2, 1, 1, 0), Axis(7, 2, 3, 2, -1, 2))
    layer = Layer(axes, 3, DataLayout.NXC, WeightLayout.XIO, flipped=True)
    assert layer.keywords() == {
        "stride": (2, 3), "padding": ((1, 0), (-1, 2)), "dilation": (1, 2), "groups": 3,
        "layout": "NXC", "weight_layout": "XIO",
    }  # fmt: skip
    assert str(layer) == "5x7->10x20 k3x2 s2x3 d1x2 crop(1,0)x(-1,2) g3 NXC XIO flipped"
    w = np.arange(3 * 2 * 6 * 4).reshape(3, 2, 6, 4)
    reversed_w = layer.weight(w)
    assert np.array_equal(reversed_w, w[::-1, ::-1])
    assert np.shares_memory(reversed_w, w)
    plain = Layer(axes, weight_layout=WeightLayout.XIO)
    assert plain.weight(w) is w


def test_a_layer_refuses_a_weight_of_another_kernel():
    layer = Layer((Axis(5, 3), Axis(7, 2)), weight_layout=WeightLayout.XOI)
    with pytest.raises(ShapeError) as caught:
        layer.weight(np.zeros((2, 3, 4, 6)))
    assert str(caught.value) == (
        "the weight's shape is (2, 3, 4, 6); expected 4 axes (3, 2, O, I), where O counts one"
        " group's output channels. Read the layer again with this weight's kernel."
    )


def test_a_layer_has_axes_and_groups():
    with pytest.raises(ArgumentError, match=r"axes is \(\); expected at least one spatial axis"):
        Layer(())
    with pytest.raises(ArgumentError, match="groups is 0"):
        Layer((Axis(5, 3),), groups=0)


LAYERS = layers(most=(6, 5, 4, 3), begin=(-3, 3), end=(-4, 4), groups=3)
PAIRS = [
    (to_torch, from_torch), (to_onnx, from_onnx), (to_mxnet, from_mxnet),
    (to_onednn_graph, from_onednn_graph), (to_keras, from_keras), (to_jax, from_jax),
]  # fmt: skip


@pytest.mark.parametrize(("write", "read"), PAIRS)
@settings(max_examples=80)
@given(layer=LAYERS)
def test_what_is_said_reads_back(write, read, layer):
    try:
        said = write(layer)
    except TranslationError:
        return
    again = read(tuple(axis.size for axis in layer.axes), **said)
    assert again.axes == layer.axes
    assert again.groups == layer.groups
    if write is to_jax:
        assert again == layer


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@settings(max_examples=60)
@given(size=st.integers(1, 5), k=st.integers(1, 5), s=st.integers(1, 5), d=st.integers(1, 2))
def test_the_two_onednn_rules_agree_on_even_totals(mode, size, k, s, d):
    """There the document and the library mean the same; on odd ones they mirror each other."""
    words = {"strides": s, "dilations": d, "auto_pad": mode}
    (library,) = from_onednn_graph(size, k, **words).crops
    (document,) = from_onednn_graph(size, k, **words, rule="document").crops
    assert library == document[::-1]
    assert (library == document) == (sum(library) % 2 == 0)
