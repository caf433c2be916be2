"""What a lint found: plain values, and their shape as JSON.

Names of nodes and graphs are kept as the model has them, and a model is nobody's friend: text for
people goes through `wording`, JSON escapes by itself, SARIF does both.

What lives here: Severity, Finding, Findings. What never does: looking at a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


class Severity(Enum):
    """How bad a finding is; the words are SARIF's levels.

    ERROR: what the model says is wrong, or the target refuses it. WARNING: results may be other
    than meant. NOTE: could be better, or could not be looked at.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule broken at one node.

    `rule` is its number ("UPC001"), `slug` its name. `node` is the node's name, or its output's;
    `graph` the graphs and functions it stands in, outermost first, as one text. `message` and `fix`
    are sentences for people; `facts` is the same for programs: numbers, texts, lists and dicts.
    """

    rule: str
    slug: str
    severity: Severity
    node: str
    graph: str
    message: str
    fix: str
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def location(self) -> str:
        """Graph and node in one text."""
        return f"{self.graph}/{self.node}"

    def as_json(self) -> dict[str, Any]:
        """All fields, ready for `json.dumps`."""
        return {
            "rule": self.rule,
            "slug": self.slug,
            "severity": self.severity.value,
            "node": self.node,
            "graph": self.graph,
            "message": self.message,
            "fix": self.fix,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings of one lint: in the order of the model's nodes, then of the rules' numbers.

    `model` is the path of the model's file, empty where it came from memory. `target` is the
    runtime it was judged for, empty for none; `rules` are the numbers of the rules that looked, and
    `nodes` counts the ConvTranspose nodes that they looked at. It is a sequence of `Finding`.

    >>> len(Findings("", "", ("UPC001",), 3, ()))
    0
    """

    model: str
    target: str
    rules: tuple[str, ...]
    nodes: int
    findings: tuple[Finding, ...]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def count(self, severity: Severity) -> int:
        """How many are of this severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def at_least(self, severity: Severity) -> Findings:
        """Those of this severity or a worse one.

        >>> Findings("", "", (), 0, ()).at_least(Severity.WARNING).findings
        ()
        """
        kept = tuple(f for f in self.findings if f.severity.rank <= severity.rank)
        return replace(self, findings=kept)

    def as_json(self) -> dict[str, Any]:
        """A document of plain values, ready for `json.dumps`.

        >>> sorted(Findings("", "", (), 0, ()).as_json())
        ['counts', 'findings', 'model', 'nodes', 'rules', 'target']
        """
        return {
            "model": self.model,
            "target": self.target,
            "rules": list(self.rules),
            "nodes": self.nodes,
            "counts": {severity.value: self.count(severity) for severity in Severity},
            "findings": [finding.as_json() for finding in self.findings],
        }

    def as_text(self) -> str:
        """A report for people, of printable characters alone; no newline at its end."""
        from .report import text

        return text(self)

    def as_sarif(self) -> dict[str, Any]:
        """A SARIF 2.1.0 log of one run, ready for `json.dumps`."""
        from .sarif import log

        return log(self)
