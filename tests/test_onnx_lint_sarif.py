"""The lint's SARIF log: keys, references and text as SARIF 2.1.0 has them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("onnx_ir")

import onnx

from lint_cases import BAD, S2, W33, W44, deconv
from upconv.onnx.linting import RULES, lint
from upconv.onnx.linting.sarif import log

NASTY = "\x1b[31mup\r\n\u202e<script>[a](http://b){0}\x07"

KEYS = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool", "results"}, {"columnKind"}),
    "driver": ({"name", "rules"}, {"version"}),
    "rule": (
        {"id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration"},
        {"helpUri"},
    ),
    "result": (
        {"message", "ruleId", "ruleIndex", "level", "locations", "partialFingerprints"},
        {"properties"},
    ),
    "location": (set(), {"logicalLocations", "physicalLocation"}),
    "logical": ({"name", "fullyQualifiedName", "kind"}, set()),
}
"""Of the objects of SARIF 2.1.0 that are used: keys that it or GitHub needs, and others allowed."""


def shaped(kind, value):
    required, allowed = KEYS[kind]
    assert required <= set(value) <= required | allowed, kind
    return value


def require_sarif(document):
    """The run of a log that is what SARIF and GitHub's code scanning ask for."""
    shaped("log", document)
    assert document["version"] == "2.1.0"
    run = shaped("run", document["runs"][0])
    driver = shaped("driver", run["tool"]["driver"])
    for rule in driver["rules"]:
        shaped("rule", rule)
        assert rule["name"].isalnum()
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
        for words in ("shortDescription", "fullDescription", "help"):
            assert rule[words]["text"].strip()
    for result in run["results"]:
        shaped("result", result)
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        text = result["message"]["text"]
        assert all(c.isprintable() for c in text)
        assert not set(text) & set("[]")  # no links
        assert not set(text.replace("{{", "").replace("}}", "")) & set("{}")  # no placeholders
        for logical in shaped("location", result["locations"][0]).get("logicalLocations", ()):
            name = shaped("logical", logical)["name"]
            assert logical["fullyQualifiedName"].endswith(name)
    fingerprints = {json.dumps([r["partialFingerprints"], r["locations"]]) for r in run["results"]}
    assert len(fingerprints) == len(run["results"])
    json.dumps(document, allow_nan=False)
    return run


@pytest.mark.parametrize("code", BAD)
def test_sarif_of_every_rule(code):
    model = onnx.ModelProto.FromString(BAD[code][0].SerializeToString())
    next(n for n in model.graph.node if n.name == "up").name = NASTY
    run = require_sarif(lint(model).as_sarif())
    assert code in {result["ruleId"] for result in run["results"]}
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)


def test_sarif_names_the_file(tmp_path):
    path = tmp_path / "a b%\u00e9[x].onnx"
    onnx.save(deconv(W33, **S2), path)
    run = require_sarif(log([lint(path), lint(deconv(W33, **S2))]))
    named, memory = (result["locations"][0] for result in run["results"])
    assert named["physicalLocation"]["artifactLocation"]["uri"] == path.as_uri()
    assert "physicalLocation" not in memory


def test_sarif_of_no_findings():
    run = require_sarif(lint(deconv(W44, **S2), select=["UPC0"]).as_sarif())
    assert run["results"] == []


def test_a_fault_in_the_log_is_seen():
    document = lint(deconv(W33, **S2)).as_sarif()
    document["runs"][0]["results"][0]["message"]["text"] = "see [this](http://b)"
    with pytest.raises(AssertionError):
        require_sarif(document)
