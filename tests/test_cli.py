"""The command line as a process: values, exit codes, streams, and what it leaves behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import upconv
from processes import called, environment, failed, ran
from upconv.installation import install_command

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")

posix = pytest.mark.skipif(os.name != "posix", reason="signals, pipes and limits of POSIX")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    arrays = {"x": draw(2, 6, 5, 7), "w": draw(6, 4, 3, 2), "b": draw(12), "r": draw(2, 12, 10, 19)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", **arrays)
    np.savez_compressed(tmp_path / "one.npz", w=arrays["w"])
    return tmp_path


GEOMETRY = ["--stride", "2,3", "--padding", "0:1,-2:3", "--groups", "3"]
JSON = ["--output-format", "json"]
KEYWORDS = {"stride": (2, 3), "padding": ((0, 1), (-2, 3)), "groups": 3}


# run ----------------------------------------------------------------------------------------------


def test_run_computes_what_the_library_computes(folder):
    done = ran("run", "x.npy", "--weight", "w.npy", "-b", "all.npz:b", "--residual", "r.npy",
               "--activation", "leaky_relu:0.2", *GEOMETRY, "-o", "y.npy")  # fmt: skip
    assert done.returncode == 0, done
    assert done.stdout == b""
    assert b"wrote y.npy: 2x12x10x19 float32" in done.stderr
    x, w, b, r = (np.load(folder / f"{n}.npy") for n in "xwbr")
    activation = ("leaky_relu", 0.2)
    expected = upconv.conv_transpose(x, w, b, residual=r, activation=activation, **KEYWORDS)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), expected)


def test_run_reads_and_writes_npz_and_other_layouts(folder):
    x, w = np.load(folder / "x.npy"), np.load(folder / "w.npy")
    np.save(folder / "last.npy", np.asfortranarray(np.moveaxis(x, 1, -1)))
    done = called("run", "last.npy", "-w", "one.npz", "--layout", "nxc", "--groups", 3, "--stride",
                  2, "--output-size", "11x14", "-o", "y.npz", *JSON)  # fmt: skip
    fields = json.loads(done.stdout)
    assert fields["schema"] == 1
    assert fields["output_shape"] == [2, 11, 14, 12]
    assert done.stderr == b""
    expected = upconv.conv_transpose(
        np.moveaxis(x, 1, -1), w, layout="NXC", groups=3, stride=2, output_size=(11, 14)
    )
    np.testing.assert_allclose(np.load(folder / "y.npz")["y"], expected, rtol=1e-5, atol=1e-5)


def test_run_as_a_filter(folder):
    done = ran("run", "-", "-w", "w.npy", "--groups", 3, "-o", "-", "-q", "--threads", 1,
               cwd=folder, stdin=(folder / "x.npy").read_bytes())  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    expected = upconv.conv_transpose(np.load(folder / "x.npy"), np.load(folder / "w.npy"), groups=3)
    got = np.load(io.BytesIO(done.stdout))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_run_overwrites_only_when_told(folder):
    (folder / "y.npy").write_bytes(b"precious")
    plain = ["run", "x.npy", "-w", "w.npy", "--groups", 3, "-o", "y.npy"]
    assert "--force" in failed(called(*plain), 2)
    assert (folder / "y.npy").read_bytes() == b"precious"
    assert called(*plain, "--force").returncode == 0
    assert np.load(folder / "y.npy").shape == (2, 12, 7, 8)


@posix
def test_the_mode_of_the_result_follows_the_umask_and_links_stay_links(folder):
    (folder / "link.npy").symlink_to("real.npy")
    before = os.umask(0o027)
    try:
        done = called("run", "x.npy", "-w", "w.npy", "--groups", 3, "-o", "link.npy")
    finally:
        os.umask(before)
    assert done.returncode == 0
    assert (folder / "link.npy").is_symlink()
    assert (folder / "real.npy").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("x.npy", "is an input"),
        ("sub.npy", "is a directory"),
        ("nowhere/y.npy", "Make it first"),
        ("pipe.npy", "not a regular file"),
        ("x" * 300 + ".npy", "Cannot write"),
    ],
)
@posix
def test_targets_that_are_refused(folder, target, words):
    (folder / "sub.npy").mkdir()
    os.mkfifo(folder / "pipe.npy")
    before = sorted(folder.iterdir())
    done = called("run", "x.npy", "-w", "w.npy", "--groups", 3, "-o", target, "--force")
    assert words in failed(done, 2)
    assert sorted(folder.iterdir()) == before


RUN = ["run", "x.npy", "-w", "w.npy", "--groups", 3, "-o", "y.npy"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@posix
def test_a_signal_while_it_writes_leaves_nothing(folder, number, code):
    """Planted where the data is in the temporary file and the target does not exist yet."""
    before = sorted(folder.iterdir())
    driver = f"import os\nos.fsync = lambda fd: os.kill(os.getpid(), {int(number)})"
    done = ran(*RUN, driver=driver)
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done
    assert sorted(folder.iterdir()) == before


def test_a_write_that_fails_leaves_nothing(folder, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    before = sorted(folder.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert "No space left" in failed(called(*RUN), 2)
    assert sorted(folder.iterdir()) == before
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: Path("y.npy").write_text("theirs"))
        assert "exists by now" in failed(called(*RUN), 2)
    assert Path("y.npy").read_text() == "theirs"
    Path("y.npy").unlink()
    assert called(*RUN).returncode == 0
    assert np.load("y.npy").shape == (2, 12, 7, 8)
    assert sorted(folder.iterdir()) == sorted([*before, folder / "y.npy"])


# Words, codes and streams -------------------------------------------------------------------------


def test_library_errors_are_one_line_and_a_traceback_on_request(folder):
    args = ["run", "x.npy", "-w", "w.npy", "-o", "y.npy", "--stride", 0]
    assert "stride is 0" in failed(called(*args), 2)
    for done in (ran("--traceback", *args), ran(*args, env={"UPCONV_TRACEBACK": "1"})):
        assert b"Traceback" in done.stderr
        assert b"ArgumentError" in done.stderr
    with pytest.raises(upconv.ArgumentError):  # --traceback may stand anywhere
        called(*args, "--traceback")


def test_bugs_keep_their_traceback(folder):
    driver = "import upconv.cli.layer as r\nr.conv_transpose = lambda *a, **k: 1 / 0"
    done = ran("run", "x.npy", "-w", "w.npy", "-o", "y.npy", cwd=folder, driver=driver)
    assert b"ZeroDivisionError" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["shape", "1,2,3"],
        ["shape", "1,2,3", "2,a,3"],
        ["shape", "1,2,3", "2,1,3", "--padding", "1:"],
        ["shape", "1,2,3", "2,1,3", "--layout", "NHWC"],
        ["run", "x.npy", "-w", "w.npy"],
        ["run", "x.npy", "-w", "w.npy", "-o", "y.txt"],
        ["run", "x.npy", "-w", "w.npy", "-o", "-", "--output-format", "json"],
        ["bench", "--peers", "abacus"],
        ["bench", "--threads", "0"],
    ],
    ids=" ".join,
)
def test_usage_errors_are_one_line_and_exit_2(args):
    assert " See `upconv" in failed(called(*args), 2)


@pytest.mark.parametrize(
    ("args", "shape"),
    [
        (["1,64,32,32", "64,16,4,4", "--stride", "2", "--padding", "1"], [1, 16, 64, 64]),
        (["1x5x7x6", "3x2x6x4", "--layout", "NXC", "--weight-layout", "XIO"], [1, 7, 8, 4]),
        (["6,5", "6,4,3", "--stride", "2", "--padding", "same_upper"], [4, 10]),
        (["6,5", "6,4,3", "--padding", "-1:2"], [4, 6]),
    ],
)
def test_shape(args, shape):
    assert called("shape", *args).stdout.decode() == " ".join(map(str, shape)) + "\n"
    fields = json.loads(called("shape", *args, *JSON).stdout)
    assert (fields["schema"], fields["output_shape"]) == (1, shape)


def test_a_missing_spatial_axis_is_named(folder):
    said = failed(called("shape", "1,64,32", "64,16,4,4"), 2)
    assert "input_shape is (1, 64, 32), with 1 spatial axis; expected 2, as many as the" in said
    np.save(folder / "flat.npy", np.load(folder / "x.npy")[..., 0])
    said = failed(called("run", "flat.npy", "-w", "w.npy", "-o", "y.npy"), 2)
    assert "x.shape is (2, 6, 5), with 1 spatial axis; expected 2, as many as the" in said


def test_shape_starts_quickly_without_heavy_imports():
    command = [sys.executable, "-X", "importtime", "-m", "upconv", "shape", "1,2,3", "2,1,3"]
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
    plain = ran(*args, env={"UPCONV_TUNING_FILE": str(tmp_path / "t.json")})
    assert re.search(rb"(?m)^measured +[0-9.]+ ms by reference$", plain.stdout)
    assert re.search(rb"(?m)^roofline +[0-9.e-]+ ms$", plain.stdout)
    assert plain.stderr == b""


def test_a_damaged_tuning_file_is_one_line_and_a_finding(tmp_path):
    file = tmp_path / "t.json"
    args = ["explain", "1,4,9", "4,3,4", "--engine", "reference"]
    env = {"UPCONV_TUNING_FILE": str(file)}
    file.write_text("my thesis")
    done = ran(*args, env=env)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 0
    assert lines
    assert all(line.startswith(f"warning: the tuning file '{file}' cannot be") for line in lines)
    done = ran("doctor", *JSON, env=env)
    assert done.returncode == 1
    assert "file is not a database" in " ".join(json.loads(done.stdout)["findings"])
    assert file.read_text() == "my thesis"


def test_doctor_when_all_is_well():
    env = {"UPCONV_CACHE_DIR": "/here", "UPCONV_NUM_THREADS": "3"}
    done = ran("doctor", *JSON, env=env)
    fields = json.loads(done.stdout)
    assert (done.returncode, fields["findings"]) == (0, [])
    assert fields["versions"]["numpy"] == np.__version__
    assert fields["engines"][-1]["name"] == "reference"
    assert (fields["threads"], fields["threads_from"]) == (3, "UPCONV_NUM_THREADS")
    assert fields["cache_directory"] == "/here"
    assert fields["roofline"]["threads"] == 3
    assert 1e8 < fields["roofline"]["flops"] < 1e15
    assert fields["tuning"]["file"] == os.environ["UPCONV_TUNING_FILE"]
    assert fields["environment"]["UPCONV_CACHE_DIR"] == "/here"
    plain = ran("doctor")
    assert b"engine reference" in plain.stdout
    assert b"\x1b" not in plain.stdout


def test_doctor_finds_faults():
    env = {"UPCONV_NUM_THREADS": "many", "UPCONV_ENGINE": "steam", "UPCONV_TUNE": "maybe"}
    driver = "import upconv.cli.doctor as m\nm.REQUIRED += ('no-such-package',)"
    done = ran("doctor", *JSON, env=env, driver=driver)
    findings = " ".join(json.loads(done.stdout)["findings"])
    assert done.returncode == 1
    assert all(word in findings for word in ("many", "steam", "maybe", "no-such-package"))


def test_help_has_examples():
    commands = [line.split()[0] for line in called("-h").stdout.decode().splitlines()[-11:]]
    assert {"bench", "mxnet"} < {*commands}
    for command in ("", *commands, "mxnet run", "mxnet to-onnx"):
        done = called(*command.split(), "--help")
        assert done.returncode == 0
        assert command == "mxnet" or b"\n    upconv " in done.stdout
        assert b"\x1b" not in done.stdout


def test_version():
    assert called("--version").stdout.decode() == f"upconv {upconv.__version__}\n"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_one_line_says_how_to_get_it(package):
    said = failed(ran("doctor", driver=f"import sys; sys.modules[{package!r}] = None"), 2)
    assert said.endswith(install_command("cli") + "\n")


@posix
def test_a_closed_pipe_is_quiet():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "upconv", "doctor"]
    done = subprocess.run(command, env=environment(), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
    piped = f"'{sys.executable}' -m upconv doctor | head -1"
    done = subprocess.run(piped, shell=True, env=environment(), capture_output=True)
    assert done.stdout.startswith(b"python")
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_an_error():
    command = [sys.executable, "-m", "upconv", "shape", "1,2,3", "2,1,3"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=environment(), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert b"No space left" in done.stderr
    assert done.stderr.count(b"\n") == 1


@posix
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_an_object_is_finalised_is_not_lost(name, code):
    text = f"""
import os, signal, time
from upconv.cli import exits

exits._AGAIN = 0.2

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.01)

with exits.ended(traceback=False):
    Last()
    print("lost", flush=True)
    time.sleep(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment(), capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (code, b"lost\n")
    if name == "SIGINT":
        assert done.stderr == b"interrupted\n"
