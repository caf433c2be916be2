"""Sphinx: `sphinx-build -W docs docs/_build` with the extra `docs` installed.

The pages are plain Markdown that reads well on a forge. The one thing Sphinx needs besides, the
tree of pages, is added to `index` here, in the order in which the index links to them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = "upconv"
author = "the upconv authors"
project_copyright = f"{author}, Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns = ["_build", "pictures"]
html_theme = "furo"
html_title = project
myst_heading_anchors = 3
pygments_style = "tango"
pygments_dark_style = "monokai"

_LINK = re.compile(r"\]\(([\w-]+)\.md\)")


def _add_tree(app: Any, docname: str, source: list[str]) -> None:
    """The table of contents, appended to the index before it is parsed."""
    if docname == "index":
        linked = list(dict.fromkeys(_LINK.findall(source[0])))
        others = sorted({page.stem for page in Path(app.srcdir).glob("*.md")} - {*linked, "index"})
        pages = "\n".join([*linked, *others])
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def setup(app: Any) -> None:
    """Connect the table of contents."""
    app.connect("source-read", _add_tree)
