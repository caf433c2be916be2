"""Findings as text for people: by node, the worst first, what to do said once per rule at the end.

Everything is printable characters; names are between quotes and spelled out (`wording`).

What lives here: lines of text, and drawings made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from ..names import on_terminal
from .findings import Finding, Findings, Severity
from .wording import counted, quoted

_WIDTH = 100
_MOST_COLUMNS = 24  # of an overlap map: a few periods of a usual stride
_MOST_ROWS = 6
_MAP_INDENT = 19
_DRAWN = "uneven-overlap"


def text(findings: Findings) -> str:
    """The whole report."""
    lines, drawn = [_title(findings)], set[str]()
    for (graph, node), group in groupby(findings, lambda f: (f.graph, f.node)):
        lines += ["", f"{quoted(node)} in {quoted(graph)}"]
        for finding in sorted(group, key=lambda f: (f.severity.rank, f.rule)):
            lines += _said(finding)
            drawing = _drawing(finding)
            lines += drawing if "\n".join(drawing) not in drawn else []
            drawn.add("\n".join(drawing))
    if findings.findings:
        lines += ["", "What to do:", *_fixes(findings)]
    return "\n".join(lines)


def overlap_map(taps_per_phase: Sequence[Sequence[int]], uneven: Sequence[int]) -> list[str]:
    """How many taps make each output inside, along the last one or two uneven axes.

    taps_per_phase: a list per axis. What other axes multiply by is left out.

    >>> print("\\n".join(overlap_map([[1, 2], [1, 2]], [0, 1])))
    1 2 1 2
    2 4 2 4
    1 2 1 2
    2 4 2 4
    """
    drawn = [_repeated(taps_per_phase[i]) for i in uneven[-2:]]
    columns = drawn[-1][:_MOST_COLUMNS]
    rows = drawn[0][:_MOST_ROWS] if len(drawn) == 2 else [1]
    width = len(str(max(rows) * max(columns)))
    return [" ".join(str(row * column).rjust(width) for column in columns) for row in rows]


def _title(findings: Findings) -> str:
    name = quoted(findings.model) if findings.model else "the model"
    looked = counted(findings.nodes, "transposed convolution")
    if not findings.findings:
        return f"{name}: no findings in {looked}"
    counts = ", ".join(
        counted(findings.count(severity), severity.value)
        for severity in Severity
        if findings.count(severity)
    )
    return f"{name}: {counts} in {looked}"


def _said(finding: Finding) -> Iterator[str]:
    label = f"  {finding.rule} {finding.severity.value:7} "
    yield from wrap(
        on_terminal(finding.message),
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
    )


def _drawing(finding: Finding) -> list[str]:
    """An overlap map, indented; the same one is drawn once in a report."""
    if finding.slug != _DRAWN:
        return []
    rows = overlap_map(finding.facts["taps_per_phase"], finding.facts["axes"])
    return [" " * _MAP_INDENT + row for row in rows]


def _fixes(findings: Findings) -> Iterator[str]:
    said = {(finding.rule, finding.fix) for finding in findings}
    for rule, fix in sorted(said):
        label = f"  {rule} "
        yield from wrap(
            on_terminal(fix), _WIDTH, initial_indent=label, subsequent_indent=" " * len(label)
        )


def _repeated(period: Sequence[int]) -> list[int]:
    """Two periods, so that it is seen to repeat."""
    return list(period) * 2
