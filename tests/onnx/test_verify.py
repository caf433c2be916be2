"""Verification: what is equal, what is not, and where a difference begins."""

import json
import re

import numpy as np
import pytest

from upconv.errors import ArgumentError, EngineError, EngineRefusal

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

import onnx
import onnx_ir as ir

from tests.support.onnx_texts import flipped, normal, parsed, three
from upconv.documents import document
from upconv.onnx import verifying
from upconv.onnx.runtimes import Runtime
from upconv.onnx.verifying import verify
from upconv.onnx.verifying.differences import difference

NAMES = ("onnxruntime", "openvino:f32", "reference")
HERE = [name for name in NAMES if Runtime.parse(name).missing() is None]


@pytest.fixture(params=HERE)
def runtime(request):
    return request.param


# Equal models -------------------------------------------------------------------------------------


@pytest.mark.peers
def test_a_model_equals_itself_in_every_runtime():
    found = verify(three(), three(), runtimes=HERE, sizes={"W": (9,)})
    assert found.equal
    assert found.findings == ()
    assert [run.runtime for run in found.runs] == HERE
    for run in found.runs:
        (output,) = run.outputs
        assert (output.name, output.node, output.op) == ("y", "node of y", "ConvTranspose")
        assert (output.rule, output.shape, output.dtype) == ("float64", (1, 4, 82), "float32")
        assert 0 < output.error < 1e-6 < output.allowed < 1e-5
        assert run.first_layer is None
    assert found.inputs == {"x": (1, 4, 9)}


# Planted faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("i", [1, 2, 3])
def test_a_flipped_weight_is_found_by_name(runtime, i):
    found = verify(three(), three(**flipped(i)), runtimes=[runtime], sizes={"W": (9,)})
    assert not found.equal
    (run,) = found.runs
    assert not run.outputs[0].equal
    assert run.outputs[0].error > 0.1
    first = run.first_layer
    if i == 3:  # it makes the output itself
        assert first is None
        assert run.outputs[0].node == "node of y"
    else:
        assert (first.name, first.node, first.op) == (f"h{i}", f"node of h{i}", "ConvTranspose")
        assert f"first layer that differs: h{i} of ConvTranspose node of h{i}" in str(found)


NAMED = "g (float[3] x{0}) => (float[3] {1}, float[3] {2}) {{y = Neg(x) {3} = Abs(x)}}"


@pytest.mark.parametrize(("a", "b", "findings"), [
    (("", "y", "z", "z"), ("", "z", "y", "z"), ["outputs are in a different order: 'y', 'z' in a"]),
    ((", float[2] u", "y", "z", "z"), (", bool c", "y", "q", "q"), [
        "The input 'u' of a is missing in b.", "The input 'c' of b is missing in a.",
        "The output 'z' of a is missing in b.", "The output 'q' of b is missing in a.",
    ]),
])  # fmt: skip
def test_other_names_are_findings_and_the_rest_is_compared(a, b, findings):
    found = verify(parsed(NAMED.format(*a)), parsed(NAMED.format(*b)), runtimes=["reference"])
    assert len(found.findings) == len(findings)
    assert all(words in said for words, said in zip(findings, found.findings, strict=True))
    assert found.runs[0].equal
    assert not found.equal


@pytest.mark.parametrize(("there", "finding"), [
    ("float[N, 4]", r"b: feeds\['x'\].shape is \(1, 3\); expected float32\[N,4\]"),
    ("float16[N, 3]", r"b: feeds\['x'\] is an array of float32; expected float16"),
])  # fmt: skip
def test_a_model_that_does_not_take_the_inputs_is_a_finding(there, finding):
    models = (parsed(f"g ({x} x) => (y) {{y = Neg(x)}}") for x in ("float[N, 3]", there))
    (run,) = verify(*models, runtimes=["reference"]).runs
    assert not run.equal
    assert re.match(finding, run.findings[0])


def test_a_better_model_is_as_good_and_rounding_is_no_difference(runtime):
    """A layer as its equal in other sums: weights and data in another order of channels."""
    order = np.array([2, 0, 3, 1])
    b = three(w2=normal(2, 4, 4, 4)[order])
    gather = onnx.helper.make_node("Gather", ["r1", "order"], ["r1_reordered"], axis=1)
    b.graph.node.insert(2, gather)
    b.graph.node[3].input[0] = "r1_reordered"
    b.graph.initializer.append(onnx.numpy_helper.from_array(order, "order"))
    (run,) = verify(three(), b, runtimes=[runtime], sizes={"W": (50,)}).runs
    assert run.equal
    assert 0 < run.outputs[0].error < 1e-6


def test_a_small_error_in_one_weight_is_found_unless_tolerated():
    w = normal(2, 4, 4, 4)
    w[1, 2, 3] += 1e-4 * np.abs(w).max()
    models = three(), three(w2=w)
    (run,) = verify(*models, runtimes=["reference"]).runs
    assert run.first_layer.name == "h2"
    assert run.outputs[0].rule == "float64"
    assert not run.equal
    (run,) = verify(*models, runtimes=["reference"], float64=False).runs
    assert run.outputs[0].rule == "a"
    assert verify(*models, runtimes=["reference"], atol=0.1).equal
    assert verify(*models, runtimes=["reference"], atol=1e-2, rtol=1e-3).equal
    assert not verify(*models, runtimes=["reference"], rtol=1e-7).equal
    assert verify(models[0], models[0], runtimes=["reference"], atol=0).equal


def test_the_first_layer_is_found_group_by_group(runtime, monkeypatch):
    monkeypatch.setattr(verifying, "_GROUP", 1)
    (run,) = verify(three(), three(**flipped(2)), runtimes=[runtime]).runs
    assert run.first_layer.name == "h2"


def test_openvino_s_own_precision_is_allowed_its_rounding():
    pytest.importorskip("openvino")
    assert verify(three(), three(), runtimes=["openvino"], sizes={"W": (64,)}).equal


QUANTISED = """g (float[1, 2, 5] x) => (float[1, 2, 5] y, uint8[1, 2, 5] q) {
  scale = Constant <value_float = 0.1> ()
  zero = Constant <value = uint8 {128}> ()
  t = Mul (x, factor)
  q = QuantizeLinear (t, scale, zero)
  y = DequantizeLinear (q, scale, zero)
}"""


@pytest.mark.parametrize(("factor", "equal"), [(1.02, True), (1.3, False)])
def test_quantised_outputs_may_be_one_step_off(factor, equal):
    a, b = (parsed(QUANTISED, factor=np.float32(f)) for f in (1.0, factor))
    y, q = verify(a, b, runtimes=["onnxruntime"]).runs[0].outputs
    assert (y.equal, q.equal) == (equal, equal)
    assert q.error * q.scale >= 1
    assert not verify(a, b, runtimes=["onnxruntime"], seed=1, atol=0).runs[0].outputs[0].equal


# NaN, f16, subgraphs, inputs ----------------------------------------------------------------------


INF, NAN = np.float32("inf"), np.float32("nan")
NOTHING = "there is no finite element in either, so nothing is verified"


@pytest.mark.parametrize(("a", "b", "words", "equal"), [
    (np.array(["a", "b"], object), np.array(["a", "c"], object), "", False),
    (np.array(["a", "b"], object), np.array(["a", "b"], object), "", True),
    (np.array([2**62]), np.array([2**62 + 1]), "", False),
    (np.array([True]), np.array([False]), "", False),
    ([np.ones(2)], [np.ones(2)], "it is not a tensor in one of the two; sequences and", False),
    ([np.ones(2)], np.ones(2), "it is not a tensor in one of the two; sequences and", False),
    (np.ones((2, 3)), np.ones((3, 2)), "the shape (2, 3) became (3, 2)", False),
    (np.ones(2, np.float32), np.ones(2), "float32 became float64", False),
    (np.array([1e308]), np.array([-1e308]), "", False),
    (np.array([1 + 1j]), np.array([1 - 1j]), "", False),
    (np.array([1, INF]), np.array([1, INF]), "", True),
    (np.array([INF]), np.array([INF]), NOTHING, False),
    (np.array([1, NAN]), np.array([1, NAN]), "", True),
    (np.array([1, NAN]), np.array([NAN, 1]), "2 of 2 elements are NaN or infinite in only", False),
    (np.array([]), np.array([]), "", True),
])  # fmt: skip
def test_what_is_no_array_of_finite_floats_is_compared_too(a, b, words, equal):
    found = difference(ir.Value(name="y"), a, b)
    assert found.words.startswith(words)
    assert bool(found.words) == bool(words)
    assert found.equal == equal
    json.dumps(document(found), allow_nan=False)


def test_float64_is_given_up_once(monkeypatch):
    asked = []
    real = Runtime.session

    def session(runtime, model, **how):
        asked.append(runtime.precision)
        if runtime.precision:
            raise EngineError("no")
        return real(runtime, model, **how)

    monkeypatch.setattr(Runtime, "session", session)
    found = verify(three(), three(), runtimes=["onnxruntime", "onnxruntime"], sizes={"W": (9,)})
    assert asked.count("f64") == 1
    assert all(run.remark == "Not compared with float64: no" for run in found.runs)
    assert [run.outputs[0].rule for run in found.runs] == ["a", "a"]


def test_what_is_infinite_in_float64_too_is_left_out_of_the_error():
    a, b = np.float32([1, INF, 2]), np.float32([1, INF, 2.5])
    found = difference(ir.Value(name="y"), a, b, exact=np.array([1, INF, 2.0]))
    assert (found.rule, found.error, found.scale, found.equal) == ("float64", 0.2, 2.5, False)


def test_half_precision_is_allowed_its_own_rounding_and_no_more(runtime):
    text = """g (float16[2, 4, 9] x) => (float16[2, 4, V] y) {
      h = ConvTranspose <strides = [2]> (x, w)
      y = Relu(h)
    }"""
    w = normal(1, 4, 4, 3)
    a, b = (parsed(text, w=w.astype(np.float16)), parsed(text, w=(w * 1.001).astype(np.float16)))
    (run,) = verify(a, b, runtimes=[runtime]).runs
    assert run.equal
    assert run.outputs[0].dtype == "float16"
    assert run.outputs[0].error > 0
    (run,) = verify(a, parsed(text, w=(w * 1.1).astype(np.float16)), runtimes=[runtime]).runs
    assert run.first_layer.name == "h"
    assert not run.equal


def conditional(factor):
    return parsed(f"""g (float[2, 3] x, float[2, 3] u) => (float[2, 3] y) {{
      s = Add(x, u)
      c = Constant<value_int = 1>()
      d = Cast<to = 9>(c)
      t = If (d) <
        then_branch = a () => (float[2, 3] p) {{
          k = Constant<value_float = {factor}>() p = Mul(s, k)
        }},
        else_branch = b () => (float[2, 3] q) {{q = Neg(s)}}>
      y = Neg(t)
    }}""")  # fmt: skip


def test_a_fault_inside_a_subgraph_is_found_at_its_node(runtime):
    assert verify(conditional(2.0), conditional(2.0), runtimes=[runtime]).equal
    (run,) = verify(conditional(2.0), conditional(2.5), runtimes=[runtime]).runs
    assert (run.first_layer.name, run.first_layer.op) == ("t", "If")
    assert [*verify(conditional(1.0), conditional(1.0)).inputs] == ["x", "u"]


def test_ones_own_arrays_are_fed():
    a = parsed("g (float[3] x, int64[2] i) => (y) {y = Gather(x, i)}")
    b = parsed("g (float[3] x, int64[2] i) => (y) {n = Abs(x) y = Gather(n, i)}")
    x = {"x": np.array([1, 2, -3], np.float32)}
    assert verify(a, b, runtimes=["reference"], feeds=x).equal  # indices are drawn from 0 and 1
    x["i"] = np.array([2, 2])
    assert verify(a, b, runtimes=["reference"], feeds=x).runs[0].outputs[0].error == 2
    with pytest.raises(ArgumentError, match="given for 'q'; expected the model's inputs: 'x', 'i'"):
        verify(a, b, feeds={"q": x["x"]})


# Refusals -----------------------------------------------------------------------------------------


def test_what_is_wrong_with_b_is_found_and_with_a_raised():
    good, bad = three(), three()
    bad.graph.node[2].op_type = "Nonsense"
    found = verify(good, bad, runtimes=["reference"])
    assert not found.equal
    assert found.runs[0].findings[0].startswith("b: reference refuses the model")
    assert "Nonsense" in str(found)
    with pytest.raises(EngineRefusal, match="Nonsense"):
        verify(bad, good, runtimes=["reference"])


@pytest.mark.parametrize(("change", "kind", "words"), [
    ({"runtimes": ["tensorrt"]}, ArgumentError, "runtimes is 'tensorrt'; expected one of onnxrunt"),
    ({"runtimes": []}, ArgumentError, "runtimes is empty; expected one or more"),
    ({"atol": -1}, ArgumentError, "atol is -1; expected a number >= 0"),
    ({"rtol": float("nan")}, ArgumentError, "rtol is nan"),
    ({"sizes": {"q": (3,)}}, ArgumentError, "given for 'q'; expected inputs or symbols: 'x'"),
    ({"seed": -1}, ArgumentError, "seed is -1"),
])  # fmt: skip
def test_arguments_that_cannot_be(change, kind, words):
    with pytest.raises(kind, match=words):
        verify(three(), three(), **{"runtimes": ["reference"], **change})
