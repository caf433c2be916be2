"""Folding what stands around a ConvTranspose: every form of it, and all that must stay."""

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx

from tests.support.onnx_rewriting import (
    assert_close,
    assert_same_values,
    listing,
    refusal,
    refused,
    rewritten,
    values,
)
from tests.support.onnx_texts import ints, normal, parsed
from upconv.onnx.inputs import feeds
from upconv.onnx.runtimes import Runtime

# Batch normalisation ------------------------------------------------------------------------------

CHANNELS = 6  # 2 groups of 3
WEIGHT = {"w": normal(1, 4, 3, 4, 2), "b": normal(2, CHANNELS)}
PARAMETERS = {
    "gamma": normal(3, CHANNELS),
    "beta": normal(4, CHANNELS),
    "mean": normal(5, CHANNELS),
    "var": np.abs(normal(6, CHANNELS)) + 0.1,
}
LAYER = "[deconv] y = ConvTranspose<group=2, strides=[2,3], pads=[1,0,0,1]>(x, w, b)"
NORM = "z = BatchNormalization<epsilon=0.01>(y, gamma, beta, mean, var)"


def normed(rest: str, opset: int = 17, outputs: str = "z", **arrays: np.ndarray) -> onnx.ModelProto:
    outs = ", ".join(f"float[N,{CHANNELS},P,Q] {name}" for name in outputs.split())
    text = f"g (float[N,4,H,W] x) => ({outs}) {{ {LAYER} {rest} }}"
    return parsed(text, opset, **{**WEIGHT, **PARAMETERS, **arrays})


FORMS = ("Mul(y, c)", "Mul(c, y)", "Add(y, c)", "Add(c, y)", "Sub(y, c)", "Sub(c, y)", "Div(y, c)")


@pytest.mark.parametrize(
    ("rest", "opset"),
    [
        *((NORM, opset) for opset in (13, 14, 15, 22)),
        *((f"z = {form}", 17) for form in FORMS),
        ("m = Mul(y, c) a = Add(m, flat) z = Div(a, one)", 17),
        ("m = Sub(flat, y) z = BatchNormalization(m, gamma, beta, mean, var)", 17),
    ],
)
def test_a_normalisation_of_every_form_is_folded(rest: str, opset: int) -> None:
    constants = {"c": normal(7, 1, CHANNELS, 1, 1) + 3, "flat": normal(8, CHANNELS, 1, 1)}
    before = normed(rest, opset, **constants, one=np.float32(0.7))
    after, [step] = rewritten(before, "fold_batch_norm")
    assert step.fired, step.refusal
    assert [node.op_type for node in after.graph.node] == ["ConvTranspose"]
    assert sorted(t.name for t in after.graph.initializer) == ["deconv/bias", "deconv/weight"]
    assert_same_values(before, after)


def test_folding_stops_where_it_can_go_no_further() -> None:
    before = normed(f"{NORM.replace('z =', 'n =')} r = Relu(n) z = Mul(r, c)", c=np.float32(2))
    after, _ = rewritten(before, "fold_batch_norm")
    assert [node.op_type for node in after.graph.node] == ["ConvTranspose", "Relu", "Mul"]
    assert_same_values(before, after)


@pytest.mark.parametrize(
    ("rest", "reason", "more"),
    [
        ("z = Relu(y)", "a Relu reads its output", {}),
        (f"{NORM} t = Neg(y)", "no node, or more than one", {}),
        (NORM.replace("(y,", "(x2,") + " x2 = Neg(y)", "a Neg reads", {}),
        (NORM, "a number > 0", {"var": np.full(CHANNELS, -0.01, np.float32)}),
        (NORM, "is not finite", {"gamma": np.full(CHANNELS, np.inf, np.float32)}),
        ("z = Div(y, c)", "is not finite", {"c": np.float32(0)}),
        ("z = Div(c, y)", "the Div after it is not linear", {"c": np.float32(1)}),
        ("z = Mul(y, y)", "no node, or more than one", {}),
        ("z = Mul(y, c)", "(2, 1, 1, 1), not one per channel", {"c": normal(7, 2, 1, 1, 1)}),
        ("z = Add(y, c)", "(3,), not one per channel", {"c": normal(7, 3)}),
        ("z = Add(y, c)", "(1, 1, 1, 1, 1), not one", {"c": normal(7, 1, 1, 1, 1, 1)}),
        (NORM.replace("z =", "z, m, v =").replace("<", "<training_mode=1, "), "training", {}),
        (NORM.replace("var)", "x)"), "is an input", {}),
        (NORM.replace(", var)", ")"), "lacks parameters", {}),
        (NORM.replace("(y", "(x").replace("var)", "y)"), "has another input", {}),
        (NORM.replace("gamma", "c"), "of shape (3,)", {"c": normal(7, 3)}),
    ],
)
def test_what_is_no_constant_normalisation_stays(rest: str, reason: str, more: dict) -> None:
    body = f"g (float[N,4,H,W] x) => (float[] z) {{ {LAYER} {rest} }}"
    model = parsed(body, **{**WEIGHT, **PARAMETERS, **more})
    assert reason in refused(model, "fold_batch_norm")


def test_an_output_that_others_see_is_not_folded_away() -> None:
    before = normed(NORM, outputs="z y")
    assert "or more than one" in refusal(before, "fold_batch_norm")


def test_folding_is_rounded_once() -> None:
    """In float16, whose 11 bits two roundings would spoil; the parameters stay in float32."""
    arrays = {k: v.astype(np.float16) for k, v in {**WEIGHT, **PARAMETERS}.items()}
    text = f"g (float16[N,4,H,W] x) => (float16[N,6,P,Q] z) {{ {LAYER} {NORM} }}"
    before = parsed(text, **arrays)
    after, [step] = rewritten(before, "fold_batch_norm")
    assert step.fired
    folded = {t.name: onnx.numpy_helper.to_array(t) for t in after.graph.initializer}
    scale = arrays["gamma"].astype(float) / np.sqrt(arrays["var"].astype(float) + 0.01)
    wanted = arrays["w"].astype(float) * np.repeat(scale.reshape(2, 3), 2, axis=0)[..., None, None]
    np.testing.assert_array_equal(folded["deconv/weight"], wanted.astype(np.float16))
    large = {**arrays, "gamma": np.full(CHANNELS, 60000, np.float16)}
    assert "not finite in float16" in refusal(parsed(text, **large), "fold_batch_norm")


# Pad and Slice ------------------------------------------------------------------------------------


ARRAYS = {
    "w": normal(1, 2, 3, 4), "w2": normal(1, 2, 3, 2), "w3": normal(1, 2, 3, 3), "b": normal(2, 3),
    "flat": np.zeros(3, np.float32), "zero": np.float32(0), "half": np.float32(0.5),
    "a": ints(0, 0, 1, 0, 0, 2), "few": ints(1, 2), "minus": ints(0, 0, -1, 0, 0, -2),
    "channels": ints(0, 1, 1, 0, 0, 0), "front": ints(0, 0, 1, 0, 0, 0),
    "back": ints(0, 0, 0, 0, 0, 1), "back2": ints(0, 0, 0, 0, 0, 2), "off": ints(0, 0, -2, 0, 0, 1),
    "off2": ints(0, 0, -1, 0, 0, -1),
    **{name: ints(n) for name, n in {"one": 1, "two": 2, "ten": 10, "last": -2}.items()},
    **{name: ints(n) for name, n in {"from": -9, "far": (1 << 31) - 1, "axes": -1}.items()},
    "starts": ints(0, 0, 3), "ends": ints((1 << 63) - 1, (1 << 63) - 1, -1), "both": ints(2, 2, 1),
}  # fmt: skip


def around(before: str, layer: str, after: str, opset: int = 17, size: str = "L"):
    """One axis; `before` makes p of x, `layer` is attributes and operands, `after` makes z of y."""
    text = f"g (float[N,2,{size}] x) => (float[N,3,M] z) {{"
    text += before or ("" if "(x" in layer else "p = Identity(x)")
    text += f" [deconv] y = ConvTranspose{layer} {after or 'z = Identity(y)'} }}"
    return parsed(text, opset, **ARRAYS)


PAD_BEFORE, SLICE_AFTER = "<strides=[2], pads=[3,5]>(p, w, b)", "<strides=[2], pads=[1,0]>(p, w, b)"

FOLDED = {
    "Pad of opset 13, a value": ("p = Pad(x, a, zero)", PAD_BEFORE, "", "pads=[1,1]", 13),
    "Pad of opset 18, axes": ("p = Pad(x, few, zero, axes)", PAD_BEFORE, "", "pads=[1,1]", 18),
    "Pad of opset 21, no value": (
        'p = Pad<mode="constant">(x, few, , axes)', PAD_BEFORE, "", "pads=[1,1]", 21
    ),
    "Pad of opset 24": ("p = Pad(x, a)", PAD_BEFORE, "", "pads=[1,1]", 24),
    "zeros behind": (
        "", "<strides=[2]>(p, w, flat)", "z = Pad(y, back)", "output_padding=[1], pads=[0,0]", 17
    ),
    "two zeros behind": (
        "", "<strides=[3], pads=[1,0]>(p, w, flat)", "z = Pad(y, back2)",
        "output_padding=[2], pads=[1,0]", 17,
    ),
    "a Pad that takes off": (
        "", "<strides=[2]>(p, w, flat)", "z = Pad(y, off)", "output_padding=[1], pads=[2,0]", 17
    ),
    "at both ends": (
        "", "<strides=[2], pads=[0,1]>(p, w, flat)", "z = Pad(y, off2)",
        "output_padding=[0], pads=[1,2]", 17,
    ),
    "Slice of opset 13, steps": (
        "", SLICE_AFTER, "z = Slice(y, one, last, axes, one)", "pads=[2,2]", 13
    ),
    "Slice of all axes": ("", SLICE_AFTER, "z = Slice(y, starts, ends)", "pads=[4,1]", 17),
    "Slice to the end": ("", SLICE_AFTER, "z = Slice(y, one, far, axes)", "pads=[2,0]", 17),
    "Slice of opset 22": ("", SLICE_AFTER, "z = Slice(y, one, last, axes)", "pads=[2,2]", 22),
    "Slice of what no output reads": (
        "p = Slice(x, one, far, axes)", "<strides=[2]>(p, w2)", "", "pads=[2,0]", 17
    ),
    "Slice of what is cropped": (
        "p = Slice(x, one, far, axes)", "<strides=[2], pads=[1,0]>(p, w3)", "", "pads=[3,0]", 17
    ),
    "several": (
        "q = Pad(x, a) p = Pad(q, a)", "<strides=[2], pads=[5,9]>(p, w)",
        "r = Slice(y, one, last, axes) z = Slice(r, one, far, axes)", "pads=[3,3]", 17,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_pads_and_slices_become_crops(name: str) -> None:
    before, layer, after, wanted, opset = FOLDED[name]
    source = around(before, layer, after, opset)
    found, steps = rewritten(source, "fold_pad", "fold_slice")
    assert any(step.fired for step in steps)
    assert wanted in listing(found)
    assert not {"Pad", "Slice"} & {node.op_type for node in found.graph.node}
    if opset < 24:
        assert_same_values(source, found, {"L": [7]})
    else:
        given, evaluator = feeds(source, {"L": [7]}), Runtime("reference")
        assert_close(values(source, given, evaluator), values(found, given, evaluator), 9)


def test_a_pad_that_others_read_stays_for_them() -> None:
    body = """g (float[N,2,L] x) => (float[N,3,M] z, float[N,2,K] q)
        { p = Pad(x, a) y = ConvTranspose<strides=[2], pads=[3,5]>(p, w) z = Identity(y)
          q = Neg(p) }"""
    before = parsed(body, **ARRAYS)
    after, [step] = rewritten(before, "fold_pad")
    assert step.fired
    assert [node.op_type for node in after.graph.node].count("Pad") == 1
    assert_same_values(before, after)


@pytest.mark.parametrize(
    ("before", "layer", "after", "reason"),
    [
        ("p = Pad(x, a)", "<strides=[2], pads=[1,5]>(p, w)", "", "cannot add positions"),
        ("p = Pad(x, a)", "<strides=[2], pads=[3,1]>(p, w)", "", "output padding 3"),
        ('p = Pad<mode="reflect">(x, a)', "<pads=[3,5]>(p, w)", "", "repeats or mirrors"),
        ("p = Pad(x, a, half)", "<pads=[3,5]>(p, w)", "", "a value other than 0"),
        ("p = Pad(x, channels)", "<pads=[3,5]>(p, w)", "", "changes batch or channels"),
        ("p = Pad(x, minus)", "<pads=[1,1]>(p, w)", "", "reach the output"),
        ("n = Abs(a) p = Pad(x, n)", "<pads=[3,5]>(p, w)", "", "is not constant"),
        ("", "<pads=[1,0]>(p, w)", "z = Pad(y, front)", "longer result has values"),
        ("", "<pads=[0,1]>(p, w)", "z = Pad(y, back)", "longer result has values"),
        ("", "<strides=[2]>(p, w)", "z = Pad(y, front)", "cannot add positions"),
        ("", "<strides=[1]>(p, w)", "z = Pad(y, back)", "output padding 1"),
        ("", "<strides=[2]>(p, w)", "z = Pad(y, back) q = Neg(y)", "only reader"),
        ("", "<strides=[2]>(p, w, b)", "z = Pad(y, back)", "where its bias would be"),
        ("p = Slice(x, one, far, axes)", "<strides=[2]>(p, w)", "", "removes reach the output"),
        ("", "<strides=[2]>(p, w)", "z = Slice(y, one, far, axes, two)", "steps other than 1"),
        ("", "<strides=[2]>(p, w)", "z = Slice(y, one, far, one)", "batch or channels"),
        ("", "<strides=[2]>(p, w)", "z = Slice(y, one, ten, axes)", "counts from the other end"),
        ("", "<strides=[2]>(p, w)", "z = Slice(y, from, ten, axes)", "counts from the other end"),
        ("", "<strides=[2]>(p, w)", "c = Abs(one) z = Slice(y, c, far, axes)", "is not constant"),
        ("", "<strides=[2]>(p, w)", "z = Slice(y, starts, ends, both)", "names an axis twice"),
        ("", "<strides=[2]>(p, w)", "z = Slice(y, one, ends, axes)", "unequal counts of axes"),
        ("", "<strides=[2]>(p, w)", "z = Slice(y, one, far, axes) q = Neg(y)", "only reader"),
    ],
)
def test_what_no_pads_can_say_stays(before: str, layer: str, after: str, reason: str) -> None:
    name = "fold_pad" if "Pad(" in before + after or "Pad<" in before else "fold_slice"
    assert reason in refused(around(before, layer, after), name)


def test_where_sizes_are_known_a_slice_may_count_from_either_end_or_leave_nothing() -> None:
    before = around("", "<strides=[2]>(x, w)", "z = Slice(y, from, ten, axes)", size="5")
    after, [step] = rewritten(before, "fold_slice")
    assert step.fired, step.refusal
    assert "pads=[3,2]" in listing(after)
    assert_same_values(before, after)
    nothing = around("", "<strides=[2]>(x, w)", "z = Slice(y, ten, one, axes)", size="5")
    assert "leaves nothing" in refused(nothing, "fold_slice")
