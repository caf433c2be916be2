"""`upconv optimize`: what it prints and writes, its exit codes, and what it leaves when stopped."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="forms are run in it")
pytest.importorskip("typer", reason="the command line needs typer")

import onnx

from onnx_cases import random_case
from processes import called, failed, ran

QUICK = ("--seconds", "0.01", "--no-float64", "--threads", "1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = random_case(77, rank=2, opset=17)
    onnx.save(case.model, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=case.x)
    return tmp_path


def test_a_model_goes_in_and_a_model_and_a_report_come_out(folder):
    said = ran(
        "optimize", "model.onnx", "-o", "out.onnx", "--inputs", "inputs.npz", "--report", "r.html",
        *QUICK, cwd=folder,
    )  # fmt: skip
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
    said = called("optimize", "model.onnx", "--inputs", "inputs.npz", "--json", *QUICK)
    assert said.returncode == 0, said
    document = json.loads(said.stdout)
    assert document["command"] == "optimize"
    assert document["written"] is None
    [layer] = document["layers"]
    assert layer["node"] == "deconv"
    assert {"original", "sub_pixel:unfolded"} <= {trial["rewriting"] for trial in layer["trials"]}


def test_a_profile_is_obeyed(folder):
    profile = ("--target", "none", "--profile", "npu")
    said = called("optimize", "model.onnx", "-o", "out.onnx", "--inputs", "inputs.npz", *profile)
    assert said.returncode == 0, said
    operators = {node.op_type for node in onnx.load(folder / "out.onnx").graph.node}
    assert "ConvTranspose" not in operators


def test_a_profile_that_is_broken_is_a_finding(folder):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 2, 5] x, float[2, 1, 3] w) => (float[1, 1, 7] y) { y = ConvTranspose(x, w) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "fed.onnx")
    said = called("optimize", "fed.onnx", "--target", "none", "--profile", "npu")
    assert said.returncode == 1, said
    assert "not constant" in " ".join(said.stdout.decode().split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("none.onnx",), 2, "No such file"),
        (("model.onnx", "-o", "model.onnx", "--force"), 2, "input"),
        (("model.onnx", "-o", "inputs.npz"), 2, "exists. Overwrite it with --force."),
        (("model.onnx", "-o", "inputs.npz", "--inputs", "inputs.npz", "--force"), 2, "input"),
        (("model.onnx", "-o", "a.onnx", "--report", "nowhere/r.html"), 2, "Make it first"),
        (("model.onnx", "-o", "a.onnx", "--report", "folder.html", "--force"), 2, "directory"),
        (("outside.onnx", "--report", "w.html", "--force"), 2, "input"),
        (("outside.onnx", "-o", "w.html", "--force"), 2, "input"),
        (("page.html", "-o", "a.onnx", "--report", "page.html", "--force"), 2, "input"),
        (("page.html", "-o", "a.onnx", "--report", "linked.html", "--force"), 2, "input"),
        (("model.onnx", "--report", "inputs.npz"), 2, ".html"),
        (("model.onnx", "-o", "a.html", "--report", "a.html"), 2, "output"),
        (("model.onnx", "--target", "tensorrt"), 2, "one of onnxruntime"),
        (("model.onnx", "--target", "none"), 2, "profile"),
        (("model.onnx", "--profile", "fast"), 2, "one or more of"),
        (("model.onnx", "--seconds", "0"), 2, "seconds"),
        (("model.onnx", "--size", "x"), 2, "NAME=SIZES"),
        (("model.onnx", "--inputs", "model.onnx"), 2, "zip"),
        (("inputs.npz",), 2, "no ONNX model"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(folder, arguments, code, words):
    (folder / "folder.html").mkdir()
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, folder / "page.html", format="protobuf")
    (folder / "linked.html").symlink_to("page.html")
    onnx.save(model, folder / "outside.onnx", save_as_external_data=True, location="w.html",
              size_threshold=0)  # fmt: skip
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    said = called("optimize", *QUICK, *arguments)
    if code == 2:
        assert said.returncode == 2
        assert words in " ".join(said.stderr.decode().split())
    else:
        assert words in failed(said, code)
    after = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


STOPPED = """
import os, signal
from upconv.onnx.optimizing import work
def compare(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
work.Work.prove = compare
from upconv.onnx.optimizing import measuring, settling
measuring.choose = lambda trials: measuring.Choice(trials[1].rewriting, "")
"""


def test_ctrl_c_leaves_no_file(folder):
    arguments = ("optimize", "model.onnx", "-o", "out.onnx", "--inputs", "inputs.npz", *QUICK)
    said = ran(*arguments, driver=STOPPED, cwd=folder)
    assert said.returncode == 130, said
    assert said.stderr.decode().endswith("interrupted\n")
    assert sorted(path.name for path in folder.iterdir()) == ["inputs.npz", "model.onnx"]
