"""One report for all front ends: the kernel of each layer or part, its speed, and the reason.

    {"format": "upconv report", "version": 2, "host": "PyTorch", "sha256": ..., "rows": ...}

A report can be printed, saved, read and applied again. Its decisions are valid only for the
processor, thread count, versions, model and shapes that they were measured with. The report states
these `conditions`, and `restored` refuses a file whose conditions differ from the current ones.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from ._version import __version__
from .documents import document
from .errors import ArgumentError, FileError, brief
from .files import opened, path_text, published, reported, require_free
from .measuring import Ratio
from .terminal import aligned, neutral, shortened
from .timing import format_seconds
from .tuning import processor_model

FilePath = str | os.PathLike[str]
Condition = str | int
Content = TypeVar("Content")

_FORMAT, _VERSION = "upconv report", 2
_MAX_BYTES = 1 << 26
_SUM = "sha256"
HEADINGS = ("layer", "kind", "layers", "computed by", "before", "after", "faster", "why")


@dataclass(frozen=True, slots=True)
class Row:
    """One layer, or one part of a model that is computed as a unit.

    name: the layer, or the first and last layer of the part. kind: its class or operators. by: what
    computes it now. layers: number of convolutions. before, after: seconds without and with upconv,
    None if not measured. details: what the front end needs to apply the row.
    """

    name: str
    kind: str
    by: str
    layers: int = 1
    before: float | None = None
    after: float | None = None
    why: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def upconv(self) -> bool:
        """Whether upconv computes all or some of it."""
        return self.by.startswith("upconv")

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the row, in the order of `HEADINGS`."""
        times = _time(self.before), _time(self.after)
        faster = f"{self.before / self.after:.2f}x" if self.before and self.after else "-"
        cells = self.name, self.kind, str(self.layers), self.by, *times, faster
        return (*(shortened(cell, 48, "...") for cell in cells), neutral(self.why))


@dataclass(frozen=True, slots=True)
class Report:
    """All layers and parts that upconv could compute, and the times of the whole model.

    host: what runs the rest ("PyTorch", "ONNX Runtime"). before, after: seconds of the whole model
    without and with upconv, None if not measured; `ratio` compares them. why: why the host runs
    the model unchanged, "" if upconv computes some of it. conditions: the conditions under which
    the decisions are valid, by name. load: CPU use by other processes during the measurement.

    >>> row = Row("up", "ConvTranspose2d", "upconv", before=1.0123, after=0.0005)
    >>> print(Report("PyTorch", (row,), before=2.0, after=1.0))
    layer  kind             layers  computed by  before  after   faster    why
    up     ConvTranspose2d  1       upconv       1.01 s  500 us  2024.60x
    The model: 2.00 s in PyTorch, 1.00 s with upconv.
    """

    host: str
    rows: tuple[Row, ...] = ()
    why: str = ""
    before: float | None = None
    after: float | None = None
    ratio: Ratio | None = None
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    load: str = field(default="", compare=False)

    def __str__(self) -> str:
        table = aligned([row.cells for row in self.rows], HEADINGS)
        return "\n".join([*table, *self.sentences])

    @property
    def sentences(self) -> list[str]:
        """Sentences about the whole model."""
        sentences = []
        if self.before is not None and self.after is not None:
            times = f"{_time(self.before)} in {self.host}, {_time(self.after)} with upconv"
            sentences.append(f"The model: {times}{f': {self.ratio}' if self.ratio else ''}.")
        if self.load:
            meanwhile = f"While this was measured, {neutral(self.load)}"
            sentences.append(f"{meanwhile}: the speed-up may differ on an idle machine.")
        if self.why:
            sentences.append(f"{self.host} runs the model as it is: {neutral(self.why)}.")
        return sentences

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values for `json.dumps`; infinity and NaN become None."""
        plain: dict[str, Any] = document(self)
        return plain

    def as_html(self) -> str:
        """Return the table and the conditions as one HTML page.

        >>> "&lt;b&gt;" in Report("PyTorch", (Row("<b>", "Conv1d", "upconv"),)).as_html()
        True
        """
        head = "".join(f"<th>{title}</th>" for title in HEADINGS)
        rows = [
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) for row in self.rows
        ]
        paragraphs = [f"<p>{escape(sentence)}</p>" for sentence in self.sentences]
        facts = [
            f"<dt>{escape(neutral(name))}</dt><dd>{escape(neutral(str(value)))}</dd>"
            for name, value in self.conditions.items()
        ]
        table = [f"<table><thead><tr>{head}</tr></thead><tbody>", *rows, "</tbody></table>"]
        return "\n".join([_HEAD, *paragraphs, *table, "<dl>", *facts, "</dl></body></html>\n"])

    def save(self, path: FilePath) -> None:
        """Write the report to a file atomically: as an HTML page if its name ends in .html.

        Any other name gives JSON, which can be applied again. Raises `FileError` if the file cannot
        be written.
        """
        name = _name(path)
        record = {"format": _FORMAT, "version": _VERSION, **self.as_json()}
        text = json.dumps(record | {_SUM: _checksum(record)}, indent=1)
        if name.lower().endswith((".html", ".htm")):
            text = self.as_html()
        with reported(name), published(Path(name).resolve(), force=True) as file:
            file.write(text.encode() + b"\n")

    @classmethod
    def read(cls, path: FilePath, host: str) -> Self:
        """Read a report that `save` wrote for a host.

        Raises `FileError` if the file is missing, damaged or from another host.
        """
        record = _record(path)
        if record.get("host") != host:
            got = f"it is a report for {brief(record.get('host'))}"
            raise _damaged(path, f"{got}; expected one for {host}")
        try:
            return cls.of(record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"it is damaged: {error}") from None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Build a report from the values of `as_json`; others raise errors such as `TypeError`."""
        rows = tuple(_build(Row, row, details=dict(row["details"])) for row in record["rows"])
        ratio = None if record["ratio"] is None else _build(Ratio, record["ratio"])
        conditions = dict(record["conditions"])
        return _build(cls, {"load": "", **record}, rows=rows, ratio=ratio, conditions=conditions)


_HEAD = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>upconv {__version__}</title>
<style>body {{ font: 1rem/1.5 sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }}
table {{ border-collapse: collapse }} th, td {{ padding: .3rem .6rem; text-align: left }}
tr {{ border-top: 1px solid gray }}</style></head><body>"""


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def conditions(threads: int, **others: Condition) -> dict[str, Condition]:
    """Return the conditions of a measurement made now, by name.

    >>> list(conditions(2, torch="2.13"))
    ['processor', 'threads', 'upconv', 'torch']
    """
    return {"processor": processor_model(), "threads": threads, "upconv": __version__, **others}


def restored(
    path: FilePath, host: str, now: Mapping[str, Condition], remeasure: bool
) -> Report | None:
    """Read a report whose decisions are valid now, or return None if they must be measured.

    now: the current conditions; the report may state more. Raises `ArgumentError` if they differ
    and `remeasure` is false.
    """
    is_there = os.path.lexists(_name(path))
    if not is_there and not remeasure:
        remedy = "remeasure=True measures and writes it."
        raise FileError(f"There is no file {brief(_name(path))}. {remedy}")
    if is_there:
        saved = Report.read(path, host)
        then = saved.conditions
        name = next((name for name, value in now.items() if then.get(name) != value), None)
        if name is None:
            return saved
        if not remeasure:
            got = f"{brief(_name(path))}, measured with {name} {brief(then.get(name))}"
            expected = f"decisions measured with {name} {brief(now[name])}"
            remedy = "Measure again: remeasure=True rewrites the file."
            raise ArgumentError("decisions", got, expected, remedy)
    with reported(_name(path)):  # fail before the measurement, not after it
        require_free(_name(path), Path(_name(path)).resolve(), force=True, inputs=())
    return None


def _record(path: FilePath) -> dict[str, Any]:
    """Return the JSON object of a saved report, without its format and version."""
    name = _name(path)
    with reported(name, "read"), opened(Path(name)) as file:
        data = file.read(_MAX_BYTES)
    try:
        record = json.loads(data)
        checksum = record.pop(_SUM, None) if isinstance(record, dict) else None
        damaged = checksum is not None and checksum != _checksum(record)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.pop("format", None) != _FORMAT:
        raise _damaged(path, f"expected {_FORMAT!r} as its format")
    if damaged:
        remedy = f"after an edit, remove the entry {_SUM}"
        raise _damaged(path, f"it is damaged: its checksum does not match; {remedy}")
    if (version := record.pop("version", None)) != _VERSION:
        raise _damaged(path, f"its version is {brief(version)}; expected {_VERSION}")
    return record


def _checksum(record: Any) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def _build(kind: type[Content], record: Any, **converted: Any) -> Content:
    """Build a dataclass from a JSON object whose entries have the types that the class declares.

    converted: the fields without a JSON type. Raises `TypeError` for any other object.
    """
    types = get_type_hints(kind)
    if not isinstance(record, dict) or record.keys() != types.keys():
        raise TypeError(f"it is {brief(record)}")
    for name in types.keys() - converted.keys():
        if not isinstance(record[name], types[name]):
            raise TypeError(f"its {name} is {brief(record[name])}")
    return kind(**{**record, **converted})


def _damaged(path: FilePath, reason: str) -> FileError:
    remedy = "Name another file, which remeasure=True writes."
    return FileError(f"Cannot read {brief(_name(path))}: {reason}. {remedy}")


def _name(path: FilePath) -> str:
    return path_text("The file of decisions", path)
