"""`upconv optimize`: what it prints and writes, its exit codes, and what it leaves when stopped."""

import json
import os
import signal

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="forms are run in it")
pytest.importorskip("typer", reason="the command line needs typer")

import onnx

from tests.support.onnx_cases import random_case
from tests.support.processes import called
from upconv.onnx import Session, optimizing
from upconv.onnx.optimizing import select

QUICK = ("--seconds", "0.01", "--no-float64", "--threads", "1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = random_case(77, rank=2, opset=17)
    onnx.save(case.model, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=case.x)
    return tmp_path


def test_a_model_goes_in_and_a_model_and_a_report_come_out(folder):
    how = ("--inputs", "inputs.npz", "--report", "r.html")
    said = called("optimize", "model.onnx", "out.onnx", *how, *QUICK)
    assert said.returncode == 0, said
    text = said.stdout.decode()
    assert "deconv" in text
    assert "onnxruntime" in text
    assert said.stderr.decode().splitlines()[-1].endswith("out.onnx")
    onnx.checker.check_model(onnx.load(folder / "out.onnx"), full_check=True)
    assert (folder / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in folder.iterdir()) == [
        "inputs.npz", "model.onnx", "out.onnx", "r.html",
    ]  # fmt: skip


def test_json_is_one_document_with_everything_that_was_tried(folder):
    how = ("--dry-run", "--inputs", "inputs.npz", "--output-format", "json")
    said = called("optimize", "model.onnx", *how, *QUICK)
    assert said.returncode == 0, said
    document = json.loads(said.stdout)
    assert document["command"] == "optimize"
    assert document["written"] is None
    [layer] = document["layers"]
    assert layer["node"] == "deconv"
    assert {"original", "sub_pixel:unfolded"} <= {one["passes"] for one in layer["candidates"]}
    assert sorted(path.name for path in folder.iterdir()) == ["inputs.npz", "model.onnx"]


def test_several_shapes_a_json_report_and_a_session_report(folder):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 2, N] x) => (float[1, 1, M] y) <float[2, 1, 2] w = {1, 2, 3, 4}>
    { y = ConvTranspose <strides = [2]> (x, w) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "open.onnx")
    shapes = ("--input-shape", "N:5", "--input-shape", "N:9")
    reports = ("--report", "r.json", "--session", "s.json")
    said = called("optimize", "open.onnx", "out.onnx", *shapes, *reports, *QUICK)
    assert said.returncode == 0, said
    told = json.loads((folder / "r.json").read_text())
    assert told["inputs"] == [{"x": [1, 2, 5]}, {"x": [1, 2, 9]}]
    assert told["layers"][0]["shapes"] == [[1, 2, 5], [1, 2, 9]]
    saved = json.loads((folder / "s.json").read_text())
    assert told["session"].items() <= saved.items()
    session = Session(folder / "open.onnx", threads=1, decisions=folder / "s.json")
    assert session.report().as_json() == told["session"]
    assert told["written"].endswith("out.onnx")


def test_without_a_place_for_the_result_it_ends_at_once(folder):
    said = called("optimize", "model.onnx", "--seconds", "3600")
    assert said.returncode == 2
    assert "--dry-run" in said.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.onnx", "--dry-run"), "No such file"),
        (("model.onnx", "model.onnx", "--force"), "input"),
        (("model.onnx", "inputs.npz"), "exists. Overwrite it with --force."),
        (("model.onnx", "inputs.npz", "--inputs", "inputs.npz", "-f"), "input"),
        (("model.onnx", "a.onnx", "--report", "nowhere/r.html"), "Create it first"),
        (("model.onnx", "a.onnx", "--report", "folder.html", "--force"), "directory"),
        (("outside.onnx", "--dry-run", "--report", "w.html", "--force"), "input"),
        (("outside.onnx", "w.html", "--force"), "input"),
        (("page.html", "a.onnx", "--report", "page.html", "--force"), "input"),
        (("page.html", "a.onnx", "--report", "linked.html", "--force"), "input"),
        (("model.onnx", "a.onnx", "--report", "inputs.npz"), ".html"),
        (("model.onnx", "a.onnx", "--session", "s.html"), ".json"),
        (("model.onnx", "a.html", "--report", "a.html"), "written twice"),
        (("model.onnx", "a.onnx", "--runtime", "tensorrt"), "one of onnxruntime"),
        (("model.onnx", "a.onnx", "--runtime", "onnxruntime:CUDA"), "pip install"),
        (("model.onnx", "a.onnx", "--seconds", "0"), "seconds"),
        (("model.onnx", "a.onnx", "--input-shape", "x"), "NAME:SIZES"),
        (
            ("model.onnx", "a.onnx", *("--input-shape", "x:1") * 2, *("--input-shape", "y:1") * 3),
            "2 shapes",
        ),
        (("model.onnx", "a.onnx", "--inputs", "model.onnx"), ".npz of numbers"),
        (
            ("model.onnx", "a.onnx", "--inputs", "named.npz"),
            "--inputs is given for 'data'; expected the model's inputs: 'x'.",
        ),
        (("inputs.npz", "--dry-run"), "not an ONNX model"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(folder, arguments, words):
    (folder / "folder.html").mkdir()
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, folder / "page.html", format="protobuf")
    (folder / "linked.html").symlink_to("page.html")
    np.savez(folder / "named.npz", data=np.ones(3, np.float32))
    onnx.save(model, folder / "outside.onnx", save_as_external_data=True, location="w.html",
              size_threshold=0)  # fmt: skip
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    said = called("optimize", *QUICK, *arguments)
    assert said.returncode == 2
    assert words in " ".join(said.stderr.decode().split())
    after = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


def test_ctrl_c_leaves_no_file(folder, monkeypatch):
    """Planted where the chosen form is about to be checked."""
    monkeypatch.setattr(optimizing, "choose", lambda found: (found[1].passes, ""))
    interrupt = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(select.Selecting, "check", interrupt)
    said = called("optimize", "model.onnx", "out.onnx", "--inputs", "inputs.npz", *QUICK)
    assert said.returncode == 130, said
    assert said.stderr.decode().endswith("interrupted\n")
    assert sorted(path.name for path in folder.iterdir()) == ["inputs.npz", "model.onnx"]
