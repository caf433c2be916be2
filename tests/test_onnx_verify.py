"""Verification: what is equal, what is not, and where a difference begins."""

from __future__ import annotations

import json

import numpy as np
import pytest

from upconv.errors import (
    ArgumentError,
    DTypeError,
    EngineMissing,
    EngineRefusal,
    FileError,
    MemoryLimitError,
    ModelError,
    ShapeError,
)

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnx_texts import flipped, normal, parsed, three
from upconv.onnx.known import known
from upconv.onnx.runtimes import RUNTIMES, base
from upconv.onnx.verifying import layers as layering
from upconv.onnx.verifying import verify
from upconv.onnx.verifying.allowances import FACTOR, allowances, sum_length
from upconv.onnx.verifying.differences import Place, differences

HERE = [name for name, runtime in RUNTIMES.items() if runtime.missing() is None]


@pytest.fixture(params=HERE)
def runtime(request):
    return request.param


# Equal models -------------------------------------------------------------------------------------


def test_a_model_equals_itself_in_every_runtime():
    found = verify(three(), three(), runtimes=HERE, sizes={"W": (9,)})
    assert found.equal
    assert found.findings == ()
    assert [run.runtime for run in found.runs] == HERE
    for run in found.runs:
        (output,) = run.outputs
        assert (output.name, output.node, output.op) == ("y", "node of y", "ConvTranspose")
        assert (output.error, output.shape, output.dtype) == (0.0, (1, 4, 82), "float32")
        assert [layer.name for layer in run.layers] == ["h1", "r1", "h2", "r2"]
        assert run.first_layer is None
    assert [(fed.name, fed.shape) for fed in found.inputs] == [("x", (1, 4, 9))]


def test_rounding_is_no_difference(runtime):
    """A layer as its equal in other sums: weights and data in another order of channels."""
    order = [2, 0, 3, 1]
    b = three(w2=normal(2, 4, 4, 4)[order])
    gather = onnx.helper.make_node("Gather", ["r1", "order"], ["r1_turned"], axis=1)
    b.graph.node.insert(2, gather)
    b.graph.node[3].input[0] = "r1_turned"
    b.graph.initializer.append(numpy_helper.from_array(np.array(order), "order"))
    (run,) = verify(three(), b, runtimes=[runtime], sizes={"W": (50,)}).runs
    assert run.equal
    assert run.outputs[0].error < 1e-5 * run.outputs[0].scale
    assert [layer.name for layer in run.layers] == ["h1", "r1", "h2", "r2"]


def test_models_are_taken_as_messages_ir_models_and_paths_and_left_alone(tmp_path):
    onnx.save(three(), tmp_path / "a.onnx")
    model, representation = three(), ir.from_proto(three())
    before = model.SerializeToString()
    for b in (model, representation, tmp_path / "a.onnx", str(tmp_path / "a.onnx")):
        assert verify(tmp_path / "a.onnx", b, runtimes=["reference"]).equal
    assert model.SerializeToString() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "a.onnx"]


# Planted faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("i", [1, 2, 3])
def test_a_flipped_weight_is_found_by_name(runtime, i):
    found = verify(three(), three(**flipped(i)), runtimes=[runtime], sizes={"W": (9,)})
    assert not found.equal
    (run,) = found.runs
    assert not run.outputs[0].equal
    assert run.outputs[0].relative > 0.1
    first = run.first_layer
    if i == 3:  # it makes the output itself
        assert first is None
        assert run.outputs[0].node == "node of y"
    else:
        assert (first.name, first.node, first.op) == (f"h{i}", f"node of h{i}", "ConvTranspose")
        assert f"first layer that differs: h{i} of ConvTranspose node of h{i}" in str(found)


@pytest.mark.parametrize("size", [1e-2, 1e-3])
def test_a_small_error_in_one_weight_is_found(size):
    w = normal(2, 4, 4, 4)
    w[1, 2, 3] += size * np.abs(w).max()
    (run,) = verify(three(), three(w2=w), runtimes=["reference"]).runs
    assert run.first_layer.name == "h2"
    assert not run.equal


def test_a_tolerance_of_ones_own_replaces_what_rounding_explains():
    w = normal(2, 4, 4, 4)
    w[1, 2, 3] += 1e-3
    models = three(), three(w2=w)
    assert not verify(*models, runtimes=["reference"]).equal
    assert verify(*models, runtimes=["reference"], tolerance=0.01).equal
    assert not verify(*models, runtimes=["reference"], tolerance=0).equal
    assert verify(models[0], models[0], runtimes=["reference"], tolerance=0).equal


def test_layers_are_looked_at_in_groups_and_the_last_holds_the_difference(runtime, monkeypatch):
    monkeypatch.setattr(layering, "_BYTES", 1)
    (run,) = verify(three(), three(**flipped(2)), runtimes=[runtime]).runs
    assert [layer.name for layer in run.layers] == ["h1", "r1", "h2"]
    assert run.first_layer.name == "h2"
    (run,) = verify(three(), three(**flipped(2)), runtimes=[runtime], layers=False).runs
    assert run.layers == ()
    assert not run.equal


def test_another_order_of_outputs_is_a_finding(runtime):
    a = parsed("g (float[3] x) => (float[3] y, float[3] z) {y = Neg(x) z = Abs(x)}")
    b = parsed("g (float[3] x) => (float[3] z, float[3] y) {y = Neg(x) z = Abs(x)}")
    found = verify(a, b, runtimes=[runtime])
    assert found.findings == ("The outputs are in another order: 'y', 'z' in a, 'z', 'y' in b.",)
    assert found.runs[0].equal
    assert not found.equal
    assert verify(a, a, runtimes=[runtime]).equal


def test_missing_inputs_and_outputs_are_findings_and_the_rest_is_compared():
    a = parsed("g (float[3] x, float[2] u) => (float[3] y, float[3] z) {y = Neg(x) z = Abs(x)}")
    b = parsed("g (float[3] x, bool c) => (float[3] y, float[3] q) {y = Abs(x) q = Exp(x)}")
    found = verify(a, b, runtimes=["reference"])
    assert found.findings == (
        "The input 'u' of a is missing in b.",
        "The input 'c' of b is missing in a.",
        "The output 'z' of a is missing in b.",
        "The output 'q' of b is missing in a.",
    )
    (output,) = found.runs[0].outputs
    assert (output.name, output.equal) == ("y", False)


def test_shapes_and_types_that_differ_are_told_in_words(runtime):
    a = parsed("g (float[N, 3] x) => (y, z, i) {y = Neg(x) z = Neg(x) i = Shape(x)}")
    b = parsed("""g (float[N, 3] x) => (y, z, i) {
        y = Transpose(x) t = Neg(x) z = Cast<to = 11>(t) s = Shape(x) i = Neg(s)
    }""")  # fmt: skip
    y, z, i = verify(a, b, runtimes=[runtime], sizes={"N": (2,)}).runs[0].outputs
    assert y.words == "the shape (2, 3) became (3, 2)"
    assert z.words == "float32 became float64"
    assert z.error == 0
    assert (i.error, i.allowed, i.words) == (6, 0, "")
    assert [y.equal, z.equal, i.equal] == [False] * 3


def test_inputs_that_exclude_each_other_are_not_run():
    a = parsed("g (float[N, 3] x) => (y) {y = Neg(x)}")
    b = parsed("g (float[N, 4] x) => (y) {y = Neg(x)}")
    found = verify(a, b, runtimes=["reference"])
    assert found.findings == ("The input 'x' is float32[N,3] in a and float32[N,4] in b.",)
    assert found.runs == ()
    assert not found.equal


def test_open_dimensions_are_what_the_other_model_has():
    a = parsed("g (float[N, H] x, float[N] u) => (y) {y = Neg(x)}")
    b = parsed("g (float[5, ?] x, float[?] u) => (y) {y = Neg(x)}")
    found = verify(a, b, runtimes=["reference"], sizes={"H": (7,), "N": (5,)})
    assert found.equal
    assert [fed.shape for fed in found.inputs] == [(5, 7), (5,)]
    assert not found.findings


def test_a_model_in_another_float_type_is_fed_in_its_own():
    a = parsed("g (float[9] x) => (float[9] y) {y = Neg(x)}")
    b = parsed("g (float16[9] x) => (float[9] y) {t = Neg(x) y = Cast<to = 1>(t)}")
    found = verify(a, b, runtimes=["reference"], tolerance=1e-3)
    assert found.findings == ("The input 'x' is float32[9] in a and float16[9] in b.",)
    assert found.runs[0].equal
    assert 0 < found.runs[0].outputs[0].relative < 1e-3


# NaN, f16, subgraphs, inputs ----------------------------------------------------------------------


def test_nan_equals_nan_in_its_place_only(runtime):
    a = parsed("g (float[50] x) => (float[50] y) {y = Sqrt(x)}")
    b = parsed("g (float[50] x) => (float[50] y) {n = Neg(x) y = Sqrt(n)}")
    (same,) = verify(a, a, runtimes=[runtime]).runs[0].outputs
    assert same.equal
    assert same.nans[0] == same.nans[1] > 10
    (other,) = verify(a, b, runtimes=[runtime]).runs[0].outputs
    assert not other.equal
    assert "50 of 50 elements are NaN or infinite in one of the two only" in other.words
    assert json.loads(json.dumps(other.as_json(), allow_nan=False))["nans"] == list(other.nans)


def test_nothing_but_nan_proves_nothing():
    model = parsed("g (float[5] x) => (float[5] y) {a = Abs(x) n = Neg(a) y = Sqrt(n)}")
    (output,) = verify(model, model, runtimes=["reference"]).runs[0].outputs
    assert not output.equal
    assert output.words == "there is no finite element in either, so nothing is proven"


def test_infinities_and_empty_arrays():
    inf = np.float32("inf")
    place = Place("y")
    for a, b, equal in (
        ([1, inf], [1, inf], True),
        ([1, inf], [1, -inf], False),
        ([1, inf], [1, 3e38], False),
        ([], [], True),
    ):
        arrays = np.array(a, np.float32), np.array(b, np.float32)
        (found,) = differences(place, *arrays, 1e-6)
        assert found.equal == equal, (a, b)
        json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.parametrize(("a", "b", "words", "equal"), [
    (np.array(["a", "b"], object), np.array(["a", "c"], object), "", False),
    (np.array(["a", "b"], object), np.array(["a", "b"], object), "", True),
    (np.array([2**62]), np.array([2**62 + 1]), "", False),
    (np.array([True]), np.array([False]), "", False),
    ([np.ones(2)], [np.ones(2), np.ones(2)], "a sequence of 1 became a sequence of 2", False),
    ([np.ones(2)], np.ones(2), "a sequence of 1 became a tensor", False),
    (np.array([1e308]), np.array([-1e308]), "", False),
    (np.array([1 + 1j]), np.array([1 - 1j]), "", False),
])  # fmt: skip
def test_what_is_no_array_of_floats_is_compared_too(a, b, words, equal):
    (found,) = differences(Place("y"), a, b, 0.0)
    assert (found.words, found.equal) == (words, equal)


def test_members_of_sequences_are_compared_one_by_one():
    model = "g (float[4, 3] x) => (s) {{s = SplitToSequence<axis = 0>({})}}"
    (run,) = verify(
        parsed(model.format("x")),
        parsed(model.format("n").replace("{", "{n = Neg(x) ")),
        runtimes=["reference"],
    ).runs
    assert [output.name for output in run.outputs] == ["s[0]", "s[1]", "s[2]", "s[3]"]
    assert not run.equal


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
    assert [fed.name for fed in verify(conditional(1.0), conditional(1.0)).inputs] == ["x", "u"]


def test_ones_own_arrays_are_fed():
    a = parsed("g (float[3] x, int64[2] i) => (y) {y = Gather(x, i)}")
    b = parsed("g (float[3] x, int64[2] i) => (y) {n = Abs(x) y = Gather(n, i)}")
    x = {"x": np.array([1, 2, -3], np.float32)}
    assert verify(a, b, runtimes=["reference"], feeds=x).equal  # indices are drawn from 0 and 1
    x["i"] = np.array([2, 2])
    assert verify(a, b, runtimes=["reference"], feeds=x).runs[0].outputs[0].error == 6
    with pytest.raises(ArgumentError, match="with 'q'; expected the models' inputs: 'x', 'i'"):
        verify(a, b, feeds={"q": x["x"]})


def test_the_seed_decides_the_inputs():
    a, b = (parsed(f"g (float[8] x) => (y) {{y = {op}(x)}}") for op in ("Abs", "Neg"))
    errors = [
        verify(a, b, runtimes=["reference"], seed=s).runs[0].outputs[0].error for s in (0, 0, 1)
    ]
    assert errors[0] == errors[1] != errors[2]


# Tolerances ---------------------------------------------------------------------------------------


def test_allowances_grow_along_the_chain_and_with_the_sums():
    model = three()
    facts = known(model, {"x": (1, 4, 9)})
    allowed = allowances(model, facts)
    assert facts.shape("y") == (1, 4, 82)
    assert [sum_length(node, facts) for node in model.graph.node] == [16, 1, 16, 1, 16]
    values = [allowed[name] for name in ("h1", "r1", "h2", "r2", "y")]
    assert values == sorted(values)
    eps = np.finfo(np.float32).eps
    assert values[0] == pytest.approx(FACTOR * eps * np.sqrt(17))
    assert values[-1] == pytest.approx(FACTOR * eps * np.sqrt(3 * 17 + 2 * 2))


@pytest.mark.parametrize(("nodes", "length"), [
    ("y = Conv<group = 2>(x, w)", 12),
    ("y = ConvTranspose<group = 2>(x, w)", 12),
    ("y = MatMul(x, x)", 8),
    ("y = GlobalAveragePool(x)", 32),
    ("y = Relu(x)", 1),
    ("y = Einsum<equation = \"abc,abc->a\">(x, x)", 1024),
])  # fmt: skip
def test_the_length_of_sums(nodes, length):
    w = normal(0, 8, 4, 3) if "Conv<" in nodes else normal(0, 4, 4, 6)
    model = parsed(f"g (float[2, 4, 8] x) => (y) {{{nodes}}}", w=w)
    assert sum_length(model.graph.node[0], known(model, {})) == length


def test_loops_count_for_more_and_damaged_models_are_no_obstacle():
    looped = parsed("""g (float[2] x, int64 n, bool c) => (float[2] y) {
      y = Loop (n, c, x) <body = b (int64 i, bool d, float[2] v) => (bool e, float[2] u) {
        e = Identity(d) u = Mul(v, v)
      }>
    }""")  # fmt: skip
    straight = parsed("g (float[2] x) => (float[2] y) {y = Mul(x, x)}")
    amounts = [allowances(m, known(m, {}))["y"] for m in (looped, straight)]
    assert amounts[0] > 5 * amounts[1]
    straight.graph.node[0].op_type = "\x00"
    assert allowances(straight, known(straight, {}))["y"] > 0


# Refusals -----------------------------------------------------------------------------------------


def test_what_is_wrong_with_b_is_found_and_with_a_raised():
    good, bad = three(), three()
    bad.graph.node[2].op_type = "Nonsense"
    found = verify(good, bad, runtimes=["reference"])
    assert not found.equal
    assert found.runs[0].findings[0].startswith("b: reference does not take the model")
    assert "Nonsense" in str(found)
    with pytest.raises(EngineRefusal, match="Nonsense"):
        verify(bad, good, runtimes=["reference"])


@pytest.mark.parametrize(("change", "kind", "words"), [
    ({"runtimes": ["tensorrt"]}, ArgumentError, "runtimes is 'tensorrt'; expected one of onnxrunt"),
    ({"runtimes": []}, ArgumentError, "runtimes is empty; expected one or more"),
    ({"tolerance": -1}, ArgumentError, "tolerance is -1; expected a number >= 0"),
    ({"tolerance": float("nan")}, ArgumentError, "tolerance is nan"),
    ({"sizes": {"q": (3,)}}, ArgumentError, "with 'q'; expected inputs or symbols: 'x', 'N', 'W'"),
    ({"sizes": {"x": (1, 5, 3)}}, ShapeError, r"\(1, 5, 3\); expected float32\[N,4,W\]"),
    ({"sizes": {"W": (1 << 40,)}}, MemoryLimitError, "random inputs"),
    ({"seed": -1}, ArgumentError, "seed is -1"),
])  # fmt: skip
def test_arguments_that_cannot_be(change, kind, words):
    with pytest.raises(kind, match=words):
        verify(three(), three(), **{"runtimes": ["reference"], **change})


def test_a_value_that_cannot_fit_is_refused_before_anything_runs():
    model = parsed("""g (float[4] x) => (y) {
        s = Constant<value_ints = [1099511627776, 4]>() y = Expand(x, s)
    }""")  # fmt: skip
    with pytest.raises(MemoryLimitError, match="The value 'y' of Expand needs 16 TiB"):
        verify(model, model, runtimes=["onnxruntime"])


def test_models_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        verify(tmp_path / "bad.onnx", three())
    with pytest.raises(FileError, match=r"none\.onnx"):
        verify(three(), tmp_path / "none.onnx")
    with pytest.raises(DTypeError, match="model is 5"):
        verify(three(), 5)


def test_a_missing_runtime(monkeypatch):
    monkeypatch.setattr(base, "import_module", lambda name: __import__("no_such_module_at_all"))
    with pytest.raises(EngineMissing, match=r"pip install openvino$"):
        verify(three(), three(), runtimes=["openvino"])


def test_json_holds_everything():
    found = verify(three(), three(**flipped(2)), runtimes=["reference"], sizes={"x": (2, 4, 5)})
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (told["equal"], told["findings"], told["seed"]) == (False, [], 0)
    assert told["inputs"] == [{"name": "x", "dtype": "float32", "shape": [2, 4, 5]}]
    (run,) = told["runs"]
    assert run["first_layer"]["node"] == "node of h2"
    assert run["first_layer"]["relative"] == pytest.approx(found.runs[0].first_layer.relative)
    assert [layer["name"] for layer in run["layers"]] == ["h1", "r1", "h2", "r2"]
    assert run["outputs"][0]["allowed"] > 0
