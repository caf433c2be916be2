"""Line breaks in tables: names may break after `_`, `.`, `/` and `(`, numbers nowhere.

By default a browser breaks 1.4e-07 at its hyphen, and breaks a name such as `output_padding`
nowhere or anywhere. In a wide window the style sheet ignores the breaks in names.
"""

from __future__ import annotations

import re
from typing import Any

_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
_CODE = re.compile(r"<code.*?</code>", re.DOTALL)
_TEXT = re.compile(r"(?<=>)[^<>]+(?=<)")
_BREAK = re.compile(r"(?<=\w)([_./(]+)(?=\w)")
_EXPONENT = re.compile(r"\b\d+(?:\.\d+)?e-\d+\b")


def _name(code: re.Match[str]) -> str:
    return _TEXT.sub(lambda text: _BREAK.sub(r"\1<wbr>", text[0]), code[0])


def _table(table: re.Match[str]) -> str:
    whole = _TEXT.sub(
        lambda text: _EXPONENT.sub(r'<span class="number">\g<0></span>', text[0]), table[0]
    )
    return _CODE.sub(_name, whole)


def breakable(html: str) -> str:
    """Return a page whose tables mark where words may break."""
    return _TABLE.sub(_table, html)


def _break(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = breakable(context["body"])


def setup(app: Any) -> dict[str, bool]:
    """Connect the function that changes a page's HTML."""
    app.connect("html-page-context", _break)
    return {"parallel_read_safe": True}
