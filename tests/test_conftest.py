"""A run tells of what it leaves out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# `find_spec` finds no module whose entry is None, and its import raises ModuleNotFoundError.
WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None\n"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest on a folder, with the settings of this project."""
    for name in ("conftest.py", "pyproject.toml", "tests/conftest.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_needs_an_absent_framework_skips_with_a_reason(tmp_path: Path) -> None:
    """And only that: the examples before it run, and other errors are errors."""
    files = {
        "without_torch.py": WITHOUT_TORCH,
        "docs/skips.md": ">>> 1 + 1\n2\n>>> import torch\n>>> torch.wrong()\n",
        "docs/fails.md": ">>> 1 + 1\n3\n>>> import torch\n",
        "docs/errs.md": ">>> import torch_of_another_name\n",
        "src/upconv/torch/module.py": '"""\n>>> 1\n2\n"""\nimport torch\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run(tmp_path, "-p", "without_torch", "-rsf", "docs", "src")
    assert "skips.md from line 3 on: " in done.stdout
    assert re.search(r"SKIPPED .*: needs torch$", done.stdout, re.MULTILINE)
    assert "2 failed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert {"FAILED docs/fails.md", "FAILED docs/errs.md"} == set(
        re.findall(r"^FAILED docs/\w+.md", done.stdout, re.MULTILINE)
    )
