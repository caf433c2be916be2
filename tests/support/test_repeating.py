"""A test run reports what it leaves out, how to repeat failures, and what a test leaves changed;
it leaves out tests that have passed before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.repeating import VARIABLE, only, seeds

# `find_spec` finds no module whose entry is None, and its import raises ModuleNotFoundError.
WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None\n"

RANDOM = """
import pytest
from hypothesis import given, strategies
from tests.support.repeating import only, seeds

@pytest.mark.parametrize("name", ["a b"])
def test_loop(name):
    for seed in seeds(10, 40):
        assert seed != 17, f"planted at {seed}"

def test_process():
    ran = list(only(range(40)))
    assert 23 not in ran, f"WRONG seed 23 of {ran}"

@pytest.mark.long
def test_long():
    for seed in seeds(3):
        pass
    assert not seed, "after the loop"

@given(strategies.integers(0, 1000))
def test_drawn(number):
    assert number < 500
"""

CHANGES = """
import os, signal
import numpy as np
import upconv
from upconv import threads

def test_threads():
    upconv.set_num_threads(7)

def test_threads_are_taken_back():
    assert threads._chosen is None

def test_variable():
    os.environ["UPCONV_LEFT"] = "1"

def test_folder(tmp_path):
    os.chdir(tmp_path)

def test_signal():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def test_errors():
    np.seterr(all="raise")
"""

PARTS = """
import pytest

@pytest.fixture
def leftover():
    yield
    raise AssertionError

def test_passes():
    pass

def test_fails():
    raise AssertionError

def test_skips():
    pytest.skip()

def test_fails_at_the_end(leftover):
    pass

@pytest.mark.peers
def test_does_more_with_peers():
    pass
"""


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run pytest on a folder, with this project's settings."""
    modules = [
        f"support/{name}"
        for name in ("__init__", "pages", "page_files", "passed", "paths", "repeating")
    ]
    tests = [f"tests/{name}.py" for name in ("__init__", "conftest", *modules)]
    for name in ("conftest.py", "pyproject.toml", *tests):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=folder,
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip


def test_a_module_that_needs_an_absent_framework_skips_with_a_reason(tmp_path: Path) -> None:
    """Only such a module is skipped: its neighbour's error remains an error."""
    files = {
        "without_torch.py": WITHOUT_TORCH,
        "src/upconv/torch/module.py": '"""\n>>> 1\n2\n"""\nimport torch\n',
        "src/upconv/other.py": '"""\n>>> 1\n2\n"""\nimport torch\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run(tmp_path, "-p", "without_torch", "-rsE", "src")
    assert re.search(r"SKIPPED \[1\] .*: needs torch$", done.stdout, re.MULTILINE)
    assert "1 skipped, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR src/upconv/other.py" in done.stdout


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder of tests, most of which fail, and the output of their run on one worker."""
    folder = tmp_path_factory.mktemp("planted")
    files = {"tests/test_random.py": RANDOM, "tests/test_parts.py": PARTS}
    files["tests/test_changes.py"] = CHANGES  # last, since it leaves the process changed
    (folder / "tests").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    done = run(folder, "-n", "1", "-m", "", "--write-passed", "passed.txt", *files)
    return folder, done.stdout + done.stderr


def test_what_has_passed_is_left_out(planted: tuple[Path, str]) -> None:
    """Only tests that did not pass, those marked `peers`, and new modules run again."""
    folder, _ = planted
    assert (folder / "passed.txt").read_text().splitlines() == [
        "tests/test_changes.py::test_threads",
        "tests/test_changes.py::test_threads_are_taken_back",
        "tests/test_parts.py::test_does_more_with_peers",
        "tests/test_parts.py::test_passes",
    ]
    (folder / "tests" / "test_new.py").write_text("def test_new():\n    pass\n")
    files = "tests/test_parts.py", "tests/test_new.py"
    again = run(folder, "-v", "--leave-out-passed", "passed.txt", *files)
    assert set(re.findall(r"::(test_\w+)", again.stdout)) == {
        "test_fails", "test_skips", "test_fails_at_the_end", "test_does_more_with_peers", "test_new"
    }  # fmt: skip


def test_a_failure_is_repeated_by_the_line_it_prints(planted: tuple[Path, str]) -> None:
    folder, said = planted
    lines = re.findall(r"^(.*python -m pytest.*test_random.*)$", said, re.MULTILINE)
    assert lines == [
        "UPCONV_SEED=17 python -m pytest 'tests/test_random.py::test_loop[a b]'",
        "UPCONV_SEED=23 python -m pytest tests/test_random.py::test_process",
        "python -m pytest -m long tests/test_random.py::test_long",
        "python -m pytest tests/test_random.py::test_drawn",
    ], said
    again = subprocess.run(
        lines[0].replace("python", f"'{sys.executable}'", 1), shell=True, cwd=folder,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert again.returncode == 1
    assert re.search("^E .*planted at 17", again.stdout, re.MULTILINE), again.stdout


def test_what_a_test_changes_for_the_next_one_is_an_error(planted: tuple[Path, str]) -> None:
    failed = re.findall(r"^ERROR tests/test_changes.py::(\w+)", planted[1], re.MULTILINE)
    assert failed == ["test_variable", "test_folder", "test_signal", "test_errors"], planted[1]


def test_one_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*seeds(3, 6)] == [3, 4, 5]
    monkeypatch.setenv(VARIABLE, "4")
    assert [*seeds(3, 6)] == [4]
    assert [*only(range(4))] == []
