"""The optimiser: it keeps what is faster and equal, and nothing else.

Times are made up where a decision is tested; the clock decides nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from upconv.onnx.optimizing import layers, settling, trials, work
from upconv.onnx.optimizing.choosing import LEAST_GAIN, choose
from upconv.onnx.optimizing.results import ORIGINAL, OutputProof, Ratio, Timing, Trial
from upconv.onnx.optimizing.rounds import Rounds, timed
from upconv.onnx.passes import PASSES, SubPixelPass
from upconv.onnx.runtimes import ready

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


def test_what_is_faster_is_kept_and_proven(clock: Clock) -> None:
    clock(FAST)
    before = model()
    found = optimize(before, fresh=True)
    assert [layer.chosen for layer in found.layers] == ["sub_pixel:unfolded"] * 2
    assert found.proven
    assert {proof.evaluated_by for proof in found.proofs} == {"onnxruntime", "float64"}
    assert found.whole is not None
    assert found.whole.ratio.median == pytest.approx(1 / 0.7)
    assert "2 of 2 deconvolutions rewritten" in found.verdict
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
    assert found.whole is None
    assert "stays as it is" in found.verdict
    assert plain(onnx.load(tmp_path / "out.onnx")) == unchanged()


def test_a_gain_within_the_noise_is_none() -> None:
    second = Timing(1.0, 1.0, 1.0, 1.0, 9)
    original = Trial(ORIGINAL, timing=second)
    for low, chosen in ((LEAST_GAIN - 0.01, ORIGINAL), (LEAST_GAIN + 0.01, "form")):
        trial = Trial("form", timing=second, ratio=Ratio(1.2, low, 1.4))
        assert choose([original, trial]).form == chosen


def test_of_several_the_surest_gain_wins() -> None:
    second = Timing(1.0, 1.0, 1.0, 1.0, 9)
    sure = Trial("sure", timing=second, ratio=Ratio(1.3, 1.25, 1.35))
    wild = Trial("wild", timing=second, ratio=Ratio(1.5, 1.1, 1.9))
    assert choose([Trial(ORIGINAL, timing=second), wild, sure]).form == "sure"


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

    rounds = timed([call("a", 0.001), call("b", 0.001), call("slow", 0.02)], 0.001)
    assert len(rounds.samples[0]) == len(rounds.samples[1]) == len(rounds.again) == 5
    assert len(rounds.samples[2]) == 3
    assert all(0.001 <= s < 0.02 for s in rounds.samples[0])
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns[3:9] == ["a", "b", "slow", "a", "b", "slow"]


# Faults planted ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flawed:
    """The sub-pixel rewriting with a weight that is a little wrong."""

    name: str = "flawed"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        return SubPixelPass().refuses(site)

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        array = site.array.copy()
        array.flat[0] += 0.01
        wrong = replace(site, weight=replace(site.weight, array=array))
        SubPixelPass().rewrite(wrong, builder)


@pytest.fixture
def flawed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PASSES, "flawed", Flawed())
    monkeypatch.setattr(trials, "FORMS", ("flawed", "sub_pixel:unfolded"))


@pytest.mark.usefixtures("flawed")
def test_a_form_with_wrong_values_is_never_timed(clock: Clock) -> None:
    clock({"flawed": 0.1, **FAST})
    found = optimize(model(), fresh=True)
    for layer in found.layers:
        trial = layer.trial("flawed")
        assert trial is not None
        assert trial.timing is None
        assert "off by" in str(trial.refusal)
        assert layer.chosen == "sub_pixel:unfolded"


@pytest.mark.usefixtures("flawed")
def test_a_layer_that_the_whole_is_not_equal_with_goes_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_allowed", lambda layer: 1.0)  # the check of single layers fails
    clock({"flawed": 0.1, "whole": 0.5})
    found = optimize(model(), fresh=True)
    assert not found.rewritten
    assert plain(found.proto) == unchanged()
    assert sum("goes back" in remark for remark in found.remarks) == 2
    for remark in found.remarks:  # and why
        assert "not proven equal: in onnxruntime 'y' is off by 0.0" in remark
        assert remark.endswith(", and 1 more differ.")  # in float64
    assert "not proven equal" in found.verdict or "stays as it is" in found.verdict


def test_a_whole_that_is_slower_takes_layers_up_one_by_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(FAST)
    times = iter([0.9, 1.2, 0.9, 1.2])  # together slower; the first faster, the second not; final

    def compare(*args: object, **kwargs: object) -> object:
        ratio = next(times)
        second = Timing(1.0, 1.0, 1.0, 1.0, 9)
        return settling.WholeResult(second, second, Ratio(ratio, ratio, ratio))

    monkeypatch.setattr(work, "compared", compare)
    found = optimize(model(), fresh=True)
    assert len(found.rewritten) == 1
    [back] = [layer for layer in found.layers if not layer.rewritten]
    assert back.why.startswith("not kept in the whole model")
    assert kinds(found.proto).count("ConvTranspose") == 1


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
    prepared = ir.from_proto(proto)
    layers.mark(prepared)
    given = {"x": np.zeros((1, 3, 9, 11), np.float32)}
    found = layers.alone(prepared, ready("onnxruntime"), given, Rule.ONNXRUNTIME)
    assert [one.shape for one in found] == [(1, 3, 9, 11), (1, 4, 18, 22)]
    assert [axis.out for axis in found[1].site.axes] == [40, 48]


def test_what_was_measured_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = random_case(77, rank=2).model
    first = optimize(proto, seconds=0.01, float64=False, fresh=True)
    monkeypatch.setattr(trials, "timed", None)  # whoever measures now fails
    again = optimize(proto, seconds=0.01, float64=False)
    assert all(not trial.remembered for layer in first.layers for trial in layer.trials)
    timed_ = [t for layer in again.layers for t in layer.trials if t.timing]
    assert timed_
    assert all(trial.remembered for trial in timed_)
    assert [t.timing for t in first.layers[0].trials if t.timing] == [t.timing for t in timed_]


def test_the_result_is_plain_json(clock: Clock) -> None:
    clock(FAST)
    document = json.loads(json.dumps(optimize(model(), fresh=True).as_json(), allow_nan=False))
    assert document["schema"] == 1
    assert document["layers"][0]["axes"][0]["stride"] == 2
    assert document["deconvolutions"]["after"] == pytest.approx(1.0)
    assert "proto" not in document


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
        optimize(path, path, force=True, target="none", profile="npu")
    assert onnx.load(path) == model()


def test_an_interruption_leaves_no_file(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock(FAST)

    def interrupt(*args: object, **kwargs: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "compared", interrupt)
    with pytest.raises(KeyboardInterrupt):
        optimize(model(), tmp_path / "out.onnx", fresh=True)
    assert not list(tmp_path.iterdir())


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"target": "tensorrt"}, "target is 'tensorrt'; expected one of onnxruntime"),
        ({"target": "none"}, "profile is None"),
        ({"profile": "no-such"}, "profile is 'no-such'; expected one or more of plain"),
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


def test_json_has_null_for_what_is_no_number() -> None:
    proof = OutputProof("y", "onnxruntime", "float32", float("inf"), 0.0, equal=False)
    found = replace(optimize(model(), target="none", profile="npu"), proofs=(proof,))
    assert found.as_json()["proofs"][0]["error"] is None
