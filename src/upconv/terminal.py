"""The progress of work that takes long: a callback, or one line on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called with what begins, its number from 1, and of how many."""


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """Yield the callback; without one, a line on stderr where that is a terminal, cleared after."""
    if progress is not None or not (sys.stderr and sys.stderr.isatty()):
        yield progress or (lambda *_: None)
        return

    def line(words: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{words[:width]:{width}}\r")
        sys.stderr.flush()

    try:
        yield lambda what, number, of: line(f"{what} ({number} of {of})")
    finally:
        line("")
