"""`upconv lint`: what it prints and explains, how it ends, what --fix leaves; CI files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import ROOT

pytest.importorskip("onnx_ir")
pytest.importorskip("typer", reason="the command line needs typer")

import onnx

from tests.support.json_schemas import require_schema
from tests.support.lint_cases import BAD, S2, W33, W44, deconv
from tests.support.onnx_texts import normal
from tests.support.processes import called, environment, failed, ran
from upconv.installation import install_command
from upconv.onnx.linting import RULES, lint
from upconv.onnx.linting.sarif import log

NASTY = "\x1b[31mup\r\n\u202e\x07<script>\u5c64"
CLEAN = deconv(normal(1, 16, 8, 4, 4), **S2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = {
        "clean": CLEAN,
        "uneven": deconv(W33, x_shape=["n", 6, "h", 7], **S2),
        "nasty": deconv(W33, name=NASTY, **S2),
        "double": deconv(W44.astype(np.float64), **S2),
        "foldable": BAD["UPC401"][0],
    }
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "clean.onnx").read_bytes()[:-7])
    return tmp_path


def codes(*arguments):
    done = called("lint", "--output-format", "json", *arguments)
    document = json.loads(done.stdout)
    require_schema(document, "lint")
    found = {m["model"]: [f["rule"] for f in m["findings"]] for m in document["models"]}
    return done.returncode, found


def test_the_document_is_what_the_library_finds(folder):
    done = called("lint", "uneven.onnx", "--output-format", "json")
    assert (done.returncode, done.stderr) == (1, b"")
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"], document["runtime"]) == (1, "lint", None)
    expected = lint("uneven.onnx").as_json()
    assert document["models"] == [json.loads(json.dumps(expected))]
    assert document["counts"] == expected["counts"]
    document["models"][0]["findings"][0]["severity"] = "low"
    with pytest.raises(AssertionError, match=r"findings\[0\]\.severity"):
        require_schema(document, "lint")


def test_options_reach_the_rules(folder):
    assert codes("double.onnx") == (1, {"double.onnx": ["UPC204"]})
    assert codes("double.onnx", "--ignore", "UPC1,UPC2") == (0, {"double.onnx": []})
    assert codes("double.onnx", "--select", "UPC0", "--select", "UPC9") == (0, {"double.onnx": []})
    assert codes("double.onnx", "--runtime", "openvino")[0] == 0  # a note
    one_row = ["uneven.onnx", "--input-shape", "x:2,6,1,7"]
    assert codes(*one_row) == (1, {"uneven.onnx": ["UPC001"]})


def test_the_severity_that_fails(folder):
    for level, ending in (("note", 1), ("warning", 0), ("error", 0)):
        assert called("lint", "foldable.onnx", "--fail-on", level).returncode == ending
    for level, ending in (("note", 1), ("warning", 1), ("error", 0)):
        assert called("lint", "uneven.onnx", "--fail-on", level).returncode == ending
    assert called("lint", "uneven.onnx", "--exit-zero").returncode == 0


def test_folders_are_searched_and_a_broken_file_hides_no_other(folder):
    for name in (".hidden", "venv"):
        (folder / name).mkdir()
        shutil.copy("uneven.onnx", folder / name)
    (folder / "venv" / "pyvenv.cfg").touch()
    (folder / "deeper" / "still").mkdir(parents=True)
    shutil.copy("uneven.onnx", folder / "deeper" / "still" / "more.onnx")
    ending, found = codes(".", "clean.onnx")
    names = ["clean", "cut", "double", "foldable", "nasty", "uneven", "deeper/still/more"]
    assert list(found) == [f"{name}.onnx" for name in names]
    assert ending == 2
    assert found["cut.onnx"] == ["UPC900"]
    assert found["deeper/still/more.onnx"] == ["UPC001"]
    text = called("lint", "--exit-zero")
    assert text.returncode == 2  # a file that cannot be read is no finding to be ignored
    words = text.stdout.decode()
    assert "7 models: 1 error, 4 warnings, 1 note in 6 transposed convolutions" in words
    assert "UPC900 error   'cut.onnx'" in words
    assert words.count("UPC001 Use a kernel") == 1  # what to do is said once
    (folder / "empty").mkdir()
    done = called("lint", "empty")
    assert (done.returncode, done.stderr) == (0, b"no .onnx file was found\n")


def test_github_s_workflow_commands(folder):
    name = folder / "a,b:c%.onnx"
    shutil.copy("nasty.onnx", name)
    done = called("lint", "--output-format", "github", name.name, "cut.onnx", "foldable.onnx")
    first, broken, note = done.stdout.decode().splitlines()
    start = "::warning file=a%2Cb%3Ac%25.onnx,title=UPC001 uneven-overlap::'\\x1b[31mup\\r\\n"
    assert first.startswith(start)
    assert all(character.isprintable() for character in first)
    assert broken.startswith("::error file=cut.onnx,title=UPC900 unreadable-file::")
    assert note.startswith("::notice file=foldable.onnx,title=UPC401 foldable-neighbour::'up' in")


def test_fix_replaces_the_file_and_says_what_it_did(folder):
    done = called("lint", "foldable.onnx", "clean.onnx", "--fix", "--fail-on", "note")
    assert done.returncode == 0
    assert "'foldable.onnx': no findings" in done.stdout.decode()
    assert "UPC401 fixed   'up' in 'g'" in done.stdout.decode()
    assert [node.op_type for node in onnx.load("foldable.onnx").graph.node] == ["ConvTranspose"]
    assert onnx.load("clean.onnx") == CLEAN
    left = {path.name for path in folder.iterdir()}
    assert not [name for name in left if not name.endswith(".onnx")]


def test_a_project_leaves_rules_out(folder):
    (folder / "deeper").mkdir()
    shutil.copy("uneven.onnx", folder / "deeper")
    settings = '[tool.upconv.lint]\nper-file-ignores = { "deeper/*.onnx" = ["UPC0"] }\n'
    (folder / "pyproject.toml").write_text(settings)
    assert codes("uneven.onnx")[1] == {"uneven.onnx": ["UPC001"]}
    assert codes("deeper")[1] == {"deeper/uneven.onnx": []}
    (folder / "pyproject.toml").write_text('[tool.upconv.lint]\nignore = ["UPC0"]\n')
    assert codes("uneven.onnx")[1] == {"uneven.onnx": []}
    for wrong in ("ignore = 3", 'ignore = ["UPX"]', "ignores = []", "per-file-ignores = []", "ig"):
        (folder / "pyproject.toml").write_text(f"[tool.upconv.lint]\n{wrong}\n")
        done = called("lint", "uneven.onnx")
        assert done.returncode == 2, wrong
        assert b"pyproject.toml" in done.stderr


def test_rules_are_explained():
    one = called("lint", "--explain", "UPC101").stdout.decode()
    assert one.startswith("### UPC101 runtimes-disagree\n")
    assert "--passes normalise:onnxruntime" in " ".join(one.split())
    whole = called("lint", "--explain", "UPC").stdout.decode()
    assert one.strip() in whole
    assert re.findall(r"(?m)^### (\w+)", whole) == list(RULES)
    listed = json.loads(called("lint", "--explain", "UPC1", "--output-format", "json").stdout)
    assert [rule["rule"] for rule in listed["rules"]] == [c for c in RULES if c[3] == "1"]
    assert "--explain is 'UPX'" in failed(called("lint", "--explain", "UPX"), 2)
    said = failed(called("lint", "--explain", "UPC1", "--output-format", "sarif"), 2)
    assert "it must be text or json" in said


def test_a_file_that_does_not_exist_is_an_error_before_any_is_checked(folder):
    content = Path("foldable.onnx").read_bytes()
    for more in ((), ("--fix",), ("--exit-zero",), ("--output-format", "json")):
        done = called("lint", "foldable.onnx", "gone.onnx", *more)
        assert failed(done, 2) == "error: Cannot read 'gone.onnx': No such file or directory.\n"
    assert Path("foldable.onnx").read_bytes() == content


def test_a_terminal_gets_no_escapes_and_no_letters_that_it_lacks(folder):
    done = called("lint", "clean.onnx")
    assert done.stdout == b"'clean.onnx': no findings in 1 transposed convolution\n"
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = ran("lint", "nasty.onnx", cwd=folder, env=env)
    assert done.returncode == 1
    text = done.stdout.decode("ascii")
    assert all(c.isprintable() or c == "\n" for c in text)
    assert r"\x1b[31mup\r\n\u202e\x07<script>\u5c64" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clean.onnx", "--select", "UPX"], "'UPX'"),
        (["clean.onnx", "--select", ""], "contains no name"),
        (["clean.onnx", "--input-shape", "x"], "NAME:SIZES"),
        (["clean.onnx", "--input-shape", "x:1,2,3,4"], "--input-shape['x'] is (1, 2, 3, 4)"),
        (["clean.onnx", "--input-shape", "x:2,16,5,7", "--fix"], "covers all input shapes"),
    ],
)
def test_usage(folder, arguments, words):
    done = called("lint", *arguments)
    assert done.returncode == 2, done
    assert done.stdout == b""
    assert words in done.stderr.decode()


def test_without_onnx_s_libraries(folder):
    hidden = "import importlib.util as u; f = u.find_spec\n"
    hidden += "u.find_spec = lambda n, *a: None if n == 'onnx_ir' else f(n, *a)"
    said = failed(ran("lint", "clean.onnx", cwd=folder, driver=hidden), 2)
    assert said.rstrip().endswith(install_command("onnx"))


# Continuous integration ---------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
def test_the_workflow_s_commands_run_as_they_stand(folder):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "upconv-lint.yml").read_text())
    steps = workflow["jobs"]["lint"]["steps"]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("upconv ")]
    assert len(commands) == 2
    (folder / "models").mkdir()
    shutil.copy("uneven.onnx", folder / "models")
    (folder / "bin").mkdir()
    (folder / "bin" / "upconv").write_text(f'#!/bin/sh\nexec {sys.executable} -m upconv "$@"\n')
    (folder / "bin" / "upconv").chmod(0o755)
    env = environment(PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    log, notes = (
        subprocess.run(["bash", "-e", "-c", c], env=env, capture_output=True, timeout=300)
        for c in commands
    )
    assert (log.returncode, notes.returncode) == (0, 1)
    uploaded = next(step["with"] for step in steps if "upload-sarif" in step.get("uses", ""))
    results = json.loads((folder / uploaded["sarif_file"]).read_text())["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["UPC001"]
    assert notes.stdout.startswith(b"::warning file=models/uneven.onnx,")


def test_the_hook_runs_a_command_that_exists():
    yaml = pytest.importorskip("yaml")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["language"]) == ("upconv-lint", "python")
    assert called(*hook["entry"].split()[1:], "--help").returncode == 0


# SARIF 2.1.0, and what GitHub's code scanning asks of it ----------------------------------------

LINKED = "\x1b[31mup\r\n\u202e<script>[a](http://b){0}\x07"


def test_sarif_of_every_rule(tmp_path):
    path = tmp_path / "a b%\u00e9[x].onnx"
    onnx.save(deconv(W33, **S2), path)
    models = [onnx.ModelProto.FromString(shows.SerializeToString()) for shows, _ in BAD.values()]
    for model in models:
        next(n for n in model.graph.node if n.name == "up").name = LINKED
    document = log([lint(path), *(lint(model) for model in models)])
    json.dumps(document, allow_nan=False)
    assert (set(document), document["version"]) == ({"$schema", "version", "runs"}, "2.1.0")
    [run] = document["runs"]
    assert set(run) == {"tool", "columnKind", "results"}
    rules, levels = run["tool"]["driver"]["rules"], ("error", "warning", "note")
    assert [rule["id"] for rule in rules] == list(RULES)
    for rule in rules:
        assert rule["name"].isalnum()
        assert rule["defaultConfiguration"]["level"] in levels
        assert all(rule[f"{one}Description"]["text"].endswith(".") for one in ("short", "full"))
        assert rule["help"]["text"]
    named, *results = run["results"]
    where = named["locations"][0]["physicalLocation"]
    assert where == {"artifactLocation": {"uri": path.as_uri()}}
    assert {result["ruleId"] for result in results} >= set(BAD)
    for result in results:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in levels
        assert list(result["partialFingerprints"]) == ["upconvPlace/v1"]
        text = result["message"]["text"]
        assert text.isprintable()
        assert not set(text) & set("[]")  # no links
        assert not set(text.replace("{{", "").replace("}}", "")) & set("{}")  # no placeholders
        [logical] = result["locations"][0].pop("logicalLocations")
        assert logical["fullyQualifiedName"] == f"g/{logical['name']}"
        assert result["locations"] == [{}]  # from memory
