"""The documentation holds: examples run, drawings are made by their scripts, links lead somewhere.

Each page is a test of its own: its Python and its commands are run, see `pages`.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.paths import ROOT
from tests.support.processes import environment

DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*.md")]
    if page.is_file() and "_build" not in page.parts
)
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
TAGGED_LINK = re.compile(r"<(?:img|a|source)\b[^>]*\b(?:src|srcset|href)=\"([^\"\s]+)\"")
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


@pytest.mark.peers
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_runs_and_says_something(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_asserts_its_claims_and_is_listed(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert "Claims:" in text or "Claim:" in text
    assert re.search(r"^ +assert ", text, re.MULTILINE)
    assert f"({script.name})" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


def test_there_are_examples_and_pages() -> None:
    assert len(EXAMPLES) >= 5
    assert len(PAGES) >= 7


def test_drawings_are_what_their_scripts_make(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(PICTURES / "make.py"), str(tmp_path)]
    subprocess.run(command, env=environment(PYTHONUTF8="1"), timeout=120, check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_bytes() for path in PICTURES.glob("*.svg")}
    assert sorted(made) == sorted(kept), "run: python docs/pictures/make.py"
    different = [name for name in made if made[name] != kept[name]]
    assert not different, "run: python docs/pictures/make.py"


@pytest.mark.parametrize("drawing", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_is_sound_and_shown(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()  # raises for what is no XML
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert root.findtext("{http://www.w3.org/2000/svg}title")
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.get("x", -1)) <= width
        assert 0 <= float(text.get("y", -1)) <= height
        assert float(text.get("font-size", 0)) >= 12
    assert any(f"pictures/{drawing.name}" in page.read_text(encoding="utf-8") for page in PAGES)


def links(page: Path) -> list[str]:
    """Targets of a page's links that lead to files, code blocks left out."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [*LINK.findall(text), *TAGGED_LINK.findall(text)]
    return [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path)
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges and MyST make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+\s+(.*?)\s*#*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_contributing_names_files_that_are_there() -> None:
    page = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    named = [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row.split("|")[2])]
    assert len(named) > 20
    assert [name for name in named if not (DOCS.parent / "src/upconv" / name).is_file()] == []
    tests = re.findall(r"tests/[\w/]+\.py", page)
    assert [name for name in tests if not (DOCS.parent / name).is_file()] == []
