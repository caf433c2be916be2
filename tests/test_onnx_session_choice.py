"""Sessions: what is measured and reported, errors, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="sessions run in it")

import onnx

from onnx_sessions import decoder, image, model, plain, same
from upconv.errors import (
    ArgumentError,
    DTypeError,
    EngineError,
    EngineRefusal,
    FileError,
    ShapeError,
)
from upconv.onnx import Session
from upconv.onnx.runtimes.timing import Rounds
from upconv.onnx.session import choosing, layers


@pytest.fixture(scope="module")
def source() -> onnx.ModelProto:
    return decoder()


@pytest.fixture
def session(source: onnx.ModelProto) -> Session:
    return Session(source, threads=2, measure=False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure hardly at all."""

    def once(calls: Any, _: float) -> Rounds:
        for call in calls:
            call()
        return Rounds(tuple([1 / (1 + i)] for i in range(len(calls))), [1.0])

    monkeypatch.setattr(choosing, "interleaved", once)


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
    json.dumps(report.as_json())
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
        (
            ["nothing"],
            image(),
            ArgumentError,
            "['nothing']; expected a list of some of 'y', 'skip'",
        ),
        ("y", image(), ArgumentError, "a list of some"),
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
    with pytest.raises(FileError, match="Cannot read"):
        Session(source, decisions=tmp_path / "none.json")
    with pytest.raises(ArgumentError, match="feeds"):
        Session(source, feeds=[])
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.run(None, image())
    text = '<ir_version: 8, opset_import: ["": 17, "n": 1]> g (float[2] x) => (float[2] y)'
    with pytest.raises(EngineRefusal, match="failed"):
        Session(model(text + "{ y = n.Other(x) }"))


# Endings ------------------------------------------------------------------------------------------


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


INTERRUPTED = """
import os, random, signal, sys, threading, time
sys.path.insert(0, {tests!r})
import numpy as np
from onnx_sessions import decoder, image
from upconv.onnx import Session
session, feeds = Session(decoder(), measure=False), image(1, 50, 50)
wanted, found = session.run(None, feeds), 0

def interrupt():
    for _ in range(100):
        time.sleep(0.01 * random.random())
        os.kill(os.getpid(), signal.SIGINT)

thread = threading.Thread(target=interrupt)
signal.signal(signal.SIGINT, lambda *_: None)
thread.start()
signal.signal(signal.SIGINT, signal.default_int_handler)
while thread.is_alive():
    try:
        while thread.is_alive():
            results = session.run(None, feeds)
            assert all(np.array_equal(y, z) for y, z in zip(results, wanted))
    except KeyboardInterrupt:
        found += 1
signal.signal(signal.SIGINT, lambda *_: None)
assert found > 10
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is not sent like this")
def test_interrupts_end_runs_and_nothing_else() -> None:
    code = INTERRUPTED.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


ENDING = """
import sys, threading, time
sys.path.insert(0, {tests!r})
from onnx_sessions import decoder, image
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
