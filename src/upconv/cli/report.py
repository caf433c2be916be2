"""The output of a command: one JSON document, or text."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import typer

from .. import documents
from .._version import __version__
from ..errors import FileError
from .exits import say

SCHEMA = 1
"""The number increases when a field of the JSON documents changes its meaning or is removed."""


def finish(
    command: str, output_format: str, fields: Mapping[str, Any], lines: Sequence[str],
    talk: Sequence[str] = (), code: int = 0,
) -> NoReturn:  # fmt: skip
    """Print the results of a command, and end it with an exit code.

    fields: the fields of the JSON document. lines: text on stdout. talk: text on stderr.
    """
    if output_format == "json":
        text(document(command, fields))
    else:
        if lines:
            text("\n".join(lines))
        for line in talk:
            say(line)
    raise typer.Exit(code)


def document(command: str, fields: Mapping[str, Any]) -> str:
    """Return the JSON document of a command: schema, command, version, and its fields."""
    content = {"schema": SCHEMA, "command": command, "upconv": __version__, **fields}
    return json.dumps(documents.document(content), indent=1, allow_nan=False)


def text(words: str) -> None:
    """Print on stdout; `exits.ended` reports a full disk or a closed pipe."""
    if sys.stdout is None:
        raise FileError("Cannot write to the standard output: it is closed.")
    sys.stdout.write(words + "\n")
    sys.stdout.flush()
