"""Folding what stands around a ConvTranspose: every form of it, and all that must stay."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx

from onnx_rewriting import (
    assert_close,
    assert_same_values,
    listing,
    refusal,
    refused,
    rewritten,
    values,
)
from onnx_texts import normal, parsed
from upconv.onnx.runtimes import Runtime, feeds

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
    given = {**WEIGHT, **PARAMETERS, **arrays}
    outs = ", ".join(f"float[N,{CHANNELS},P,Q] {name}" for name in outputs.split())
    text = f"g (float[N,4,H,W] x) => ({outs}) {{ {LAYER} {rest} }}"
    return parsed(text, opset, **{k: v for k, v in given.items() if k in text})


@pytest.mark.parametrize("opset", [13, 14, 15, 22])
def test_a_normalisation_of_every_form_is_folded(opset: int) -> None:
    before = normed(NORM, opset)
    after, [step] = rewritten(before, "fold_batch_norm")
    assert step.fired, step.refusal
    assert [node.op_type for node in after.graph.node] == ["ConvTranspose"]
    assert sorted(t.name for t in after.graph.initializer) == ["deconv/bias", "deconv/weight"]
    assert_same_values(before, after)


FORMS = ("Mul(y, c)", "Mul(c, y)", "Add(y, c)", "Add(c, y)", "Sub(y, c)", "Sub(c, y)", "Div(y, c)")


@pytest.mark.parametrize(
    "rest",
    [
        *(f"z = {form}" for form in FORMS),
        "m = Mul(y, c) a = Add(m, flat) z = Div(a, one)",
        "m = Sub(flat, y) z = BatchNormalization(m, gamma, beta, mean, var)",
    ],
)
def test_arithmetic_by_a_constant_per_channel_is_folded(rest: str) -> None:
    constants = {"c": normal(7, 1, CHANNELS, 1, 1) + 3, "flat": normal(8, CHANNELS, 1, 1)}
    constants["one"] = np.float32(0.7)
    before = normed(rest, **constants)
    after, [step] = rewritten(before, "fold_batch_norm")
    assert step.fired, step.refusal
    assert [node.op_type for node in after.graph.node] == ["ConvTranspose"]
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
        (f"{NORM} t = Neg(y)", "nobody, or not one node alone", {}),
        (NORM.replace("(y,", "(x2,") + " x2 = Neg(y)", "a Neg reads", {}),
        (NORM, "a number > 0", {"var": np.full(CHANNELS, -0.01, np.float32)}),
        (NORM, "is not finite", {"gamma": np.full(CHANNELS, np.inf, np.float32)}),
        ("z = Div(y, c)", "is not finite", {"c": np.float32(0)}),
        ("z = Div(c, y)", "the Div after it is not linear", {"c": np.float32(1)}),
        ("z = Mul(y, y)", "nobody, or not one node alone", {}),
        ("z = Mul(y, c)", "(2, 1, 1, 1), not one per channel", {"c": normal(7, 2, 1, 1, 1)}),
        ("z = Add(y, c)", "(3,), not one per channel", {"c": normal(7, 3)}),
        ("z = Add(y, c)", "(1, 1, 1, 1, 1), not one", {"c": normal(7, 1, 1, 1, 1, 1)}),
        (NORM.replace("z =", "z, m, v =").replace("<", "<training_mode=1, "), "training", {}),
        (NORM.replace("var)", "x)"), "is an input", {}),
        (NORM.replace(", var)", ")"), "lacks parameters", {}),
        (NORM.replace("(y", "(x").replace("var)", "y)"), "is not of its output", {}),
        (NORM.replace("gamma", "c"), "of shape (3,)", {"c": normal(7, 3)}),
    ],
)
def test_what_is_no_constant_normalisation_stays(rest: str, reason: str, more: dict) -> None:
    body = f"g (float[N,4,H,W] x) => (float[] z) {{ {LAYER} {rest} }}"
    model = parsed(body, **{k: v for k, v in {**WEIGHT, **PARAMETERS, **more}.items() if k in body})
    assert reason in refused(model, "fold_batch_norm")


def test_an_output_that_others_see_is_not_folded_away() -> None:
    before = normed(NORM, outputs="z y")
    assert "not one node alone" in refusal(before, "fold_batch_norm")


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


def around(before: str, attributes: str, after: str, opset: int, kernel: int = 4, **arrays):
    """One axis; `before` makes p of x, `after` makes z of y."""
    body = f"""g (float[N,2,L] x) => (float[N,3,M] z)
        {{ {before} [deconv] y = ConvTranspose<{attributes}>(p, w{", b" if "b" in arrays else ""})
        {after} }}"""
    given = {"w": normal(1, 2, 3, kernel), **arrays}
    return parsed(body, opset, **{k: v for k, v in given.items() if k in body})


def ints(*entries: int) -> np.ndarray:
    return np.array(entries, np.int64)


NOTHING_BEFORE, NOTHING_AFTER = "p = Identity(x)", "z = Identity(y)"

PADS = {
    "opset 13, a value": ("p = Pad(x, a, zero)", 13),
    "opset 18, axes": ("p = Pad(x, few, zero, axes)", 18),
    "opset 21, no value": ('p = Pad<mode="constant">(x, few, , axes)', 21),
    "opset 24": ("p = Pad(x, a)", 24),
}
PAD_ARRAYS = {"a": ints(0, 0, 1, 0, 0, 2), "few": ints(1, 2), "zero": np.float32(0)}


@pytest.mark.parametrize("form", PADS)
def test_zeros_before_it_are_a_stride_of_crop_each(form: str) -> None:
    node, opset = PADS[form]
    arrays = {**PAD_ARRAYS, "axes": ints(-1), "b": normal(2, 3)}
    before = around(node, "strides=[2], pads=[3,5]", NOTHING_AFTER, opset, **arrays)
    after, [step] = rewritten(before, "fold_pad")
    assert step.fired, step.refusal
    assert "pads=[1,1]" in listing(after)
    assert "Pad" not in listing(after)
    if opset < 24:
        assert_same_values(before, after, {"L": [7]})
    else:
        given = feeds(before, {"L": [7]})
        assert_close(
            values(before, given, Runtime("reference")),
            values(after, given, Runtime("reference")),
            9,
        )


def test_a_pad_that_others_read_stays_for_them() -> None:
    body = """g (float[N,2,L] x) => (float[N,3,M] z, float[N,2,K] q)
        { p = Pad(x, a) y = ConvTranspose<strides=[2], pads=[3,5]>(p, w) z = Identity(y)
          q = Neg(p) }"""
    before = parsed(body, a=ints(0, 0, 1, 0, 0, 2), w=normal(1, 2, 3, 4))
    after, [step] = rewritten(before, "fold_pad")
    assert step.fired
    assert [node.op_type for node in after.graph.node].count("Pad") == 1
    assert_same_values(before, after)


@pytest.mark.parametrize(
    ("pads", "attributes", "wanted"),
    [
        ((0, 1), "strides=[2]", "output_padding=[1], pads=[0,0]"),
        ((0, 2), "strides=[3], pads=[1,0]", "output_padding=[2], pads=[1,0]"),
        ((-2, 1), "strides=[2]", "output_padding=[1], pads=[2,0]"),
        ((-1, -1), "strides=[2], pads=[0,1]", "output_padding=[0], pads=[1,2]"),
    ],
)
def test_zeros_after_it_are_output_padding(pads, attributes: str, wanted: str) -> None:
    arrays = {"a": ints(0, 0, pads[0], 0, 0, pads[1]), "b": np.zeros(3, np.float32)}
    before = around(NOTHING_BEFORE, attributes, "z = Pad(y, a)", 17, **arrays)
    after, [step] = rewritten(before, "fold_pad")
    assert step.fired, step.refusal
    assert wanted in listing(after)
    assert_same_values(before, after)


@pytest.mark.parametrize(
    ("before", "attributes", "after", "reason"),
    [
        ("p = Pad(x, a)", "strides=[2], pads=[1,5]", NOTHING_AFTER, "cannot add positions"),
        ("p = Pad(x, a)", "strides=[2], pads=[3,1]", NOTHING_AFTER, "output padding 3"),
        ('p = Pad<mode="reflect">(x, a)', "pads=[3,5]", NOTHING_AFTER, "repeats or mirrors"),
        ("p = Pad(x, a, one)", "pads=[3,5]", NOTHING_AFTER, "another value than 0"),
        ("p = Pad(x, channels)", "pads=[3,5]", NOTHING_AFTER, "changes batch or channels"),
        ("p = Pad(x, minus)", "pads=[1,1]", NOTHING_AFTER, "reaches the output"),
        ("n = Abs(a) p = Pad(x, n)", "pads=[3,5]", NOTHING_AFTER, "does is not constant"),
        (NOTHING_BEFORE, "pads=[1,0]", "z = Pad(y, front)", "longer result has values"),
        (NOTHING_BEFORE, "pads=[0,1]", "z = Pad(y, back)", "longer result has values"),
        (NOTHING_BEFORE, "strides=[2]", "z = Pad(y, front)", "cannot add positions"),
        (NOTHING_BEFORE, "strides=[1]", "z = Pad(y, back)", "output padding 1"),
        (NOTHING_BEFORE, "strides=[2]", "z = Pad(y, back) q = Neg(y)", "only reader"),
    ],
)
def test_zeros_that_no_pads_can_say_stay(before, attributes, after, reason) -> None:
    arrays = {
        "a": ints(0, 0, 1, 0, 0, 2),
        "minus": ints(0, 0, -1, 0, 0, -2),
        "channels": ints(0, 1, 1, 0, 0, 0),
        "front": ints(0, 0, 1, 0, 0, 0),
        "back": ints(0, 0, 0, 0, 0, 1),
        "one": np.float32(1),
    }
    model = around(before, attributes, after, 17, **arrays)
    assert reason in refused(model, "fold_pad")


def test_zeros_after_a_bias_stay() -> None:
    arrays = {"back": ints(0, 0, 0, 0, 0, 1), "b": normal(2, 3)}
    model = around(NOTHING_BEFORE, "strides=[2]", "z = Pad(y, back)", 17, **arrays)
    assert "where its bias would stand" in refusal(model, "fold_pad")


SLICES = {
    "opset 13, steps": ("z = Slice(y, one, last, axes, one)", 13, (1, 2)),
    "all axes": ("z = Slice(y, starts, ends)", 17, (3, 1)),
    "to the end": ("z = Slice(y, one, far, axes)", 17, (1, 0)),
    "opset 22": ("z = Slice(y, one, last, axes)", 22, (1, 2)),
}
SLICE_ARRAYS = {
    "one": ints(1),
    "last": ints(-2),
    "far": ints((1 << 31) - 1),
    "axes": ints(-1),
    "starts": ints(0, 0, 3),
    "ends": ints((1 << 63) - 1, (1 << 63) - 1, -1),
    "two": ints(2),
    "ten": ints(10),
}


@pytest.mark.parametrize("form", SLICES)
def test_a_slice_after_it_is_a_crop(form: str) -> None:
    node, opset, (begin, end) = SLICES[form]
    arrays = {**SLICE_ARRAYS, "b": normal(2, 3)}
    before = around(NOTHING_BEFORE, "strides=[2], pads=[1,0]", node, opset, **arrays)
    after, [step] = rewritten(before, "fold_slice")
    assert step.fired, step.refusal
    assert f"pads=[{begin + 1},{end}]" in listing(after)
    assert "Slice" not in listing(after)
    assert_same_values(before, after)


def test_where_sizes_are_known_a_slice_may_count_from_either_end() -> None:
    arrays = {**SLICE_ARRAYS, "from": ints(-9)}
    before = around(NOTHING_BEFORE, "strides=[2]", "z = Slice(y, from, ten, axes)", 17, **arrays)
    assert "counts from the other end" in refusal(before, "fold_slice")
    before.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 5
    del before.graph.node[0]
    before.graph.node[0].input[0] = "x"
    after, [step] = rewritten(before, "fold_slice")
    assert step.fired, step.refusal
    assert "pads=[3,2]" in listing(after)
    assert_same_values(before, after)


@pytest.mark.parametrize(
    ("kernel", "attributes", "wanted"),
    [(2, "strides=[2]", "pads=[2,0]"), (3, "strides=[2], pads=[1,0]", "pads=[3,0]")],
)
def test_a_slice_before_it_that_no_output_misses_is_a_crop(kernel, attributes, wanted) -> None:
    before = around(
        "p = Slice(x, one, far, axes)", attributes, NOTHING_AFTER, 17, kernel, **SLICE_ARRAYS
    )
    after, [step] = rewritten(before, "fold_slice")
    assert step.fired, step.refusal
    assert wanted in listing(after)
    assert_same_values(before, after)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("p = Slice(x, one, far, axes)", NOTHING_AFTER, "takes off reaches the output"),
        (NOTHING_BEFORE, "z = Slice(y, one, far, axes, two)", "steps other than 1"),
        (NOTHING_BEFORE, "z = Slice(y, one, far, one)", "batch or channels"),
        (NOTHING_BEFORE, "z = Slice(y, one, ten, axes)", "counts from the other end"),
        (NOTHING_BEFORE, "c = Abs(one) z = Slice(y, c, far, axes)", "does is not constant"),
        (NOTHING_BEFORE, "z = Slice(y, starts, ends, both)", "names an axis twice"),
        (NOTHING_BEFORE, "z = Slice(y, one, ends, axes)", "not as many axes"),
        (NOTHING_BEFORE, "z = Slice(y, one, far, axes) q = Neg(y)", "only reader"),
    ],
)
def test_a_slice_that_no_pads_can_say_stays(before: str, after: str, reason: str) -> None:
    model = around(before, "strides=[2]", after, 17, both=ints(2, 2, 1), **SLICE_ARRAYS)
    assert reason in refused(model, "fold_slice")


def test_a_slice_may_leave_nothing() -> None:
    model = around(
        NOTHING_BEFORE, "strides=[2]", "z = Slice(y, ten, one, axes)", 17, **SLICE_ARRAYS
    )
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 5
    del model.graph.node[0]
    model.graph.node[0].input[0] = "x"
    assert "leaves nothing" in refused(model, "fold_slice")


def test_several_in_a_row_are_folded_together() -> None:
    before = around(
        "q = Pad(x, a) p = Pad(q, a)",
        "strides=[2], pads=[5,9]",
        "r = Slice(y, one, last, axes) z = Slice(r, one, far, axes)",
        17,
        **PAD_ARRAYS,
        **SLICE_ARRAYS,
    )
    after, steps = rewritten(before, "fold_pad", "fold_slice")
    assert [step.fired for step in steps] == [True, True]
    assert [node.op_type for node in after.graph.node] == ["ConvTranspose"]
    assert "pads=[3,3]" in listing(after)
    assert_same_values(before, after)
