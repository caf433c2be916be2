"""The report of an optimisation: what it says, that names are harmless, how the page looks."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("jinja2", reason="the report is a template")

from tests.support import browser as browsers
from tests.support import onnx_reports as cases
from upconv.errors import ArgumentError, FileError
from upconv.onnx.optimizing.results import Ratio, WholeResult
from upconv.onnx.report import as_html, as_text, write_report

PROGRAM = browsers.found()
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")


def test_the_page_says_what_the_json_says() -> None:
    found = cases.sample()
    page = as_html(found)
    assert as_html(json.loads(json.dumps(found.as_json()))) == page
    for words in (
        "1.53 times as fast", "Verified", "3 of 5 transposed convolutions", "/fsrcnn/deconv",
        "sub_pixel:folded", "3.31 times as fast (3.25 to 3.38)", "44.2 ms", "kernel 9, stride 3",
        "its strides are not all 1", "Written to models/decoder-zoo.fast.onnx", "opset 18",
        "its weight is not constant", "fold_pad at /vocoder/ups.0", "onnxruntime 1.31.1",
    ):  # fmt: skip
        assert words in page, words


def test_what_was_not_equal_is_not_called_verified() -> None:
    page, text = as_html(cases.unequal()), as_text(cases.unequal())
    assert "Nothing to verify" in page
    assert "Not equal in onnxruntime with /mask/up.0: image" in page
    assert "Verified" not in page
    assert "nothing was changed" in text
    assert all("upconv does not take it" in told for told in (page, text))


def test_the_text_has_a_row_per_layer_and_ends_in_the_verdict() -> None:
    lines = as_text(cases.sample()).splitlines()
    assert lines[0].startswith("models/decoder-zoo.onnx: onnxruntime, 2 threads")
    [row] = [line for line in lines if line.startswith("/fsrcnn")]
    assert row.startswith("/fsrcnn/deconv  ConvTranspose  1       sub_pixel:folded  44.2 ms  13.4")
    assert "3.31x   3.31 times as fast (1.30 to 3.40) as the original" in row
    assert any(line.startswith("/loop") and "weight is not constant" in line for line in lines)
    assert lines[-1].startswith("verdict")
    slow = replace(cases.sample(), whole=(WholeResult(1.0123, 0.9996, Ratio(1.01, 1.0, 1.02)),))
    assert "whole model     1.01 s before, 1.00 s after: 1.01 times as fast" in as_text(slow)
    assert "From 1.01 s to 1.00 s per call" in as_html(slow)
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("name", cases.HOSTILE, ids=range(len(cases.HOSTILE)))
def test_names_are_shown_and_never_obeyed(name: str) -> None:
    page, text = as_html(cases.hostile(name)), as_text(cases.hostile(name))
    for words in ("<script", "<img", "<h1>owned", ">49", "onerror='alert"):
        assert words not in page
    assert not re.search(
        "[\x00-\x08\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page + text
    )
    page.encode()
    assert len(page) < 100_000
    assert len(text) < 20_000
    assert len(text.splitlines()) < 20


def test_a_report_is_a_page_or_json_by_its_name(tmp_path: Path) -> None:
    write_report(cases.sample(), tmp_path / "r.html")
    write_report(cases.sample(), tmp_path / "r.json")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(
        json.dumps(cases.sample().as_json())
    )
    with pytest.raises(FileError, match="exists"):
        write_report(cases.sample(), tmp_path / "r.html")
    with pytest.raises(ArgumentError, match=r"ends in \.html or \.json"):
        write_report(cases.sample(), tmp_path / "r.pdf")


# In a browser -------------------------------------------------------------------------------------

OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
REPORTS = {
    "sample": cases.sample(),
    "unequal": cases.unequal(),
    "evil": cases.hostile(cases.HOSTILE[2]),
}


@pytest.fixture(scope="module")
def page() -> Iterator[browsers.Browser]:
    assert PROGRAM
    with browsers.browser(PROGRAM) as opened:
        yield opened


@needs_browser
@pytest.mark.parametrize("name", REPORTS)
def test_the_page_in_a_browser(page: browsers.Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "r.html"
    write_report(REPORTS[name], path)
    for dark in (False, True):
        page.open(path, dark=dark)
        page.value(OPEN_ALL)
        assert page.pale() == []
        assert page.complaints() == []
        assert [url for url in page.requests() if not url.startswith("data:")] == [path.as_uri()]
        assert page.value("document.scripts.length") == 0
        for width in (320, 640, 897, 1600):
            page.shape(width)
            assert page.value("document.documentElement.scrollWidth") <= width


@needs_browser
def test_a_script_that_is_planted_is_not_run(page: browsers.Browser, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.html"
    planted = as_html(cases.sample()).replace("<main>", "<main><script>document.title = 1</script>")
    spoilt.write_text(planted, encoding="utf-8")
    page.open(spoilt)
    assert page.value("document.title") != "1"
    assert any("Content Security Policy" in each for each in page.complaints())
