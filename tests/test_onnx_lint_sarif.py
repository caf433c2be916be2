"""The lint's SARIF log: what SARIF 2.1.0 and GitHub's code scanning ask of it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("onnx_ir")

import onnx

from lint_cases import BAD, S2, W33, deconv
from upconv.onnx.linting import RULES, lint
from upconv.onnx.linting.sarif import log

NASTY = "\x1b[31mup\r\n\u202e<script>[a](http://b){0}\x07"


def require_sarif(document):
    """The run of a log, whose references, levels and texts hold."""
    assert set(document) == {"$schema", "version", "runs"}
    (run,) = document["runs"]
    assert document["version"] == "2.1.0"
    assert set(run) == {"tool", "columnKind", "results"}
    rules = run["tool"]["driver"]["rules"]
    levels = ("error", "warning", "note")
    for rule in rules:
        assert rule["name"].isalnum()
        assert rule["defaultConfiguration"]["level"] in levels
        assert all(rule[f"{one}Description"]["text"].endswith(".") for one in ("short", "full"))
        assert rule["help"]["text"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in levels
        assert list(result["partialFingerprints"]) == ["upconvPlace/v1"]
        text = result["message"]["text"]
        assert all(c.isprintable() for c in text)
        assert not set(text) & set("[]")  # no links
        assert not set(text.replace("{{", "").replace("}}", "")) & set("{}")  # no placeholders
        assert set(result["locations"][0]) <= {"logicalLocations", "physicalLocation"}
    json.dumps(document, allow_nan=False)
    return run


def test_sarif_of_every_rule():
    models = [onnx.ModelProto.FromString(shows.SerializeToString()) for shows, _ in BAD.values()]
    for model in models:
        next(n for n in model.graph.node if n.name == "up").name = NASTY
    run = require_sarif(log([lint(model) for model in models]))
    assert {result["ruleId"] for result in run["results"]} >= set(BAD)
    for result in run["results"]:
        (logical,) = result["locations"][0]["logicalLocations"]
        assert logical["fullyQualifiedName"] == f"g/{logical['name']}"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)


def test_sarif_names_the_file(tmp_path):
    path = tmp_path / "a b%\u00e9[x].onnx"
    onnx.save(deconv(W33, **S2), path)
    run = require_sarif(log([lint(path), lint(deconv(W33, **S2))]))
    named, memory = (result["locations"][0] for result in run["results"])
    assert named["physicalLocation"]["artifactLocation"]["uri"] == path.as_uri()
    assert "physicalLocation" not in memory
