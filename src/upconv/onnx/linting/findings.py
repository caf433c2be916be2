"""What a lint found: plain values, with names of nodes and graphs as the model has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Severity(Enum):
    """How bad a finding is; the words are SARIF's levels.

    ERROR: the model is wrong, or the runtime refuses it. WARNING: results may be other than meant.
    NOTE: could be better, or could not be checked.
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

    `rule` is its code ("UPC001"), `slug` its name. `node` is the node's name, or its output's;
    `graph` the graph, subgraph or function that it is in. `message` and `fix` are sentences for
    people; `facts` is the same for programs: numbers, texts, lists and dicts. `fixable` says
    whether `upconv lint --fix` may fix it.
    """

    rule: str
    slug: str
    severity: Severity
    node: str
    graph: str
    message: str
    fix: str
    fixable: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def as_json(self) -> dict[str, Any]:
        """All fields, ready for `json.dumps`."""
        return {**asdict(self), "severity": self.severity.value}


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings in one model: in the order of its nodes, then of the rules' codes.

    `model` is the path of the model's file, empty where it came from memory; `nodes` counts the
    ConvTranspose nodes. `fixed` are findings that were fixed and are gone. It is a sequence of
    `Finding`.

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

    def count(self, severity: Severity) -> int:
        """How many are of this severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """A document of plain values, ready for `json.dumps`.

        >>> sorted(Findings("", 0, ()).as_json())
        ['counts', 'findings', 'fixed', 'model', 'nodes']
        """
        return {
            "model": self.model,
            "nodes": self.nodes,
            "counts": {severity.value: self.count(severity) for severity in Severity},
            "findings": [finding.as_json() for finding in self.findings],
            "fixed": [finding.as_json() for finding in self.fixed],
        }

    def as_text(self) -> str:
        """A report for people, of printable characters alone; no newline at its end."""
        from .formats import text

        return text([self])
