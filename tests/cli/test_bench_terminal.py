"""`upconv bench` in a terminal: columns, progress, Ctrl-C and other signals."""

import os
import re
import sys
from contextlib import contextmanager

import pytest

from tests.support.processes import begun, called, environment, let_compute

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("llvmlite", reason="the roofline needs llvmlite")

posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals of POSIX")

SMALL = ["bench", "--only", "dcgan_first", "--peers", "none", "--seconds", "0"]


def test_without_a_terminal_there_is_plain_text_and_no_bar():
    done = called(*SMALL)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout
    lines = done.stdout.decode().splitlines()
    assert lines[0].split()[:2] == ["layer", "by"]
    assert "efficiency" in lines[0]
    assert len({len(line) for line in lines[:2]}) == 1  # aligned


@contextmanager
def in_terminal(*args):
    """`upconv args` in a terminal of its own, ended with the block."""
    pexpect = pytest.importorskip("pexpect", reason="a terminal needs pexpect")
    with pexpect.spawn(
        sys.executable, ["-m", "upconv", *args], env=environment(TERM="xterm-256color"),
        dimensions=(50, 100), encoding="utf-8", timeout=120,
    ) as child:  # fmt: skip
        yield child


def ended(child):
    """What it has shown, and its exit code."""
    shown = child.read()
    child.close()
    return shown, child.exitstatus


@posix
def test_a_narrow_terminal_gets_progress_and_the_columns_in_blocks(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with in_terminal(*SMALL) as child:
        shown, code = ended(child)
    assert "dcgan_first: verifying and timing (1 of 1)" in shown
    assert re.search(r"\r +\r", shown)  # the line is gone at the end
    assert re.search(r"(?m)^geometric mean +reference ", shown)
    assert re.search(r"(?m)^x NAME: the best time of NAME over", shown)
    lines = re.sub(r"\x1b\[[0-9?;]*[a-zA-Z]", "", shown).replace("\r", "\n").splitlines()
    heads = [line for line in lines if line.startswith("layer")]
    assert code == 0
    assert len(heads) > 1
    assert all(line.split()[:2] == ["layer", "by"] and len(line) <= 60 for line in heads)
    words = ["best", "median", "GFLOP/s", "efficiency", "memory", "error"]
    assert [word for line in heads for word in line.split() if word in words] == words


@posix
def test_ctrl_c_in_a_terminal_ends_the_bar():
    with in_terminal("bench", "--peers", "none") as child:
        child.expect("verifying")
        child.sendintr()
        shown, code = ended(child)
    assert code == 130
    assert shown.rstrip().endswith("interrupted")
    assert "Traceback" not in shown


@posix
def test_sigterm_ends_a_long_bench(tmp_path):
    with begun("bench", "--peers", "none", cwd=tmp_path) as process:
        let_compute(process, 1.0)
        process.terminate()
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (143, b"", b"")
    assert not list(tmp_path.iterdir())
