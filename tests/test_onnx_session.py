"""Sessions: the values of ONNX Runtime, whatever runs where, and errors in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="sessions run in it")
pytest.importorskip("llvmlite", reason="layers are computed by the JIT engine")

import onnx
import onnxruntime

from onnx_cases import random_case
from upconv.errors import ArgumentError, DTypeError, EngineError, EngineRefusal, ShapeError
from upconv.onnx import Session
from upconv.onnx.session import LayerReport, Report, choosing, layers, operators

RNG = np.random.default_rng(7)

BODY = """<ir_version: 8, opset_import: ["": 17]>
decoder (float[N, 16, H, W] x) => (float[N, 4, U, V] y, float[N, 8, A, B] skip)
<float[4, 1, 1] slopes = {0.0, 0.5, 1.5, -0.25}, float[1] slope = {0.2}>
{
  a = Conv <pads = [1, 1, 1, 1]> (x, w0)
  skip = PRelu(a, slope)
  b = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (skip, w1, b1)
  c = LeakyRelu <alpha = 0.1> (b)
  d = Sin(c)
  e = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (d, w2)
  f = PRelu(e, slopes)
  g = BatchNormalization(f, one, one, one, one)
  h = ConvTranspose <group = 2, strides = [1, 2]> (g, w3)
  y = Tanh(h)
}"""


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def model(text: str = BODY, **weights: np.ndarray) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
    return made


def decoder() -> onnx.ModelProto:
    shapes = {"w0": (8, 16, 3, 3), "w1": (8, 6, 4, 4), "w2": (6, 4, 5, 3), "w3": (4, 2, 3, 2)}
    weights = {name: weight(*shape) for name, shape in shapes.items()}
    return model(**weights, b1=weight(6), one=np.ones(4, np.float32))


def plain(source: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(source.SerializeToString(), options).run(None, feeds)


def same(found: list[Any], wanted: list[Any], tolerance: float = 2e-5) -> None:
    for y, z in zip(found, wanted, strict=True):
        assert y.shape == z.shape
        assert y.dtype == z.dtype
        np.testing.assert_allclose(y, z, 0, tolerance * max(1.0, float(np.abs(z).max(initial=0))))


@pytest.fixture(scope="module")
def source() -> onnx.ModelProto:
    return decoder()


@pytest.fixture
def session(source: onnx.ModelProto) -> Session:
    return Session(source, threads=2, measure=False)


def image(n: int = 1, height: int = 5, width: int = 7) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((n, 16, height, width), np.float32)}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure hardly at all."""
    monkeypatch.setattr(choosing, "_SECONDS", 0.0)
    monkeypatch.setattr(choosing, "_ROUNDS", (1, 1))
    monkeypatch.setattr(choosing, "rest", lambda: None)


# Values -------------------------------------------------------------------------------------------


def test_a_model_has_the_values_of_onnx_runtime(source: onnx.ModelProto, session: Session) -> None:
    feeds = image()
    same(session.run(None, feeds), plain(source, feeds))
    [skip] = session.run(["skip"], feeds)
    np.testing.assert_allclose(skip, plain(source, feeds)[1], 1e-5, 1e-5)
    kinds = [each.kind for each in session.layers if each.upconv]
    assert kinds == ["ConvTranspose + leaky_relu", "ConvTranspose + prelu", "ConvTranspose + tanh"]


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_random_models_have_the_values_of_onnx_runtime(first: int) -> None:
    met = 0
    for seed in range(first, first + 25):
        case = random_case(seed, opset=13 + seed % 10)
        try:
            wanted = plain(case.model, {"x": case.x})
        except Exception:  # ONNX Runtime refuses it
            with pytest.raises((EngineError, ArgumentError)):
                Session(case.model).run(None, {"x": case.x})
            continue
        found = Session(case.model, measure=False)
        met += any(each.upconv for each in found.layers)
        same(found.run(None, {"x": case.x}), wanted)
    assert met >= 15


def test_all_layers_and_none_compute_the_same(source: onnx.ModelProto) -> None:
    """Conv too, by decisions; and a model without a layer."""
    wanted = plain(source, feeds := image())
    report = Session(source, measure=False).report().as_json()
    for ours in (True, False):
        rows = [{**row, "upconv": ours} for row in report["layers"]]
        made = Session(source, decisions={**report, "layers": rows})
        same(made.run(None, feeds), wanted)
        assert sum(each.upconv for each in made.layers) == (4 if ours else 0)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    nothing = Session(model(text))
    assert nothing.report().runs == "onnxruntime"
    assert nothing.run(None, {"x": np.float32([1, 2])})[0].tolist() == [-1, -2]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types_that_onnx_runtime_has_no_kernel_for(dtype: str) -> None:
    kind = {"float64": "double"}.get(dtype, dtype)
    text = f"""<ir_version: 10, opset_import: ["": 22]> g ({kind}[N, 3, L] x) => ({kind}[N, 2, M] y)
    {{ y = ConvTranspose <strides = [2]> (x, w) }}"""
    import ml_dtypes  # noqa: F401  # NumPy's name bfloat16

    w, x = weight(3, 2, 4).astype(dtype), weight(2, 3, 9).astype(dtype)
    made = model(text)
    tensor = onnx.helper.make_tensor(
        "w", made.graph.input[0].type.tensor_type.elem_type, w.shape, w.tobytes(), raw=True
    )
    made.graph.initializer.append(tensor)
    found = Session(made, measure=False)
    [y] = found.run(None, {"x": x})
    assert found.layers[0].upconv
    from upconv import conv_transpose

    assert y.dtype == x.dtype
    assert np.array_equal(y, conv_transpose(x, w, stride=2))


def test_what_is_no_tensor_of_numbers_stays_onnx_runtimes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (seq(float[1, 1, 3]) s) => (float[1, 1, 6] y) <int64 zero = {0}>
    { x = SequenceAt(s, zero) y = ConvTranspose <strides = [2]> (x, w) }"""
    x, w = weight(1, 1, 3), weight(1, 1, 2)
    found = Session(model(text, w=w))
    assert "'s' is not a tensor" in found.report().why
    assert [each.type for each in found.get_inputs()] == ["seq(tensor(float))"]
    np.testing.assert_allclose(found.run(None, {"s": [x]})[0].sum(), x.sum() * w.sum(), rtol=1e-4)


def test_layers_that_are_not_ours() -> None:
    """In a branch; with a weight that is fed, dequantised or overridable."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 1, 3] x, float[1, 1, 2] fed, bool choose) => (float[1, 1, 4] y, float[1, 1, 4] z)
    <int8[1, 1, 2] q = {3, 4}, float scale = {0.5}>
    {
      y = ConvTranspose(x, fed)
      d = DequantizeLinear(q, scale)
      e = ConvTranspose(x, d)
      z = If (choose) <
        then_branch = yes () => (float[1, 1, 4] t) { t = ConvTranspose(x, w) },
        else_branch = no () => (float[1, 1, 4] n) { n = Identity(e) }
      >
    }"""
    made = model(text, w=weight(1, 1, 2))
    found = Session(made, measure=False)
    assert found.layers == ()
    feeds = {"x": weight(1, 1, 3), "fed": weight(1, 1, 2), "choose": np.array(True)}
    same(found.run(None, feeds), plain(made, feeds))


# As ONNX Runtime's --------------------------------------------------------------------------------


def test_inputs_and_outputs_are_told_as_onnx_runtime_tells_them(
    source: onnx.ModelProto, session: Session
) -> None:
    theirs = onnxruntime.InferenceSession(source.SerializeToString())
    for ours, others in (
        (session.get_inputs(), theirs.get_inputs()),
        (session.get_outputs(), theirs.get_outputs()),
    ):
        assert [(a.name, a.type, a.shape) for a in ours] == [
            (a.name, a.type, a.shape) for a in others
        ]


def test_results_are_the_callers_own(session: Session) -> None:
    feeds = image()
    first = session.run(None, feeds)
    kept = [each.copy() for each in first]
    second = session.run(None, image())
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))
    assert not any(np.shares_memory(a, b) for a in first for b in second)
    first[0][...] = 0  # writable
    session.close()
    del session
    assert np.isfinite(kept[0] + second[0]).all()
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)'
    text += " { y = Identity(x) }"
    x = np.float32([1, 2])
    assert not np.shares_memory(Session(model(text)).run(None, {"x": x})[0], x)


def test_shapes_change_without_packing_again(
    source: onnx.ModelProto, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    original = layers.plan
    monkeypatch.setattr(layers, "plan", lambda *a, **k: made.append(a[0]) or original(*a, **k))
    rounds = [image(n, height, 6) for n, height in ((1, 4), (2, 5), (1, 9))]
    wanted = [plain(source, feeds) for feeds in rounds]
    for _ in range(3):
        for feeds, values in zip(rounds, wanted, strict=True):
            same(session.run(None, feeds), values)
    assert len(made) == 3 * 3
    for height in range(3, 3 + 2 * operators._MOST_PLANS):
        session.run(None, image(1, height))
    assert len(made) == 3 * 3 + 3 * 2 * operators._MOST_PLANS


def test_many_threads_run_at_once(source: onnx.ModelProto, session: Session) -> None:
    cases = [image(1, 3 + i, 6) for i in range(8)]
    wanted, wrong = [plain(source, feeds) for feeds in cases], []

    def work(i: int) -> None:
        try:
            for _ in range(20):
                same(session.run(None, cases[i]), wanted[i])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_is_told_to_make_its_own(session: Session) -> None:
    child = os.fork()
    if not child:
        try:
            session.run(None, image())
        except EngineError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


# Measuring ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_what_was_measured_is_reported_and_used_again(
    source: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "GAIN", 100.0)
    shapes = [{"x": (1, 16, 4, 4)}, {"H": (6,), "W": (3,)}]
    first = Session(source, threads=2, input_shapes=shapes)
    report = first.report()
    assert report.runs == "upconv"
    assert report.shapes == ({"x": (1, 16, 4, 4)}, {"x": (1, 16, 6, 3)})
    assert all(each.after is not None for each in first.layers)
    assert any(each.before is not None for each in first.layers)
    assert "ms in upconv" in str(report)
    report.save(tmp_path / "report.json")
    monkeypatch.setattr(choosing, "interleaved", None)  # nothing is measured
    for decisions in (report, report.as_json(), tmp_path / "report.json"):
        again = Session(source, decisions=decisions)
        assert [each.upconv for each in again.layers] == [each.upconv for each in first.layers]
    same(again.run(None, feeds := image()), plain(source, feeds))


@pytest.mark.usefixtures("quick")
def test_a_model_that_is_not_faster_stays(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "GAIN", 0.0)
    found = Session(source)
    assert found.report().runs == "onnxruntime"
    assert "not faster" in found.report().why
    assert not any(each.upconv for each in found.layers)
    assert "runs the model as it is" in str(found.report())
    same(found.run(None, feeds := image()), plain(source, feeds))


@pytest.mark.usefixtures("quick")
def test_a_layer_that_computes_something_else_is_reverted(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "GAIN", 100.0)
    original = layers.plan

    def wrong(shape: Any, w: Any, *rest: Any, **keywords: Any) -> Any:
        return original(shape, w * 1.01, *rest, **keywords)

    monkeypatch.setattr(layers, "plan", wrong)
    found = Session(source)
    assert not any(each.upconv for each in found.layers if "Transpose" in each.kind)
    assert any("is another with it" in each.why for each in found.layers)
    same(found.run(None, feeds := image()), plain(source, feeds))


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "feeds", "kind", "said"),
    [
        (None, {}, ArgumentError, "feeds['x'] is missing"),
        (None, None, ArgumentError, "a dict of arrays"),
        (None, {"x": image()["x"], "z": 1}, ArgumentError, "with 'z'"),
        (None, {"x": np.zeros((1, 16, 5, 5))}, DTypeError, "float64; expected float32"),
        (None, {"x": np.zeros((1, 3, 5, 5), np.float32)}, ShapeError, "(1, 3, 5, 5)"),
        (None, {"x": np.zeros((16, 5, 5), np.float32)}, ShapeError, "(16, 5, 5)"),
        (["nothing"], image(), ArgumentError, "with 'nothing'; expected some of 'y', 'skip'"),
        ("y", image(), ArgumentError, "a list of names"),
    ],
)
def test_wrong_calls(
    session: Session, names: Any, feeds: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught:
        session.run(names, feeds)
    assert said in str(caught.value)


def test_wrong_sessions(source: onnx.ModelProto, session: Session, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="threads"):
        Session(source, threads=0)
    with pytest.raises(ArgumentError, match="input_shapes"):
        Session(source, input_shapes=[3])
    with pytest.raises(ArgumentError, match="one of the two"):
        Session(source, input_shapes={"x": (1, 16, 3, 3)}, feeds=image())
    report = session.report().as_json()
    (tmp_path / "bad.json").write_text("{")
    other = {**report, "layers": [{**report["layers"][0], "output": "elsewhere"}]}
    for decisions in (tmp_path / "bad.json", {}, other, {**report, "version": 9}):
        with pytest.raises(ArgumentError, match="decisions"):
            Session(source, decisions=decisions)
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.run(None, image())
    text = '<ir_version: 8, opset_import: ["": 17, "n": 1]> g (float[2] x) => (float[2] y)'
    with pytest.raises(EngineRefusal, match="failed"):
        Session(model(text + "{ y = n.Other(x) }"))


def test_an_interrupt_ends_a_run(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    feeds = image()
    wanted = session.run(None, feeds)
    with monkeypatch.context() as patch:
        patch.setattr(operators.Kernel, "compute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(None, feeds)
    same(session.run(None, feeds), wanted)


ENDING = """
import sys, threading, time
sys.path.insert(0, {tests!r})
from test_onnx_session import decoder, image
from upconv.onnx import Session
session, feeds = Session(decoder(), measure=False), image()

def forever():
    while True:
        session.run(None, feeds)

threading.excepthook = lambda *_: None
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
kept = session.run(None, feeds)
"""


def test_the_interpreter_ends_while_a_session_runs() -> None:
    code = ENDING.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_report_is_plain() -> None:
    row = LayerReport("up", "y", "ConvTranspose", (1, 1, 2), why="not faster")
    assert (
        json.loads(json.dumps(Report("upconv", "", (row,)).as_json()))["layers"][0]["name"] == "up"
    )
