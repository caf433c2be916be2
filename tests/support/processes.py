"""Python, or the command line, in a separate process, and checks of the command's errors.

No process outlives the test that started it.
"""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import upconv
from tests.support.paths import ROOT

SOURCE = str(Path(upconv.__file__).parents[1])
KEPT = {"UPCONV_CACHE_DIR", "UPCONV_TUNING_FILE", "UPCONV_JIT_CPU"}
MAIN = "from upconv.__main__ import main; main()"


def environment(**variables):
    """Return this process's environment, with only those upconv variables that all tests share.

    Output is buffered, so that a closed pipe or a full disk also fails at exit. Modules come from
    this checkout's sources and tests.
    """
    left_out = ("UPCONV_", "PYTEST_", "PYTHONUNBUFFERED")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out) or k in KEPT}
    path = os.pathsep.join(filter(None, (SOURCE, str(ROOT), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, **variables}


def python(code, *arguments, seconds=300, flags=(), **variables):
    """Run code and return the finished process; end it if it hangs. flags: arguments of `-W`."""
    warned = [word for flag in flags for word in ("-W", flag)]
    return subprocess.run(
        [sys.executable, *warned, "-c", code, *map(str, arguments)],
        env=environment(**variables), capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def printed(code, *arguments, flags=("ignore",), **how):
    """Run code that must succeed, and return its output."""
    done = python(code, *arguments, flags=flags, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def require_feature(feature):
    """Skip a test whose code this processor cannot run, by LLVM's name for the feature."""
    llvm = pytest.importorskip("llvmlite.binding")
    if not llvm.get_host_cpu_features().get(feature):
        pytest.skip(f"this processor has no {feature}")


def ran(*args, driver=None, cwd=None, stdin=b"", env=None, **how):
    """Run `upconv args`, after the Python code `driver`, and return the finished process."""
    start = ["-m", "upconv"] if driver is None else ["-c", f"{driver}\n{MAIN}"]
    command = [sys.executable, *start, *map(str, args)]
    return subprocess.run(
        command, cwd=cwd, input=stdin, env=environment(**(env or {})), capture_output=True,
        timeout=120, **how,
    )  # fmt: skip


@contextmanager
def begun(*args, cwd) -> Iterator[subprocess.Popen]:
    """Run `upconv args` during the block, and kill it at the end."""
    command = [sys.executable, "-m", "upconv", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=cwd, env=environment(), **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def let_compute(process, seconds):
    """Wait until a process has used this much processor time, which other load does not affect."""
    stat, end = Path(f"/proc/{process.pid}/stat"), time.monotonic() + 120
    if not stat.exists():
        time.sleep(3 * seconds)
    while stat.exists() and _computed(stat.read_text()) < seconds:
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < end, "it does not compute"
        time.sleep(0.02)


def _computed(stat):
    """Return the processor time in seconds from the text of /proc/*/stat."""
    after_name = stat.rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def called(*args, stdin=b""):
    """Run `upconv args` inside this process, where libraries are loaded: seconds faster per call.

    The command's changes to SIGTERM, hooks and PyTorch's threads are undone.
    """
    from typer.testing import CliRunner

    from upconv.cli.app import app

    handler = signal.getsignal(signal.SIGTERM)
    show, hook = warnings.showwarning, sys.unraisablehook
    torch = sys.modules.get("torch")
    threads = torch and torch.get_num_threads()
    try:
        words = [*map(str, args)]
        done = CliRunner().invoke(app, words, input=stdin, catch_exceptions=False)
    finally:
        signal.signal(signal.SIGTERM, handler)
        warnings.showwarning, sys.unraisablehook = show, hook
        if torch:
            torch.set_num_threads(threads)
    return subprocess.CompletedProcess(args, done.exit_code, done.stdout_bytes, done.stderr_bytes)


def failed(done, code):
    """Return the only line on stderr of a process that must end with `code` and print no data."""
    assert done.returncode == code, done
    assert done.stdout == b""
    said = done.stderr.decode()
    assert "Traceback" not in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said
