"""The lint: each rule on a model that shows it and a neighbour that does not; the call."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

pytest.importorskip("onnx_ir")

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from lint_cases import BAD, S2, TARGETS, W33, W44, WIDE, deconv, one, only, weights
from lint_page import sections
from upconv.errors import ArgumentError, ModelError, ShapeError
from upconv.onnx import rewrite
from upconv.onnx.linting import RULES, Findings, Severity, chosen, lint


@pytest.mark.parametrize("code", RULES)
def test_a_rule_fires_where_it_should_and_only_there(code):
    shows, neighbour = BAD[code]
    found = one(shows, code, target=TARGETS.get(code))
    assert (found.rule, found.slug, found.node, found.graph) == (code, RULES[code].slug, "up", "g")
    assert found.severity is RULES[code].severity
    assert found.message.endswith(".")
    assert found.fix == RULES[code].fix
    assert only(neighbour, code, target=TARGETS.get(code)) == ()


def test_the_neighbours_that_fit_each_runtime_have_no_finding_at_all():
    for target in (None, "openvino"):
        assert (
            lint(deconv(weights(1, 32, 16, 4, 4), **S2, pads=[1] * 4), target=target).findings == ()
        )


def test_rules_are_numbered_once_and_say_what_they_are_for():
    assert list(RULES) == sorted(RULES)
    assert len({rule.slug for rule in RULES.values()}) == len(RULES)
    for code, rule in RULES.items():
        assert code == rule.code
        assert len(code) == 6
        for words in (rule.summary, rule.why, rule.fix):
            assert words.endswith(".")
            assert "  " not in words
        assert all(address.startswith("https://") for address in rule.more)


# Neighbours ---------------------------------------------------------------------------------------


def test_neighbours_that_others_read_too_are_left():
    model = BAD["UPC401"][0]
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    assert only(model, "UPC401") == ()


def test_the_pass_that_is_named_does_it():
    for code in ("UPC401", "UPC402", "UPC403", "UPC404"):
        found = one(BAD[code][0], code)
        assert f"`{found.facts['pass']}`" in found.fix
        done = rewrite(BAD[code][0], [found.facts["pass"]])
        assert [step.fired for step in done.steps] == [True]
        assert found.facts["operator"] not in {n.op_type for n in done.model.graph}


def test_the_pass_of_a_slow_layer_does_it():
    for code, target in TARGETS.items():
        found = one(BAD[code][0], code, target=target)
        done = rewrite(BAD[code][0], [found.facts["pass"]])
        assert [step.fired for step in done.steps] == [True]
        assert only(BAD[code][0], code) == ()  # silent without a target


# The call -----------------------------------------------------------------------------------------


def test_select_and_ignore():
    codes = list(RULES)
    assert [r.code for r in chosen()] == codes
    assert [r.code for r in chosen("UPC1")] == [c for c in codes if c.startswith("UPC1")]
    assert [r.code for r in chosen(["UPC1", "UPC001"], ["UPC10"])] == ["UPC001"]
    model = deconv(WIDE, **S2)
    assert {f.rule for f in lint(model)} == {"UPC001", "UPC002"}
    assert {f.rule for f in lint(model, ignore=["UPC001"])} == {"UPC002"}
    assert lint(model, ignore=["UPC0"]).rules == tuple(c for c in codes if c[3] != "0")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"select": ["UPX"]}, "select is 'UPX'"),
        ({"select": [""]}, "select is ''"),
        ({"ignore": ["UPC999"]}, "ignore is 'UPC999'"),
        ({"target": "tensorrt"}, "target is 'tensorrt'"),
        ({"target": "spec"}, "target is 'spec'"),
        ({"sizes": {"z": (1,)}}, r"sizes is with 'z'; expected inputs or symbols: 'x'"),
        ({"sizes": {"x": (2, 6, 5, "7")}}, r"sizes\['x'\]\[3\]"),
        ({"sizes": {"x": (2, 6, 5, -1)}}, r"sizes\['x'\]\[3\]"),
        ({"sizes": {"x": (2, 6, 5, 1 << 60)}}, r"sizes\['x'\]\[3\]"),
    ],
)
def test_arguments_that_are_refused(how, words):
    with pytest.raises(ArgumentError, match=words):
        lint(deconv(W33, **S2), **how)


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 5, 8)])
def test_sizes_that_contradict_the_model_are_refused(shape):
    with pytest.raises(ShapeError, match=r"sizes\['x'\]"):
        lint(deconv(W33, **S2), sizes={"x": shape})


def test_sizes_reach_nodes_through_others():
    """An open size, given, goes through a Relu to a node whose crops depend on it."""
    model = deconv(W33, x_shape=["n", 6, "h", "w"], **S2, output_shape=[9, 14])
    model.graph.node[0].input[0] = "r"
    model.graph.node.insert(0, helper.make_node("Relu", ["x"], ["r"]))
    assert [f.rule for f in lint(model, select=["UPC901", "UPC101"])] == ["UPC901"]
    for sizes in ({"x": (1, 6, 5, 7)}, {"x": (None, 6, 5, 7)}, {"h": [5], "w": [7]}):
        found = lint(model, select=["UPC901", "UPC101"], sizes=sizes)
        assert [f.rule for f in found] == []
    assert model.graph.input[0].type.tensor_type.shape.dim[2].dim_param == "h"


def test_the_model_is_not_changed():
    proto = BAD["UPC401"][0]
    before = proto.SerializeToString(deterministic=True)
    model = ir.from_proto(proto)
    text = str(model)
    lint(proto, sizes={"x": (2, 6, 5, 7)})
    lint(model, sizes={"x": (2, 6, 5, 7)})
    assert proto.SerializeToString(deterministic=True) == before
    assert str(model) == text


def test_nodes_in_subgraphs_and_functions_are_found_in_order():
    inner = deconv(W33, name="inner", **S2).graph
    del inner.input[:]
    outer = helper.make_node("If", ["c"], ["z"], "choose", then_branch=inner, else_branch=inner)
    model = deconv(W44, name="first", strides=[5, 5])
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    model.graph.input.append(condition)
    for i, branch in enumerate(outer.attribute):
        branch.g.node[0].output[0] = branch.g.output[0].name = f"y{i}"
    model.graph.node.append(outer)
    said = {"strides": [5, 5], "kernel_shape": [4, 4]}
    body = helper.make_function(
        "own", "f", ["a", "w"], ["o"],
        [helper.make_node("ConvTranspose", ["a", "w"], ["o"], "call", **said)],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node("f", ["x", "w"], ["q"], domain="own"))
    found = lint(model, select=["UPC001", "UPC003"])
    places = [(f.graph, f.node, f.rule) for f in found]
    assert places == [
        ("g", "first", "UPC003"),
        ("g/choose.else_branch", "inner", "UPC001"),
        ("g/choose.then_branch", "inner", "UPC001"),
        ("function own::f", "call", "UPC003"),
    ]
    assert found.nodes == 4
    assert lint(model, select=["UPC001", "UPC003"]) == found


def test_findings_are_values():
    found = lint(BAD["UPC101"][0])
    assert isinstance(found, Findings)
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found[0]) == hash(pickle.loads(pickle.dumps(found))[0])
    with pytest.raises(AttributeError):
        found[0].rule = "UPC002"
    assert found.at_least(Severity.ERROR).findings == ()
    assert found.at_least(Severity.NOTE) == found
    assert json.loads(json.dumps(found.as_json()))["counts"]["warning"] == len(found)


def test_a_model_without_transposed_convolutions():
    node = helper.make_node("Relu", ["x"], ["y"])
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    found = lint(helper.make_model(helper.make_graph([node], "g", info[:1], info[1:])))
    assert (found.nodes, found.findings) == (0, ())
    assert found.as_text() == "the model: no findings in 0 transposed convolutions"


# Models that nobody vouches for -------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"strides": [1 << 47, 2]},
        {"strides": [2, 2], "dilations": [1 << 47, 1]},
        {"strides": [1 << 62, 2]},
        {"group": 5},
        {"output_shape": [1 << 45, 1 << 45], "strides": [2, 2]},
        {"pads": [1 << 40] * 4},
        {"strides": [2]},
        {"kernel_shape": [1 << 40, 3], "strides": [2, 2]},
    ],
)
def test_absurd_attributes_end_quickly(said):
    for target in (None, "onnxruntime", "openvino"):
        found = lint(deconv(W33, **said), target=target)
        json.dumps(found.as_json(), allow_nan=False)
        assert found.as_text()


def test_an_absurd_kernel_ends_quickly():
    found = lint(deconv((6, 4, 1 << 40, 1 << 40), strides=[1 << 39, 2]))
    assert {f.rule for f in found} <= {"UPC005", "UPC902", "UPC302"}


def test_a_damaged_model_is_refused_in_words():
    with pytest.raises(ModelError):
        lint(b"\x08\x08:\x03abc")


NASTY = "\x1b[31mup\r\n\u202e<script>[a](http://b){0}\x07"


def test_names_cannot_move_the_cursor():
    model = deconv(W33, name=NASTY, **S2)
    model.graph.name = NASTY
    found = lint(model)
    assert found[0].node == NASTY
    text = found.as_text()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert r"\x1b[31mup\r\n\u202e<script>" in text
    assert len(text.splitlines()) == len(lint(deconv(W33, **S2)).as_text().splitlines())


# The page ----------------------------------------------------------------------------------------


def test_the_page_says_of_every_rule_what_the_table_says():
    page = Path(__file__).parents[1] / "docs" / "onnx-lint.md"
    assert page.read_text(encoding="utf-8").endswith(sections()), "run tests/lint_page.py"
