"""The lint's SARIF log: keys, references and text as SARIF 2.1.0 has them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("onnx_ir")

import onnx

from lint_cases import BAD, NEWEST, S2, TARGETS, W33, W44, WIDE, deconv
from upconv.onnx.linting import RULES, lint

NASTY = "\x1b[31mup\r\n\u202e<script>[a](http://b){0}\x07"


KEYS = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool", "results"}, {"artifacts", "columnKind"}),
    "driver": ({"name", "rules"}, {"version"}),
    "rule": (
        {"id"},
        {"name", "shortDescription", "fullDescription", "help", "helpUri", "defaultConfiguration"},
    ),
    "result": (
        {"message"},
        {"ruleId", "ruleIndex", "level", "locations", "partialFingerprints", "properties"},
    ),
    "location": (set(), {"logicalLocations", "physicalLocation"}),
    "logical": (set(), {"name", "fullyQualifiedName", "kind"}),
}
"""Of the objects of the schema of SARIF 2.1.0 that are used: keys that must be, and may be."""


def shaped(kind, value):
    required, allowed = KEYS[kind]
    assert required <= set(value) <= required | allowed, kind
    return value


def require_sarif(log, model=""):
    shaped("log", log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    shaped("run", run)
    driver = shaped("driver", run["tool"]["driver"])
    for rule in driver["rules"]:
        shaped("rule", rule)
        assert rule["name"].isalnum()
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
        for words in ("shortDescription", "fullDescription", "help"):
            assert rule[words]["text"].endswith(".")
    for result in run["results"]:
        shaped("result", result)
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        text = result["message"]["text"]
        assert text
        assert not set(text) & set("[]")  # no links
        assert all(c.isprintable() for c in text)
        unescaped = text.replace("{{", "").replace("}}", "")
        assert not set(unescaped) & set("{}")  # no placeholders
        (location,) = result["locations"]
        shaped("location", location)
        (logical,) = location["logicalLocations"]
        shaped("logical", logical)
        assert logical["fullyQualifiedName"].endswith(logical["name"])
        assert ("physicalLocation" in location) == bool(model)
    assert len({r["partialFingerprints"]["upconvPlace/v1"] for r in run["results"]}) == len(
        run["results"]
    )
    json.dumps(log, allow_nan=False)
    return run


@pytest.mark.parametrize("code", RULES)
def test_sarif_of_every_rule(code):
    model = onnx.ModelProto.FromString(BAD[code][0].SerializeToString())
    next(n for n in model.graph.node if n.op_type == "ConvTranspose").name = NASTY
    run = require_sarif(lint(model, target=TARGETS.get(code)).as_sarif())
    assert code in {result["ruleId"] for result in run["results"]}


def test_sarif_names_the_file(tmp_path):
    path = tmp_path / "a b%\u00e9[x].onnx"
    onnx.save(deconv(W33, **S2), path)
    run = require_sarif(lint(path).as_sarif(), str(path))
    (artifact,) = run["artifacts"]
    uri = artifact["location"]["uri"]
    assert uri == path.as_uri()
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_sarif_of_no_findings():
    assert require_sarif(lint(deconv(W44, **S2), select=["UPC0"]).as_sarif())["results"] == []


def test_a_fault_in_the_log_is_seen():
    log = lint(deconv(W33, **S2)).as_sarif()
    log["runs"][0]["results"][0]["message"]["text"] = "see [this](http://b)"
    with pytest.raises(AssertionError):
        require_sarif(log)


def test_opsets_from_13_to_the_newest():
    for opset in range(13, NEWEST + 1):
        assert {f.rule for f in lint(deconv(WIDE, opset=opset, **S2))} == {"UPC001", "UPC002"}
