"""The linter's findings as plain values, text, JSON and workflow commands for GitHub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from textwrap import wrap
from typing import Any

from ...documents import document as plain
from ...errors import brief
from ...terminal import neutral

_WIDTH = 100


class Severity(Enum):
    """The severity of a finding; the values are SARIF's levels.

    ERROR: the model is wrong, or the runtime refuses it. WARNING: results may not be as intended.
    NOTE: the model could be better, or could not be checked.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """The position in the order of severity; 0 is the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule broken at one node.

    `rule` is the rule's code ("UPC001"), `slug` its name. `node` is the node's name, or its
    output's; `graph` is the graph, subgraph or function that contains it. `message` and `fix` are
    sentences. `fixable` says whether `upconv lint --fix` may be able to fix the finding.
    """

    rule: str
    slug: str
    severity: Severity
    node: str
    graph: str
    message: str
    fix: str
    fixable: bool


def quoted(name: object) -> str:
    """Quote a name from a model, shortened and without control characters."""
    return neutral(brief(str(name)))


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings in one model, as a sequence: by node, then by the rules' codes.

    `model` is the path of the model's file, empty for a model in memory; `nodes` counts the
    ConvTranspose nodes. `fixed` lists the findings that were repaired.

    >>> len(Findings("model.onnx", 3, ()))
    0
    """

    model: str
    nodes: int
    findings: tuple[Finding, ...]
    fixed: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def as_json(self) -> dict[str, Any]:
        """Return the findings as plain values, ready for `json.dumps`.

        >>> sorted(Findings("", 0, ()).as_json())
        ['counts', 'findings', 'fixed', 'model', 'nodes']
        """
        return {**plain(self), "counts": _counts(self.findings)}

    def as_text(self) -> str:
        """Return a readable report in printable characters, without a newline at the end."""
        return text([self])


def text(reports: Sequence[Findings]) -> str:
    """List the findings by model and node, worst first, then the remedy for each rule."""
    lines: list[str] = []
    for report in reports:
        if report.findings or report.fixed or len(reports) == 1:
            lines += _model(report)
    findings = [finding for report in reports for finding in report]
    if len(reports) != 1:
        nodes = _counted(sum(report.nodes for report in reports), "transposed convolution")
        lines.append(f"{_counted(len(reports), 'model')}: {_counts_in_words(findings)} in {nodes}")
    if findings:
        lines += ["", "What to do:"]
        for rule, fix in sorted({(finding.rule, finding.fix) for finding in findings}):
            lines += _wrapped(f"  {rule} ", fix)
    return "\n".join(lines)


def document(reports: Sequence[Findings]) -> dict[str, Any]:
    """Return the JSON document of several reports, by docs/schemas/lint.json."""
    findings = [finding for report in reports for finding in report]
    return {"counts": _counts(findings), "models": [report.as_json() for report in reports]}


def github(reports: Sequence[Findings]) -> str:
    """Write a workflow command per finding, which GitHub shows next to a pull request's files."""
    lines = []
    for report in reports:
        for finding in report:
            level = "notice" if finding.severity is Severity.NOTE else finding.severity.value
            where = f"{_location(finding)}: " if finding.node else ""
            title = _property(f"{finding.rule} {finding.slug}")
            words = _data(f"{where}{finding.message} {finding.fix}")
            lines.append(f"::{level} file={_property(report.model)},title={title}::{words}")
    return "\n".join(lines)


def _model(report: Findings) -> Iterator[str]:
    name = quoted(report.model) if report.model else "the model"
    nodes = _counted(report.nodes, "transposed convolution")
    yield f"{name}: {_counts_in_words(report.findings)} in {nodes}"
    for finding in report.fixed:
        yield f"  {finding.rule} fixed   {_location(finding)}"
    for (_, node), group in groupby(report, lambda f: (f.graph, f.node)):
        ordered = sorted(group, key=lambda f: (f.severity.rank, f.rule))
        if node:
            yield f"\n{_location(ordered[0])}"
        for finding in ordered:
            yield from _wrapped(f"  {finding.rule} {finding.severity.value:7} ", finding.message)
    yield from [""] if report.findings or report.fixed else []


def _location(finding: Finding) -> str:
    return f"{quoted(finding.node)} in {quoted(finding.graph)}"


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {level.value: sum(f.severity is level for f in findings) for level in Severity}


def _counts_in_words(findings: Sequence[Finding]) -> str:
    counts = _counts(findings).items()
    return ", ".join(_counted(n, severity) for severity, n in counts if n) or "no findings"


def _wrapped(label: str, words: str) -> list[str]:
    indent = " " * len(label)
    return wrap(neutral(words), _WIDTH, initial_indent=label, subsequent_indent=indent)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _data(words: str) -> str:
    """Escape the message of a workflow command."""
    return neutral(words).replace("%", "%25")


def _property(words: str) -> str:
    """Escape a property of a workflow command."""
    return _data(words).replace(":", "%3A").replace(",", "%2C")
