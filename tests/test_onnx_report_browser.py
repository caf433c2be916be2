"""The report in a real browser: silent, self-contained, readable at every width and in the dark.

Skipped where no Chromium is installed (Debian: `apt-get install chromium`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("jinja2")

import browser as browsers
import onnx_reports as cases
from upconv.onnx.report import write_report

PROGRAM = browsers.found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")

REPORTS = {
    "sample": cases.sample(),
    "bare": cases.bare(),
    "unproven": cases.unproven(),
    "few": cases.many(7),
    "many": cases.many(64),
    "crowd": cases.crowd(),
}

OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"


@pytest.fixture(scope="module")
def page() -> Iterator[browsers.Browser]:
    assert PROGRAM
    with browsers.browser(PROGRAM) as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, found in REPORTS.items():
        write_report(found, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in REPORTS}


@pytest.mark.parametrize("name", ["sample", "bare", "crowd"])
def test_nothing_is_complained_about_loaded_or_run(page, files, name: str) -> None:
    page.open(files[name])
    page.value(OPEN_ALL)
    assert page.complaints() == []
    beside = [url for url in page.requests() if not url.startswith("data:")]
    assert beside == [files[name].as_uri()]
    assert not any(told.get("method") == "Page.javascriptDialogOpening" for told in page.events)
    assert page.value("document.scripts.length") == 0


def test_planted_fault_a_script_is_complained_about(page, files, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.html"
    text = files["sample"].read_text(encoding="utf-8")
    planted = "<script>document.title = 'owned'</script><p style='color: red'>"
    spoilt.write_text(text.replace("<main>", f"<main>{planted}"), encoding="utf-8")
    page.open(spoilt)
    assert "owned" not in page.value("document.title")
    assert sum("Content Security Policy" in each for each in page.complaints()) >= 2


@pytest.mark.parametrize("name", ["sample", "crowd"])
def test_no_width_needs_sideways_scrolling(page, files, name: str) -> None:
    page.open(files[name])
    page.value(OPEN_ALL)
    for width in (320, 360, 640, 801, 897, 1200, 1600):
        page.shape(width)
        assert page.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out(page, files, dark: bool) -> None:
    for name in ("sample", "unproven"):
        page.open(files[name], dark=dark)
        page.value(OPEN_ALL)
        light = (
            page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        assert light is not dark
        assert page.pale() == []


def test_the_keyboard_reaches_everything(page, files) -> None:
    page.open(files["few"])
    page.press("Tab")
    assert page.value("document.activeElement.className") == "skip"
    assert page.value("document.activeElement.getBoundingClientRect().left >= 0")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.value(outline) == "solid"
    page.press("Enter")
    assert page.value("location.hash") == "#layers"
    seen = []
    for _ in range(10):
        page.press("Tab")
        seen.append(page.value("document.activeElement.tagName"))
        assert page.value(outline) == "solid"
    assert set(seen) >= {"INPUT", "A", "SUMMARY"}


def test_a_link_opens_its_layer(page, files) -> None:
    page.open(files["many"])
    assert not page.value("document.querySelector('details[open]')")
    page.value("document.querySelector('a[href=\"#l37\"]').click()")
    page.value("new Promise(done => setTimeout(done, 200))")
    opened = "[...document.querySelectorAll('details[open] > div')].map(each => each.id)"
    assert page.value(opened) == ["l37"]
    top = page.value("document.querySelector('details[open]').getBoundingClientRect().top")
    assert 0 <= top < 200


def test_the_filter_leaves_rewritten_layers(page, files) -> None:
    page.open(files["sample"])
    shown = "[...document.querySelectorAll('details')].filter(each => each.offsetHeight).length"
    assert page.value(shown) == len(cases.sample().layers)
    page.value("document.getElementById('only').click()")
    assert page.value(shown) == len(cases.sample().rewritten)


def pages(paper: bytes) -> int:
    """Pages of a PDF; Chromium does not compress the objects that say so."""
    return len(re.findall(rb"/Type /Page\b(?!s)", paper))


def test_paper_holds_every_layer_of_a_small_report(page, files) -> None:
    page.open(files["sample"], dark=True)
    paper = page.paper()
    assert b"/MediaBox [0 0 594.9" in paper  # A4
    assert 5 <= pages(paper) <= 14
    page.open(files["many"])
    assert pages(page.paper()) <= 22, "of a large report only what was opened is printed"
