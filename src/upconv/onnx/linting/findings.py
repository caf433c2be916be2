"""What a lint found: plain values, with names of nodes and graphs as the model has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
class Observation:
    """What a rule found at a node; `severity` replaces the rule's own."""

    message: str
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    severity: Severity | None = None


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
