"""`upconv lint`: what it prints, how it ends, and what it leaves behind.

onnx-ir takes a second to import, so most of it runs inside this process; what depends on a process
of its own (its streams, a missing library) is run as one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

import onnx

from lint_cases import S2, W33, W44, deconv, weights
from processes import called, environment, failed, ran
from upconv.onnx.linting import RULES, lint

NASTY = "\x1b[31mup\r\n\u202e\x07<script>"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = {
        "clean": deconv(weights(1, 16, 8, 4, 4), **S2),
        "uneven": deconv(W33, x_shape=["n", 6, "h", 7], **S2),
        "nasty": deconv(W33, name=NASTY, **S2),
        "double": deconv(W44.astype(np.float64), **S2),
    }
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "clean.onnx").read_bytes()[:-7])
    return tmp_path


def usage(done, words):
    assert done.returncode == 2, done
    assert done.stdout == b""
    assert words in done.stderr.decode()


def test_a_clean_model_ends_with_0(folder):
    done = ran("lint", "clean.onnx", cwd=folder)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"'clean.onnx': no findings in 1 transposed convolution\n"


def test_findings_end_with_1_and_are_what_the_library_finds(folder):
    done = called("lint", "uneven.onnx", "--json")
    assert (done.returncode, done.stderr) == (1, b"")
    found = json.loads(done.stdout)
    assert (found["schema"], found["command"], found["model"]) == (1, "lint", "uneven.onnx")
    expected = lint(folder / "uneven.onnx").as_json()
    assert found["findings"] == json.loads(json.dumps(expected["findings"]))
    text = called("lint", "uneven.onnx")
    assert text.returncode == 1
    assert "4 2 4 2" in text.stdout.decode()


def test_options_reach_the_rules(folder):
    def codes(*options, model="double.onnx"):
        done = called("lint", model, "--json", *options)
        return done.returncode, [f["rule"] for f in json.loads(done.stdout)["findings"]]

    assert codes() == (1, ["UPC204"])
    assert codes("--ignore", "UPC1,UPC2") == (0, [])
    assert codes("--select", "UPC0", "--select", "UPC9") == (0, [])
    assert codes("--target", "openvino", "--severity", "warning") == (0, [])
    assert codes("--size", "n=2", "--size", "h=1", model="uneven.onnx") == (1, ["UPC001"])
    assert codes("--size", "x=?,6,1,7", model="uneven.onnx") == (1, ["UPC001"])


def test_rules_are_listed(folder):
    done = called("lint", "--rules")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert [line.split()[0] for line in lines[1:]] == list(RULES)
    listed = json.loads(called("lint", "--rules", "--select", "UPC1", "--json").stdout)
    assert [rule["rule"] for rule in listed["rules"]] == [c for c in RULES if c[3] == "1"]


def test_sarif_goes_to_a_file_whole_or_not_at_all(folder):
    command = ["nasty.onnx", "--sarif", "-o", "found.sarif"]
    done = called("lint", *command)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    log = json.loads((folder / "found.sarif").read_text())
    (artifact,) = log["runs"][0]["artifacts"]
    assert artifact["location"]["uri"] == "nasty.onnx"
    (folder / "found.sarif").write_text("precious")
    assert "--force" in failed(called("lint", *command), 2)
    assert (folder / "found.sarif").read_text() == "precious"
    assert called("lint", *command, "--force").returncode == 1
    assert json.loads((folder / "found.sarif").read_text()) == log
    failed(called("lint", "nasty.onnx", "-o", "nasty.onnx", "--force"), 2)
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".onnx") == [
        "found.sarif"
    ]


@pytest.mark.parametrize("how", [(), ("--json",), ("--sarif",)])
def test_what_a_model_is_read_from_is_not_written_over(folder, how):
    model = onnx.load(folder / "uneven.onnx")
    onnx.save(model, folder / "outside.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=0)  # fmt: skip
    (folder / "again.bin").hardlink_to(folder / "w.bin")
    (folder / "old.txt").write_text("old")
    data = (folder / "w.bin").read_bytes()
    for name in ("w.bin", "again.bin", "outside.onnx"):
        said = failed(called("lint", "outside.onnx", *how, "-o", name, "--force"), 2)
        assert "is an input of this very call" in said
    assert (folder / "w.bin").read_bytes() == data
    assert called("lint", "outside.onnx", *how, "-o", "old.txt", "--force").returncode == 1
    assert (folder / "old.txt").read_text() != "old"


def test_a_terminal_gets_no_escapes_of_a_model_s(folder):
    text = called("lint", "nasty.onnx").stdout.decode()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert r"\x1b[31mup\r\n\u202e\x07<script>" in text


def test_a_terminal_without_the_letters_gets_them_spelled_out(folder):
    onnx.save(deconv(W33, name="\u5c64", **S2), folder / "named.onnx")
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = ran("lint", "named.onnx", cwd=folder, env=env)
    assert done.returncode == 1
    assert rb"'\u5c64'" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clean.onnx", "--select", "UPX"], "'UPX'"),
        (["clean.onnx", "--ignore", "UPC77"], "'UPC77'"),
        (["clean.onnx", "--ignore", "UPC"], "every rule is ignored"),
        (["clean.onnx", "--select", ""], "names nothing"),
        (["double.onnx", "--ignore", "UPC2", "--ignore", " ,"], "UPC001"),
        (["clean.onnx", "--target", "tensorrt"], "tensorrt"),
        (["clean.onnx", "--size", "x"], "NAME=SIZES"),
        (["clean.onnx", "--size", "x=a"], "not an integer"),
        (["clean.onnx", "--severity", "low"], "low"),
        (["clean.onnx", "--json", "--sarif"], "both"),
        ([], "no model was named"),
    ],
)
def test_usage(folder, arguments, words):
    usage(called("lint", *arguments), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.onnx"], "nowhere.onnx"),
        (["cut.onnx"], "cut.onnx"),
        (["."], "directory"),
        (["clean.onnx", "--size", "z=1"], "inputs or symbols"),
        (["clean.onnx", "--size", "x=1,2,3,4"], "sizes['x']"),
        (["clean.onnx", "-o", "nowhere/found.txt"], "Make it first"),
    ],
)
def test_bad_input(folder, arguments, words):
    assert words in failed(called("lint", *arguments), 2)


def test_without_onnx_s_libraries(folder):
    hidden = "import importlib.util as u; f = u.find_spec\n"
    hidden += "u.find_spec = lambda n, *a: None if n == 'onnx_ir' else f(n, *a)"
    said = failed(ran("lint", "clean.onnx", cwd=folder, driver=hidden), 2)
    assert said.rstrip().endswith("pip install 'upconv[onnx]'")


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_reader_that_leaves(folder):
    shell = f"{sys.executable} -m upconv lint uneven.onnx | head -c 1"
    done = subprocess.run(
        shell, shell=True, cwd=folder, env=environment(), capture_output=True, timeout=60
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
