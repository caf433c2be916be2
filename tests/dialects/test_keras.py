"""Keras layers as their `get_config()` describes them."""

import pytest

from upconv.dialects import Verdict, from_keras, translate
from upconv.errors import ArgumentError


def _object(module, kind, /, **config):
    return {"module": module, "class_name": kind, "config": config, "registered_name": None}


CONFIG = {  # of Keras 3.15, as JSON
    "name": "up", "trainable": True, "dtype": _object("keras", "DTypePolicy", name="float32"),
    "filters": 6, "kernel_size": [3, 2], "strides": [2, 3], "padding": "same",
    "output_padding": None, "data_format": "channels_last", "dilation_rate": [1, 1],
    "activation": "relu", "use_bias": True,
    "kernel_initializer": _object(
        "keras.initializers", "GlorotUniform", seed=None, input_axes=None, output_axes=None
    ),
    "bias_initializer": _object("keras.initializers", "Zeros"),
    "kernel_regularizer": None, "bias_regularizer": None, "activity_regularizer": None,
    "kernel_constraint": None, "bias_constraint": None,
}  # fmt: skip
KERAS_2 = CONFIG | {"groups": 1, "batch_input_shape": [None, 5, 7, 4], "dtype": "float32"}


@pytest.mark.parametrize("config", [CONFIG, KERAS_2], ids=["Keras 3", "Keras 2"])
def test_a_whole_configuration_is_read_and_translated(config):
    layer = from_keras((5, 7), **config)
    assert str(layer) == "5x7->10x21 k3x2 s2x3 d1x1 crop(0,1)x(0,-1) g1 NXC XOI"
    assert translate(config, "Keras", "ONNX").config["pads"] == (0, 0, 1, 0)


REFUSED = [
    ({"groups": 2}, "groups is 2; expected 1. These Keras layers do not support groups."),
    ({"groups": 0}, "groups is 0; expected an integer >= 1."),
    ({"data_format": None}, "data_format is None (NoneType); expected a string."),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_a_configuration_no_layer_has_is_refused(changed, message):
    with pytest.raises(ArgumentError) as caught:
        from_keras((5, 7), **CONFIG | changed)
    assert str(caught.value) == message


def test_an_unknown_key_is_still_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth_multiplier'"):
        from_keras((5, 7), **CONFIG, depth_multiplier=1)
    with pytest.raises(ArgumentError, match="a key of the Keras config is 'depth_multiplier'"):
        translate({**CONFIG, "depth_multiplier": 1}, "Keras", "torch")


NAMES = [("Keras", "keras"), ("PyTorch", "torch"), ("ONNX", "onnx"), ("MXNet", "mxnet")]
NAMES += [("JAX", "jax"), ("oneDNN Graph", "onednn_graph")]


@pytest.mark.parametrize(("name", "dialect"), NAMES)
def test_frameworks_go_by_their_own_names(name, dialect):
    config = {"kernel_size": (4, 4), "strides": 2, "padding": "same"}
    there = translate(config, "Keras", name)
    assert there.verdict is Verdict.EXACT
    assert there == translate(config, "keras", dialect)
    assert translate(there.config, name, "torch") == translate(there.config, dialect, "torch")


@pytest.mark.parametrize("source", ["Keras", "PyTorch"])
def test_an_int_kernel_is_one_along_every_axis(source):
    """Another attribute tells how many axes there are."""
    stride = {"Keras": "strides", "PyTorch": "stride"}[source]
    assert translate({"kernel_size": 4, stride: (2, 3)}, source, "ONNX") == translate(
        {"kernel_size": (4, 4), stride: (2, 3)}, source, "ONNX"
    )
    assert from_keras((5, 7), 4) == from_keras((5, 7), (4, 4))
