"""What is recognised equals the ConvTranspose that is reported, by values; the rest is not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx
import onnx_ir
from onnx import helper, numpy_helper

from onnx_cases import random_case
from onnx_rewriting import assert_same_values, rewritten
from onnx_texts import normal, parsed
from upconv.dialects.onnx import Rule
from upconv.onnx.recognising import Kind, Recognised, recognise
from upconv.onnx.recognising.raising import raised_convolution


def equivalent(model: onnx.ModelProto, found: Recognised) -> onnx.ModelProto:
    """A model of the ConvTranspose alone, with the inputs and outputs of the other."""
    arrays = {"weight": found.weight} | ({} if found.bias is None else {"bias": found.bias})
    node = helper.make_node("ConvTranspose", [found.x, *arrays], [found.y], **found.attributes)
    graph = helper.make_graph(
        [node],
        "equal",
        [value for value in model.graph.input if value.name == found.x],
        model.graph.output,
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=9)


def ints(*entries: int) -> np.ndarray:
    return np.array(entries, np.int64)


def floats(*entries: float) -> np.ndarray:
    return np.array(entries, np.float32)


HIDDEN = {"v": normal(1, 6, 2, 3, 2), "b": normal(2, 6)}
CONV = "y = Conv<group=2, pads=[1,0,2,1], dilations=[1,2]>(r, v, b)"
ONE = {"one": np.ones((4, 1, 1, 1), np.float32)}
HOT = np.zeros((4, 1, 2, 3), np.float32)
HOT[:, :, 0, 1] = 1

RAISED = {
    "a kernel of one": (
        "r = ConvTranspose<group=4, strides=[2,3], output_padding=[1,2]>(x, one)",
        ONE,
        Kind.ZEROS,
    ),
    "a kernel that is 1 at one tap": (
        "r = ConvTranspose<group=4, strides=[2,3], pads=[0,1,0,0]>(x, hot)",
        {"hot": HOT},
        Kind.ZEROS,
    ),
    "Resize by scales": (
        'r = Resize<mode="nearest">(x, , scales)',
        {"scales": floats(1, 1, 2, 3)},
        Kind.NEAREST,
    ),
    "Resize as PyTorch writes it": (
        """r = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor">(x, , scales)""",
        {"scales": floats(1, 1, 3, 4)},
        Kind.NEAREST,
    ),
}


def raised(before: str, conv: str = CONV, shape: str = "N,4,H,W", opset: int = 17, **arrays):
    text = f"g (float[{shape}] x) => (float[A,6,P,Q] y) {{ {before} {conv} }}"
    return parsed(text, opset, **{k: v for k, v in {**HIDDEN, **arrays}.items() if k in text})


def only(model: onnx.ModelProto) -> Recognised:
    [found] = recognise(model)
    return found


@pytest.mark.parametrize("form", RAISED)
def test_an_upsampling_and_a_convolution(form: str) -> None:
    before, arrays, kind = RAISED[form]
    model = raised(before, **arrays)
    found = only(model)
    assert (found.kind, found.x, found.y, found.nodes) == (kind, "x", "y", ("r", "y"))
    assert found.saved > 1
    assert_same_values(model, equivalent(model, found))


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        ("r = Upsample<scales=[1.0,1.0,2.0,2.0]>(x)", 8),
        ("r = Upsample(x, scales)", 9),
        ("r = Resize(x, scales)", 10),
        ("r = Resize(x, roi, scales)", 11),
        ("r = Resize(x, , , sizes)", 13),
        ('r = Resize<coordinate_transformation_mode="asymmetric">(x, , scales)', 19),
    ],
)
def test_nearest_neighbours_in_every_form(node: str, opset: int) -> None:
    arrays = {"scales": floats(1, 1, 2, 2), "sizes": ints(1, 4, 10, 14), "roi": floats()}
    model = raised(node, shape="1,4,5,7", opset=opset, **arrays)
    found = only(model)
    assert found.attributes["strides"] == (2, 2)
    assert_same_values(model, equivalent(model, found))


PADDED = {
    "pads": ints(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2),
    "axes": ints(3, 5),
    "apart": ints(0, 0, 5, 1, 7, 1),
    "together": ints(0, 4, 10, -1),
    "to": ints(-1, -2),
    "from": ints(0, 0),
    "last": ints(2, 3),
}


@pytest.mark.parametrize(
    "before",
    [
        "u = Unsqueeze(x, axes) p = Pad(u, pads) r = Reshape(p, together)",
        "u = Reshape(x, apart) p = Pad(u, pads) r = Reshape(p, together)",
        """u = Unsqueeze(x, axes) p = Pad(u, pads) q = Reshape(p, together)
        r = Slice(q, from, to, last)""",
    ],
)
def test_zeros_by_pad_and_reshape(before: str) -> None:
    model = raised(before, shape="1,4,5,7", **PADDED)
    found = only(model)
    assert found.kind is Kind.ZEROS
    assert found.nodes[0] == "u"
    assert found.saved == 6
    assert_same_values(model, equivalent(model, found))


def test_one_open_axis_by_pad_and_reshape() -> None:
    model = parsed(
        """g (float[N,2,L] x) => (float[N,1,M] y)
        <int64[1] axis = {3}, int64[8] pads = {0,0,0,0,0,0,0,2}, int64[3] all = {0,2,-1}>
        { u = Unsqueeze(x, axis) p = Pad(u, pads) r = Reshape(p, all)
          y = Conv<pads=[3,1]>(r, v) }""",
        v=normal(1, 1, 2, 4),
    )
    assert_same_values(model, equivalent(model, only(model)))


SHUFFLED = {
    "CRD": ('y = DepthToSpace<blocksize=2, mode="CRD">(c)', {}),
    "DCR": ('y = DepthToSpace<blocksize=2, mode="DCR">(c)', {}),
    "by channel": (
        "a = Reshape(c, apart) t = Transpose<perm=[0,1,4,2,5,3]>(a) y = Reshape(t, all)",
        {"apart": ints(0, 3, 2, 2, 6, 7), "all": ints(0, 3, 12, 14)},
    ),
    "by phase": (
        "a = Reshape(c, apart) t = Transpose<perm=[0,3,4,1,5,2]>(a) y = Reshape(t, all)",
        {"apart": ints(0, 2, 2, 3, 6, 7), "all": ints(-1, 3, 12, 14)},
    ),
}


def shuffled(form: str, bias: np.ndarray, conv: str = "pads=[1,0,1,0]") -> onnx.ModelProto:
    nodes, arrays = SHUFFLED[form]
    text = f"""g (float[N,2,5,7] x) => (float[A,3,P,Q] y)
        {{ c = Conv<{conv}>(x, v, b) {nodes} }}"""
    v = normal(1, 12, 2, 2, 1)
    return parsed(text, v=v, b=bias, **arrays)


def per_phase(form: str, b: np.ndarray) -> np.ndarray:
    return np.tile(b, 4) if form in ("DCR", "by phase") else np.repeat(b, 4)


@pytest.mark.parametrize("form", SHUFFLED)
def test_a_convolution_and_a_shuffle(form: str) -> None:
    model = shuffled(form, per_phase(form, normal(3, 3)))
    found = only(model)
    assert found.kind is Kind.SHUFFLE
    assert found.weight.shape == (2, 3, 4, 2)
    assert found.saved == 1
    assert_same_values(model, equivalent(model, found))


def test_a_kernel_that_was_filled_up_is_found_again() -> None:
    """k = 4, s = 2, p = 1 as one folded convolution has three taps: six for each four needed."""
    before = parsed(
        """g (float[N,2,H,W] x) => (float[N,3,P,Q] y)
        { y = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, w, b) }""",
        w=normal(1, 2, 3, 4, 4),
        b=normal(2, 3),
    )
    after, _ = rewritten(before, "sub_pixel:folded")
    found = only(after)
    np.testing.assert_array_equal(found.weight, numpy_helper.to_array(before.graph.initializer[0]))
    assert found.attributes["pads"] == (1, 1, 1, 1)
    assert found.saved == 36 / 16


def test_random_models_that_were_rewritten_are_recognised() -> None:
    recognised = 0
    for seed in range(400):
        case = random_case(seed, opset=17)
        after, [step] = rewritten(case.model, "sub_pixel", rule=Rule.ONNXRUNTIME)
        kinds = [node.op_type for node in after.graph.node]
        if not step.fired or kinds[-1] not in ("DepthToSpace", "Reshape"):
            continue
        for found in recognise(after):
            if found.x != "x":  # x was cut first
                continue
            recognised += 1
            sizes = {"x": case.x.shape}
            assert_same_values(after, equivalent(after, found), sizes)
    assert recognised >= 25


@pytest.mark.parametrize(
    ("before", "more"),
    [
        ('r = Resize<mode="linear">(x, , scales)', {"scales": floats(1, 1, 2, 2)}),
        ('r = Resize<mode="nearest">(x, , scales)', {"scales": floats(1, 1, 1.5, 2)}),
        ('r = Resize<mode="nearest">(x, , scales)', {"scales": floats(1, 1, 1, 1)}),
        (
            'r = Resize<coordinate_transformation_mode="align_corners">(x, , scales)',
            {"scales": floats(1, 1, 2, 2)},
        ),
        (
            'r = Resize<coordinate_transformation_mode="asymmetric">(x, , scales)',
            {"scales": floats(1, 1, 3, 3)},
        ),
        (
            "r = ConvTranspose<group=4, strides=[2,2], pads=[0,0,0,1]>(x, two)",
            {"two": 2 * np.ones((4, 1, 2, 2), np.float32)},
        ),
        (
            "r = ConvTranspose<group=4, strides=[2,3], pads=[0,0,1,0]>(x, last)",
            {"last": np.flip(HOT, (2, 3)).copy()[:, :, :, :2]},
        ),
        ("r = ConvTranspose<group=4, strides=[2,2], pads=[1,0,0,0]>(x, hot)", {"hot": HOT}),
        (
            "u = Unsqueeze(x, axes) p = Pad(u, pads) r = Reshape(p, wrong)",
            {**PADDED, "wrong": ints(1, 4, 15, 14)},
        ),
        ("r = Neg(x)", {}),
    ],
)
def test_what_is_something_else_is_not_reported(before: str, more: dict) -> None:
    model = raised(before, shape="1,4,5,7", **more)
    assert recognise(model) == ()


@pytest.mark.parametrize(
    "conv",
    [
        CONV.replace("pads", "strides=[2,1], pads"),
        CONV.replace("pads=[1,0,2,1]", 'auto_pad="SAME_UPPER"'),
        CONV.replace("pads=[1,0,2,1]", "pads=[9,0,2,1]"),
        "w = Mul(v, x0) y = Conv<group=2>(r, w, b)",
    ],
)
def test_a_convolution_that_no_deconvolution_equals_is_not_reported(conv: str) -> None:
    model = raised("r = Resize(x, , scales)", conv.replace("x0", "x"), scales=floats(1, 1, 2, 2))
    assert recognise(model) == ()


@pytest.mark.parametrize("form", SHUFFLED)
def test_phases_of_unequal_bias_are_no_deconvolution(form: str) -> None:
    assert recognise(shuffled(form, normal(3, 12))) == ()


def test_a_wrong_weight_would_be_seen() -> None:
    model = raised(*[RAISED["Resize by scales"][0]], **RAISED["Resize by scales"][1])
    equal = equivalent(model, only(model))
    weight = equal.graph.initializer[0]
    w = np.flip(numpy_helper.to_array(weight), 2).copy()
    weight.CopyFrom(numpy_helper.from_array(w, "weight"))
    with pytest.raises(AssertionError):
        assert_same_values(model, equal)


def test_branches_and_functions_are_looked_into() -> None:
    inner = "r = Resize(x, , scales) y = Conv<group=2>(r, v, b)"
    text = f"""g (float[N,4,H,W] x, bool flag) => (float[A,B,P,Q] z)
        {{ z = If (flag) <then_branch = a () => (float[C,6,D,E] y) {{ {inner} }},
        else_branch = e () => (float[F,4,G,I] n) {{ n = Neg(x) }}> }}"""
    model = parsed(text, scales=floats(1, 1, 2, 2), **HIDDEN)
    assert only(model).attributes["strides"] == (2, 2)
    function = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[N,1,L] x) => (float[N,1,M] z) { z = own.up(x) }
        <domain: "own", opset_import: ["": 17]> up (x) => (y) {
            s = Constant<value = float[3] {1, 1, 2}>() v = Constant<value = float[1,1,2] {1, 2}>()
            r = Resize(x, , s) y = Conv(r, v) }"""
    )
    np.testing.assert_array_equal(only(function).weight, [[[2, 3, 1]]])


@pytest.mark.parametrize(
    ("before", "conv"),
    [
        ("r = Resize(x, , far)", CONV),
        ("r = Resize(x, , endless)", CONV),
        ("r = Resize(x, , scales)", CONV.replace("[1,2]", "[1,1099511627776]")),
        ("r = Resize(x, , v)", CONV),
        ("u = Unsqueeze(x, axes) p = Pad(u, v) r = Reshape(p, together)", CONV),
        ("u = Unsqueeze(x, axes) p = Pad(u, large) r = Reshape(p, together)", CONV),
        ("u = Reshape(x) p = Pad() r = Reshape(p, together)", CONV),
        ("r = Resize()", CONV),
        ("r = Resize(x, , scales)", CONV.replace("dilations=[1,2]", 'dilations=["a","b"]')),
        ("r = Resize(x, , scales)", CONV.replace("group=2", "group=0")),
    ],
)
def test_what_no_model_should_say_is_not_reported(before: str, conv: str) -> None:
    """Numbers beyond all memory, endless ones, nodes without inputs, words for numbers."""
    model = raised(
        before,
        conv,
        scales=floats(1, 1, 2, 2),
        far=floats(1, 1, 2.0**40, 2.0**40),
        endless=floats(1, 1, np.inf, np.nan),
        large=ints(0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 40, 0, 1 << 40),
        **{name: array for name, array in PADDED.items() if name != "pads"},
    )
    copy = onnx_ir.from_proto(model)
    nodes = [node for node in copy.graph if node.op_type == "Conv"]
    assert [raised_convolution(node, 17) for node in nodes] == [None]
