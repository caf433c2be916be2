"""Write the explorer as one page: `python docs/explorer/make.py page.html`.

The page is `page.html` with its style, its script and the table inserted; it loads nothing over a
network. upconv must be importable.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from table import export

FOLDER = Path(__file__).parent


def page() -> str:
    """Return the page's text."""
    # Without a "<" the table cannot end the element that holds it.
    table = json.dumps(export(), separators=(",", ":")).replace("<", "\\u003c")
    text = _read("page.html")
    for mark, content in (
        (
            '<link rel="stylesheet" href="explorer.css">',
            f"<style>\n{_read('explorer.css')}</style>",
        ),
        ("{}</script>", f"{table}</script>"),
        ('<script src="explorer.js"></script>', f"<script>\n{_read('explorer.js')}</script>"),
    ):
        assert text.count(mark) == 1, mark
        text = text.replace(mark, content)
    return text


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8", newline="\n")
