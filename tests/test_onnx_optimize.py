"""The optimiser: it keeps what is faster and equal, and nothing else.

Times are made up where a decision is tested; the clock decides nothing here.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from upconv.dialects.onnx import Rule
from upconv.errors import ArgumentError, EngineRefusal, FileError, ModelError

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="forms are run in it")

import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnx_cases import random_case
from onnx_clock import Clock, decided_by
from upconv.onnx import optimize, rewrite
from upconv.onnx.building import Builder
from upconv.onnx.models import from_model, to_proto
from upconv.onnx.nodes import ConvTransposeNode
from upconv.onnx.optimizing import candidates, extract, select
from upconv.onnx.optimizing.benchmark import Ratio, Timing
from upconv.onnx.optimizing.results import ORIGINAL, Candidate, OutputCheck, WholeResult
from upconv.onnx.optimizing.select import LEAST_GAIN, choose
from upconv.onnx.passes import PASSES, Pass, Rewriting
from upconv.onnx.passes.sub_pixel import sub_pixel
from upconv.onnx.runtimes import ready, worker
from upconv.onnx.runtimes.timing import Rounds, interleaved

TEXT = """
<ir_version: 8, opset_import: ["": 17], producer_name: "maker">
two (float[1, 3, 5, 7] x) => (float[1, 2, 24, 32] y) {
  a = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, b)
  r = Relu(a)
  y = ConvTranspose <strides = [2, 2], kernel_shape = [6, 6]> (r, v)
}
"""


def model() -> onnx.ModelProto:
    """Two deconvolutions with a Relu between them, weights drawn."""
    proto = onnx.parser.parse_model(TEXT)
    for i, name in enumerate(("a", "y")):
        proto.graph.node[2 * i].name = f"up_{name}"
    rng = np.random.default_rng(0)
    shapes = {"w": (3, 4, 4, 4), "b": (4,), "v": (4, 2, 6, 6)}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def outputs(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    with ready("onnxruntime").session(proto, threads=1) as session:
        return list(session.run({"x": x}).values())


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
    before = model()
    found = optimize(before, fresh=True)
    assert [layer.chosen for layer in found.layers] == ["sub_pixel:unfolded"] * 2
    assert found.verified
    assert [(one.output, one.rule, one.runtime) for one in found.checks] == [
        ("y", "float64", "onnxruntime")
    ]
    assert found.whole[0].ratio.median == pytest.approx(1 / 0.7)
    assert "2 of 2 transposed convolutions rewritten" in found.verdict
    assert "ConvTranspose" not in kinds(found.proto)
    assert found.proto.producer_name == "maker"
    assert [o.name for o in found.proto.graph.output] == ["y"]
    x = np.random.default_rng(3).standard_normal((1, 3, 5, 7)).astype(np.float32)
    np.testing.assert_allclose(outputs(found.proto, x)[0], outputs(before, x)[0], atol=1e-4)
    assert before == model(), "the caller's model was changed"


def test_what_is_slower_stays_as_it_is(clock: Clock, tmp_path: Path) -> None:
    clock({"sub_pixel:unfolded": 1.5})
    found = optimize(model(), tmp_path / "out.onnx", fresh=True)
    assert not found.rewritten
    assert (found.whole, found.verified) == ((), None)
    assert "stays as it is" in found.verdict
    assert plain(onnx.load(tmp_path / "out.onnx")) == unchanged()


SECOND = Timing(1.0, 1.0, 1.0, 1.0, 9)


def timed(name: str, *ratios: Ratio) -> Candidate:
    return Candidate(name, timings=(SECOND,) * len(ratios), ratios=ratios)


def test_a_gain_within_the_noise_is_none() -> None:
    for low, chosen in ((LEAST_GAIN - 0.01, ORIGINAL), (LEAST_GAIN + 0.01, "form")):
        found = [Candidate(ORIGINAL, timings=(SECOND,)), timed("form", Ratio(1.2, low, 1.4))]
        assert choose(found)[0] == chosen


def test_of_several_the_surest_gain_wins() -> None:
    sure, wild = timed("sure", Ratio(1.3, 1.25, 1.35)), timed("wild", Ratio(1.5, 1.1, 1.9))
    assert choose([Candidate(ORIGINAL), wild, sure])[0] == "sure"


def test_what_gains_at_one_shape_only_is_not_chosen() -> None:
    fast, slow = Ratio(1.5, 1.4, 1.6), Ratio(0.9, 0.8, 1.0)
    assert choose([Candidate(ORIGINAL), timed("form", fast, slow)])[0] == ORIGINAL
    assert choose([Candidate(ORIGINAL), timed("form", fast, fast)])[0] == "form"


def test_a_whole_is_faster_that_gains_somewhere_and_loses_nowhere() -> None:
    ratios = {
        "gain": Ratio(1.5, 1.4, 1.6),
        "even": Ratio(1.0, 0.9, 1.1),
        "loss": Ratio(0.8, 0.7, 0.9),
    }
    for names, answer in (("gain even", True), ("gain loss", False), ("even even", False)):
        whole = [WholeResult(SECOND, SECOND, ratios[name]) for name in names.split()]
        assert select.faster(whole) is answer


def test_noise_between_two_series_of_one_call_widens_every_ratio() -> None:
    calm = Rounds(([2.0] * 7, [1.0] * 7), [2.0] * 7)
    noisy = Rounds(([2.0] * 7, [1.0] * 7), [4.0] * 7)
    assert Ratio.of(calm, 1) == Ratio(2.0, 2.0, 2.0)
    assert Ratio.of(noisy, 1).low == pytest.approx(1.0)
    assert Ratio.of(noisy, 1).high >= 4.0


def test_what_disturbs_some_rounds_does_not_decide() -> None:
    rng = np.random.default_rng(0)

    def samples(seconds: float) -> list[float]:
        return [float(seconds * (1 + rng.exponential(0.5))) for _ in range(30)]

    rounds = Rounds((samples(1.0), samples(0.5), samples(0.99)), samples(1.0))
    assert Ratio.of(rounds, 1).low > 1.5
    assert Ratio.of(rounds, 2).low < 1.01 < Ratio.of(rounds, 2).high


def test_rounds_take_turns_and_leave_the_hopeless_out() -> None:
    order: list[str] = []

    def call(name: str, seconds: float) -> Callable[[], None]:
        import time

        def run() -> None:
            order.append(name)
            time.sleep(seconds)

        return run

    rounds = interleaved([call("a", 0.001), call("b", 0.001), call("slow", 0.02)], 0.001)
    assert len(rounds.samples[0]) == len(rounds.samples[1]) == len(rounds.again) == 5
    assert len(rounds.samples[2]) == 3
    assert all(0.001 <= s < 0.02 for s in rounds.samples[0])
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns[3:9] == ["a", "b", "slow", "a", "b", "slow"]


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
    found = optimize(model(), fresh=True)
    for layer in found.layers:
        candidate = layer.candidate("flawed")
        assert candidate is not None
        assert candidate.timings == ()
        assert "values are off" in str(candidate.refusal)
        assert layer.chosen == "sub_pixel:unfolded"


@pytest.mark.usefixtures("flawed")
def test_a_layer_that_the_whole_is_not_equal_with_is_reverted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates._Contest, "_judged", lambda *_: (None, [0.1]))
    clock({"flawed": 0.1, "whole": 0.5})
    found = optimize(model(), fresh=True)
    assert not found.rewritten
    assert plain(found.proto) == unchanged()
    assert sum("is reverted" in remark for remark in found.remarks) == 2
    for remark in found.remarks[:2]:  # and why
        assert "the model is not equal: in onnxruntime 'y' is off by 0.0" in remark
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
        return (WholeResult(SECOND, SECOND, Ratio(ratio, ratio, ratio)),)

    monkeypatch.setattr(select.Selecting, "compare", compare)
    found = optimize(model(), fresh=True)
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
    monkeypatch.setattr(select.Selecting, "check", lambda *_: CHECKED)
    found = optimize(model(), fresh=True)
    refused = [one for layer in found.layers for one in layer.candidates if one.refusal]
    ended = [one for one in refused if "ended its process (SIGABRT" in str(one.refusal)]
    assert ended
    assert {layer.chosen for layer in found.layers} <= {"sub_pixel:unfolded", ORIGINAL}
    assert found.layers[0].candidate("sub_pixel:unfolded").timings  # behind it in the row


CHECKED = (OutputCheck("y", "onnxruntime", 0, "float32", "float64", 0.0, 1.0, True),)


def test_a_whole_that_no_layer_makes_faster_is_not_kept(clock: Clock) -> None:
    clock({"sub_pixel:unfolded": 0.5, "whole": 1.1})
    found = optimize(model(), fresh=True)
    assert not found.rewritten
    assert plain(found.proto) == unchanged()


# Sizes, memory, files -----------------------------------------------------------------------------


def test_layers_have_the_sizes_they_have_when_the_model_runs() -> None:
    proto = model()
    for dim, name in zip(proto.graph.input[0].type.tensor_type.shape.dim[2:], "HW", strict=True):
        dim.dim_param = name
    prepared = from_model(proto)
    extract.mark(prepared)
    given = [{"x": np.zeros((1, 3, h, w), np.float32)} for h, w in ((9, 11), (4, 5))]
    with worker.borrowed() as process:
        runtime = ready("onnxruntime")
        found = extract.layers(prepared, runtime, given, Rule.ONNXRUNTIME, process)
    assert [one.shapes for one in found] == [
        ((1, 3, 9, 11), (1, 3, 4, 5)), ((1, 4, 18, 22), (1, 4, 8, 10)),
    ]  # fmt: skip
    assert [axis.out for axis in found[1].conv.axes] == [40, 48]
    assert [value.shape[1] for one in found for value in one.model.graph.inputs] == [3, 4]
    assert not any(isinstance(n, int) for one in found for n in one.model.graph.inputs[0].shape[2:])


BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (bool c, float[N, 8, H, 7] x) => (z) {
  y = If (c) <
    then_branch = a () => (t) { r = Relu(x) t = ConvTranspose <strides = [2, 2]> (r, w) },
    else_branch = b () => (e) { q = GlobalAveragePool(x)
      e = ConvTranspose <strides = [2, 2]> (q, w) }>
  z = ConvTranspose <strides = [2, 2]> (y, w)
}"""


def test_layers_within_nodes_are_rewritten_and_verified(clock: Clock) -> None:
    clock(FAST)
    proto = onnx.parser.parse_model(BRANCHES)
    w = np.random.default_rng(1).standard_normal((8, 8, 2, 2)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    given = {"c": np.array(True), "x": np.ones((2, 8, 5, 7), np.float32)}
    found = optimize(proto, inputs=given, fresh=True)
    told = {(layer.graph, layer.shapes[0], layer.chosen) for layer in found.layers}
    assert told == {
        ("a", (2, 8, 5, 7), "sub_pixel:unfolded"),
        ("b", (2, 8, 1, 1), "sub_pixel:unfolded"),
        ("", (2, 8, 10, 14), "sub_pixel:unfolded"),
    }
    assert found.verified
    assert "ConvTranspose" not in str(found.proto.graph)


def test_what_was_measured_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = random_case(77, rank=2).model
    first = optimize(proto, seconds=0.01, float64=False, fresh=True)
    monkeypatch.setattr(candidates, "timed", None)  # whoever measures now fails
    again = optimize(proto, seconds=0.01, float64=False)
    assert not any(one.remembered for layer in first.layers for one in layer.candidates)
    timed_ = [one for layer in again.layers for one in layer.candidates if one.timings]
    assert timed_
    assert all(one.remembered for one in timed_)
    before = [one.timings for one in first.layers[0].candidates if one.timings]
    assert [one.timings for one in timed_] == before


def test_progress_counts_from_one_to_all(clock: Clock) -> None:
    clock(FAST)
    said: list[tuple[str, int, int]] = []
    optimize(model(), fresh=True, progress=lambda *one: said.append(one))
    assert said[:2] == [("measuring up_a", 1, 2), ("measuring up_y", 2, 2)]
    assert all(1 <= number <= of for _, number, of in said)


def test_a_session_is_measured_or_said_why_not(clock: Clock) -> None:
    clock(FAST)
    session = optimize(model(), fresh=True, session=True).session
    assert session is not None
    assert bool(session.why) != bool(session.whole)


def test_the_result_is_plain_json(clock: Clock) -> None:
    clock(FAST)
    document = json.loads(json.dumps(optimize(model(), fresh=True).as_json(), allow_nan=False))
    assert document["schema"] == 2
    assert document["layers"][0]["axes"][0]["stride"] == 2
    assert document["layers_alone"]["after"] == pytest.approx(1.0)
    assert (document["verified"], document["written"]) == (True, None)
    assert "proto" not in document
    assert problems(document, json.loads(SCHEMA.read_text())) == []


def test_the_schema_describes_all_that_is_written(clock: Clock) -> None:
    clock(FAST)
    document = optimize(model(), fresh=True).as_json()
    schema = json.loads(SCHEMA.read_text())
    assert set(schema["properties"]) == set(document)
    for change in ({"schema": 1}, {"layers": [{}]}, {"verified": "yes"}, {"more": 1}):
        assert problems(json.loads(json.dumps({**document, **change})), schema)


SCHEMA = Path(__file__).parents[1] / "docs" / "schemas" / "optimize.json"
TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip


def problems(value: object, schema: dict[str, object], at: str = "it") -> list[str]:
    """What of a document breaks a schema: type, const, properties, required, items, $ref."""
    if "$ref" in schema:
        return problems(value, DEFINITIONS[schema["$ref"].rpartition("/")[2]], at)
    if "const" in schema and value != schema["const"]:
        return [f"{at} is {value}"]
    kinds_ = schema.get("type", list(TYPES))
    kinds_ = [kinds_] if isinstance(kinds_, str) else kinds_
    fits = [
        k for k in kinds_ if isinstance(value, TYPES[k]) and (k == "boolean" or value is not True)
    ]
    if not fits:
        return [f"{at} is no {' or '.join(kinds_)}"]
    if isinstance(value, list):
        items = schema.get("items", {})
        return [p for i, one in enumerate(value) for p in problems(one, items, f"{at}[{i}]")]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties", {})
    found = [f"{at} has no {name}" for name in schema.get("required", ()) if name not in value]
    for name, one in value.items():
        rest = schema.get("additionalProperties", {})
        if name not in known and rest is False:
            found.append(f"{at} has {name}")
        else:
            found += problems(one, known.get(name, rest), f"{at}.{name}")
    return found


DEFINITIONS = json.loads(SCHEMA.read_text())["$defs"]


def test_an_output_that_exists_is_kept_unless_forced(clock: Clock, tmp_path: Path) -> None:
    clock(FAST)
    path = tmp_path / "out.onnx"
    path.write_bytes(b"mine")
    with pytest.raises(FileError, match="exists"):
        optimize(model(), path, fresh=True)
    assert path.read_bytes() == b"mine"
    optimize(model(), path, fresh=True, force=True)
    assert "ConvTranspose" not in kinds(onnx.load(path))


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    with pytest.raises(FileError, match="input"):
        optimize(path, path, force=True)
    assert onnx.load(path) == model()


def test_an_interruption_leaves_no_file(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock(FAST)

    def interrupt(*args: object, **kwargs: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(select.Selecting, "compare", interrupt)
    with pytest.raises(KeyboardInterrupt):
        optimize(model(), tmp_path / "out.onnx", fresh=True)
    assert not list(tmp_path.iterdir())


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"runtime": "tensorrt"}, "runtime is 'tensorrt'; expected one of onnxruntime"),
        ({"sizes": []}, "sizes is an empty sequence"),
        ({"threads": 0}, "threads is 0"),
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": "fast"}, "seconds is 'fast'"),
        ({"sizes": {"z": (1,)}}, "z"),
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
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    found = optimize(onnx.parser.parse_model(text), tmp_path / "out.onnx")
    assert "no ConvTranspose" in found.verdict
    assert kinds(onnx.load(tmp_path / "out.onnx")) == ["Neg"]


def test_a_hostile_stride_is_refused_at_once() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 1, 2, 2] x) => (float[1, 1, N, M] y) <float[1, 1, 1, 1] w = {1}>
    { y = ConvTranspose <strides = [1099511627776, 2]> (x, w) }"""
    steps = rewrite(onnx.parser.parse_model(text), list(PASSES)).steps
    refused = [step for step in steps if step.by.startswith("sub_pixel")]
    assert len(refused) == 4
    assert all("phases" in str(step.refusal) for step in refused)


def test_json_has_null_for_what_is_no_number(clock: Clock) -> None:
    clock({})
    lost = replace(CHECKED[0], error=float("inf"))
    found = replace(optimize(model(), fresh=True), checks=(lost,))
    assert found.as_json()["checks"][0]["error"] is None
