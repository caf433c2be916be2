"""What a command prints: one JSON document, plain text, or a table; and a line while it works.

A table is aligned plain ASCII on a terminal as in a pipe, for `grep` and `awk`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from functools import wraps
from typing import Any

import typer

from .._version import __version__
from ..errors import FileError
from .exits import say
from .options import OUTPUT_FORMAT, Command, declaring

SCHEMA = 1
"""Raised when a field of the JSON documents changes its meaning or goes away."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found: the fields of its JSON document, or lines for stdout and `talk` for
    stderr; and its exit code."""

    fields: Mapping[str, Any]
    lines: Sequence[str]
    talk: Sequence[str] = ()
    code: int = 0


def answering(name: str, **own: Any) -> Callable[[Callable[..., Answer]], Command]:
    """Make a command of options, its `own` and shared ones, that prints what it returns."""

    def decorated(command: Callable[..., Answer]) -> Command:
        @wraps(command)
        def answered(*, output_format: str, **given: Any) -> None:
            answer = command(**given)
            if output_format == "json":
                text(document(name, answer.fields))
            else:
                if answer.lines:
                    text("\n".join(answer.lines))
                for line in answer.talk:
                    say(line)
            raise typer.Exit(answer.code)

        return declaring(answered, own, OUTPUT_FORMAT)

    return decorated


def document(command: str, fields: Mapping[str, Any]) -> str:
    """The JSON document of a command: schema, command, version, and its fields."""
    whole = {"schema": SCHEMA, "command": command, "upconv": __version__, **fields}
    return json.dumps(whole, indent=1, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else asdict(value)


def text(words: str) -> None:
    """Print on stdout; `exits.ended` reports a full disk, or a reader that left."""
    if sys.stdout is None:
        raise FileError("Cannot write the standard output: it is closed.")
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def table(
    rows: Sequence[Sequence[str]], headings: Sequence[str] | None = None, *, left: int = 2
) -> list[str]:
    """Rows, if there are any, as aligned lines; all but the `left` columns are numbers."""
    rows = [headings, *rows] if rows and headings else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    edges = [f"<{width}" if i < left else f">{width}" for i, width in enumerate(widths)]
    return ["  ".join(map(format, cells, edges)).rstrip() for cells in rows]


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr, where that is a terminal, that says what has begun: call with its words."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
