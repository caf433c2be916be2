"""Text output for people: tables, escaped names, and a progress line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .argument_checks import function

Progress = Callable[[str, int, int], None]
"""Callback for the name of a step, its number from 1, and the number of steps."""

WIDTH = 80  # columns of printed text

LONGEST_SENTENCE = 1200  # characters, for all text except names


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """Yield the callback, or one that shows a temporary line on stderr if that is a terminal."""
    function("progress", progress, "(what, number, of)")
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


def aligned(
    rows: Sequence[Sequence[str]], headings: Sequence[str] | None = None, *, left: int | None = None
) -> list[str]:
    """Return the rows as lines, each column as wide as its widest cell; no lines without rows.

    left: the number of text columns before the numeric columns (default: all are text).

    >>> aligned([("up1", "2.5"), ("up2", "13.5")], ("layer", "ms"), left=1)
    ['layer    ms', 'up1     2.5', 'up2    13.5']
    """
    rows = [headings, *rows] if rows and headings else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    edges = [f"{'<' if left is None or i < left else '>'}{n}" for i, n in enumerate(widths)]
    return ["  ".join(map(format, row, edges)).rstrip() for row in rows]


def folded(
    rows: Sequence[Sequence[str]], headings: Sequence[str], *, left: int, width: int
) -> list[str]:
    """Return an aligned table, split into blocks at most `width` characters wide where possible.

    Every block has the `left` text columns and some of the numeric columns.

    >>> folded([("up1", "2.5", "13.5")], ("layer", "ms", "GB/s"), left=1, width=12)
    ['layer   ms', 'up1    2.5', '', 'layer  GB/s', 'up1    13.5']
    """
    if not rows:
        return []
    table = [headings, *rows]
    widths = [2 + max(map(len, column)) for column in zip(*table, strict=True)]
    text, blocks = list(range(left)), list[list[int]]()
    for i in range(left, len(widths)):
        if not blocks or sum(widths[k] for k in (*text, *blocks[-1], i)) - 2 > width:
            blocks.append([])
        blocks[-1].append(i)
    lines = list[str]()
    for block in blocks:
        cut = [[row[k] for k in (*text, *block)] for row in table]
        lines += ["", *aligned(cut, left=left)]
    return lines[1:]


def neutral(text: str) -> str:
    r"""Return the text with Python escapes for control characters and other unprintable ones.

    >>> neutral("up\x1b[31m\u202eevil")
    'up\\x1b[31m\\u202eevil'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, longest: int = 72, mark: str = "…") -> str:
    """Return the escaped text, with `mark` in place of its middle if it is too long.

    >>> shortened("abcdefghij", longest=7)
    'abc…hij'
    """
    if len(text) > 2 * longest:  # do not escape megabytes that are cut anyway
        text = text[: longest + 1] + text[-longest:]
    shown, room = neutral(text), max(longest - len(mark), 0)
    if len(shown) <= longest:
        return shown
    return f"{shown[: room - room // 2]}{mark}{shown[len(shown) - room // 2 :]}"


def one_line(error: BaseException) -> str:
    """Return a third-party error's message on one short line, or its type if it has none."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, 500, "...")
