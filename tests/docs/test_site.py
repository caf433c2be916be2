"""What the documentation site is made by, apart from Sphinx: navigation, API reference, gallery.

`make docs` builds the site itself, and fails on any warning.
"""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import upconv
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "upconv"
NAMES = re.compile(r"public-names:: (\S+)\n( +:read:)?")


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "extensions")


def test_sections_of_the_index_become_the_navigation(extensions: None) -> None:
    trees = import_module("contents").trees
    index = "# T\n[no](x.md)\n## Use\n- [A](a.md)\n## None\n## Build\n- [B](api/b.md), [A](a.md)"
    assert trees(index, ["a", "api/b"]) == {"Use": ["a"], "Build": ["api/b"]}
    assert trees(index, ["z", "a", "api/b", "c"])["More"] == ["c", "z"]


def test_every_page_is_linked_by_the_index(extensions: None) -> None:
    pages = [
        page.relative_to(DOCS).with_suffix("").as_posix()
        for page in DOCS.rglob("*.md")
        if "_build" not in page.parts and page != DOCS / "index.md"
    ]
    found = import_module("contents").trees((DOCS / "index.md").read_text(encoding="utf-8"), pages)
    assert sorted(page for linked in found.values() for page in linked) == sorted(pages)
    assert "Tutorials" in found


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://example.org/people/upconv.git", "https://example.org/people/upconv"),
        ("https://name:word@example.org/people/upconv", "https://example.org/people/upconv"),
        ("git@example.org:people/upconv.git", "https://example.org/people/upconv"),
        ("ssh://git@example.org/people/upconv.git", "https://example.org/people/upconv"),
        ("/home/people/upconv", ""),
        ("file:///home/people/upconv", ""),
        ("", ""),
    ],
)
def test_the_site_links_to_the_repository(extensions: None, remote: str, address: str) -> None:
    assert import_module("repository").web_address(remote) == address


def test_the_address_is_that_of_the_clones_origin(
    extensions: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = import_module("repository").repository
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert repository(tmp_path) == ""
    origin = {"COUNT": "1", "KEY_0": "remote.origin.url", "VALUE_0": "https://example.org/a/b.git"}
    for name, value in origin.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert repository(tmp_path) == "https://example.org/a/b"


def test_docstrings_become_restructured_text(extensions: None) -> None:
    as_rst = import_module("rst").as_rst
    text = """First, `plan`s of *size, `x_1`.

    y_ = x * w

x: the (N, *size) data,
    any strides.
out: `y`.

>>> 2 * 3
6"""
    assert as_rst(text.split("\n"), {"plan": "upconv.plan"}) == [
        r"First, \ :py:obj:`~upconv.plan`\ s of \*size, \ ``x_1``\ .",
        "", "::", "", "    y_ = x * w", "",
        r"* x: the (N, \*size) data,", "  any strides.", r"* out: \ ``y``\ .",
        "", ">>> 2 * 3", "6",
    ]  # fmt: skip


def test_words_of_tables_break_between_their_parts(extensions: None) -> None:
    """Numbers do not break at a hyphen. Attributes, and text outside tables, stay as they are."""
    breakable = import_module("breaks").breakable
    code = '<code class="a_b"><span class="p.q">x/y_z.w(v</span> _r</code>'
    html = f"<p>a_b 1e-7</p><table><td>1.4e-07 a_b k-3</td><td>{code}</td></table>{code}"
    assert breakable(html) == (
        '<p>a_b 1e-7</p><table><td><span class="number">1.4e-07</span> a_b k-3</td><td>'
        '<code class="a_b"><span class="p.q">x/<wbr>y_<wbr>z.<wbr>w(<wbr>v</span> _r</code>'
        f"</td></table>{code}"
    )


@pytest.mark.parametrize("name", ["torch", "onnx", "dialects", "testing", "onednn_graph"])
def test_source_is_read_as_the_module_has_it(extensions: None, name: str) -> None:
    """Names, kinds and docstrings; of modules that can be imported here, against the objects."""
    entries = {entry.name: entry for entry in import_module("sources").find(PACKAGE / name)}
    try:
        module = import_module(f"upconv.{name}")
    except upconv.EngineMissing as missing:
        pytest.skip(str(missing))
    assert list(entries) == list(module.__all__)
    for key, entry in entries.items():
        value = getattr(module, key)
        assert (entry.kind == "class") == isinstance(value, type), key
        if entry.kind in ("class", "function"):
            written = " ".join("\n".join(entry.lines).split())
            assert written == " ".join((value.__doc__ or "").split()), key
        assert entry.is_error == (isinstance(value, type) and issubclass(value, Exception)), key


def test_the_reference_has_a_page_for_every_front_end() -> None:
    told = dict(NAMES.findall("\n".join(p.read_text(encoding="utf-8") for p in DOCS.glob("api/*"))))
    public = {
        f"upconv.{folder.name}"
        for folder in PACKAGE.iterdir()
        if folder.name in ("torch", "onnx", "mxnet", "onednn_graph", "streaming", "dask", "linear")
    }
    assert {"upconv", "upconv.dialects", "upconv.geometry", "upconv.testing", *public} <= set(told)
    # What needs another package to be imported is read.
    assert {name for name, read in told.items() if read} >= {"upconv.torch", "upconv.onnx"}


def test_the_gallery_shows_every_plot_that_is_made() -> None:
    script = ast.parse((DOCS / "gallery" / "make.py").read_text(encoding="utf-8"))
    made = {
        name.id
        for node in script.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PLOTS"
        for name in ast.walk(node.value)
        if isinstance(name, ast.Name)
    }
    page = (DOCS / "plots.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{plot\} (\w+)$", page, re.MULTILINE) == [
        "overlap", "phases", "padding", "receptive_field", "speed"
    ]  # fmt: skip
    files = {path.stem for path in (DOCS / "gallery").glob("*.py")} - {"make", "style"}
    assert made == files == set(re.findall(r"\{plot\} (\w+)", page))


def test_the_figure_of_speed_shows_what_benchmarks_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bars' lengths are the table's last line, where both take the same layers."""
    monkeypatch.syspath_prepend(DOCS / "pictures")
    ratios, mean = import_module("benchmarks").ratios(), import_module("speed").mean
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    last = re.search(r"^\| geometric mean, of times.*$", page, re.MULTILINE)
    assert last
    cells = [cell.strip() for cell in last[0].split("|")]
    jit, torch, runtime, openvino = (float(cells[at]) for at in (3, 5, 7, 8))
    for name, value in (("torch", torch), ("onnxruntime", runtime), ("openvino", openvino)):
        assert mean(ratios[name]) == pytest.approx(value / jit, rel=0.03)
        assert f"{mean(ratios[name]):.1f} times" in (DOCS / "pictures" / "speed.svg").read_text()
    means = sorted(mean(values) for values in ratios.values())
    told = f"geometric means between {means[0]:.1f} and {means[-1]:.1f}"
    assert told in (DOCS / "index.md").read_text(encoding="utf-8")


def test_the_reference_begins_with_conv_transpose() -> None:
    page = (DOCS / "api" / "upconv.md").read_text(encoding="utf-8")
    options = re.search(r":first: (.+)", page)
    assert options
    assert options[1].split()[0] == "conv_transpose"
    assert set(options[1].split()) <= set(upconv.__all__)
