"""The report: values appear, names stay names, drawings say what the axis does, files are whole."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import unicodedata
from dataclasses import asdict, fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("jinja2")

import onnx_reports as cases
from upconv.errors import EngineMissing, FileError
from upconv.onnx import names
from upconv.onnx.optimizing.results import Optimization, Ratio
from upconv.onnx.report import as_html, as_text, figures, html, write_report

VOID = {"meta", "link", "input", "br", "wbr"}
HARMLESS = "name"


class Page(HTMLParser):
    """What a browser would make of a page: its elements in order, its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.style = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.words.append(" " if tag in ("td", "th", "br", "li", "dt", "dd", "caption") else "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} is closed out of order"

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        return [has[attribute] or "" for _, has in self.elements if attribute in has]

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements and their attributes' names, without where lines may break and full names."""
        return [
            (tag, tuple(name for name in has if name != "title"))
            for tag, has in self.elements
            if tag != "wbr"
        ]


def test_every_measured_value_is_on_the_page() -> None:
    found = cases.sample()
    text = Page(as_html(found)).text
    for layer in found.layers:
        assert layer.node in text
        assert layer.why in text
        for trial in layer.trials:
            assert trial.rewriting in text
            assert trial.refusal is None or trial.refusal in text
            if trial.timing:
                unit = figures.Unit.of(*(t.timing.median for t in layer.trials if t.timing))
                assert unit.text(trial.timing.median) in text
                assert figures.size(trial.weight_bytes) in text
                assert figures.size(trial.peak_bytes) in text
            if trial.ratio:
                words, _, interval = figures.faster(trial.ratio).partition(" (")
                assert f"{words} ({interval}" in text
    for proof in found.proofs:
        assert f"{figures.scientific(proof.error)}" in text
    more = (*found.prepared, *found.remarks, *found.broken)
    for each in (found.model, found.machine, found.verdict, found.written, *more):
        assert each in text
    for value in ("1.53 times faster", "Proven equal", "213 ms", "140 ms", "8 of 12", "58.5 MiB"):
        assert value in text
    assert "7.44 times" not in text


def test_a_layer_row_holds_its_own_numbers() -> None:
    row = re.search(r"<tr class=\"rewritten\">(.*?)</tr>", as_html(cases.sample()), re.DOTALL)[1]
    assert Page(row).text == (
        "1 /decoder/up.0/ConvTranspose 1x512x8x8 → 1x256x16x16 8.30 ms 4.35 ms 1.91x"
        " sub_pixel:unfolded".replace("x", figures.TIMES).replace(f"pi{figures.TIMES}el", "pixel")
    )


@pytest.mark.parametrize("found", [cases.sample(), cases.bare(), cases.unproven(), cases.many(80)])
def test_the_page_is_sound(found: Optimization) -> None:
    page = Page(as_html(found))
    assert not page.open
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for target in page.values("href"):
        assert target == "data:," or target[1:] in ids, target
    for labelled in page.values("aria-labelledby"):
        assert labelled in ids
    assert all(not name.startswith("on") for _, has in page.elements for name in has)
    assert not {"script", "iframe", "object", "img", "form"} & {tag for tag, _ in page.elements}
    assert not page.values("style"), "the policy forbids style attributes"
    assert "http" not in as_html(found).replace("http-equiv", "")
    tables = sum(tag == "table" for tag, _ in page.elements)
    assert tables == sum(tag == "caption" for tag, _ in page.elements)
    assert all(has.get("scope") in ("row", "col") for tag, has in page.elements if tag == "th")
    assert not re.search(r"\b(None|nan|inf|True|False)\b", page.text)


def test_the_policy_allows_the_style_sheet_and_nothing_else() -> None:
    page = Page(as_html(cases.sample()))
    policy = next(has["content"] for _, has in page.elements if "http-equiv" in has)
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{digest}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def acts(text: str) -> set[str]:
    """Characters that do more than show."""
    unsafe = {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}
    return {c for c in text if unicodedata.category(c) in unsafe and c != "\n"}


def escaped(name: str) -> None:
    """A name in every place adds no element, no attribute, and no character that acts."""
    text = as_html(cases.hostile(name))
    page, plain = Page(text), Page(as_html(cases.hostile(HARMLESS)))
    assert page.shape == plain.shape
    assert page.values("href") == plain.values("href")
    assert page.values("id") == plain.values("id")
    assert page.values("class") == plain.values("class")
    assert page.style == plain.style
    assert not acts(text)
    assert " ".join(names.shortened(name).split()) in page.text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("name", [*filter(None, cases.HOSTILE)])
def test_a_hostile_name_is_only_a_name(name: str) -> None:
    escaped(name)


@settings(max_examples=25)
@given(st.text(min_size=1, max_size=30).filter(str.strip))
def test_any_name_is_only_a_name(name: str) -> None:
    escaped(name)


def test_an_empty_name_is_said() -> None:
    assert "(no name)" in Page(as_html(cases.hostile(""))).text


def test_long_names_are_short_and_whole_in_the_title() -> None:
    name = "part/" * 40
    page = Page(as_html(cases.hostile(name)))
    assert name in page.values("title")
    assert len(as_html(cases.hostile("long/" * 400_000))) < 200_000


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch):
    """A fault in the environment that the templates are made in."""

    def plant(attribute: str, value: object) -> None:
        environment = html.environment()
        environment.cache.clear()
        monkeypatch.setattr(environment, attribute, value)

    yield plant
    html.environment.cache_clear()


def test_planted_fault_autoescape_off_is_caught(planted) -> None:
    planted("autoescape", False)
    for name in (cases.HOSTILE[0], cases.HOSTILE[1], cases.HOSTILE[3]):
        with pytest.raises(AssertionError):
            escaped(name)


def test_planted_fault_characters_that_act_are_caught(planted) -> None:
    planted("finalize", None)
    for name in cases.HOSTILE[6:9]:
        with pytest.raises(AssertionError):
            escaped(name)


def test_the_json_form_is_the_values() -> None:
    found = cases.sample()
    told = json.loads(json.dumps(found.as_json()))
    plain = json.loads(json.dumps({**asdict(found), "proto": 0}))
    assert plain.pop("proto") == 0  # the model itself is in no form
    assert {name: told[name] for name in plain} == plain
    assert set(told) - set(plain) == {"schema", "deconvolutions"}
    assert set(plain) == {field.name for field in fields(found)} - {"proto"}
    before = sum(x.trials[0].timing.median for x in found.layers if x.trials)
    assert told["deconvolutions"]["before"] == pytest.approx(before)


def test_jinja_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    html.environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(EngineMissing, match=r"pip install 'upconv\[onnx\]'"):
        as_html(cases.sample())
    html.environment.cache_clear()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "report.html"
    write_report(cases.hostile(cases.HOSTILE[9]), target)
    assert target.read_bytes().decode() == as_html(cases.hostile(cases.HOSTILE[9]))
    with pytest.raises(FileError, match="exists"):
        write_report(cases.sample(), target)
    write_report(cases.bare(), str(target), force=True)
    assert target.read_text(encoding="utf-8") == as_html(cases.bare())
    with pytest.raises(FileError, match="is not a directory"):
        write_report(cases.bare(), tmp_path / "no" / "report.html")
    monkeypatch.setattr(html, "as_html", lambda found: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(cases.bare(), tmp_path / "other.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_drawings_are_made_once_and_hundreds_of_layers_stay_small() -> None:
    found = cases.many(400)
    kinds = {axis for layer in found.layers for axis in layer.axes}
    text = as_html(found)
    assert len(re.findall(r'<g id="d\d+">', text)) == len(kinds)
    assert len(text) < 6_500 * 400
    assert " open" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(0.5, -0.1, 0.9), "2.00 times slower (1.11 to more)"),
        (Ratio(float("nan"), float("nan"), float("nan")), "no difference beyond the noise"),
        (Ratio(0.0, -1.0, 0.0), "much slower (more to more)"),
        (Ratio(250.0, 240.0, 1e9), "250 times faster (240 to 1.00e9)"),
    ],
)
def test_odd_ratios_have_words(ratio: Ratio, words: str) -> None:
    assert words in figures.faster(ratio)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0.000 ms"), (9.996e-4, "1.00 ms"), (59.999, "60.0 s"), (4.2e-8, "42.0 ns"),
     (float("inf"), "infinite ms"), (2e6, "2.00e6 s")],
)  # fmt: skip
def test_times_have_three_digits(value: float, words: str) -> None:
    assert figures.seconds(value) == words


OPTIMIZATIONS = [cases.sample(), cases.bare(), cases.unproven(), *map(cases.hostile, cases.HOSTILE)]


def columns(line: str) -> int:
    wide = (1 + (unicodedata.east_asian_width(c) in "WF") for c in line if not is_mark(c))
    return sum(wide)


def is_mark(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Me")


@pytest.mark.parametrize("width", [60, 80, 132])
@pytest.mark.parametrize("found", OPTIMIZATIONS, ids=range(len(OPTIMIZATIONS)))
def test_no_line_of_the_text_is_too_wide_or_acts(found: Optimization, width: int) -> None:
    text = as_text(found, width)
    assert max(map(columns, text.splitlines())) <= width
    assert not acts(text)
    assert not {c for c in text if unicodedata.bidirectional(c) in ("R", "AL", "AN")}
    assert text == "\n".join(line.rstrip() for line in text.split("\n"))


def test_the_text_says_what_the_page_says() -> None:
    lines = as_text(cases.sample()).splitlines()
    assert "/decoder/up.1       11.7 ms   5.68 ms    2.06x  sub_pixel:unfolded" in lines
    assert "/head               3.12 ms         -        -  as it was" in lines
    assert "/loop                     -         -        -  as it was, not tried" in lines
    text = " ".join(" ".join(lines).split())
    for words in ("147 ms before, 83.7 ms after: 1.75 times faster", "1.53 times faster.",
                  "Proven equal.", "25% of the tolerance"):  # fmt: skip
        assert words in text
    assert text.endswith("verdict 8 of 12 layers rewritten; the whole model is faster and every"
                         " output is equal.")  # fmt: skip
    assert text.isascii()


def test_the_text_keeps_wide_letters_in_their_columns() -> None:
    text = as_text(cases.hostile("\u5c64" * 60 + "/up"), 80)
    assert max(map(columns, text.splitlines())) <= 80


def test_what_was_not_proven_is_said() -> None:
    for text in (as_text(cases.unproven()), Page(as_html(cases.unproven())).text):
        assert "Not proven equal" in text
        assert "1.30 times slower" in text
        assert "Nothing was written" in text
    unchecked = replace(cases.sample(), proofs=())
    assert "Not proven" in as_text(unchecked)
    assert "Proven equal" not in as_text(unchecked)


def test_the_picture_of_the_documentation_is_small() -> None:
    picture = Path(__file__).parents[1] / "docs" / "pictures" / "onnx-report.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200 * 1024
