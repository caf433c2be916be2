"""Write the explorer into the site with its own script, after the build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def _write(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir) / "explorer"
        folder.mkdir(exist_ok=True)
        script = Path(app.srcdir) / "explorer" / "make.py"
        subprocess.run([sys.executable, str(script), str(folder / "page.html")], check=True)


def setup(app: Any) -> dict[str, bool]:
    """Connect the function that writes the page."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}
