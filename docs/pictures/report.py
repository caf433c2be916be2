"""The picture of the ONNX report: `python docs/pictures/report.py [report.html]`, by a browser.

Without a report, a sample whose numbers are made up is shown: its head, and one layer opened. Needs
Chromium; upconv must be importable. Not one of `make.py`'s drawings, because two browsers do not
paint the same bytes.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

import browser as browsers  # noqa: E402
import onnx_reports  # noqa: E402
from upconv.onnx.report import write_report  # noqa: E402

WIDTH, LAYER = 900, 5
# What the picture leaves out: all layers but a few, a table of one, and all sections below them.
SHORTEN = f"""(() => {{
  document.querySelectorAll('.overview tbody tr').forEach((row, n) => n < 4 && row.remove());
  document.querySelectorAll('.overview tbody tr').forEach((row, n) => n > 2 && row.remove());
  document.querySelectorAll('details').forEach((layer, n) => n != {LAYER} && layer.remove());
  document.querySelector('details').open = true;
  document.querySelectorAll('.axes, .back, .facts').forEach(e => e.remove());
  document.querySelector('.filter').remove();
  document.querySelectorAll('main > section:nth-child(n + 3), footer').forEach(e => e.remove());
}})()"""


def main(report: Path | None) -> None:
    """The PNG beside this script."""
    program = browsers.found()
    if program is None:
        sys.exit("No Chromium is installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, browsers.browser(program) as page:
        if report is None:
            report = Path(folder) / "report.html"
            sample = replace(onnx_reports.sample(), broken=(), remarks=())
            write_report(sample, report)
        page.open(report.resolve(), WIDTH)
        page.value(SHORTEN)
        height = page.value("document.querySelector('details').getBoundingClientRect().bottom")
        picture = page.picture(x=0, y=0, width=WIDTH, height=height + 16)
    (HERE / "onnx-report.png").write_bytes(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
