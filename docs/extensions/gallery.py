"""Draw the plots of `docs/gallery/` after the build, and define the directive that shows one.

    ```{plot} overlap
    A description for readers who cannot see the plot.
    ```

Each plot has two files, for light and dark pages; furo's classes select one of them.
"""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

FOLDER = "_static/gallery"


class Plot(SphinxDirective):
    """The directive that shows a plot."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return a figure for HTML; other formats have none."""
        name, words = self.arguments[0], escape(" ".join(self.content), quote=True)
        if not (Path(self.env.srcdir) / "gallery" / f"{name}.py").is_file():
            raise self.error(f"docs/gallery/ has no {name}.py")
        above = "../" * self.env.docname.count("/")
        images = "".join(
            f'<img class="only-{scheme}" src="{above}{FOLDER}/{name}-{scheme}.svg" alt="{words}">'
            for scheme in ("light", "dark")
        )
        return [nodes.raw("", f'<figure class="plot">{images}</figure>', format="html")]


def _make(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        script = Path(app.srcdir) / "gallery" / "make.py"
        subprocess.run([sys.executable, str(script), str(Path(app.outdir) / FOLDER)], check=True)


def setup(app: Any) -> dict[str, bool]:
    """Connect the directive and the function that draws the plots."""
    app.add_directive("plot", Plot)
    app.connect("build-finished", _make)
    return {"parallel_read_safe": True}
