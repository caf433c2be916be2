"""Decisions of sessions: saved, applied, refused where they hold for something else."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="sessions run in it")

import onnx

from tests.support.front_end_reports import unsealed
from tests.support.onnx_sessions import decoder, image, measure_once, plain, same
from tests.support.onnx_texts import parsed
from upconv import front_end_reports, measuring
from upconv.errors import ArgumentError, FileError
from upconv.onnx import Session
from upconv.onnx.models import digest, from_model

SHAPES = {"input_shapes": {"x": (1, 16, 4, 4)}}


@pytest.fixture(scope="module")
def source() -> onnx.ModelProto:
    return decoder()


@pytest.fixture(scope="module")
def measured(source: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of measured decisions."""
    path = tmp_path_factory.mktemp("measured") / "decisions.json"
    with pytest.MonkeyPatch.context() as patch:
        measure_once(patch)
        Session(source, threads=2, **SHAPES).report().save(path)
    return path


@pytest.fixture
def saved(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; whatever measures after it fails."""
    monkeypatch.setattr(measuring, "sampled", None)
    return Path(shutil.copy(measured, tmp_path))


def test_saved_decisions_are_applied_without_measuring(
    source: onnx.ModelProto, saved: Path
) -> None:
    session = Session(source, threads=2, decisions=saved, **SHAPES)
    report = session.report()
    assert not report.why
    assert any(row.upconv for row in report.rows)
    content = unsealed(saved)
    assert content | report.as_json() == content
    assert content["format"] == "upconv report"
    same(session.run(None, feeds := image()), plain(source, feeds))


def test_decisions_need_no_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this input not even the number of axes is known."""
    source = parsed("""g (float x) => (float y)
    <float[1, 1, 2] w = {1, 2}> { y = ConvTranspose <strides = [2]> (x, w) }""")
    source.graph.input[0].type.tensor_type.ClearField("shape")
    measure_once(monkeypatch)
    first = Session(source, input_shapes={"x": (1, 1, 3)}).report()
    first.save(tmp_path / "d.json")
    assert Session(source, decisions=tmp_path / "d.json").report() == first


def test_a_model_that_onnx_runtime_runs_stays_so(
    source: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_once(monkeypatch, gain=0.5)
    first = Session(source, threads=2, **SHAPES).report()
    first.save(tmp_path / "d.json")
    again = Session(source, threads=2, decisions=tmp_path / "d.json")
    assert again.report() == first
    assert "it is not" in first.why
    same(again.run(None, feeds := image()), plain(source, feeds))


def test_decisions_for_something_else_are_refused_or_measured_again(
    source: onnx.ModelProto, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = unsealed(saved)
    for name in ("processor", "threads", "upconv", "onnxruntime", "model"):
        wrong = right | {"conditions": right["conditions"] | {name: "another"}}
        saved.write_text(json.dumps(wrong))
        said = f"{name} 'another'; expected .* {name} .*remeasure"
        with pytest.raises(ArgumentError, match=said):
            Session(source, threads=2, decisions=saved)
        assert unsealed(saved) == wrong
    measure_once(monkeypatch)
    Session(source, threads=2, decisions=saved, remeasure=True, **SHAPES)
    assert unsealed(saved)["conditions"] == right["conditions"]


def test_decisions_for_other_shapes_are_refused(source: onnx.ModelProto, saved: Path) -> None:
    with pytest.raises(ArgumentError, match=r"shapes .*1, 16, 4, 4.*; expected .*16, 9, 9"):
        Session(source, threads=2, decisions=saved, input_shapes={"x": (1, 16, 9, 9)})


def test_a_missing_file_is_written_where_that_is_asked_for(
    source: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.json"
    with pytest.raises(FileError, match=r"There is no file .*new\.json"):
        Session(source, decisions=path)
    with pytest.raises(FileError, match=r"nowhere.*is not a directory"):  # before it measures
        Session(source, decisions=tmp_path / "nowhere" / "d.json", remeasure=True)
    measure_once(monkeypatch)
    first = Session(source, threads=2, decisions=path, remeasure=True, **SHAPES)
    monkeypatch.setattr(measuring, "sampled", None)
    again = Session(source, threads=2, decisions=path, remeasure=True)
    assert again.report() == first.report()
    assert [each.name for each in tmp_path.iterdir()] == ["new.json"]


def test_damaged_files_are_refused_and_kept(source: onnx.ModelProto, saved: Path) -> None:
    """tests/core/test_front_end_reports.py has more damages."""
    record = unsealed(saved)
    for text in (json.dumps(record)[:-9], json.dumps(record | {"host": "PyTorch"})):
        saved.write_text(text)
        for again in (False, True):
            with pytest.raises(FileError, match=r"Cannot read .*decisions\.json"):
                Session(source, threads=2, decisions=saved, remeasure=again)
        assert saved.read_text() == text


def test_other_layers_and_arguments_are_refused(source: onnx.ModelProto, saved: Path) -> None:
    record = unsealed(saved)
    rows = [record["rows"][0] | {"name": "elsewhere"}, *record["rows"][1:]]
    saved.write_text(json.dumps(record | {"rows": rows}))
    with pytest.raises(ArgumentError, match=r"the parts .*'elsewhere'"):
        Session(source, threads=2, decisions=saved)
    for more in ({"layers": []}, {"measure": False}):
        with pytest.raises(ArgumentError, match="given with decisions; expected one of the two"):
            Session(source, threads=2, decisions=saved, **more)
    with pytest.raises(ArgumentError, match="remeasure is True; expected decisions"):
        Session(source, remeasure=True)


def test_a_model_has_one_digest_however_it_is_given(
    source: onnx.ModelProto, tmp_path: Path
) -> None:
    inside, outside = tmp_path / "inside.onnx", tmp_path / "outside.onnx"
    onnx.save(source, inside)
    copy = onnx.ModelProto.FromString(source.SerializeToString())
    onnx.save(copy, outside, save_as_external_data=True, size_threshold=0)
    forms = (source, source.SerializeToString(), inside, outside, from_model(source))
    assert len({digest(from_model(form)) for form in forms}) == 1
    other = onnx.ModelProto.FromString(source.SerializeToString())
    weight = other.graph.initializer[-1]
    weight.raw_data = weight.raw_data[:-1] + b"\x01"
    assert digest(from_model(other)) != digest(from_model(source))
    other.CopyFrom(source)
    other.graph.node[0].output[0] = other.graph.node[1].input[0] = "renamed"
    assert digest(from_model(other)) != digest(from_model(source))


def test_progress_is_called_or_shown_on_a_terminal(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_once(monkeypatch)
    steps = list[tuple[str, int, int]]()
    Session(source, progress=lambda *step: steps.append(step), **SHAPES)
    assert [(number, of) for _, number, of in steps] == [(1, 15)] * 2
    for terminal in (False, True):
        stderr = io.StringIO()
        stderr.isatty = lambda answer=terminal: answer
        monkeypatch.setattr(sys, "stderr", stderr)
        Session(source, **SHAPES)
        lines = stderr.getvalue().split("\r")
        if terminal:
            assert any(line.startswith("timing the model with parts (1 of") for line in lines)
            assert lines[-2].isspace()  # the line is cleared
        else:
            assert lines == [""]


def test_the_processor_has_the_name_that_doctor_prints() -> None:
    from upconv.tuning import processor_model

    assert front_end_reports.conditions(3)["processor"] == processor_model() != ""
