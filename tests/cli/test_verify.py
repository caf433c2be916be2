"""`upconv verify`: what it prints, its exit codes, and what it makes of names out of models."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("typer", reason="the command line needs typer")

import onnx

from tests.support.onnx_texts import flipped, parsed, three
from tests.support.processes import called, failed
from upconv.onnx.runtimes import RUNTIMES

HERE = [n for n in ("onnxruntime", "openvino", "reference") if RUNTIMES[n].missing() is None]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(three(), tmp_path / "a.onnx")
    onnx.save(three(**flipped(2)), tmp_path / "b.onnx")
    return tmp_path


@pytest.mark.peers
def test_the_command_says_equal(folder):
    runtimes = [word for name in HERE for word in ("--runtime", name)]
    done = called("verify", "a.onnx", "a.onnx", *runtimes, "--input-shape", "W:9")
    assert done.returncode == 0, done
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["runtime", "output", "made", "by", "shape", "against",
                                "error", "allowed", "verdict"]  # fmt: skip
    for name, line in zip(HERE, lines[1 : 1 + len(HERE)], strict=True):
        assert line.split()[:2] == [name, "y"]
        assert "ConvTranspose node of y" in line
        assert "1x4x82" in line
        assert line.endswith("equal")
    assert done.stderr == b""


def test_the_command_names_the_layer_that_differs(folder):
    done = called("verify", "a.onnx", "b.onnx", "--runtime", "reference")
    assert done.returncode == 1, done
    text = done.stdout.decode()
    assert "DIFFERENT" in text
    assert "reference: first layer that differs: h2 of ConvTranspose node of h2" in text


def test_the_command_as_json(folder):
    done = called("verify", "a.onnx", "b.onnx", "--runtime", "reference", "--seed", 3,
                  "--input-shape", "x:2,4,5", "--atol", 999, "--output-format", "json")  # fmt: skip
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert (told["schema"], told["command"], told["seed"]) == (1, "verify", 3)
    assert (told["a"], told["b"], told["equal"]) == ("a.onnx", "b.onnx", True)
    assert told["runs"][0]["outputs"][0]["error"] > 0
    assert told["inputs"] == {"x": [2, 4, 5]}


def test_findings_end_in_1_and_are_printed(folder):
    onnx.save(parsed("g (float[3] x) => (y, z) {y = Neg(x) z = Abs(x)}"), folder / "c.onnx")
    onnx.save(parsed("g (float[3] x) => (z, y) {y = Neg(x) z = Abs(x)}"), folder / "d.onnx")
    done = called("verify", "c.onnx", "d.onnx", "--runtime", "reference")
    assert done.returncode == 1
    assert "The outputs are in a different order: 'y', 'z' in a" in done.stdout.decode()


def test_names_out_of_a_model_do_not_reach_the_terminal_as_they_are(folder):
    text = "g (float[3] x) => (float[3] y) {y = Neg(x)}"
    evil = parsed(text)
    evil.graph.node[0].name = "\x1b[31mred\n"
    evil.graph.node[0].output[0] = evil.graph.output[0].name = "\x1b[2J<script>"
    onnx.save(evil, folder / "evil.onnx")
    for how in ((), ("--output-format", "json")):
        done = called("verify", "evil.onnx", "evil.onnx", "--runtime", "reference", *how)
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"<script>" in done.stdout


@pytest.mark.parametrize(("arguments", "words"), [
    (("a.onnx", "none.onnx"), "none.onnx"),
    (("a.onnx", "bad.onnx"), "bad.onnx"),
    (("a.onnx", "a.onnx", "--input-shape", "q:3"), "--input-shape is given for 'q'; expected"),
    (("a.onnx", "a.onnx", "--runtime", "q"), "--runtime is 'q'; expected one of onnxruntime"),
    (("a.onnx", "a.onnx", "--input-shape", "W:1000000000000"), "random inputs"),
    (("refused.onnx", "a.onnx", "--runtime", "reference"), "Nonsense"),
])  # fmt: skip
def test_errors_of_the_command_are_one_line(folder, arguments, words):
    (folder / "bad.onnx").write_bytes(b"\xff\xff\xff")
    refused = three()
    refused.graph.node[2].op_type = "Nonsense"
    onnx.save(refused, folder / "refused.onnx")
    assert words in failed(called("verify", *arguments), 2)


def test_ones_own_inputs_and_tolerances(folder):
    np.savez(folder / "x.npz", x=np.ones((2, 4, 5), np.float32))
    how = ("--inputs", "x.npz", "--rtol", "1e-3", "--atol", "1e-3", "--threads", "1")
    done = called("verify", "a.onnx", "a.onnx", *how, "--output-format", "json")
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert told["inputs"] == {"x": [2, 4, 5]}
    assert told["runs"][0]["outputs"][0]["rule"] == "tolerance"


def test_a_missing_runtime_ends_in_2(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    done = called("verify", "a.onnx", "a.onnx", "--runtime", "openvino")
    assert "pip install openvino" in failed(done, 2)


@pytest.mark.parametrize("arguments", [
    ("--runtime", "tensorrt"), ("--input-shape", "W"), ("--input-shape", "W:x"), ("--atol", "-1"),
    ("--input-shape", "W:1", "--input-shape", "W:2"), ("--seed", "-1"), ("--runtime", ""),
    ("--output-format", "yaml"),
])  # fmt: skip
def test_usage_errors_end_in_2(folder, arguments):
    done = called("verify", "a.onnx", "a.onnx", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
