"""What a command prints: one JSON document, plain text, or a table; and the bar while it works.

A table is made once, of text cells. On a terminal rich draws it; elsewhere it is aligned plain
ASCII, without a box character or an escape sequence, for `grep` and `awk`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any, Protocol

from .._version import __version__
from ..errors import FileError

SCHEMA = 1
"""Raised when a field of the JSON documents changes its meaning or goes away."""


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows of cells; rows of one `section` belong together.

    The first `left` columns are words and aligned left, the others are numbers.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sections: tuple[str, ...]
    left: int = 2

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each column, in characters."""
        lines = (self.headings, *self.rows)
        return tuple(max(map(len, column)) for column in zip(*lines, strict=True))

    def __str__(self) -> str:
        return "\n".join(self._line(cells) for cells in (self.headings, *self.rows))

    def _line(self, cells: Sequence[str]) -> str:
        aligned = (
            cell.ljust(width) if i < self.left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, self.widths, strict=True))
        )
        return "  ".join(aligned).rstrip()


def document(command: str, **fields: Any) -> None:
    """Print the JSON document of a command."""
    text(document_text(command, **fields))


def document_text(command: str, **fields: Any) -> str:
    """The JSON document of a command: schema, command, version, and its fields."""
    whole = {"schema": SCHEMA, "command": command, "upconv": __version__, **fields}
    return json.dumps(whole, indent=1, allow_nan=False)


def text(words: str) -> None:
    """Print on stdout; `FileError` if it cannot take it, `BrokenPipeError` if its reader left."""
    if sys.stdout is None:
        raise FileError("Cannot write the standard output: it is closed.")
    try:
        sys.stdout.write(words + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # its buffer would fail again while Python shuts down
        raise FileError(f"Cannot write the standard output: {error.strerror}.") from None


def width() -> int:
    """The columns of the terminal that stdout is; 80 where it is none."""
    return get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else 80


def table(shown: Table) -> None:
    """Print a table on stdout, drawn if that is a terminal and wide enough to cut no number."""
    if not (sys.stdout and sys.stdout.isatty()):
        text(str(shown))
        return
    from rich.console import Console

    console = Console()
    if sum(shown.widths) + len(shown.widths) > console.width:
        text(str(shown))
    else:
        console.print(_drawn(shown))


def _drawn(shown: Table) -> Any:
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
        header_style="bold",
    )
    for i, heading in enumerate(shown.headings):
        drawn.add_column(Text(heading), justify="left" if i < shown.left else "right", no_wrap=True)
    followers = (*shown.sections[1:], None)
    for cells, section, follower in zip(shown.rows, shown.sections, followers, strict=True):
        styled = [Text(cell, style=_style(cell)) for cell in cells]
        drawn.add_row(*styled, end_section=section != follower)
    return drawn


def _style(cell: str) -> str:
    return {"WRONG": "bold red", "FAILED": "bold red", "DIFFERENT": "bold red", "-": "dim"}.get(
        cell, ""
    )


class Progress(Protocol):
    """The bar, as seen by the one who does the work."""

    def step(self, description: str) -> None:
        """One more part is about to begin."""


class _Silence:
    def step(self, description: str) -> None:
        """Nobody watches."""


@contextmanager
def progress(total: int | None) -> Iterator[Progress]:
    """A bar on stderr for `total` parts (a spinner for None), if that is a terminal."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield _Silence()
        return
    from rich import progress as bars
    from rich.console import Console

    class Bar:
        def step(self, description: str) -> None:
            bar.update(task, advance=self.begun, description=description)
            self.begun = 1

        begun = 0

    columns = [bars.SpinnerColumn(), bars.BarColumn(24)] if total else [bars.SpinnerColumn()]
    shown = [*columns, *([bars.MofNCompleteColumn()] if total else []), bars.TimeElapsedColumn()]
    words = bars.TextColumn("{task.description}", markup=False)
    with bars.Progress(*shown, words, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield Bar()
