"""The dialects against the frameworks themselves: values, and what each refuses.

Every framework here computes a random layer; the same arrays then go through the scatter definition
with the crops that the dialect derived. MXNet's answers are stored (tests/data/dialects).
"""

from __future__ import annotations

import json
import os
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.layer_oracle import agree, arrays, full_of, given_layer, scatter
from upconv import conv_transpose
from upconv.dialects import (
    Layer,
    from_jax,
    from_keras,
    from_onnx,
    from_torch,
    to_jax,
    to_keras,
    to_onnx,
    to_torch,
    translate,
)
from upconv.errors import ArgumentError, ShapeError, TranslationError
from upconv.geometry import Axis
from upconv.problem import DataLayout, WeightLayout

# The frameworks warn about their own deprecations, at import too.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("weights", WeightLayout)
@pytest.mark.parametrize("data", DataLayout)
def test_conv_transpose_takes_the_keywords_of_a_layer(data, weights, flipped):
    axes = (Axis(5, 3, 2, 1, 1, -1), Axis(4, 2, 3, 2, -1, 2))
    layer = Layer(axes, 3, data, weights, flipped)
    x, w = arrays(layer, dtype=np.float64)
    agree(layer, conv_transpose(x, layer.weight(w), **layer.keywords()), x, w)


# --------------------------------------------------------------------------------------- torch


@settings(max_examples=80)
@given(one=given_layer(most_axes=3))
def test_torch_functions(one):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rank = len(one["size"])
    words = {"stride": one["s"], "padding": one["begin"], "output_padding": one["extra"]}
    words |= {"dilation": one["d"], "groups": one["groups"]}
    plain = Layer(tuple(Axis(i, k) for i, k in zip(one["size"], one["kernel"], strict=True)))
    x, w = arrays(Layer(plain.axes, one["groups"]), dtype=np.float64)
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    try:
        y = function(torch.from_numpy(x), torch.from_numpy(w), **words).numpy()
    except RuntimeError:
        with pytest.raises(ArgumentError):
            from_torch(one["size"], one["kernel"], **words)
        return
    layer = from_torch(one["size"], one["kernel"], **words)
    agree(layer, y, x, w)
    said = to_torch(layer)
    assert said.pop("kernel_size") == one["kernel"]
    assert said == words


@settings(max_examples=60)
@given(one=given_layer(), lead=st.sampled_from([(), (2, 2)]))
def test_torch_modules_choose_the_output_padding(one, lead):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rank = len(one["size"])
    words = {"stride": one["s"], "padding": one["begin"], "dilation": one["d"]}
    outs = tuple(
        full - 2 * pad + 3 - shift
        for full, pad, shift in zip(full_of(one), one["begin"], one["shift"], strict=True)
    )
    module = getattr(torch.nn, f"ConvTranspose{rank}d")(
        2, 2, one["kernel"], bias=False, **words
    ).double()
    x = torch.ones((2, 2, *one["size"]), dtype=torch.float64)  # its float32 path lets 0 pass
    try:
        with torch.no_grad():
            y = module(x, output_size=[*lead, *outs]).numpy()
    except (ValueError, RuntimeError):
        with pytest.raises(ArgumentError):
            from_torch(one["size"], one["kernel"], output_size=(*lead, *outs), **words)
        return
    layer = from_torch(one["size"], one["kernel"], output_size=(*lead, *outs), **words)
    expected = scatter(layer, x.numpy(), module.weight.detach().numpy())
    np.testing.assert_allclose(y, expected, atol=1e-12)


# ---------------------------------------------------------------------------------------- ONNX


@st.composite
def given_node(draw) -> tuple[dict, dict, int]:
    """(layer numbers, ConvTranspose attributes, opset)."""
    one = draw(given_layer())
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    attributes = {"strides": one["s"], "dilations": one["d"], "group": one["groups"]}
    if any(one["extra"]):
        attributes["output_padding"] = one["extra"]
    if mode != "NOTSET":
        attributes["auto_pad"] = mode
    elif draw(st.booleans()):
        attributes["pads"] = (*one["begin"], *one["end"])
    if draw(st.booleans()):
        shape = (full - shift for full, shift in zip(full_of(one), one["shift"], strict=True))
        attributes["output_shape"] = tuple(max(out, 1) for out in shape)
    return one, attributes, draw(st.sampled_from([1, 11, 22]))


def node_model(one: dict, attributes: dict, opset: int):
    """(model of one ConvTranspose node, x, w)."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    plain = tuple(Axis(i, k) for i, k in zip(one["size"], one["kernel"], strict=True))
    x, w = arrays(Layer(plain, one["groups"]))
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("ConvTranspose", ["X", "W"], ["Y"], **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("X", kind, x.shape)],
        [helper.make_tensor_value_info("Y", kind, None)],
        [onnx.numpy_helper.from_array(w, "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, x, w


@settings(max_examples=120)
@given(drawn=given_node())
def test_onnxruntime_rule(drawn):
    """Both ways: what ONNX Runtime computes is read, what it refuses is refused."""
    one, attributes, opset = drawn
    model, x, w = node_model(one, attributes, opset)
    words = {**attributes, "opset": opset, "rule": "onnxruntime"}
    y = run_onnxruntime(model, x)
    if y is None:
        with pytest.raises(ArgumentError):
            from_onnx(one["size"], one["kernel"], **words)
    else:
        agree(from_onnx(one["size"], one["kernel"], **words), y, x, w)


def run_onnxruntime(model, x: np.ndarray) -> np.ndarray | None:
    """What ONNX Runtime computes; None when it refuses the model or the shapes."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    runtime.set_default_logger_severity(4)
    try:
        data, providers = model.SerializeToString(), ["CPUExecutionProvider"]
        return runtime.InferenceSession(data, providers=providers).run(None, {"X": x})[0]
    except Exception as error:  # onnxruntime's own classes derive from Exception alone
        if "onnxruntime" not in type(error).__module__:
            raise
        return None


@settings(max_examples=50)
@given(drawn=given_node())
def test_openvino_rule(drawn):
    one, attributes, opset = drawn
    model, x, w = node_model(one, attributes, opset)
    try:
        layer = from_onnx(one["size"], one["kernel"], **attributes, opset=opset, rule="openvino")
    except ShapeError:  # fewer than no outputs, for which OpenVINO has no answer either
        return
    numbers = zip(one["kernel"], one["s"], one["extra"], strict=True)
    if attributes.get("auto_pad", "").startswith("SAME") and any(
        (k, s) == (1, 1) and extra > 0 for k, s, extra in numbers
    ):
        return  # OpenVINO 2026.4 drops the pads it derives for one tap of stride 1
    agree(layer, run_openvino(model, x), x, w)


def run_openvino(model, x: np.ndarray) -> np.ndarray:
    core = pytest.importorskip("openvino", reason="openvino is not installed").Core()
    return core.compile_model(core.read_model(model.SerializeToString()), "CPU")([x])[0]


@pytest.mark.parametrize("mode", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", [(6, 6), None])
@pytest.mark.parametrize(
    ("rule", "run"), [("onnxruntime", run_onnxruntime), ("openvino", run_openvino)]
)
def test_every_odd_total_of_a_runtime(rule, run, shape, groups, mode):
    """A total of 1 under every mode: random nodes meet some of these corners too seldom."""
    one = {"size": (3, 3), "kernel": (3, 3), "groups": groups}
    attributes = {"strides": (2, 2), "group": groups, "auto_pad": mode}
    if shape is not None:
        attributes["output_shape"] = shape
    model, x, w = node_model(one, attributes, 22)
    layer = from_onnx(one["size"], one["kernel"], **attributes, rule=rule)
    agree(layer, run(model, x), x, w)


@settings(max_examples=80)
@given(drawn=given_node())
def test_spec_rule_against_the_reference_evaluator(drawn):
    """Where the evaluator follows the text: opset >= 11, (1) and (3), no group, T >= 0."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    reference = pytest.importorskip("onnx.reference")
    one, attributes, _ = drawn
    one["groups"] = attributes["group"] = 1
    attributes.pop("output_shape", None)
    model, x, w = node_model(one, attributes, 22)
    try:
        layer = from_onnx(one["size"], one["kernel"], **attributes)
    except ArgumentError:
        return
    extends = any(axis.crop_end < 0 for axis in layer.axes)
    if "SAME" in attributes.get("auto_pad", "") and extends:
        return
    if 0 in layer.output_size or any(e >= s for e, s in zip(one["extra"], one["s"], strict=True)):
        return
    evaluator = reference.ReferenceEvaluator(onnx.load_model_from_string(model.SerializeToString()))
    agree(layer, evaluator.run(None, {"X": x})[0], x, w)


@settings(max_examples=60)
@given(drawn=given_node())
def test_every_reading_said_again_is_what_onnxruntime_computes(drawn):
    """to_onnx uses words that do not divide the runtimes, so their meaning survives."""
    one, attributes, opset = drawn
    try:
        layer = from_onnx(one["size"], one["kernel"], **attributes, opset=opset)
        said = to_onnx(layer, rule="onnxruntime")
    except (ArgumentError, TranslationError):
        return
    model, x, w = node_model(one, said, opset)
    y = run_onnxruntime(model, x)
    assert y is not None
    agree(layer, y, x, w)


# ------------------------------------------------------------------------------ JAX and Keras


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax", reason="jax is not installed")


@settings(max_examples=30)
@given(
    one=given_layer(),
    words=st.sampled_from(["SAME", "VALID", None, None]),
    transposed=st.booleans(),
    consistent=st.booleans(),
    data=st.sampled_from([None, *DataLayout]),
    weights=st.sampled_from(WeightLayout),
)
def test_jax(jax, one, words, transposed, consistent, data, weights):
    rank = len(one["size"])
    pairs = tuple(zip(one["begin"], one["shift"], strict=True))
    letters = "HW"[-rank:]
    numbers = None
    if data is not None:
        spec = data.value.replace("X", letters)
        numbers = (spec, weights.value.replace("X", letters), spec)
    keywords = {
        "strides": one["s"],
        "padding": words or pairs,
        "rhs_dilation": one["d"],
        "dimension_numbers": numbers,
        "transpose_kernel": transposed,
        "use_consistent_padding": consistent,
    }
    try:
        layer = from_jax(one["size"], one["kernel"], **keywords)
    except ShapeError:
        return  # a negative output size
    if 0 in layer.output_size:
        return
    x, w = arrays(layer, filters=3)
    y = np.asarray(jax.lax.conv_transpose(x, w, **keywords))
    agree(layer, y, x, w)
    said = to_jax(layer)
    said.pop("kernel")
    np.testing.assert_allclose(np.asarray(jax.lax.conv_transpose(x, w, **said)), y, atol=1e-3)


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    return pytest.importorskip("keras", reason="keras is not installed")


@settings(max_examples=40)
@given(
    one=given_layer(),
    padding=st.sampled_from(["valid", "same"]),
    extended=st.booleans(),
    layout=st.sampled_from(["channels_last", "channels_first"]),
)
def test_keras_layers_and_function(keras, one, padding, extended, layout):
    rank = len(one["size"])
    words = {"strides": one["s"], "padding": padding, "data_format": layout}
    words |= {"output_padding": one["extra"] if extended else None, "dilation_rate": one["d"]}
    make = getattr(keras.layers, f"Conv{rank}DTranspose")
    try:
        layer = from_keras(one["size"], one["kernel"], **words)
    except ArgumentError:
        with pytest.raises(ValueError, match="output_padding"):
            make(2, one["kernel"], **words)
        return
    if 0 in layer.output_size:
        return
    x, w = arrays(layer)
    try:
        said = to_keras(layer)
        made = make(2, use_bias=False, **said)
        made.build(x.shape)
        made.set_weights([w])
        y = made(x)
    except TranslationError:
        assert max(one["s"]) > 1
        assert max(one["d"]) > 1
        with pytest.raises(ValueError, match="dilation_rate"):
            make(2, one["kernel"], **words)
        y = keras.ops.conv_transpose(x, w, **words)
    agree(layer, np.asarray(y), x, w)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_a_layer_of_keras_is_read_as_it_describes_itself(keras, rank, layout):
    make = getattr(keras.layers, f"Conv{rank}DTranspose")
    made = make(6, 4, strides=3, padding="same", activation="relu", data_format=layout)
    size = (5, 7, 3)[:rank]
    described = made.get_config()
    layer = from_keras(size, **described)
    assert layer == from_keras(size, 4, strides=3, padding="same", data_format=layout)
    assert from_keras(size, **json.loads(json.dumps(described))) == layer
    shape = (2, *size, 4) if layout == "channels_last" else (2, 4, *size)
    at = slice(1, -1) if layout == "channels_last" else slice(2, None)
    assert layer.output_size == tuple(made.compute_output_shape(shape)[at])
    assert translate(described, "Keras", "PyTorch") == translate(
        {"kernel_size": (4,) * rank, "strides": 3, "padding": "same", "data_format": layout},
        "keras",
        "torch",
    )


# TensorFlow: conv2d_transpose is the gradient of an ordinary convolution, which JAX pads alike.


def convolution(jax, s: int, padding: str):
    """The ordinary convolution whose gradient TensorFlow's conv2d_transpose is, on one axis."""

    def forward(y, w):
        return jax.lax.conv_general_dilated(
            y, w, (s,), padding, dimension_numbers=("NWC", "WIO", "NWC")
        )

    return forward


def test_tensorflow_takes_the_sizes_that_a_convolution_maps_back(jax):
    for size, k, s, padding in product((1, 2, 5), (1, 2, 3, 4), (1, 2, 3), ("SAME", "VALID")):
        for out in range(k, s * size + k + 2):
            y, w = np.zeros((1, out, 1), np.float32), np.zeros((k, 1, 1), np.float32)
            mapped = jax.eval_shape(convolution(jax, s, padding), y, w).shape[1]
            words = {"strides": s, "padding": padding, "output_shape": out}
            if mapped == size:
                assert from_keras(size, k, **words).output_size == (out,)
            else:
                with pytest.raises(ShapeError):
                    from_keras(size, k, **words)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("k", "s", "out"), [(3, 2, 9), (3, 2, 10), (4, 2, 10), (2, 3, 14)])
def test_tensorflow_values_are_a_convolution_s_gradient(jax, k, s, out, padding):
    w = np.arange(1.0, k + 1, dtype=np.float32)[:, None, None]
    y = np.zeros((1, out if padding == "SAME" else out + 2, 1), np.float32)
    mapped, gradient = jax.vjp(lambda y: convolution(jax, s, padding)(y, w), y)
    x = np.arange(1.0, mapped.shape[1] + 1, dtype=np.float32)[None, :, None]
    words = {"strides": s, "padding": padding, "output_shape": y.shape[1]}
    layer = from_keras(x.shape[1], k, **words)
    ours = conv_transpose(x, layer.weight(w), **layer.keywords(), engine="reference")
    np.testing.assert_allclose(ours, np.asarray(gradient(x)[0]), atol=1e-4)
