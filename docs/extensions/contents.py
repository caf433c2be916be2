"""The tree of pages, made from the links of the index so that the index reads well on a forge too.

Every section of `index.md` that links to pages becomes a part of the navigation, with its heading
as the caption and its pages in the order of the links. Pages in docs/ without a link in the index
come last, so that a new page is never lost.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_SECTION = re.compile(r"^## +(.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([\w/-]+)\.md\)")


def trees(index: str, pages: list[str]) -> dict[str, list[str]]:
    """Return captions and their pages; `pages` are all pages except the index."""
    _, *parts = _SECTION.split(index)
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for caption, text in zip(parts[::2], parts[1::2], strict=True):
        linked = [page for page in dict.fromkeys(_LINK.findall(text)) if page not in seen]
        seen.update(linked)
        if linked:
            found[caption.strip()] = linked
    if set(pages) - seen:
        found["More"] = sorted(set(pages) - seen)
    return found


def _add_trees(app: Any, docname: str, source: list[str]) -> None:
    if docname != "index":
        return
    folder = Path(app.srcdir)
    names = (page.relative_to(folder).with_suffix("").as_posix() for page in folder.rglob("*.md"))
    pages = [name for name in names if name != "index" and not name.startswith("_build/")]
    for caption, linked in trees(source[0], pages).items():
        entries = "\n".join(linked)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def _trim_blocks(app: Any, doctree: Any) -> None:
    """Drop the blank line that doctest needs at the end of a block of code."""
    from docutils import nodes  # may be absent if only `trees` is tested

    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        block.rawsource = text
        block.children = [nodes.Text(text)]


def setup(app: Any) -> dict[str, bool]:
    """Connect the tree."""
    app.connect("source-read", _add_trees)
    app.connect("doctree-read", _trim_blocks)
    return {"parallel_read_safe": True}
