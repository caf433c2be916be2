"""The picture of the ONNX report: `python docs/pictures/report.py [report.html]`, by a browser.

Without a report, a sample whose numbers are made up is shown: its head, and one layer opened. Needs
Chromium; upconv must be importable. Not one of `make.py`'s drawings, because two browsers do not
paint the same bytes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.support import browser as browsers  # noqa: E402
from tests.support import onnx_reports  # noqa: E402
from upconv.onnx.report import write_report  # noqa: E402

WIDTH, LAYER = 900, 1
# What the picture leaves out: all layers after the one that is open, and what is below them.
SHORTEN = f"""(() => {{
  const layers = [...document.querySelectorAll('details')];
  layers.forEach((layer, n) => n > {LAYER} && layer.remove());
  layers.forEach((layer, n) => {{ layer.open = n == {LAYER}; }});
  document.querySelectorAll('details ~ :not(details), footer').forEach(e => e.remove());
}})()"""


def main(report: Path | None) -> None:
    """The PNG beside this script."""
    program = browsers.found()
    if program is None:
        sys.exit("No Chromium is installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, browsers.browser(program) as page:
        if report is None:
            report = Path(folder) / "report.html"
            write_report(onnx_reports.sample(), report)
        page.open(report.resolve(), WIDTH)
        page.value(SHORTEN)
        height = page.value(
            "document.querySelector('details[open]').getBoundingClientRect().bottom"
        )
        picture = page.picture(x=0, y=0, width=WIDTH, height=height + 16)
    (HERE / "onnx-report.png").write_bytes(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
