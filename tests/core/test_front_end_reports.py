"""Reports: printed, saved, read; damaged and foreign files, and decisions of elsewhere, refused."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.front_end_reports import unsealed
from upconv import front_end_reports
from upconv.errors import ArgumentError, DTypeError, FileError
from upconv.front_end_reports import HEADINGS, Report, Row, conditions, restored
from upconv.measuring import Ratio

SAMPLE = Report(
    "PyTorch",
    (
        Row("up1 to up4", "ConvTranspose2d + ReLU", "upconv", 4, 0.02, 0.01, "", {"training": 3}),
        Row("head", "Conv2d", "PyTorch", 1, 0.002, 0.003, "not faster"),
        Row("odd", "Conv2d", "PyTorch", why="its weight is no parameter"),
    ),
    before=0.03,
    after=0.02,
    ratio=Ratio(1.5, 1.4, 1.6),
    conditions=conditions(2, torch="2.13", model="12ab"),
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file of the sample."""
    SAMPLE.save(tmp_path / "report.json")
    return tmp_path / "report.json"


def test_the_table_has_a_row_for_each_part() -> None:
    head, *rows, last = str(SAMPLE).splitlines()
    assert head.split("  ")[0] == "layer"
    assert rows[0].split() == [
        "up1", "to", "up4", "ConvTranspose2d", "+", "ReLU", "4", "upconv",
        "20.0", "ms", "10.0", "ms", "2.00x",
    ]  # fmt: skip
    assert rows[2].endswith("-        -       its weight is no parameter")
    assert last == (
        "The model: 30.0 ms in PyTorch, 20.0 ms with upconv: 1.50 times as fast (1.40 to 1.60)."
    )
    busy = str(replace(SAMPLE, load="other processes used 1.8 of 2 processors")).splitlines()[-1]
    assert busy.startswith("While this was measured, other processes used 1.8 of 2 processors: the")
    plain = replace(SAMPLE, why="it is not faster with upconv", before=None)
    assert str(plain).endswith("PyTorch runs the model as it is: it is not faster with upconv.")


def test_what_was_saved_is_read_again(saved: Path) -> None:
    assert Report.read(saved, "PyTorch") == SAMPLE
    assert unsealed(saved)["rows"][0]["before"] == 0.02
    older = {name: entry for name, entry in unsealed(saved).items() if name != "load"}
    saved.write_text(json.dumps(older))
    assert Report.read(saved, "PyTorch") == SAMPLE
    SAMPLE.save(saved)  # in place of the file that is there
    assert restored(saved, "PyTorch", SAMPLE.conditions, remeasure=False) == SAMPLE


def test_a_page_has_the_same_columns(tmp_path: Path) -> None:
    SAMPLE.save(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    for text in (*HEADINGS, "up1 to up4", "20.0 ms", "2.00x", "1.50 times as fast", "12ab"):
        assert text in page


@pytest.mark.parametrize("name", ["<script>", "a\x1b[31m", "{{ 7*7 }}", "x" * 10_000, "\ud800"])
def test_names_of_models_do_no_harm(name: str, tmp_path: Path) -> None:
    row = Row(name, name, name, why=name)
    report = Report("PyTorch", (row,), name, conditions={name: name})
    assert "\x1b" not in str(report) + report.as_html()
    assert "<script>" not in report.as_html()
    report.save(tmp_path / "r.json")
    report.save(tmp_path / "r.html")
    assert Report.read(tmp_path / "r.json", "PyTorch") == report


@pytest.mark.parametrize("name", [*SAMPLE.conditions, "training"])
def test_decisions_hold_where_they_were_measured(saved: Path, name: str) -> None:
    now = dict(SAMPLE.conditions) | {name: "another"}
    with pytest.raises(ArgumentError, match=f"measured with {name} .*'another'.*remeasure=True"):
        restored(saved, "PyTorch", now, remeasure=False)
    assert restored(saved, "PyTorch", now, remeasure=True) is None
    assert Report.read(saved, "PyTorch") == SAMPLE  # until something was measured


def test_a_missing_file_is_measured_only_where_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"There is no file .*new\.json.*remeasure=True"):
        restored(tmp_path / "new.json", "PyTorch", {}, remeasure=False)
    assert restored(tmp_path / "new.json", "PyTorch", {}, remeasure=True) is None
    with pytest.raises(FileError, match=r"nowhere.*is not a directory"):
        restored(tmp_path / "nowhere" / "new.json", "PyTorch", {}, remeasure=True)
    with pytest.raises(FileError, match="Cannot write"):
        SAMPLE.save(tmp_path / "nowhere" / "new.json")
    with pytest.raises(FileError, match="is a directory"):
        restored(tmp_path, "PyTorch", {}, remeasure=False)
    with pytest.raises(DTypeError, match="path"):
        restored(7, "PyTorch", {}, remeasure=True)  # type: ignore[arg-type]


Damage = Callable[[dict[str, Any]], Any]


def _row(**entries: Any) -> Damage:
    return lambda record: record | {"rows": [record["rows"][0] | entries]}


DAMAGES: dict[str, tuple[Damage, str]] = {
    "list": (lambda record: [record], "expected 'upconv report' as its format"),
    "format": (
        lambda record: record | {"format": "other"},
        "expected 'upconv report' as its format",
    ),
    "version": (lambda record: record | {"version": 99}, "its version is 99; expected"),
    "host": (
        lambda record: record | {"host": "ONNX Runtime"},
        "for 'ONNX Runtime'; expected one for PyTorch",
    ),
    "no rows": (lambda record: {k: v for k, v in record.items() if k != "rows"}, "damaged"),
    "rows": (lambda record: record | {"rows": 3}, "damaged"),
    "row": (lambda record: record | {"rows": [3]}, "damaged"),
    "name": (_row(name=3), "its name is 3"),
    "time": (_row(before="fast"), "its before is 'fast'"),
    "layers": (_row(layers="2"), "its layers is '2'"),
    "more": (_row(more=1), "damaged"),
    "details": (_row(details=3), "damaged"),
    "ratio": (lambda record: record | {"ratio": {"median": 1.0}}, "damaged"),
    "conditions": (lambda record: record | {"conditions": 3}, "damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_and_foreign_files_are_refused(saved: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    saved.write_text(json.dumps(damage(unsealed(saved))))
    with pytest.raises(FileError, match=words):
        Report.read(saved, "PyTorch")


def test_no_damage_goes_unnoticed(saved: Path) -> None:
    """A file with one bit flipped, or without its end, is refused, or still says the same."""
    content = saved.read_bytes()
    damaged = [content[:i] for i in range(0, len(content) - 2, 40)]
    for i in range(0, len(content), 7):
        damaged += [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :]]
    for data in damaged:
        saved.write_bytes(data)
        with suppress(FileError):
            assert Report.read(saved, "PyTorch") == SAMPLE


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00", b"[" * 100_000])
def test_files_that_are_no_json_are_refused(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(FileError, match="expected 'upconv report' as its format"):
        Report.read(saved, "PyTorch")


def test_an_interruption_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("upconv.files.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        front_end_reports.Report("PyTorch").save(saved)
    assert Report.read(saved, "PyTorch") == SAMPLE
    assert [each.name for each in saved.parent.iterdir()] == ["report.json"]
