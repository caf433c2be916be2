"""Text for terminals: tables, and one line that shows the progress of work that takes long."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .errors import DTypeError, brief

Progress = Callable[[str, int, int], None]
"""Called with what begins, its number from 1, and of how many."""


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """Yield the callback; without one, a line on stderr where that is a terminal, cleared after."""
    if progress is not None and not callable(progress):
        raise DTypeError("progress", brief(progress), "a function of (what, number, of), or None")
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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines, each column as wide as its widest cell.

    >>> aligned([("layer", "ms"), ("up1", "2.5")])
    ['layer  ms', 'up1    2.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
