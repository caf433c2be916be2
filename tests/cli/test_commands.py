"""The command line as a process: answers, exit codes, messages and streams."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import upconv
from tests.support.paths import ROOT
from tests.support.processes import called, environment, failed, ran
from upconv import engine_choice, threads
from upconv.installation import install_command

pytest.importorskip("typer", reason="the command line needs typer")

from upconv.cli import doctor

posix = pytest.mark.skipif(os.name != "posix", reason="signals, pipes and limits of POSIX")

GEOMETRY = ["--stride", "2,3", "--padding", "0:1,-2:3", "--groups", "3"]
JSON = ["--output-format", "json"]
KEYWORDS = {"stride": (2, 3), "padding": ((0, 1), (-2, 3)), "groups": 3}


def test_library_errors_are_one_line_and_a_traceback_on_request(monkeypatch):
    args = ["explain", "1,2,3", "2,1,3", "--stride", 0]
    assert "stride is 0" in failed(called(*args), 2)
    assert "--engine is 'steam'; expected" in failed(called(*args[:3], "--engine", "steam"), 2)
    for words in (["--traceback", *args], [*args, "--traceback"]):
        with pytest.raises(upconv.ArgumentError):
            called(*words)
    monkeypatch.setenv("UPCONV_TRACEBACK", "1")
    with pytest.raises(upconv.ArgumentError):
        called(*args)


def test_bugs_keep_their_traceback():
    driver = "import upconv.cli.explain as e\ne.output_shape = lambda *a, **k: 1 / 0"
    done = ran("explain", "1,2,3", "2,1,3", driver=driver)
    assert b"ZeroDivisionError" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("args", "shape"),
    [
        (["1,64,32,32", "64,16,4,4", "--stride", "2", "--padding", "1"], [1, 16, 64, 64]),
        (["1x5x7x6", "3x2x6x4", "--layout", "NXC", "--weight-layout", "XIO"], [1, 7, 8, 4]),
        (["6,5", "6,4,3", "--stride", "2", "--padding", "same_upper"], [4, 10]),
        (["6,5", "6,4,3", "--padding", "-1:2"], [4, 6]),
    ],
)
def test_explain_shows_the_shape_of_the_result(args, shape):
    text = called("explain", *args, "--engine", "reference").stdout.decode()
    assert re.search(rf"(?m)^output +{'x'.join(map(str, shape))}$", text)
    fields = json.loads(called("explain", *args, "--engine", "reference", *JSON).stdout)
    assert (fields["schema"], fields["output_shape"]) == (1, shape)


def test_a_missing_spatial_axis_is_named():
    said = failed(called("explain", "1,64,32", "64,16,4,4"), 2)
    assert "input_shape is (1, 64, 32), with 1 spatial axis; expected 2, like the weight" in said


def test_help_starts_quickly_without_heavy_imports():
    command = [sys.executable, "-X", "importtime", "-m", "upconv", "explain", "--help"]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=60)
    loaded = {line.split("|")[-1].strip() for line in done.stderr.decode().splitlines()}
    assert "typer.core" in loaded
    assert not loaded & {"rich.console", "torch", "llvmlite", "openvino", "onnxruntime", "onnx"}


def test_explain():
    args = ["explain", "2,6,5,7", "6,4,3,2", *GEOMETRY, "--bias", "--residual", "--activation",
            "leaky_relu:0.25", "--dtype", "float64"]  # fmt: skip
    answer = upconv.explain((2, 6, 5, 7), (6, 4, 3, 2), (12,), residual=True, dtype="float64",
                            activation="leaky_relu:0.25", roofline=True, **KEYWORDS)  # fmt: skip
    assert called(*args).stdout.decode() == f"{answer}\n"
    fields = json.loads(called(*args, *JSON).stdout)
    for name in ("roofline_seconds", "predicted_seconds", "schedule", "variant"):
        assert fields[name] == getattr(answer, name)
    assert fields["problem"]["text"] == str(answer.problem)
    assert fields["engine"] == answer.engine
    assert tuple(fields["output_shape"]) == answer.output_shape
    assert fields["multiply_adds"] == answer.multiply_adds
    assert [axis["out"] for axis in fields["problem"]["axes"]] == list(answer.problem.out_size)


def test_explain_measures_when_told(tmp_path, monkeypatch):
    args = ["explain", "1,4,9", "4,3,4", "--stride", 2, "--engine", "reference"]
    monkeypatch.setenv("UPCONV_TUNING_FILE", str(tmp_path / "t.json"))
    before, during, after = (
        json.loads(called(*args, *JSON, *more).stdout) for more in ([], ["--tune"], [])
    )
    assert before["measured_seconds"] is None
    assert before["roofline_seconds"] == during["roofline_seconds"] > 0  # the same ceilings
    assert during["measured_seconds"] == after["measured_seconds"] > during["roofline_seconds"]
    assert after["measured_by"] == "reference"
    plain = called(*args)
    assert re.search(rb"(?m)^measured +[0-9.]+ (s|ms|us) by reference$", plain.stdout)
    assert re.search(rb"(?m)^direct roofline +[0-9.]+ (s|ms|us)$", plain.stdout)
    assert plain.stderr == b""


def test_a_damaged_tuning_file_is_one_line_and_a_finding(tmp_path, monkeypatch):
    file = tmp_path / "t.json"
    args = ["explain", "1,4,9", "4,3,4", "--engine", "reference"]
    env = {"UPCONV_TUNING_FILE": str(file)}
    file.write_text("my thesis")
    done = ran(*args, env=env)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 0
    assert lines
    assert all(line.startswith(f"warning: the tuning file '{file}' cannot be") for line in lines)
    monkeypatch.setenv(*env.popitem())
    done = called("doctor", *JSON)
    assert done.returncode == 1
    assert "file is not a database" in " ".join(json.loads(done.stdout)["findings"])
    assert file.read_text() == "my thesis"


@pytest.fixture
def own_variables(monkeypatch):
    """Forget what was read from the environment before, and after the test."""
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "_default", None)
    read = threads._own, engine_choice._tuning_variable
    for variable in read:
        variable.cache_clear()
    yield monkeypatch
    for variable in read:
        variable.cache_clear()


def test_doctor_when_all_is_well(tmp_path, own_variables):
    own_variables.setenv("UPCONV_CACHE_DIR", str(tmp_path))
    own_variables.setenv("UPCONV_NUM_THREADS", "3")
    done = called("doctor", *JSON)
    fields = json.loads(done.stdout)
    assert (done.returncode, fields["findings"]) == (0, [])
    assert fields["versions"]["numpy"] == np.__version__
    assert fields["engines"][-1]["name"] == "reference"
    assert (fields["threads"], fields["threads_from"]) == (3, "UPCONV_NUM_THREADS")
    assert fields["cache_directory"] == str(tmp_path)
    assert fields["roofline"]["threads"] == 3
    assert 1e8 < fields["roofline"]["flops"] < 1e15
    assert fields["tuning"]["file"] == os.environ["UPCONV_TUNING_FILE"]
    assert fields["environment"]["UPCONV_CACHE_DIR"] == str(tmp_path)
    plain = called("doctor")
    assert b"engine reference" in plain.stdout
    assert b"\x1b" not in plain.stdout


@pytest.mark.parametrize(
    ("has", "permits", "told"),
    [(True, True, "AMX"), (True, False, "AMX, refused by the system"), (False, True, "none")],
)
def test_doctor_tells_of_tiles(has, permits, told, monkeypatch):
    from upconv.engines.jit import cpu

    llvm = pytest.importorskip("llvmlite.binding")
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"amx-bf16": has})
    monkeypatch.setattr(cpu, "permitted", lambda: permits)
    assert doctor.facts(1)["cpu"]["tiles"] == told


def test_doctor_finds_variables_that_nothing_reads(monkeypatch):
    read = {name for file in Path(doctor.__file__).parents[1].rglob("*.py")
            for name in re.findall(r'"(UPCONV_[A-Z_]+)"', file.read_text())}  # fmt: skip
    assert read == {*doctor._OURS}
    monkeypatch.setenv("UPCONV_THREADS", "3")
    findings = "\n".join(doctor._faults())
    assert "UPCONV_THREADS has no effect; upconv reads UPCONV_NUM_THREADS, UPCONV_CA" in findings


def test_doctor_finds_faults(own_variables):
    for name, value in (("NUM_THREADS", "many"), ("ENGINE", "steam"), ("TUNE", "maybe")):
        own_variables.setenv(f"UPCONV_{name}", value)
    own_variables.setattr(doctor, "REQUIRED", (*doctor.REQUIRED, "no-such-package"))
    done = called("doctor", *JSON)
    findings = " ".join(json.loads(done.stdout)["findings"])
    assert done.returncode == 1
    assert all(word in findings for word in ("many", "steam", "maybe", "no-such-package"))


COMMANDS = [
    "doctor", "bench", "explain", "lint", "rewrite", "optimize", "verify", "stream", "mxnet",
]  # fmt: skip
OF_MXNET = ["mxnet info", "mxnet run", "mxnet to-onnx"]


@pytest.mark.parametrize("command", ["", *COMMANDS, *OF_MXNET])
def test_help_at_80_columns(command, monkeypatch):
    """No line is cut or too long, and nothing of Python shows."""
    monkeypatch.setenv("COLUMNS", "80")
    done = called(*command.split(), "--help")
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    usage, *lines = text.splitlines()
    assert usage.startswith(f"Usage: upconv {command}".rstrip())
    for line in lines:
        assert len(line) <= 80, line
        assert not re.search(r"[{}\x1b\u2026]|\.\.\.$|<[^>|]*>", line), line
    assert not re.search(r"[{}]|<", usage)
    assert not re.search(r"\b(str|int|float|bool|list|tuple|Path|Any|None)\b", text)
    assert ("\n    upconv " in text) != (command in ("mxnet", "mxnet info"))


@pytest.mark.parametrize("command", ["optimize", "verify"])
def test_help_names_every_runtime(command):
    text = " ".join(called(command, "--help").stdout.decode().split())
    pytest.importorskip("onnx_ir")
    from upconv.onnx.runtimes import RUNTIMES

    for name in RUNTIMES:
        assert re.search(rf"\b{name}[,. ]", text), name


def test_the_commands_are_those_of_the_page(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = (ROOT / "docs" / "command-line.md").read_text()
    listed = re.findall(r"(?m)^\| `upconv (\w+)` \|", page)
    shown = called("-h").stdout.decode().partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in shown] == listed == COMMANDS


def test_explain_takes_a_precision():
    args = "1,4,9", "4,3,2", "--engine", "reference", "--precision", "bfloat16"
    assert (
        "bfloat16: a product errs by up to 0.0078 of it" in called("explain", *args).stdout.decode()
    )
    problem = json.loads(called("explain", *args, "--output-format", "json").stdout)["problem"]
    assert (problem["dtype"], problem["precision"]) == ("float32", "bfloat16")


def test_version():
    assert called("--version").stdout.decode() == f"upconv {upconv.__version__}\n"


@pytest.mark.parametrize("package", ["typer", "threadpoolctl"])
def test_without_the_extra_one_line_says_how_to_get_it(package):
    said = failed(ran("doctor", driver=f"import sys; sys.modules[{package!r}] = None"), 2)
    assert said.endswith(install_command("cli") + "\n")


@posix
def test_a_closed_pipe_is_quiet():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "upconv", "--version"]
    done = subprocess.run(command, env=environment(), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("args", [["--version"], ["lint", "--help"]])
def test_a_full_disk_is_an_error(args):
    """What upconv prints and what typer prints, for the group and for a command."""
    command = [sys.executable, "-m", "upconv", *args]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=environment(), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"error: Cannot write to the standard output: No space left on device.\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nonsense"], ""),
        (["explan"], "Did you mean 'explain'? See `upconv --help`."),
        (["explain", "1,2,3"], ""),
        (["explain", "1,2,3", "2,a,3"], ""),
        (["explain", "1,2,3", "2,1,3", "--padding", "1:"], ""),
        (["explain", "1,2,3", "2,1,3", "--layout", "NHWC"], ""),
        (["mxnet", "run"], ""),
        (["mxnet", "run", "net.json", "-o", "y.txt"], ""),
        (["bench", "--peers", "abacus"], "'abacus' is not one of torch, "),
        (["bench", "--threads", "0"], ""),
        (["bench", "--threads"], "requires an argument. See `upconv bench --help`."),
    ],
)
def test_a_mistake_is_told_in_the_words_of_the_command_line(args, words):
    said = failed(called(*args), 2)
    assert " See `upconv" in said
    assert words in said


@posix
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_an_object_is_finalised_is_not_lost(name, code):
    """The signal comes again by a timer, which is held back until the first one is surely lost."""
    text = f"""
import os, signal, time
from upconv.cli import exits

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.01)

signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGALRM}})
with exits.ended(traceback=False):
    Last()
    os.write(1, b"lost\\n")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGALRM}})
    time.sleep(200)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment(), capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (code, b"lost\n")
    if name == "SIGINT":
        assert done.stderr == b"interrupted\n"
