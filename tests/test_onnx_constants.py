"""Constants of ONNX models: their values where they have one, the reason where not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from upconv.onnx.constants import constant_value

W = np.random.default_rng(0).uniform(0.5, 2, (2, 3, 4)).astype(np.float32)
NEWEST = onnx.defs.onnx_opset_version()


def parsed(
    body: str,
    signature: str = "(float[N] x) => (float y)",
    initialisers: dict[str, np.ndarray] | None = None,
) -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["": 13, "own": 1]> g {signature} {body}'
    proto = onnx.parser.parse_model(text)
    for name, array in (initialisers or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def made(nodes: list, opset: int, **initialisers: np.ndarray) -> ir.Value:
    """The value "y" of a model of these nodes and initialisers."""
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in initialisers.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [], [output], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ir.from_proto(proto).graph.outputs[0]


def axes(op: str, values: list[int], opset: int, since: int, **attributes: int) -> list:
    """A node that takes its axes as an attribute before opset `since`, then as an input."""
    if opset < since:
        return [helper.make_node(op, ["w"], ["y"], axes=values, **attributes)]
    constant = helper.make_node("Constant", [], ["a"], value_ints=values)
    return [constant, helper.make_node(op, ["w", "a"], ["y"], **attributes)]


FOLDS = {
    "Identity": (lambda _: [helper.make_node("Identity", ["w"], ["y"])], lambda: W),
    "Cast": (
        lambda _: [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT16)],
        lambda: W.astype(np.float16),
    ),
    "Transpose": (
        lambda _: [helper.make_node("Transpose", ["w"], ["y"], perm=[1, 0, 2])],
        lambda: W.transpose(1, 0, 2),
    ),
    "Reshape": (
        lambda _: [helper.make_node("Reshape", ["w", "shape"], ["y"])],
        lambda: W.reshape(2, 12),
    ),
    "Unsqueeze": (
        lambda opset: axes("Unsqueeze", [0, 2], opset, 13),
        lambda: W[None, :, None],
    ),
    "Flatten": (
        lambda _: [helper.make_node("Flatten", ["w"], ["y"], axis=2)],
        lambda: W.reshape(6, 4),
    ),
    "Neg": (lambda _: [helper.make_node("Neg", ["w"], ["y"])], lambda: -W),
    "Sqrt": (lambda _: [helper.make_node("Sqrt", ["w"], ["y"])], lambda: np.sqrt(W)),
    "Mul": (lambda _: [helper.make_node("Mul", ["w", "v"], ["y"])], lambda: W * 3),
    "Div": (lambda _: [helper.make_node("Div", ["w", "v"], ["y"])], lambda: W / 3),
    "Add": (lambda _: [helper.make_node("Add", ["w", "v"], ["y"])], lambda: W + 3),
    "Sub": (lambda _: [helper.make_node("Sub", ["w", "v"], ["y"])], lambda: W - 3),
    "Pow": (lambda _: [helper.make_node("Pow", ["w", "v"], ["y"])], lambda: W**3),
    "ReduceL2": (
        lambda opset: axes("ReduceL2", [1, 2], opset, 18, keepdims=1),
        lambda: np.sqrt((W.astype(np.float64) ** 2).sum((1, 2), keepdims=True)),
    ),
    "ReduceSum": (
        lambda opset: axes("ReduceSum", [0, 2], opset, 13, keepdims=0),
        lambda: W.astype(np.float64).sum((0, 2)),
    ),
    "Concat": (
        lambda _: [helper.make_node("Concat", ["w", "w"], ["y"], axis=1)],
        lambda: np.concatenate([W, W], 1),
    ),
}


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 18, 22, NEWEST])
@pytest.mark.parametrize("name", FOLDS)
def test_a_foldable_node_is_computed_in_its_opset(name: str, opset: int) -> None:
    nodes, expected = FOLDS[name]
    if nodes(opset)[0].op_type == "Constant" and opset < 12:
        pytest.skip("no value_ints before opset 12")
    shape = np.array([0, -1], np.int64)
    found = constant_value(made(nodes(opset), opset, w=W, v=np.float32([3]), shape=shape))
    assert found.reason == ""
    assert found.array is not None
    np.testing.assert_allclose(found.array, expected(), rtol=1e-6)
    assert found.array.dtype == (np.float16 if name == "Cast" else np.float32)


@pytest.mark.parametrize("opset", [7, 10, 13, NEWEST])
def test_slices_and_squeezes_are_computed(opset: int) -> None:
    w = W[:, None]
    nodes = axes("Squeeze", [1], opset, 13)
    ints = {"ends": [2, 3], "starts": [0, 1], "axes": [0, 2]}
    if opset < 10:
        nodes.append(helper.make_node("Slice", ["s"], ["y"], **ints))
    else:
        nodes.append(helper.make_node("Slice", ["s", "starts", "ends", "axes"], ["y"]))
    nodes[-2].output[0] = "s"
    arrays = {name: np.array(value, np.int64) for name, value in ints.items()}
    found = constant_value(made(nodes, opset, w=w, **arrays))
    assert found.array is not None, found.reason
    np.testing.assert_array_equal(found.array, W[:2, :, 1:3])


@pytest.mark.parametrize("numerator", ["ReduceL2", "Pow"])
def test_weight_normalisation_is_computed(numerator: str) -> None:
    """g * v / |v| per input channel, in both forms that exporters write."""
    if numerator == "ReduceL2":
        norm = "n = ReduceL2 <axes = [1, 2], keepdims = 1> (v)"
    else:
        norm = """two = Constant <value_float = 2.0> () p = Pow(v, two)
            a = Constant <value_ints = [1, 2]> () q = ReduceSum(p, a) n = Sqrt(q)"""
    body = f"{{ {norm} d = Div(v, n) w = Mul(g, d) y = ConvTranspose(x, w) }}"
    g = np.float32([2, 3]).reshape(2, 1, 1)
    model = parsed(body, initialisers={"v": W, "g": g})
    found = constant_value(model.graph.outputs[0].producer().inputs[1])
    assert found.array is not None, found.reason
    norms = np.sqrt((W.astype(np.float64) ** 2).sum((1, 2), keepdims=True))
    np.testing.assert_allclose(found.array, g * W / norms, rtol=1e-6)


FORMS = [
    ("value = float[2] {1, 2}", np.float32([1, 2])),
    ("value_float = 2.5", np.float32(2.5)),
    ("value_floats = [1.0, 2.0]", np.float32([1, 2])),
    ("value_int = 3", np.int64(3)),
    ("value_ints = [3, 4]", np.int64([3, 4])),
]


@pytest.mark.parametrize(("form", "expected"), FORMS, ids=lambda form: str(form).split(" =")[0])
def test_every_form_of_a_constant_node_is_read(form: str, expected: np.ndarray) -> None:
    found = constant_value(parsed(f"{{ y = Constant <{form}> () }}").graph.outputs[0])
    assert found.array is not None
    np.testing.assert_array_equal(found.array, expected)
    assert found.array.dtype == expected.dtype
    assert found.array.shape == expected.shape


def test_constant_text_is_read() -> None:
    node = parsed('{ y = Constant <value_strings = ["a", "b"]> () }').graph[0]
    found = constant_value(node.outputs[0])
    assert found.array is not None
    assert found.array.tolist() == ["a", "b"]


def test_a_bfloat16_constant_keeps_its_type() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    w = W.astype(ml_dtypes.bfloat16)
    value = ir.Value(name="w", const_value=ir.Tensor(w, name="w"))
    node = ir.node("Transpose", [value], {"perm": [1, 0, 2]}, version=13)
    ir.Graph([], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 13})
    found = constant_value(node.outputs[0])
    assert found.array is not None, found.reason
    np.testing.assert_array_equal(found.array, w.transpose(1, 0, 2))


def test_what_is_returned_cannot_be_written_to() -> None:
    found = constant_value(made([helper.make_node("Identity", ["w"], ["y"])], 13, w=W))
    assert found.array is not None
    with pytest.raises(ValueError, match="read-only"):
        found.array[0] = 1


REFUSED = {
    "{ y = Neg(x) }": "'x' is an input of its graph.",
    "{ y = Relu(w) }": "'y' is made by a Relu node, which is not computed in advance.",
    "{ y = own.Neg(w) }": "'y' is made by a Neg node, which is not computed in advance.",
    "{ a = DequantizeLinear(q, s) y = Neg(a) }": "'a' is dequantised; quantised pairs are left",
    "{ a, b = Split(w) y = Neg(a) }": "'a' is made by a Split node",
    "{ y = Transpose <perm = [0, 0, 1]> (w) }": "The Transpose node that makes 'y' cannot be read",
    "{ y = Reshape(w, w) }": "The Reshape node that makes 'y' cannot be read",
    '{ y = Concat <axis = "one"> (w) }': "The Concat node that makes 'y' cannot be read",
    "{ y = Cast <to = 8> (w) }": "The Cast node that makes 'y' cannot be read",
    "{ y = Cast (w) }": "The Cast node that makes 'y' cannot be read",
    "{ y = Constant () }": "The Constant node that makes 'y' holds no value.",
    "{ y = Add(w, three) }": "The Add node that makes 'y' cannot be read",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_not_constant_has_a_reason(body: str) -> None:
    s, q = np.float32(0.5), np.zeros(3, np.uint8)
    three = np.zeros((3, 3, 3), np.float32)
    model = parsed(body, initialisers={"w": W, "s": s, "q": q, "three": three})
    found = constant_value(model.graph.outputs[0])
    assert found.array is None
    assert found.reason.startswith(REFUSED[body])
    assert found.reason.endswith(".")


def test_an_initialiser_that_may_be_fed_is_not_constant() -> None:
    signature = "(float[2] w = {1, 2}) => (float[2] y)"
    found = constant_value(parsed("{ y = Neg(w) }", signature=signature).graph.outputs[0])
    assert found.array is None
    assert found.reason == "The initialiser 'w' is also an input of its graph, so it may be fed."


def test_an_input_left_out_is_not_constant() -> None:
    assert constant_value(None).reason == "The input is left out."


def test_constants_of_outer_graphs_are_seen_from_subgraphs() -> None:
    body = """{ c = Constant <value_int = 1> () b = Cast <to = 9> (c)
        y = If (b) <then_branch = t () => (float z) { v = Neg(w) z = Neg(v) },
                    else_branch = e () => (float z) { z = Identity(x) }> }"""
    node = parsed(body, initialisers={"w": W}).graph[2]
    branches = [node.attributes[f"{kind}_branch"].as_graph() for kind in ("then", "else")]
    then, other = (constant_value(graph.outputs[0], opset=13) for graph in branches)
    assert then.array is not None, then.reason
    np.testing.assert_array_equal(then.array, W)
    assert other.reason == "'x' is an input of its graph."
    untold = constant_value(branches[0].outputs[0])
    assert untold.reason == "The opset of the node that makes 'z' is not known."


def test_what_depends_on_the_callers_attribute_is_not_constant() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "own": 1]>
        g (float x) => (float y) { y = own.f <axis = 0> (x) }
        <domain: "own", opset_import: ["": 13]> f <axis, k> (x) => (y) {
            c = Constant <value_int: int = @k> () d = Identity(c)
            t = Concat <axis: int = @axis> (d, d) y = Neg(t) }"""
    (function,) = ir.from_onnx_text(text).functions.values()
    constant, _, concat, _ = list(function)
    found = constant_value(concat.outputs[0])
    assert found.reason == "'t' depends on an attribute of its function's caller."
    found = constant_value(constant.outputs[0])
    assert found.reason == "'c' is an attribute of its function's caller."


def test_nothing_is_computed_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []
    run = ReferenceEvaluator.run
    monkeypatch.setattr(ReferenceEvaluator, "run", lambda *a, **k: ran.append(a) or run(*a, **k))
    wide, tall = np.zeros((1, 1 << 20), np.float32), np.zeros((1 << 20, 1), np.float32)
    value = made([helper.make_node("Add", ["w", "t"], ["y"])], 13, w=wide, t=tall)
    found = constant_value(value)
    assert found.array is None
    assert found.reason == "'y' would take more than 1073741824 bytes to compute in advance."
    assert not ran
    small = made([helper.make_node("Neg", ["w"], ["y"])], 13, w=W)
    assert constant_value(small, most_bytes=W.nbytes - 1).array is None
    assert constant_value(small, most_bytes=W.nbytes).array is not None


def test_long_and_branching_chains_end_soon() -> None:
    """Each node reads the one before twice: 2**60 paths; 1000 nodes: no recursion that deep."""
    for length, constant in ((60, True), (1000, False)):
        nodes = [helper.make_node("Sub", ["w", "w"], ["n0"])]
        nodes += [helper.make_node("Add", [f"n{i}"] * 2, [f"n{i + 1}"]) for i in range(length)]
        nodes.append(helper.make_node("Identity", [f"n{length}"], ["y"]))
        found = constant_value(made(nodes, 13, w=W))
        assert (found.array is not None) is constant
        if not constant:
            assert "at the end of more than 64 nodes" in found.reason
