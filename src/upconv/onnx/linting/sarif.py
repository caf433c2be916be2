"""Findings as a SARIF 2.1.0 log, as code scanning services read it.

One run; the driver lists every rule that looked; a result names its rule by number and index, and
its place by the model's file and a logical location, since a node has no line. Text of SARIF has a
syntax of its own: braces are doubled, and a bracket that could begin a link is turned into a
parenthesis (OASIS SARIF 2.1.0, sections 3.11.5 and 3.11.6).

What lives here: the document. What never does: files, names of machines or users.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ..._version import __version__
from ..names import neutral
from .findings import Finding, Findings
from .rules import RULES
from .rules.base import Rule

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

_PLAIN = {ord("{"): "{{", ord("}"): "}}", ord("["): "(", ord("]"): ")"}


def log(findings: Findings) -> dict[str, Any]:
    """The log."""
    rules = [RULES[code] for code in findings.rules]
    index = {rule.code: i for i, rule in enumerate(rules)}
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "upconv",
                "version": __version__,
                "rules": [_descriptor(rule) for rule in rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, index[finding.rule], findings) for finding in findings],
    }
    if findings.model:
        run["artifacts"] = [{"location": _artifact(findings), "roles": ["analysisTarget"]}]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _descriptor(rule: Rule) -> dict[str, Any]:
    descriptor = {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.slug.split("-")),
        "shortDescription": {"text": _text(rule.summary)},
        "fullDescription": {"text": _text(rule.why)},
        "help": {"text": _text(f"{rule.why} {rule.fix}")},
        "defaultConfiguration": {"level": rule.severity.value},
    }
    if rule.more:
        descriptor["helpUri"] = rule.more[0]
    return descriptor


def _result(finding: Finding, index: int, findings: Findings) -> dict[str, Any]:
    location: dict[str, Any] = {
        "logicalLocations": [
            {
                "name": neutral(finding.node),
                "fullyQualifiedName": neutral(finding.location),
                "kind": "element",
            }
        ]
    }
    if findings.model:
        location["physicalLocation"] = {"artifactLocation": {**_artifact(findings), "index": 0}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity.value,
        "message": {"text": _text(f"{finding.message} {finding.fix}")},
        "locations": [location],
        "partialFingerprints": {"upconvPlace/v1": _fingerprint(finding)},
        "properties": {"facts": dict(finding.facts)},
    }


def _artifact(findings: Findings) -> dict[str, Any]:
    path = PurePath(findings.model)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {"uri": uri}


def _fingerprint(finding: Finding) -> str:
    """The same for the same finding in another version of the model."""
    place = "\0".join((finding.rule, finding.graph, finding.node))
    return sha256(place.encode("utf-8", "backslashreplace")).hexdigest()


def _text(words: str) -> str:
    """Words that are not taken for placeholders or links.

    >>> print(_text("a [link](x) to {0}"))
    a (link)(x) to {{0}}
    """
    return neutral(words).translate(_PLAIN)
