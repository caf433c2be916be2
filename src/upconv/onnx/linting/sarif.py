"""Findings as a SARIF 2.1.0 log for code scanning services.

A result refers to its rule by code and index. Its location is the model's file and a logical
location, because a node has no line. Messages have a syntax: braces are doubled, and brackets,
which could begin a link, become parentheses (OASIS SARIF 2.1.0, sections 3.11.5 and 3.11.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ..._version import __version__
from ...terminal import neutral
from .findings import Finding, Findings
from .rule_table import RULES, Rule

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_PLAIN = {ord("{"): "{{", ord("}"): "}}", ord("["): "(", ord("]"): ")"}


def log(reports: Sequence[Findings]) -> dict[str, Any]:
    """Return a log with one run."""
    driver = {
        "name": "upconv",
        "version": __version__,
        "rules": [_descriptor(rule) for rule in RULES.values()],
    }
    results = [_result(finding, report.model) for report in reports for finding in report]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _descriptor(rule: Rule) -> dict[str, Any]:
    texts = rule.as_json()
    descriptor: dict[str, Any] = {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.slug.split("-")),
        "shortDescription": {"text": _text(texts["summary"])},
        "fullDescription": {"text": _text(texts["why"])},
        "help": {"text": _text(f"{texts['why']} {texts['fix']}")},
        "defaultConfiguration": {"level": rule.severity.value},
    }
    return {**descriptor, "helpUri": rule.more} if rule.more else descriptor


def _result(finding: Finding, model: str) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if finding.node:
        name = neutral(finding.node)
        full = neutral(f"{finding.graph}/{finding.node}")
        where = {"name": name, "fullyQualifiedName": full, "kind": "element"}
        location["logicalLocations"] = [where]
    if model:
        path = PurePath(model)
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}}
    identity = "\0".join((finding.rule, finding.graph, finding.node))
    digest = sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": finding.severity.value,
        "message": {"text": _text(f"{finding.message} {finding.fix}")},
        "locations": [location],
        "partialFingerprints": {"upconvPlace/v1": digest},  # stays if the model changes elsewhere
    }


def _text(words: str) -> str:
    """Escape words, so that viewers show no placeholders or links."""
    return neutral(words).translate(_PLAIN)
