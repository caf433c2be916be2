"""Every pass: text in, text out, values before = after; where it must not fire; what it keeps."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx

from tests.support.onnx_rewriting import assert_same_values, listing, refusal, rewritten, values
from tests.support.onnx_texts import parsed
from upconv.dialects.onnx import Rule
from upconv.errors import ArgumentError
from upconv.onnx import rewrite, verify
from upconv.onnx.inputs import feeds
from upconv.onnx.passes import PASSES

# Text in, text out --------------------------------------------------------------------------------

CONVOLUTIONS = {
    "replace_deconv": (
        """g (float[N,2,H,W] x) => (float[N,4,P,Q] y)
        <float[2,2,2,1] w = {1,2,3,4,5,6,7,8}, float[4] b = {1,2,3,4}>
        { [deconv] y = ConvTranspose<group=2, pads=[0,0,1,0], dilations=[2,1]>(x, w, b) }""",
        """y = Conv(x, [4x1x2x1]{2,1,4,3,6,5,8,7}, {1,2,3,4}) \
dilations=[2,1], group=2, pads=[2,0,1,0], strides=[1,1]""",
    ),
    "sub_pixel": (
        """g (float[N,1,H,W] x) => (float[N,1,P,Q] y)
        <float[1,1,2,2] w = {1,2,3,4}, float[1] b = {7}>
        { [deconv] y = ConvTranspose<strides=[2,2]>(x, w, b) }""",
        """Conv = Conv(x, [4x1x1x1]{1,2,3,4}, {7,7,7,7}) \
dilations=[1,1], group=1, pads=[0,0,0,0], strides=[1,1]
y = DepthToSpace(Conv) blocksize=2, mode=CRD""",
    ),
    "sub_pixel:unfolded": (
        """g (float[2,1,L] x) => (float[2,1,M] y)
        <float[1,1,4] w = {1,2,3,4}>
        { [deconv] y = ConvTranspose<strides=[2], pads=[1,1]>(x, w) }""",
        """Conv = Conv(x, [2x1x2]{3,1,4,2}) dilations=[1], group=1, pads=[1,1], strides=[1]
Reshape = Reshape(Conv, {0,1,2,-1})
Transpose = Transpose(Reshape) perm=[0,1,3,2]
Reshape_1 = Reshape(Transpose, {0,1,-1})
y = Slice(Reshape_1, {1}, {-1}, {2})""",
    ),
    "sub_pixel:folded": (
        """g (float[N,1,L] x) => (float[N,1,M] y)
        <float[1,1,4] w = {1,2,3,4}>
        { [deconv] y = ConvTranspose<strides=[2], pads=[1,1]>(x, w) }""",
        """Conv = Conv(x, [2x1x3]{4,2,0,0,3,1}) dilations=[1], group=1, pads=[1,1], strides=[1]
Unsqueeze = Unsqueeze(Conv, {1})
Reshape = Reshape(Unsqueeze, {-1,1,2,0})
Transpose = Transpose(Reshape) perm=[0,1,3,2]
Flatten = Flatten(Transpose) axis=2
Unsqueeze_1 = Unsqueeze(Flatten, {1})
y = Reshape(Unsqueeze_1, {-1,1,0})""",
    ),
    "sub_pixel:polyphase": (
        """g (float[2,1,L] x) => (float[2,1,M] y)
        <float[1,1,2] w = {1,2}, float[1] b = {7}>
        { [deconv] y = ConvTranspose<strides=[3]>(x, w, b) }""",
        """Conv = Conv(x, [1x1x1]{1}, {7}) dilations=[1], group=1, pads=[0,0], strides=[1]
Conv_1 = Conv(x, [1x1x1]{2}, {7}) dilations=[1], group=1, pads=[0,0], strides=[1]
Conv_2 = Conv(x, [1x1x1]{0}, {7}) dilations=[1], group=1, pads=[0,0], strides=[1]
Concat = Concat(Conv, Conv_1, Conv_2) axis=1
Reshape = Reshape(Concat, {0,3,1,-1})
Transpose = Transpose(Reshape) perm=[0,2,3,1]
Reshape_1 = Reshape(Transpose, {0,1,-1})
y = Slice(Reshape_1, {0}, {-1}, {2})""",
    ),
}

FOLDS = {
    "fold_batch_norm": (
        """g (float[N,2,L] x) => (float[N,2,M] z)
        <float[2,1,2] w = {1,2,3,4}, float[2] gamma = {2,4}, float[2] beta = {1,1},
         float[2] mean = {3,0}, float[2] var = {4,16}, float[1,2,1] c = {2,3}>
        { [deconv] y = ConvTranspose<strides=[2], group=2>(x, w)
          n = BatchNormalization<epsilon=0.0>(y, gamma, beta, mean, var) z = Mul(n, c) }""",
        """z = ConvTranspose(x, [2x1x2]{2,4,9,12}, {-4,3}) \
dilations=[1], group=2, kernel_shape=[2], output_padding=[0], pads=[0,0], strides=[2]""",
    ),
    "fold_pad": (
        """g (float[N,1,L] x) => (float[N,1,M] z)
        <float[1,1,4] w = {1,2,3,4}, int64[6] before = {0,0,1,0,0,1},
         int64[6] after = {0,0,0,0,0,1}>
        { p = Pad(x, before) [deconv] y = ConvTranspose<strides=[2], pads=[3,2]>(p, w)
          z = Pad(y, after) }""",
        """z = ConvTranspose(x, [1x1x4]{1,2,3,4}) \
dilations=[1], group=1, kernel_shape=[4], output_padding=[1], pads=[1,0], strides=[2]""",
    ),
    "fold_slice": (
        """g (float[N,1,L] x) => (float[N,1,M] z)
        <float[1,1,2] w = {1,2}, int64[1] one = {1}, int64[1] end = {9223372036854775807},
         int64[1] last = {-2}, int64[1] axis = {2}>
        { p = Slice(x, one, end, axis) [deconv] y = ConvTranspose<strides=[2]>(p, w)
          z = Slice(y, one, last, axis) }""",
        """z = ConvTranspose(x, [1x1x2]{1,2}) \
dilations=[1], group=1, kernel_shape=[2], output_padding=[0], pads=[3,2], strides=[2]""",
    ),
}

IN_FEWER_WORDS = {
    "normalise": (
        """g (float[N,1,5] x) => (float[N,1,M] y)
        <float[1,1,4] w = {1,2,3,4}>
        { [deconv] y = ConvTranspose<strides=[2], auto_pad="SAME_UPPER">(x, w) }""",
        """y = ConvTranspose(x, [1x1x4]{1,2,3,4}) \
dilations=[1], group=1, kernel_shape=[4], output_padding=[0], pads=[1,1], strides=[2]""",
    ),
    "normalise:onnxruntime": (
        """g (float[N,1,5] x) => (float[N,1,M] y)
        <float[1,1,3] w = {1,2,3}>
        { [deconv] y = ConvTranspose<strides=[2], auto_pad="SAME_LOWER">(x, w) }""",
        """y = ConvTranspose(x, [1x1x3]{1,2,3}) \
dilations=[1], group=1, kernel_shape=[3], output_padding=[0], pads=[1,0], strides=[2]""",
    ),
    "split_groups": (
        """g (float[N,2,L] x) => (float[N,2,M] y)
        <float[2,1,2] w = {1,2,3,4}, float[2] b = {5,6}>
        { [deconv] y = ConvTranspose<strides=[2], group=2>(x, w, b) }""",
        """Split_output_0, Split_output_1 = Split(x) axis=1
ConvTranspose = ConvTranspose(Split_output_0, [1x1x2]{1,2}, {5}) \
dilations=[1], group=1, kernel_shape=[2], output_padding=[0], pads=[0,0], strides=[2]
ConvTranspose_1 = ConvTranspose(Split_output_1, [1x1x2]{3,4}, {6}) \
dilations=[1], group=1, kernel_shape=[2], output_padding=[0], pads=[0,0], strides=[2]
y = Concat(ConvTranspose, ConvTranspose_1) axis=1""",
    ),
    "to_rank": (
        """g (float[N,1,L] x) => (float[N,1,M] y)
        <float[1,1,2] w = {1,2}, float[1] b = {5}>
        { [deconv] y = ConvTranspose<strides=[2], pads=[1,0], output_padding=[1]>(x, w, b) }""",
        """Unsqueeze = Unsqueeze(x, {2})
ConvTranspose = ConvTranspose(Unsqueeze, [1x1x1x2]{1,2}, {5}) dilations=[1,1], group=1, \
kernel_shape=[1,2], output_padding=[0,1], pads=[0,1,0,0], strides=[1,2]
y = Squeeze(ConvTranspose, {2})""",
    ),
    "symmetric_pads": (
        """g (float[N,1,H,W] x) => (float[N,1,P,Q] y)
        <float[1,1,2,2] w = {1,2,3,4}, float[1] b = {5}>
        { [deconv] y = ConvTranspose<strides=[2,3], pads=[1,0,0,1]>(x, w, b) }""",
        """ConvTranspose = ConvTranspose(x, [1x1x2x2]{1,2,3,4}, {5}) dilations=[1,1], group=1, \
kernel_shape=[2,2], output_padding=[0,0], pads=[0,0,0,0], strides=[2,3]
y = Slice(ConvTranspose, {1,0}, {end,-1}, {2,3})""",
    ),
    "no_pads": (
        """g (float[N,1,L] x) => (float[N,1,M] y)
        <float[1,1,3] w = {1,2,3}, float[1] b = {5}>
        { [deconv] y = ConvTranspose<strides=[2], pads=[1,1], output_padding=[1]>(x, w, b) }""",
        """ConvTranspose = ConvTranspose(x, [1x1x3]{1,2,3}, {5}) dilations=[1], group=1, \
kernel_shape=[3], output_padding=[0], pads=[0,0], strides=[2]
y = Slice(ConvTranspose, {1}, {end}, {2})""",
    ),
    "no_output_padding": (
        """g (float[N,1,H,W] x) => (float[N,1,P,Q] y)
        <float[1,1,2,2] w = {1,2,3,4}, float[1] b = {5}>
        { [deconv] y = ConvTranspose<strides=[2,3], pads=[0,0,1,1], output_padding=[1,2]>(x, w, b) }
        """,
        """y = ConvTranspose(x, [1x1x2x3]{1,2,0,3,4,0}, {5}) dilations=[1,1], group=1, \
kernel_shape=[2,3], output_padding=[0,0], pads=[0,0,0,0], strides=[2,3]""",
    ),
    "no_dilation": (
        """g (float[N,1,L] x) => (float[N,1,M] y)
        <float[1,1,3] w = {1,2,3}>
        { [deconv] y = ConvTranspose<strides=[2], dilations=[2]>(x, w) }""",
        """y = ConvTranspose(x, [1x1x5]{1,0,2,0,3}) \
dilations=[1], group=1, kernel_shape=[5], output_padding=[0], pads=[0,0], strides=[2]""",
    ),
}

EXAMPLES = {**CONVOLUTIONS, **FOLDS, **IN_FEWER_WORDS}


def test_every_pass_has_an_example() -> None:
    elsewhere = {"normalise:spec", "normalise:openvino"}  # ONNX Runtime reads theirs otherwise
    assert set(EXAMPLES) | elsewhere == set(PASSES)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("opset", [17, 22])
def test_text_in_text_out_and_the_same_values(name: str, opset: int) -> None:
    text, wanted = EXAMPLES[name]
    before = parsed(text, opset)
    after, [step] = rewritten(before, name)
    assert step.fired, step.refusal
    if opset < 18 or "Split(" not in wanted:
        assert listing(after) == wanted
    assert_same_values(before, after)
    again, steps = rewritten(after, name)  # a second time there is nothing to do
    assert not any(step.fired for step in steps)
    assert listing(again) == listing(after)


def test_output_padding_beyond_the_stride_is_normalised_though_all_is_said() -> None:
    """ONNX allows it below the dilation; runtimes do not."""
    said = "strides=[2], dilations=[4], group=1, kernel_shape=[3], output_padding=[3], pads=[0,2]"
    before = deconv(said)
    after, [step] = rewritten(before, "normalise")
    assert step.fired
    assert "output_padding=[1], pads=[0,0]" in listing(after)
    given = feeds(before)
    [wanted], [found] = values(before, given, "reference"), values(after, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_an_output_longer_than_the_products_reach_is_zero_taps() -> None:
    longer = parsed(
        """g (float[N,1,5] x) => (float[N,1,M] y) <float[1,1,2] w = {1,2}, float[1] b = {7}>
        { [deconv] y = ConvTranspose<strides=[2], output_shape=[13]>(x, w, b) }"""
    )
    after, _ = rewritten(longer, "normalise:spec")
    assert "[1x1x5]{1,2,0,0,0}" in listing(after)
    assert "pads=[0,0]" in listing(after)
    [found] = values(after, feeds(longer))
    assert (found[..., 10:] == 7).all()


def test_a_reading_is_stated_by_the_pass_or_the_run_or_the_node_is_left_alone() -> None:
    """Grouped, OpenVINO cuts the odd position from the end."""
    before = parsed(
        """g (float[N,2,5] x) => (float[N,2,M] y) <float[2,1,3] w = {1,2,3,4,5,6}>
        { [deconv] y = ConvTranspose<strides=[2], output_shape=[10], group=2>(x, w) }"""
    )
    for name in ("normalise", "symmetric_pads", "sub_pixel"):
        assert "its output_shape is read differently by openvino; choose" in refusal(before, name)
    by_run, _ = rewritten(before, "normalise", rule=Rule.OPENVINO)
    by_pass, _ = rewritten(before, "normalise:openvino", rule=Rule.SPEC)
    assert listing(by_run) == listing(by_pass)
    assert listing(by_run) != listing(rewritten(before, "normalise:spec")[0])
    assert "pads=[0,1]" in listing(by_run)
    assert "pads=[1,0]" in listing(rewritten(before, "normalise:onnxruntime")[0])
    both, steps = rewritten(before, "normalise:onnxruntime", "sub_pixel")
    assert [step.fired for step in steps] == [True, True]
    assert_same_values(before, both)


@pytest.mark.parametrize("passes", [[3], 3, [print], [None]])
def test_what_is_no_pass_is_refused(passes: Any) -> None:
    with pytest.raises(ArgumentError, match=r"passes is .*; expected one of replace_deconv"):
        rewrite(deconv("strides=[2]"), passes)


def test_the_name_of_one_pass_needs_no_list() -> None:
    model = deconv("strides=[2]")
    assert listing(rewrite(model, "sub_pixel").proto()) == listing(rewritten(model, "sub_pixel")[0])
    with pytest.raises(ArgumentError, match="passes is 'subpixel'; expected one of replace_deconv"):
        rewrite(model, "subpixel")


# Where they must not fire -------------------------------------------------------------------------


def deconv(
    attributes: str, w: str = "float[2,1,3] w = {1,2,3,4,5,6}", shape: str = "N,2,L"
) -> onnx.ModelProto:
    """A model of one ConvTranspose."""
    out = ",".join("ABCDE"[: shape.count(",") + 1])
    return parsed(
        f"""g (float[{shape}] x) => (float[{out}] y) <{w}>
        {{ [deconv] y = ConvTranspose<{attributes}>(x, w) }}"""
    )


MANY = parsed(
    "g (float[N,257,L] x) => (float[N,257,M] y) { y = ConvTranspose<group=257>(x, w) }",
    w=np.ones((257, 1, 1), np.float32),
)


@pytest.mark.parametrize(
    ("name", "model", "reason"),
    [
        ("replace_deconv", deconv("strides=[2]"), "strides are [2], not all 1: see sub_pixel"),
        ("replace_deconv", deconv("pads=[2,2]", shape="N,2,1"), "output size"),
        (
            "replace_deconv",
            deconv("dilations=[3], output_padding=[2], pads=[9,0]", shape="N,2,3"),
            "too small",
        ),
        ("sub_pixel", deconv("strides=[1]"), "see replace_deconv"),
        ("sub_pixel", deconv("strides=[256]"), "would need"),
        ("sub_pixel", deconv("strides=[1099511627776]"), "1099511627776 phases"),
        ("sub_pixel:polyphase", deconv("strides=[1025]"), "1025 phases"),
        ("sub_pixel", deconv("strides=[2], dilations=[1099511627777]"), "too many to list"),
        ("no_dilation", deconv("strides=[2], dilations=[281474976710655]"), "would need"),
        ("sub_pixel:folded", deconv("strides=[3]"), "see sub_pixel:unfolded"),
        ("sub_pixel:polyphase", deconv("strides=[1]"), "see replace_deconv"),
        ("fold_batch_norm", deconv("strides=[2]"), "no node"),
        ("fold_pad", deconv("strides=[2]"), "no Pad"),
        ("fold_slice", deconv("strides=[2]"), "no Slice"),
        (
            "normalise",
            deconv(
                "strides=[2], dilations=[1], group=1, pads=[0,0], output_padding=[0],"
                " kernel_shape=[3]"
            ),
            "already say everything",
        ),
        ("normalise", deconv("pads=[2,1], output_padding=[0]", shape="N,2,1"), "an output of 0"),
        ("split_groups", deconv("strides=[2]"), "it has one group"),
        ("split_groups", MANY, "more than 256 nodes"),
        ("to_rank", deconv("strides=[2,1]", w="float[2,1,1,1] w = {1,2}", shape="N,2,H,W"), "2"),
        ("symmetric_pads", deconv("pads=[1,1], strides=[2], output_padding=[1]"), "the same"),
        ("no_output_padding", deconv("strides=[2], pads=[1,0]"), "no output padding"),
        (
            "no_output_padding",
            deconv("strides=[2], output_padding=[1], pads=[5,1]", shape="N,2,2"),
            "an output of 0",
        ),
        ("no_pads", deconv("strides=[2]"), "it has no pads"),
        ("no_dilation", deconv("strides=[2]"), "all its dilations are 1"),
        ("no_dilation", deconv("dilations=[999]"), "would need"),
    ],
    ids=lambda entry: str(entry)[:24] if not isinstance(entry, onnx.ModelProto) else "",
)
def test_it_must_not_fire(name: str, model: onnx.ModelProto, reason: str) -> None:
    assert reason in refusal(model, name)


@pytest.mark.parametrize("name", PASSES)
def test_layers_that_follow_each_other_are_rewritten_one_after_the_other(name: str) -> None:
    """The first one's rewriting puts another value before the second: by Relu, and directly."""
    model = parsed(
        """g (float[1, 1, 3, 3] x) => (float[1, 1, P, Q] y)
        <float[1, 1, 2, 2] w = {1, -2, 3, -4}, float[1, 1, 2, 2] u = {-1, 2, 5, 3}>
        { a = ConvTranspose <strides = [2, 2]> (x, w) b = Relu (a)
          c = ConvTranspose <strides = [2, 2]> (b, u) y = ConvTranspose (c, w) }"""
    )
    assert verify(model, rewrite(model, [name]).proto()).equal


@pytest.mark.parametrize(("output", "kinds"), [
    ("", ["Conv", "LeakyRelu", "DepthToSpace"]),
    (", float[1, 1, 6, 6] a", ["Conv", "DepthToSpace", "LeakyRelu"]),
])  # fmt: skip
def test_an_activation_that_alone_reads_it_goes_before_the_shuffle(
    output: str, kinds: list[str]
) -> None:
    model = parsed(
        f"""g (float[1, 1, 3, 3] x) => (float[1, 1, 6, 6] y{output})
        <float[1, 1, 2, 2] w = {{1, -2, 3, -4}}>
        {{ a = ConvTranspose <strides = [2, 2]> (x, w) y = LeakyRelu <alpha = 0.3> (a) }}"""
    )
    found = rewrite(model, ["sub_pixel"])
    assert [node.op_type for node in found.proto().graph.node] == kinds
    assert verify(model, found.proto()).equal
    assert [step.node for step in found.steps] == ["a"]  # by its output: it has no name
