"""For every test and doctest: what is measured is kept in a file of the test run's own."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

# Doctests of the face for PyTorch need it.
collect_ignore_glob = [] if find_spec("torch") else ["src/upconv/torch/*"]

# A folder of its own, so that no test finds, or leaves, anything in the user's cache. The processes
# of pytest-xdist inherit the variable, and share the file.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="upconv-tests-")
    os.environ["UPCONV_TUNING_FILE"] = str(Path(_folder.name) / "tuning.json")
