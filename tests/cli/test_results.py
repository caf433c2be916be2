"""Files that commands write: values, overwriting, modes, and the rest of a failure or a signal."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import upconv
import upconv.mxnet as mx
from tests.support.processes import called, failed

pytest.importorskip("typer", reason="the command line needs typer")

posix = pytest.mark.skipif(os.name != "posix", reason="signals, pipes and limits of POSIX")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model with one transposed convolution, as MXNet saves it, and its input."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 5, 7), (6, 4, 3, 2)))
    how = {"kernel": (3, 2), "stride": (2, 3), "num_filter": 12, "num_group": 3}
    mx.sym.Deconvolution(mx.sym.var("data"), name="up", **how).save("net.json")
    mx.nd.save("net.params", {"arg:up_weight": mx.nd.array(w)})
    np.save("x.npy", x)
    np.save("w.npy", w)
    return tmp_path


RUN = ["mxnet", "run", "net.json", "net.params", "--inputs", "x.npy", "-o", "y.npz"]


def result(name="y.npz"):
    with np.load(name) as arrays:
        return arrays["up_output"]


def test_a_model_computes_what_the_library_computes(folder):
    done = called(*RUN)
    assert (done.returncode, done.stdout) == (0, b"up_output 2x12x11x20\n")
    assert re.fullmatch(rb"wrote y.npz, [0-9.]+ (s|ms|us)\n", done.stderr)
    expected = upconv.conv_transpose(np.load("x.npy"), np.load("w.npy"), stride=(2, 3), groups=3)
    np.testing.assert_allclose(result(), expected, rtol=1e-5, atol=1e-5)


def test_a_file_is_overwritten_with_force_only(folder):
    (folder / "y.npz").write_bytes(b"precious")
    assert "--force" in failed(called(*RUN), 2)
    assert (folder / "y.npz").read_bytes() == b"precious"
    assert called(*RUN, "--force").returncode == 0
    assert result().shape == (2, 12, 11, 20)


@posix
def test_the_mode_of_the_result_follows_the_umask_and_links_stay_links(folder):
    (folder / "link.npz").symlink_to("real.npz")
    before = os.umask(0o027)
    try:
        done = called(*RUN[:-1], "link.npz")
    finally:
        os.umask(before)
    assert done.returncode == 0
    assert (folder / "link.npz").is_symlink()
    assert (folder / "real.npz").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("x.npz", "is an input"),
        ("sub.npz", "is a directory"),
        ("nowhere/y.npz", "Create it first"),
        ("pipe.npz", "not a regular file"),
        ("x" * 300 + ".npz", "Cannot write"),
    ],
)
@posix
def test_targets_that_are_refused(folder, target, words):
    (folder / "x.npy").rename(folder / "x.npz")  # numpy.load looks at the content alone
    (folder / "sub.npz").mkdir()
    os.mkfifo(folder / "pipe.npz")
    before = sorted(folder.iterdir())
    done = called(*RUN[:-3], "x.npz", "-o", target, "--force")
    assert words in failed(done, 2)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@posix
def test_a_signal_while_it_writes_leaves_nothing(folder, monkeypatch, number, code):
    """Planted where the data is in the temporary file and the target does not exist yet."""
    before = sorted(folder.iterdir())
    monkeypatch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), number))
    handler = signal.signal(number, signal.default_int_handler)  # a fault must not end pytest
    try:
        done = called(*RUN)
    finally:
        signal.signal(number, handler)
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
        patched.setattr(os, "fsync", lambda _: Path("y.npz").write_text("theirs"))
        assert "has been created in the meantime" in failed(called(*RUN), 2)
    assert Path("y.npz").read_text() == "theirs"
    Path("y.npz").unlink()
    assert called(*RUN).returncode == 0
    assert result().shape == (2, 12, 11, 20)
    assert sorted(folder.iterdir()) == sorted([*before, folder / "y.npz"])
