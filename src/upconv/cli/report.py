"""What a command prints: one JSON document, plain text, or a table; and a line while it works.

A table is aligned plain ASCII on a terminal as in a pipe, for `grep` and `awk`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._version import __version__
from ..errors import FileError

SCHEMA = 1
"""Raised when a field of the JSON documents changes its meaning or goes away."""


def document(command: str, **fields: Any) -> None:
    """Print the JSON document of a command."""
    text(document_text(command, **fields))


def document_text(command: str, **fields: Any) -> str:
    """The JSON document of a command: schema, command, version, and its fields."""
    whole = {"schema": SCHEMA, "command": command, "upconv": __version__, **fields}
    return json.dumps(whole, indent=1, allow_nan=False)


def text(words: str) -> None:
    """Print on stdout; `FileError` if it cannot take it, `BrokenPipeError` if its reader left."""
    write(lambda: sys.stdout.write(words + "\n"))


def write(print_: Callable[[], object]) -> None:
    """Do what writes to stdout, and turn what the system says of it into a `FileError`."""
    if sys.stdout is None:
        raise FileError("Cannot write the standard output: it is closed.")
    try:
        print_()
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # its buffer would fail again while Python shuts down
        raise FileError(f"Cannot write the standard output: {error.strerror}.") from None


def table(rows: Sequence[Sequence[str]], *, left: int = 2) -> None:
    """Print rows, headings first where there are any; all but the `left` columns are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        aligned = (
            cell.ljust(size) if i < left else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(cells, widths, strict=True))
        )
        text("  ".join(aligned).rstrip())


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[str], None]]:
    """A line on stderr, where that is a terminal, that says what has begun: call with its words.

    total: how many parts there are, None where nobody knows.
    """
    if not (sys.stderr and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console

    done = 0
    with Console(stderr=True).status("") as status:

        def step(words: str) -> None:
            nonlocal done
            done += 1
            status.update(words if total is None else f"{min(done, total)} of {total}  {words}")

        yield step
