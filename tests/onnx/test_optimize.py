"""The optimiser: it keeps what is faster and equal, and nothing else.

Times are made up where a decision is tested; the clock decides nothing here.
"""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from upconv.errors import ArgumentError, EngineRefusal, FileError, ModelError

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="forms are run in it")

import onnx
import onnx_ir as ir

from tests.support.json_schemas import SCHEMAS, require_schema
from tests.support.onnx_clock import Clock, decided_by
from tests.support.onnx_reports import compared
from tests.support.onnx_rewriting import values
from tests.support.onnx_texts import normal, parsed
from upconv.onnx import optimize
from upconv.onnx.building import Builder
from upconv.onnx.models import from_model, to_proto
from upconv.onnx.nodes import ConvTransposeNode
from upconv.onnx.optimizing import candidates, extract, select
from upconv.onnx.optimizing.results import ORIGINAL, Ratio, WholeResult
from upconv.onnx.passes import PASSES, Pass, Rewriting
from upconv.onnx.passes.sub_pixel import sub_pixel
from upconv.onnx.report import as_text
from upconv.onnx.runtimes import ready, worker

TEXT = """two (float[1, 3, 5, 7] x) => (float[1, 2, 24, 32] y) {
  [up_a] a = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, b)
  r = Relu(a)
  [up_y] y = ConvTranspose <strides = [2, 2], kernel_shape = [6, 6]> (r, v)
}"""
WEIGHTS = {"w": normal(0, 3, 4, 4, 4), "b": normal(1, 4), "v": normal(2, 4, 2, 6, 6)}


def model() -> onnx.ModelProto:
    """Two deconvolutions with a Relu between them."""
    proto = parsed(TEXT, **WEIGHTS)
    proto.producer_name = "maker"
    return proto


def plain(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without what it says of values inside, which is told anew when it is written."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    return copy


def unchanged() -> onnx.ModelProto:
    """The model as it is after having been read and written."""
    return plain(to_proto(from_model(model())))


def kinds(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Times made up."""
    return decided_by(monkeypatch)


FAST = {"sub_pixel:unfolded": 0.5, "whole": 0.7}


def test_what_is_faster_is_kept_and_verified(clock: Clock) -> None:
    clock(FAST)
    before, said = model(), list[tuple[str, int, int]]()
    found = optimize(before, progress=lambda *one: said.append(one))
    assert said[:2] == [("measuring up_a", 1, 2), ("measuring up_y", 2, 2)]
    assert all(1 <= number <= of for _, number, of in said)
    assert [layer.chosen for layer in found.layers] == ["sub_pixel:unfolded"] * 2
    assert found.verified
    [run] = found.checks
    assert (run.runtime, [(one.name, one.rule) for one in run.outputs]) == (
        "onnxruntime",
        [("y", "float64")],
    )
    assert found.whole[0].ratio.median == pytest.approx(1 / 0.7)
    assert "2 of 2 transposed convolutions rewritten" in found.verdict
    assert "ConvTranspose" not in kinds(found.proto)
    assert found.proto.producer_name == "maker"
    assert [o.name for o in found.proto.graph.output] == ["y"]
    x = np.random.default_rng(3).standard_normal((1, 3, 5, 7)).astype(np.float32)
    [y], [z] = (values(one, {"x": x}) for one in (before, found.proto))
    np.testing.assert_allclose(y, z, atol=1e-4)
    assert before == model(), "the caller's model was changed"


@pytest.mark.parametrize("times", [
    {"sub_pixel:unfolded": 1.5}, {"sub_pixel:unfolded": 0.5, "whole": 1.1}
])  # fmt: skip
def test_a_model_that_nothing_makes_faster_is_unchanged(
    clock: Clock, tmp_path: Path, times: dict
) -> None:
    clock(times)
    found = optimize(model(), tmp_path / "out.onnx")
    assert not found.rewritten
    assert found.verified is None
    assert "; the model is unchanged. upconv.onnx.Session may still be faster" in found.verdict
    text = as_text(found)
    assert "\nwhole model " not in text
    assert ("\ntried, undone" in text) == ("whole" in times)
    assert plain(onnx.load(tmp_path / "out.onnx")) == unchanged()


# Faults planted ----------------------------------------------------------------------------------


def wrong_weight(conv: ConvTransposeNode) -> Rewriting:
    """The sub-pixel rewriting with a weight that is a little wrong."""
    right, graph = sub_pixel(conv), conv.node.graph

    def write(builder: Builder) -> None:
        there = set(graph.initializers)
        right(builder)
        for name in set(graph.initializers) - there:
            array = graph.initializers[name].const_value.numpy().copy()
            if array.ndim > 2:
                array.flat[0] += 0.01
                graph.initializers[name].const_value = ir.tensor(array, name=name)

    return write


@pytest.fixture
def flawed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PASSES, "flawed", Pass("flawed", wrong_weight))
    monkeypatch.setattr(candidates, "CANDIDATES", ("flawed", "sub_pixel:unfolded"))


@pytest.mark.usefixtures("flawed")
def test_a_form_with_wrong_values_is_never_timed(clock: Clock) -> None:
    clock({"flawed": 0.1, **FAST})
    found = optimize(model())
    for layer in found.layers:
        candidate = layer.candidate("flawed")
        assert candidate.seconds == ()
        assert "values are off" in str(candidate.refusal)
        assert layer.chosen == "sub_pixel:unfolded"


@pytest.mark.usefixtures("flawed")
def test_a_layer_that_the_whole_is_not_equal_with_is_reverted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates._Trial, "_judged", lambda *_: (None, 0.1))
    clock({"flawed": 0.1, "whole": 0.5})
    found = optimize(model())
    assert not found.rewritten
    assert plain(found.proto) == unchanged()
    for names, remark in zip(("up_a, up_y", "up_a", "up_y"), found.remarks, strict=True):
        assert f"Not equal in onnxruntime with {names}: y of ConvTranspose up_y" in remark
    assert found.verified is None
    assert "verified" not in found.verdict
    told = found.as_json()
    assert told["verified"] is None


def test_a_whole_that_is_slower_adds_layers_back_one_by_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(FAST)
    times = iter([0.9, 1.2, 0.9, 1.2])  # together slower; the first faster, the second not; final

    def compare(*_: object) -> tuple[WholeResult, ...]:
        ratio = next(times)
        return (WholeResult(1.0, 1.0, Ratio(ratio, ratio, ratio)),)

    monkeypatch.setattr(select.Selecting, "compare", compare)
    found = optimize(model())
    assert len(found.rewritten) == 1
    [back] = [layer for layer in found.layers if not layer.rewritten]
    assert back.why.startswith("not kept in the whole model")
    assert kinds(found.proto).count("ConvTranspose") == 1
    assert found.verified


def test_a_candidate_that_ends_its_process_is_refused_and_the_next_is_tried(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(FAST)
    real = worker.Worker.call

    def call(self: worker.Worker, method: str, *arguments: object, **how: object) -> object:
        if method == "open" and b"DepthToSpace" in arguments[0] and b"Slice" not in arguments[0]:
            os.kill(self._process.pid, signal.SIGABRT)
        return real(self, method, *arguments, **how)

    monkeypatch.setattr(worker.Worker, "call", call)
    monkeypatch.setattr(candidates, "CANDIDATES", ("sub_pixel:folded", "sub_pixel:unfolded"))
    monkeypatch.setattr(select.Selecting, "check", lambda *_: CHECKED)
    found = optimize(model())
    refused = [one for layer in found.layers for one in layer.candidates if one.refusal]
    ended = [one for one in refused if "process ended (SIGABRT" in str(one.refusal)]
    assert ended
    assert {layer.chosen for layer in found.layers} <= {"sub_pixel:unfolded", ORIGINAL}
    assert found.layers[0].candidate("sub_pixel:unfolded").seconds  # behind it in the row


CHECKED = (compared("y", 0.0),)


# Sizes, memory, files -----------------------------------------------------------------------------


def cut_out(proto: onnx.ModelProto, *given: dict[str, np.ndarray]) -> list[extract.Layer]:
    """The layers of a model, at sets of inputs."""
    prepared = from_model(proto)
    extract.mark(prepared)
    with worker.borrowed() as process:
        return [one for _, one in extract.layers(prepared, ready("onnxruntime"), given, process)]


def test_layers_have_the_sizes_they_have_when_the_model_runs() -> None:
    proto = model()
    [one, _] = cut_out(proto, {"x": np.zeros((1, 3, 5, 7), np.float32)})
    assert list(one.model.graph.inputs[0].shape) == [1, 3, 5, 7]
    for dim, name in zip(proto.graph.input[0].type.tensor_type.shape.dim[2:], "HW", strict=True):
        dim.dim_param = name
    sizes = ((9, 11), (4, 5))
    found = cut_out(proto, *({"x": np.zeros((1, 3, h, w), np.float32)} for h, w in sizes))
    assert [one.shapes for one in found] == [
        ((1, 3, 9, 11), (1, 3, 4, 5)), ((1, 4, 18, 22), (1, 4, 8, 10)),
    ]  # fmt: skip
    assert [axis.out for axis in found[1].conv.axes] == [40, 48]
    assert [value.shape[1] for one in found for value in one.model.graph.inputs] == [3, 4]
    assert not any(isinstance(n, int) for one in found for n in one.model.graph.inputs[0].shape[2:])


def test_a_quantised_layer_is_cut_out_with_its_pairs() -> None:
    proto = parsed(
        """g (float[1,2,5] x) => (float[1,2,10] y) <float s = {0.1}, int8 o = {3}> {
        a = QuantizeLinear(x, s, o) b = DequantizeLinear(a, s, o) c = DequantizeLinear(w, s, o)
        d = ConvTranspose<strides=[2]>(b, c) e = Relu(d) f = QuantizeLinear(e, s, o)
        y = DequantizeLinear(f, s, o) }""",
        w=np.ones((2, 2, 2), np.int8),
    )
    [layer] = cut_out(proto, {"x": normal(0, 1, 2, 5)})
    around = ["ConvTranspose", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear", "Relu"]
    assert sorted(node.op_type for node in layer.model.graph) == around
    found = optimize(proto, seconds=0.01, threads=1).layers[0]
    assert (found.dtype, found.candidate("sub_pixel:unfolded").refusal) == ("int8", None)


BRANCHES = """g (bool c, float[N, 8, H, 7] x) => (z) {
  y = If (c) <
    then_branch = a () => (t) { r = Relu(x) t = ConvTranspose <strides = [2, 2]> (r, w) },
    else_branch = b () => (e) { q = GlobalAveragePool(x)
      e = ConvTranspose <strides = [2, 2]> (q, w) }>
  z = ConvTranspose <strides = [2, 2]> (y, w)
}"""


def test_layers_within_nodes_are_left_as_they_are(clock: Clock) -> None:
    clock(FAST)
    proto = parsed(BRANCHES, w=normal(1, 8, 8, 2, 2))
    given = {"c": np.array(True), "x": np.ones((2, 8, 5, 7), np.float32)}
    found = optimize(proto, feeds=given)
    assert [(layer.shapes, layer.chosen) for layer in found.layers] == [
        ((), ORIGINAL), ((), ORIGINAL), (((2, 8, 10, 14),), "sub_pixel:unfolded"),
    ]  # fmt: skip
    assert "it is inside a body" in found.layers[0].why
    assert found.verified


def test_the_result_is_plain_json_as_its_schema_says(clock: Clock) -> None:
    clock(FAST)
    found = optimize(model(), session=True)
    assert found.session.rows
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert document["schema"] == 4
    assert document["layers"][0]["axes"][0]["stride"] == 2
    assert [row["after"] for row in document["report"]["rows"]] == [0.5, 0.5]
    assert (document["verified"], document["written"]) == (True, None)
    assert "proto" not in document
    require_schema(document, "optimize")
    schema = json.loads((SCHEMAS / "optimize.json").read_text())
    assert set(schema["properties"]) == set(document)
    for change in ({"schema": 2}, {"layers": [{}]}, {"verified": "yes"}, {"more": 1}):
        with pytest.raises(AssertionError):
            require_schema({**document, **change}, "optimize")


def test_an_output_that_exists_is_kept_unless_forced(clock: Clock, tmp_path: Path) -> None:
    clock(FAST)
    path = tmp_path / "out.onnx"
    path.write_bytes(b"mine")
    with pytest.raises(FileError, match="exists"):
        optimize(model(), path)
    assert path.read_bytes() == b"mine"
    optimize(model(), path, force=True)
    assert "ConvTranspose" not in kinds(onnx.load(path))
    with pytest.raises(FileError, match="input"):  # nor ever with it
        optimize(path, path, force=True)


def test_an_interruption_leaves_no_file(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock(FAST)

    def interrupt(*args: object, **kwargs: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(select.Selecting, "compare", interrupt)
    with pytest.raises(KeyboardInterrupt):
        optimize(model(), tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"runtime": "tensorrt"}, "runtime is 'tensorrt'; expected one of onnxruntime"),
        ({"input_shapes": []}, "input_shapes is an empty sequence"),
        ({"threads": 0}, "threads is 0"),
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": "fast"}, "seconds is 'fast'"),
        ({"input_shapes": {"z": (1,)}}, "z"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(
    keywords: dict[str, object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        optimize(model(), **keywords)


def test_a_model_that_the_runtime_does_not_take_is_an_error() -> None:
    proto = model()
    proto.graph.node[1].op_type = "NoSuchOperator"
    proto.graph.node[1].domain = "nowhere"
    with pytest.raises((EngineRefusal, ModelError)):
        optimize(proto)


def test_a_model_without_a_deconvolution_stays_as_it_is(tmp_path: Path) -> None:
    proto = parsed("g (float[2] x) => (float[2] y) {y = Neg(x)}")
    found = optimize(proto, tmp_path / "out.onnx")
    assert "no ConvTranspose" in found.verdict
    assert kinds(onnx.load(tmp_path / "out.onnx")) == ["Neg"]


# Models that are odd ------------------------------------------------------------------------------

ODD = {
    "an output of another rank than declared": "(float[1, 2] y) <float[1] k = {2}, float[1, 2] c>"
    " { c = ConvTranspose<strides = [2, 2], output_shape = [8, 8]>(x, w) y = Mul(c, k) }",
    "a function called as the operator": "(y)"
    " { q = my.ConvTranspose(x, w) y = ConvTranspose<strides = [2, 2]>(q, w) }"
    ' <domain: "my", opset_import: ["": 17]> ConvTranspose (x, w) => (q) { q = Relu(x) }',
}


@pytest.mark.parametrize("name", ODD)
def test_odd_models_that_onnx_runtime_takes_are_measured(name: str) -> None:
    proto = parsed(f"g (float[1, 2, 4, 4] x) => {ODD[name]}", w=np.ones((2, 2, 4, 4), np.float32))
    if proto.functions:
        proto.opset_import.add(domain="my", version=1)
    assert len(optimize(proto, seconds=0.01, threads=1).layers) == 1
