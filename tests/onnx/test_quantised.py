"""Passes on quantised models: integers change places, nothing is quantised anew.

`test_random` has random layers with exact scales, bit for bit; here are models as ONNX
Runtime's tools write them, and every condition of a pass by itself.
"""

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx
from onnx.utils import Extractor

from tests.support.onnx_rewriting import (
    assert_same_values,
    listing,
    refusal,
    refused,
    rewritten,
    values,
)
from tests.support.onnx_texts import parsed
from tests.support.quantised_models import KINDS, feed, quantised
from upconv.onnx import rewrite
from upconv.onnx.inputs import feeds
from upconv.onnx.passes import PASSES
from upconv.onnx.runtimes import Runtime

HERE = [  # in bfloat16, its own precision on some processors, OpenVINO compiles no int8 of these
    name for name in ("onnxruntime", "openvino:f32") if Runtime.parse(name).missing() is None
]
WAYS = ["fold_slice", "replace_deconv", "sub_pixel"]

# Models of ONNX Runtime's tools -------------------------------------------------------------------


def layers(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Every quantised ConvTranspose alone: from the integers it reads to those it makes."""
    whole = onnx.shape_inference.infer_shapes(model)
    made_by = {name: node for node in whole.graph.node for name in node.output}
    read_by = {name: node for node in whole.graph.node for name in node.input}
    for node in whole.graph.node:
        if node.op_type == "ConvTranspose":
            last = read_by[node.output[0]]
            assert last.op_type == "QuantizeLinear"
            first = made_by[node.input[0]].input[0]
            yield Extractor(whole).extract_model([first], list(last.output))


@pytest.mark.peers
@pytest.mark.parametrize(
    ("activations", "weights", "per_channel"),
    [("QInt8", "QInt8", True), ("QUInt8", "QInt8", False), ("QUInt8", "QUInt8", True)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_quantised_by_onnx_runtime_stay_within_a_step(
    kind: str, activations: str, weights: str, per_channel: bool
) -> None:
    per_channel &= kind != "depthwise"  # ONNX Runtime's tools cannot: it has groups
    net = KINDS[kind]()
    before = quantised(net, per_channel=per_channel, activations=activations, weights=weights)
    for layer in layers(before):
        after = rewrite(layer, WAYS).proto()
        kinds = [node.op_type for node in after.graph.node]
        assert "ConvTranspose" not in kinds
        assert kinds.index("QuantizeLinear") == kinds.index("Conv") + 1
        given = feeds(layer)
        [wanted] = values(layer, given)  # OpenVINO 2026.4 errs at ConvTranspose of uint8 weights
        for runtime in HERE:
            [found] = values(after, given, runtime)
            assert wanted.dtype == found.dtype
            assert np.abs(wanted.astype(int) - found.astype(int)).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_whole_quantised_models_are_the_same_but_for_single_steps(kind: str) -> None:
    """Where one step differs in a layer, those after it amplify that."""
    net = KINDS[kind]()
    before = quantised(net)
    after = rewrite(before, WAYS).proto()
    assert "ConvTranspose" not in [node.op_type for node in after.graph.node]
    given = feed(net, 9)
    [wanted], [found] = values(before, given), values(after, given)
    assert (wanted != found).mean() < 0.05
    assert np.abs(wanted - found).max() < 0.1 * np.abs(wanted).max()


# One layer ----------------------------------------------------------------------------------------


def layer(said: str, constants: str, *, axis: int = 1, bias: bool = False, m: int = 2,
          behind: str = "r = Relu(y)") -> onnx.ModelProto:  # fmt: skip
    """A quantised layer along one axis, with an activation."""
    made, b = ("b = DequantizeLinear<axis = 0>(c, t)", ", b") if bias else ("", "")
    return parsed(f"""g (int8[N,2,L] x) => (int8[N,{m},M] z)
        <float one = {{1}}, float two = {{2}}, int8 zero = {{3}}, {constants}>
        {{ xd = DequantizeLinear(x, one, zero) w = DequantizeLinear<axis = {axis}>(q, s, o)
           {made} [deconv] y = ConvTranspose<{said}>(xd, w{b})
           {behind} z = QuantizeLinear(r, two, zero) }}""")


PER_CHANNEL = """int8[2,2,2] q = {1,2,3,4,5,6,7,8}, float[2] s = {1,2}, int8[2] o = {0,1},
    int32[2] c = {10,20}, float[2] t = {1,2}"""
GROUPED = """int8[2,2,2] q = {1,2,3,4,5,6,7,8}, float[2] s = {1,2}, int8[2] o = {0,1},
    int32[4] c = {10,20,30,40}, float[4] t = {1,2,1,2}"""
BLOCKS = """int8[2,2,2] q = {1,2,3,4,5,6,7,8}, float[2,1,2] s = {1,2,3,4},
    int8[2,1,2] o = {0,0,0,0}"""
WHOLE = """int8[2,2,2] q = {1,2,3,4,5,6,7,8}, float s = {2}, int8 o = {1}"""


def test_scales_and_zero_points_are_repeated_per_phase() -> None:
    before = layer("strides=[3]", PER_CHANNEL, bias=True)
    after, [step] = rewritten(before, "sub_pixel")
    assert step.fired, step.refusal
    text = listing(after)
    assert "([6x2x1]{1,5,2,6,0,0,3,7,4,8,1,1}, {1,1,1,2,2,2}, {0,0,0,1,1,1}) axis=0" in text
    assert "({10,10,10,20,20,20}, {1,1,1,2,2,2}, {0,0,0,0,0,0}) axis=0" in text
    assert "Conv = Conv(xd, DequantizeLinear, DequantizeLinear_1) dilations=[1]" in text
    assert [node.op_type for node in after.graph.node][3:] == [
        *("Conv", "Relu", "QuantizeLinear", "Unsqueeze", "Reshape", "Transpose", "Flatten"),
        *("Unsqueeze", "Reshape", "Slice"),
    ]
    assert_equal_integers(before, after)


def assert_equal_integers(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    x = np.random.default_rng(3).integers(-9, 9, (2, 2, 5)).astype(np.int8)
    [wanted], [found] = values(before, {"x": x}), values(after, {"x": x})
    np.testing.assert_array_equal(wanted, found)


SAID = {
    "replace_deconv": "pads=[1,0]",
    "symmetric_pads": "strides=[2], pads=[1,0]",
    "no_pads": "strides=[2], pads=[1,0]",
    "no_output_padding": "strides=[2], output_padding=[1]",
    "no_dilation": "strides=[2], dilations=[2]",
    "sub_pixel:folded": "strides=[2], pads=[1,1], dilations=[2]",
}
"""Pass -> attributes at which it fires; strides=[2] for the others."""

EVERY = [name for name in PASSES if not name.startswith(("fold", "normalise:"))]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("constants", "behind"), [
    (PER_CHANNEL, "r = Relu(y)"), (GROUPED, "r = Identity(y)"), (WHOLE, "r = Relu(y)"),
])  # fmt: skip
def test_every_pass_keeps_a_quantised_layer_whole(name: str, behind: str, constants: str) -> None:
    groups = 2 if constants is GROUPED else 1
    said = f"group={groups}, {SAID.get(name, 'strides=[2]')}"
    before = layer(said, constants, bias=constants is not WHOLE, m=2 * groups, behind=behind)
    after, [step] = rewritten(before, name)
    if name == "split_groups" and groups == 1:
        assert step.refusal == "it has one group"
        return
    if name == "sub_pixel:folded" and not step.fired:
        assert "see sub_pixel:unfolded" in str(step.refusal)
        return
    assert step.fired, step.refusal
    made_by = {out: node for node in after.graph.node for out in node.output}
    for node in after.graph.node:
        if node.op_type in ("Conv", "ConvTranspose"):
            assert {made_by[one].op_type for one in node.input} == {"DequantizeLinear"}
    assert_equal_integers(before, after)


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("name", ["sub_pixel", "to_rank"])
def test_scales_of_other_axes_are_refused(name: str, axis: int) -> None:
    constants = "int8[2,2,2] q = {1,2,3,4,5,6,7,8}, float[2] s = {1,2}, int8[2] o = {0,1}"
    before = layer("strides=[2]", constants, axis=axis)
    assert f"its weight has scales along axis {axis}; quantize it" in refusal(before, name)


@pytest.mark.parametrize(
    ("name", "constants", "reason"),
    [
        ("fold_batch_norm", WHOLE, "fold the normalization before quantizing the model"),
        (
            "sub_pixel",
            WHOLE.replace("float s = {2}", "float[3] s = {1,2,3}").replace(
                "int8 o = {1}", "int8[3] o = {0,0,0}"
            ),
            "scales of shape",
        ),
        ("sub_pixel", WHOLE.replace("int8 o = {1}", "int8[2] o = {1,2}"), "zero points of shape"),
        ("sub_pixel", BLOCKS, "dequantized with block_size from int8"),
    ],
)
def test_what_is_quantised_otherwise_is_left_alone(name: str, constants: str, reason: str) -> None:
    model = layer("strides=[2]", constants)
    if constants is BLOCKS:
        model.graph.node[1].attribute.append(onnx.helper.make_attribute("block_size", 2))
    assert reason in refused(model, name)


# Neighbours behind pairs and casts ----------------------------------------------------------------

BETWEEN = {
    "pair": "{0}q = QuantizeLinear({0}, one, zero) {1} = DequantizeLinear({0}q, one, zero)",
    "casts": "{0}q = Cast<to = 10>({0}) {1} = Cast<to = 1>({0}q)",
}


@pytest.mark.parametrize("name", BETWEEN)
def test_pad_and_slice_are_folded_across_what_is_elementwise(name: str) -> None:
    form = BETWEEN[name]
    before = parsed(
        f"""g (float[N,1,L] x) => (float[N,1,M] z)
        <float[1,1,4] w = {{1,2,3,4}}, int64[6] pads = {{0,0,1,0,0,1}}, float one = {{0.5}},
         uint8 zero = {{128}}, int64[1] start = {{1}}, int64[1] end = {{-2}}, int64[1] axis = {{2}}>
        {{ p = Pad(x, pads) {form.format("p", "c")}
           [deconv] y = ConvTranspose<strides=[2], pads=[3,3]>(c, w)
           {form.format("y", "d")} z = Slice(d, start, end, axis) }}"""
    )
    after, steps = rewritten(before, "fold_pad", "fold_slice")
    assert [step.refusal for step in steps] == [None, None]
    kinds = [node.op_type for node in after.graph.node]
    assert "pads=[2,3]" in listing(after)
    assert not {"Pad", "Slice"} & set(kinds)
    assert_same_values(before, after)


def test_a_pad_of_integers_stays() -> None:
    before = parsed(
        """g (uint8[N,1,L] x) => (float[N,1,M] y)
        <float[1,1,4] w = {1,2,3,4}, int64[6] pads = {0,0,1,0,0,1}, float one = {0.5},
         uint8 zero = {128}>
        { p = Pad(x, pads) c = DequantizeLinear(p, one, zero)
          [deconv] y = ConvTranspose<strides=[2], pads=[3,3]>(c, w) }"""
    )
    assert "adds integers to quantized ones" in refusal(before, "fold_pad")
