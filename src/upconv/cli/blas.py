"""The threads of NumPy's BLAS, which it counts once, while it is loaded.

By the time a command reads `--threads`, NumPy is there. Where its count is another one, the process
starts itself anew with the variables that BLAS libraries read; nothing has been read or written
yet. On Windows, which cannot replace a process, the difference is said.
"""

from __future__ import annotations

import os
import sys

from .endings import say

_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def agree(threads: int) -> None:
    """Have NumPy's BLAS use `threads` threads; may replace the process by its like."""
    if _count() == threads:
        return
    if os.name != "posix":
        say(
            f"NumPy's BLAS keeps its {_count()} threads; set OMP_NUM_THREADS={threads} to change it"
        )
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    environment = {**os.environ, **dict.fromkeys(_VARIABLES, str(threads))}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


def _count() -> int:
    """The threads NumPy's BLAS counted: the first variable that is set, else every processor."""
    for variable in _VARIABLES:
        text = os.environ.get(variable, "").split(",")[0].strip()
        if text.isdecimal() and int(text):
            return int(text)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
