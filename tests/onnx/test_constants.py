"""What is known of a model before it runs: constants, folded when it is read, types and shapes."""

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx
import onnx_ir as ir

from tests.support.onnx_texts import normal, parsed
from upconv.onnx.constants import Constant, constant_value
from upconv.onnx.models import from_model, to_proto
from upconv.onnx.nodes import Unreadable, conv_transpose_nodes
from upconv.onnx.shapes import inferred

W = np.random.default_rng(0).uniform(0.5, 2, (2, 3, 4)).astype(np.float32)
NEWEST = onnx.defs.onnx_opset_version()
SIGNATURE = "g (float[A,B,C] x) => (float[D,E,F] y)"


def folded(
    body: str, opset: int = 17, signature: str = SIGNATURE, **arrays: np.ndarray
) -> Constant:
    """The second input of the last node of a model that was read."""
    model = from_model(parsed(f"{signature} {{ {body} }}", opset, **arrays))
    return constant_value(list(model.graph)[-1].inputs[1])


def axes(op: str, since: int, opset: int) -> str:
    """A node that takes its axes as an attribute before opset `since`, then as an input."""
    if opset < since:
        return f"c = {op}<axes = [1, 2], keepdims = 1>(w)"
    return f"c = {op}<keepdims = 1>(w, axes)"


FOLDS = {
    "Identity(w)": lambda: W,
    "Cast<to = 10>(w)": lambda: W.astype(np.float16),
    "Cast<to = 11>(w)": lambda: W.astype(np.float64),
    "Transpose<perm = [1, 0, 2]>(w)": lambda: W.transpose(1, 0, 2),
    "Reshape(w, shape)": lambda: W.reshape(2, 12),
    "Unsqueeze(w, axes)": lambda: W[:, None, None],
    "Squeeze(u, first)": lambda: W,
    "Slice(w, first, one, one)": lambda: W[:, :1],
    "Flatten<axis = 2>(w)": lambda: W.reshape(6, 4),
    "Neg(w)": lambda: -W,
    "Sqrt(w)": lambda: np.sqrt(W),
    "Mul(w, v)": lambda: W * 3,
    "Div(w, v)": lambda: W / 3,
    "Add(w, v)": lambda: W + 3,
    "Sub(w, v)": lambda: W - 3,
    "Pow(w, v)": lambda: W**3,
    "Concat<axis = 1>(w, w)": lambda: np.concatenate([W, W], 1),
    "ReduceL2": lambda: np.sqrt((W.astype(np.float64) ** 2).sum((1, 2), keepdims=True)),
    "ReduceSum": lambda: W.astype(np.float64).sum((1, 2), keepdims=True),
}


@pytest.mark.parametrize("opset", [13, NEWEST])
@pytest.mark.parametrize("name", FOLDS)
def test_a_foldable_node_is_computed_in_its_opset(name: str, opset: int) -> None:
    node = axes(name, 18 if name == "ReduceL2" else 13, opset) if "(" not in name else f"c = {name}"
    arrays = {"w": W, "u": W[None], "v": np.float32([3])}
    ints = {"shape": [0, -1], "axes": [1, 2], "first": [0], "one": [1]}
    arrays |= {key: np.array(value, np.int64) for key, value in ints.items()}
    found = folded(f"{node} y = Add(x, c)", opset, **arrays)
    assert found.reason == ""
    assert found.array is not None
    np.testing.assert_allclose(found.array, FOLDS[name](), rtol=1e-6)
    kinds = {"Cast<to = 10>(w)": np.float16, "Cast<to = 11>(w)": np.float64}
    assert found.array.dtype == kinds.get(name, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        found.array[0] = 1


@pytest.mark.parametrize("numerator", ["ReduceL2", "Pow"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weight_normalisation_is_computed(numerator: str, dtype: type) -> None:
    """g * v / |v| per input channel, in both forms that exporters write; float16 rounds once.

    It holds no sum of the squares that ReduceL2 adds up."""
    size = 80 if numerator == "ReduceL2" else 40
    if numerator == "ReduceL2":
        norm = "n = ReduceL2 <axes = [1, 2], keepdims = 1> (v)"
    else:
        norm = """p = Pow(v, two) a = Constant <value_ints = [1, 2]> ()
            q = ReduceSum(p, a) n = Sqrt(q)"""
    body = f"{norm} d = Div(v, n) w = Mul(g, d) y = ConvTranspose(x, w)"
    g, v = np.array([2, 3], dtype).reshape(2, 1, 1), (size * W).astype(dtype)
    found = folded(body, g=g, v=v, two=np.array(2, dtype))
    assert found.array is not None, found.reason
    norms = np.sqrt((v.astype(np.float64) ** 2).sum((1, 2), keepdims=True))
    np.testing.assert_allclose(found.array, g * v / norms, rtol=8 * np.finfo(dtype).eps)


REFUSED = {
    "c = Neg(x)": "'c' is computed by a Neg node when the model runs.",
    "c = Identity(x)": "'c' is computed by a Identity node",
    "c = Relu(w)": "'c' is computed by a Relu node",
    "a = DequantizeLinear(q, s) c = Neg(a)": "'c' is computed by a Neg node",
    "c = DequantizeLinear(q, s)": "'c' is computed by a DequantizeLinear node",
    "c, d = Split<axis = 2>(w)": "'c' is computed by a Split node",
    "c = Transpose<perm = [0, 0, 1]>(w)": "'c' is computed by a Transpose node",
    "c = Cast<to = 8>(w)": "'c' is computed by a Cast node",
    "c = Div(w, zero)": "'c' is computed by a Div node",
    "c = Add(wide, tall)": "'c' is computed by a Add node",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_not_constant_has_a_reason(body: str) -> None:
    arrays = {"s": np.float32(0.5), "q": np.zeros(3, np.uint8), "zero": np.float32(0), "w": W}
    arrays |= {"wide": np.ones((1, 1 << 11)), "tall": np.ones((1 << 11, 1))}  # 32 MiB together
    found = folded(f"{body} y = Add(x, c)", **arrays)
    assert found.array is None
    assert found.reason.startswith(REFUSED[body])
    assert found.reason.endswith(".")


def test_what_may_be_fed_and_what_is_left_out_are_not_constant() -> None:
    found = folded("y = Add(x, w)", signature="g (float[2] x, float[2] w = {1, 2}) => (float[2] y)")
    assert found.reason == "'w' is an input of its graph."
    assert folded("y = Add(x, x)").reason == "'x' is an input of its graph."
    assert constant_value(None).reason == "The input is absent."


def test_constants_of_outer_graphs_are_folded_in_subgraphs() -> None:
    signature = "g (float[N] x, bool b) => (float[M] y)"
    body = """y = If (b) <then_branch = t () => (float[N] z) { v = Neg(w) z = Relu(v) },
                    else_branch = e () => (float[N] z) { z = Identity(x) }>"""
    model = from_model(parsed(f"{signature} {{ {body} }}", w=W))
    then = model.graph[0].attributes["then_branch"].as_graph()
    assert [node.op_type for node in then] == ["Relu"]
    found = constant_value(then[0].inputs[0])
    assert found.array is not None, found.reason
    np.testing.assert_array_equal(found.array, -W)
    assert onnx.checker.check_model(to_proto(model)) is None


def test_what_depends_on_the_callers_attribute_is_not_constant() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "own": 1]>
        g (float x) => (float y) { y = own.f <k = 0> (x) }
        <domain: "own", opset_import: ["": 13]> f <k> (x) => (y) {
            c = Constant <value_int: int = @k> () y = Add(x, c) }"""
    (function,) = ir.from_onnx_text(text).functions.values()
    found = constant_value(function[0].outputs[0])
    assert found.reason == "'c' is computed by a Constant node when the model runs."


@pytest.mark.parametrize(("channels", "w", "b", "said"), [
    (2, (2, 0, 3), (1,), "its weight (2, 0, 3) is empty"),
    (3, (3, 1, 3), (2,), "its weight has 3 input channels, group is 2"),
    (4, (2, 1, 3), (2,), "its input has 4 channels and its weight 2"),
    (2, (2, 1, 3), (3,), "its bias is (3,); expected (2,)"),
])  # fmt: skip
def test_a_node_whose_operands_do_not_fit_is_not_read(channels, w, b, said) -> None:
    text = f"g (float[1, {channels}, 5] x) => (y) {{ y = ConvTranspose<group = 2>(x, w, b) }}"
    proto = parsed(text, w=np.ones(w, np.float32), b=np.ones(b, np.float32))
    [found] = conv_transpose_nodes(ir.from_proto(proto))
    assert isinstance(found, Unreadable)
    assert (found.reason, found.wrong) == (said, True)


# Types and shapes -----------------------------------------------------------------------------

NEGATIVE = """g (float[1, 1, 3] x) => (float[1, 1, M] y)
    <float[1, 1, 4] w = {1, 2, 3, 4}, int64[1] s = {-3}, int64[1] e = {2}, int64[1] a = {2}>
    { c = ConvTranspose<pads = [5, 3]>(x, w) y = Slice(c, s, e, a) }"""


def test_sizes_follow_from_those_of_the_inputs() -> None:
    text = "g (float[N, 2, L] x) => (float[N, 2, M] y) { a = Relu(x) y = ConvTranspose(a, w) }"
    model = from_model(parsed(text, w=normal(0, 2, 2, 4)))
    table = inferred(model, {"x": (1, 2, 7)})
    found = [str(table[name].shape) for name in "ayw"]
    assert found == ["[1,2,7]", "[1,2,10]", "[2,2,4]"]
    assert str(inferred(model)["a"].shape) == "[N,2,L]"
    assert str(model.graph.inputs[0].shape) == "[N,2,L]"


def test_a_negative_size_before_a_slice_ends_a_process_that_is_not_ours() -> None:
    """onnx's own inference asserts here; what is declared must do."""
    table = inferred(from_model(parsed(NEGATIVE)))
    assert str(table["x"].shape) == "[1,1,3]"
    assert table["c"].shape is None


def test_a_name_of_two_values_is_not_told() -> None:
    text = """g (float[3] x, bool c) => (float[N] y) { y = If (c) <
        then_branch = t () => (float[P] u) { v = Neg(x) u = Relu(v) },
        else_branch = e () => (float[Q] u) { v = Concat<axis = 0>(x, x) u = Relu(v) }> }"""
    table = inferred(from_model(parsed(text)))
    assert "v" not in table
    assert table["x"].shape == [3]


def test_where_inference_fails_what_is_declared_must_do() -> None:
    model = ir.from_proto(parsed("g (float[3] x) => (float[N] y) { y = Neg(x) }"))
    model.graph[0].attributes["own"] = ir.AttrString("own", None)  # type: ignore[arg-type]
    assert inferred(model)["x"].shape == [3]
