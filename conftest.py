"""For every test and doctest: skips where a framework is absent, a tuning file of the run's own,
signals as in a terminal, NumPy on one thread, files of bytecode, one command line for all commands,
and a garbage collector that leaves alone what was there before."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.pages import PageFile

pytest_plugins = ["tests.support.passed"]

# What doctests need beyond the extra `test`. They skip where it is absent; `-rs` shows the reasons.
_ROOT = Path(__file__).parent
_NEEDS = {
    "src/upconv/dask": ("dask",),
    "src/upconv/linear": ("scipy",),
    "src/upconv/mxnet/to_onnx.py": ("onnx", "onnxruntime"),
    "src/upconv/onnx": ("onnx", "onnx_ir", "onnxruntime"),
    "src/upconv/onnx/runtimes/openvino.py": ("openvino",),
    "src/upconv/torch": ("torch",),
}
_ABSENT = {name for needs in _NEEDS.values() for name in needs if find_spec(name) is None}

# A folder of its own, so that no test finds, or leaves, anything in the user's cache. The processes
# of pytest-xdist inherit the variable, and share the file.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="upconv-tests-")
    os.environ["UPCONV_TUNING_FILE"] = str(Path(_folder.name) / "tuning.json")


def pytest_configure(config: pytest.Config) -> None:
    """Keep machine code in pytest's cache: other processes and later runs need not generate it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        kept = getattr(config, "cache", None)  # not with -p no:cacheprovider
        os.environ["UPCONV_CACHE_DIR"] = str(kept.mkdir("upconv")) if kept else _folder.name


# A shell that starts this run in the background has it ignore Ctrl-C, and so would every process
# that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run side by side; threads of OpenBLAS and OpenMP would spin for a while after each loop, for
# nothing. A page of PyTorch's doctests takes nine times as long for that.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tests start some hundreds of Pythons. Without files of bytecode each of them compiles upconv anew,
# which takes longer than the imports themselves.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Typer makes the whole command line anew for every command: 50 ms for each of some hundreds.
if find_spec("typer"):
    import typer.main

    typer.main.get_command = cache(typer.main.get_command)

gc.disable()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> PageFile | None:
    """Pages of documentation: their Python and their commands."""
    return PageFile.from_parent(parent, path=file_path) if file_path.suffix == ".md" else None


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays to the end: the garbage collector would look at
    all of it again and again, and a test that asks for a collection would wait for a second."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The same after each file: the first test that needs a framework has imported it."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """Skip the doctests of a module that cannot be imported without an absent framework."""
    folders = [path for path in _NEEDS if collector.path.is_relative_to(_ROOT / path)]
    absent = _ABSENT.intersection(name for path in folders for name in _NEEDS[path])
    if absent and isinstance(collector, pytest.Module):
        collector.collect = lambda: pytest.skip(f"needs {', '.join(sorted(absent))}")
