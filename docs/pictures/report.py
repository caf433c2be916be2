"""Draw the picture of the ONNX report: `python docs/pictures/report.py [report.html]`.

Without a report, the script draws a sample with invented numbers: its head and one opened layer.
It needs Chromium, and upconv must be importable. `make.py` does not run it, because different
browsers paint different bytes.
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
# Remove all layers after the open one, and everything below the layers.
SHORTEN = f"""(() => {{
  const layers = [...document.querySelectorAll('details')];
  layers.forEach((layer, n) => n > {LAYER} && layer.remove());
  layers.forEach((layer, n) => {{ layer.open = n == {LAYER}; }});
  document.querySelectorAll('details ~ :not(details), footer').forEach(e => e.remove());
}})()"""


def main(report: Path | None) -> None:
    """Write the PNG beside this script."""
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
