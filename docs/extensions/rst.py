"""Convert the plain text of docstrings to reStructuredText.

In a docstring, backticks mark code, 4 spaces begin a block of code or algebra, `*` and `_` have no
special meaning, and lines that all begin with `name: ` are a list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CODE = re.compile(r"(`[^`\n]+(?:\n[^`\n]+)?`)")
_ITEM = re.compile(r"[a-z][\w, ]*: ")
_SPECIAL = re.compile(r"([*_|\\])")


def as_rst(lines: list[str], names: Mapping[str, str] | None = None) -> list[str]:
    """Convert a docstring's lines; code that is a key of `names` becomes a link."""
    made: list[str] = []
    for paragraph in re.split(r"\n\n+", "\n".join(lines).strip("\n")):
        if paragraph.startswith(">>> "):
            block = paragraph
        elif paragraph.startswith("    "):
            block = "::\n\n" + paragraph
        else:
            block = "\n".join(_prose(entry, names or {}) for entry in _entries(paragraph))
        made += [*block.split("\n"), ""]
    return made[:-1]


def _entries(paragraph: str) -> list[list[str]]:
    """Return a paragraph's lines, divided into items if all lines begin with `name: `."""
    lines = paragraph.split("\n")
    if not all(_ITEM.match(line) or line.startswith("    ") for line in lines):
        return [[line.strip() for line in lines]]
    items: list[list[str]] = []
    for line in lines:
        if _ITEM.match(line):
            items.append(["* " + line])
        else:
            items[-1].append("  " + line.strip())
    return items


def _prose(lines: list[str], names: Mapping[str, str]) -> str:
    marker = "* " if lines[0].startswith("* ") else ""
    parts = _CODE.split("\n".join(lines).removeprefix(marker))
    parts[::2] = [_SPECIAL.sub(r"\\\1", text) for text in parts[::2]]
    parts[1::2] = [_code(text[1:-1], names) for text in parts[1::2]]
    # Code next to a word or a punctuation mark must end with "\ ", which prints no space.
    return marker + r"\ ".join(parts) if len(parts) > 1 else marker + parts[0]


def _code(text: str, names: Mapping[str, str]) -> str:
    target = names.get(text)
    return f":py:obj:`~{target}`" if target else f"``{' '.join(text.split())}``"
