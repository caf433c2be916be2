"""What a rule is: a number that never changes, words for people, and a function that looks.

What lives here: Rule, Observation. What never does: a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..findings import Finding, Severity
from ..places import Place


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rule saw at a place; `severity` and `fix` stand in for the rule's own."""

    message: str
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    severity: Severity | None = None
    fix: str = ""


Check = Callable[[Place], Iterator[Observation]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `summary` is a sentence, `why` and `fix` a few; `more` are addresses to read."""

    code: str
    slug: str
    severity: Severity
    summary: str
    why: str
    fix: str
    check: Check
    more: tuple[str, ...] = ()

    def findings(self, place: Place) -> Iterator[Finding]:
        """All it has to say about a place."""
        for seen in self.check(place):
            yield Finding(
                self.code,
                self.slug,
                seen.severity or self.severity,
                place.name,
                place.graph,
                seen.message,
                seen.fix or self.fix,
                seen.facts,
            )
