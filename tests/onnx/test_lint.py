"""The lint: each rule on a model that shows it and a neighbour that does not; the call; repairs."""

import json
import re

import numpy as np
import pytest

from tests.support.paths import ROOT

pytest.importorskip("onnx_ir")

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from tests.support.lint_cases import (
    BAD,
    FOLDED,
    S2,
    SAME,
    W33,
    WIDE,
    deconv,
    one,
    only,
    ran,
    with_batch_norm,
)
from tests.support.onnx_texts import normal, parsed
from upconv.errors import ArgumentError, FileError, ShapeError
from upconv.onnx import rewrite
from upconv.onnx.linting import RULES, chosen, fix, lint
from upconv.onnx.passes import PASSES

CHECKED = [code for code in RULES if code != "UPC900"]


@pytest.mark.parametrize("code", CHECKED)
def test_a_rule_fires_where_it_should_and_only_there(code):
    shows, neighbour = BAD[code]
    (found,) = only(shows, code)
    assert (found.rule, found.slug, found.node, found.graph) == (code, RULES[code].slug, "up", "g")
    assert found.severity is RULES[code].severity
    assert found.message.endswith(".")
    assert found.fix == RULES[code].as_json()["fix"]
    assert only(neighbour, code) == ()


def test_every_rule_is_explained_and_names_only_commands_that_exist():
    assert list(RULES) == sorted(RULES)
    assert len({rule.slug for rule in RULES.values()}) == len(RULES)
    for code, rule in RULES.items():
        told = rule.as_json()
        assert told["rule"] == code
        assert all(told[key].endswith((".", ").")) for key in ("summary", "why", "fix"))
        assert ("--fix" in told["fix"]) == told["fixable"]
        named = re.findall(r"--passes ([\w:]+)|`(normalise:\w+)`|\b(fold_\w+)", told["fix"])
        assert {name for names in named for name in names if name} - {"NAME"} <= set(PASSES)


@pytest.mark.parametrize("by", FOLDED)
def test_the_pass_that_is_named_folds_the_neighbour(by):
    models, neighbour = FOLDED[by]
    for model in models:
        assert one(model, "UPC401").split()[-1] == f"{by}."
        assert rewrite(model, [by]).fired
    assert only(neighbour, "UPC401") == ()
    shared = onnx.ModelProto.FromString(models[0].SerializeToString())
    shared.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    assert by == "fold_pad" or only(shared, "UPC401") == ()


# The call -----------------------------------------------------------------------------------------


def test_select_and_ignore():
    codes = list(RULES)
    assert [r.code for r in chosen()] == codes
    assert [r.code for r in chosen("UPC1")] == [c for c in codes if c.startswith("UPC1")]
    assert [r.code for r in chosen(["UPC1", "UPC001"], ["UPC10"])] == ["UPC001"]
    model = deconv(WIDE, **S2)
    assert {f.rule for f in lint(model)} == {"UPC001", "UPC002"}
    assert {f.rule for f in lint(model, ignore=["UPC001"])} == {"UPC002"}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"select": ["UPX"]}, "select is 'UPX'"),
        ({"select": [""]}, "select is ''"),
        ({"ignore": ["UPC999"]}, "ignore is 'UPC999'"),
        ({"runtime": "tensorrt"}, "runtime is 'tensorrt'"),
        ({"sizes": {"z": (1,)}}, r"sizes is given for 'z'; expected inputs or symbols: 'x'"),
        ({"sizes": {"x": (2, 6, 5)}}, r"sizes\['x'\]"),
        ({"sizes": {"x": (2, 6, 5, 8)}}, r"sizes\['x'\]"),
    ],
)
def test_arguments_that_are_refused(how, words):
    with pytest.raises((ArgumentError, ShapeError), match=words):
        lint(deconv(W33, **S2), **how)


def test_sizes_reach_nodes_through_others():
    """An open size, given, goes through a Relu to a node whose crops depend on it."""
    model = deconv(W33, x_shape=["n", 6, "h", "w"], **S2, output_shape=[9, 14])
    model.graph.node[0].input[0] = "r"
    model.graph.node.insert(0, helper.make_node("Relu", ["x"], ["r"]))
    assert [f.rule for f in lint(model, select=["UPC901", "UPC101"])] == ["UPC901"]
    for sizes in ({"x": (1, 6, 5, 7)}, {"h": (5,), "w": (7,)}):
        assert lint(model, select=["UPC901", "UPC101"], sizes=sizes).findings == ()


def test_the_model_is_not_changed():
    proto = BAD["UPC401"][0]
    before = proto.SerializeToString(deterministic=True)
    model = ir.from_proto(proto)
    text = str(model)
    lint(proto, sizes={"x": (2, 6, 5, 7)})
    lint(model, sizes={"x": (2, 6, 5, 7)})
    assert proto.SerializeToString(deterministic=True) == before
    assert str(model) == text


def test_nodes_in_subgraphs_and_functions_are_found():
    model = parsed(
        """g (float[1, 1, 5] x, bool c) => (float[1, 1, P] y, float[1, 1, M] z, float[1, 1, P] q) {
          [first] y = ConvTranspose <strides = [5]> (x, w4)
          z = If (c) <
            then_branch = branch () => (float[1, 1, M] t) {
              [inner] t = ConvTranspose <strides = [2]> (x, w3)
            },
            else_branch = other () => (float[1, 1, M] e) {
              e = ConvTranspose <strides = [2]> (x, w3)
            }
          >
          q = own.f(x, w4)
        }
        <domain: "own", opset_import: ["": 17]>
        f (a, w) => (o) { [call] o = ConvTranspose <strides = [5], kernel_shape = [4]> (a, w) }""",
        w3=normal(0, 1, 1, 3),
        w4=normal(0, 1, 1, 4),
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    found = lint(model, select=["UPC001", "UPC003"])
    assert [(f.graph, f.node, f.rule) for f in found] == [
        ("g", "first", "UPC003"),
        ("branch", "inner", "UPC001"),
        ("other", "e", "UPC001"),
        ("f", "call", "UPC003"),
    ]
    assert found.nodes == 4


def test_metadata_leaves_rules_out():
    model = deconv(WIDE, **S2)
    entry = model.graph.node[0].metadata_props.add(key="upconv.lint.ignore", value="UPC001")
    assert [f.rule for f in lint(model)] == ["UPC002"]
    entry.value = "UPC9, UPC0"
    assert lint(model).findings == ()
    entry.key = "other"
    assert len(lint(model)) == 2
    model.metadata_props.add(key="upconv.lint.ignore", value="UPC002")
    assert [f.rule for f in lint(model)] == ["UPC001"]


# Repairs ------------------------------------------------------------------------------------------

REPAIRED = {
    **{code: BAD[code][0] for code in ("UPC102", "UPC105", "UPC201", "UPC202", "UPC401")},
    **{f"UPC401 {by}": models[-1] for by, (models, _) in FOLDED.items()},
}


@pytest.mark.parametrize("name", REPAIRED)
def test_a_repair_ends_the_finding_and_keeps_the_values(name, tmp_path):
    path, code = tmp_path / "model.onnx", name.split()[0]
    onnx.save(REPAIRED[name], path)
    before = path.read_bytes()
    found = fix(path, select=[code])
    assert found.findings == ()
    assert [f.rule for f in found.fixed] == [code]
    refused = {"UPC201": "openvino"}.get(code, "onnxruntime")  # ONNX Runtime refuses the original
    np.testing.assert_allclose(
        ran(path.read_bytes(), refused), ran(before, refused), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_reading_is_written_down_where_a_runtime_is_named(runtime, tmp_path):
    pytest.importorskip(runtime)
    path = tmp_path / "model.onnx"
    onnx.save(deconv(W33, batch=1, **S2, output_shape=[10, 14], auto_pad="SAME_UPPER"), path)
    before = path.read_bytes()
    assert fix(path, select=["UPC101"]).fixed == ()
    assert path.read_bytes() == before
    for_it = fix(path, select=["UPC101"], runtime="openvino")
    assert [f.rule for f in for_it.fixed] == ["UPC101"]
    expected = ran(before, "openvino")
    np.testing.assert_allclose(ran(path.read_bytes(), runtime), expected, rtol=1e-4, atol=1e-4)


def test_several_repairs_at_one_node_and_nothing_left_open_is_written(tmp_path):
    path = tmp_path / "model.onnx"
    model = with_batch_norm(deconv(W33, x_shape=[1, 6, "h", 7], **SAME))
    onnx.save(model, path)
    path.chmod(0o600)
    before, mode = ran(path.read_bytes(), "onnxruntime"), path.stat().st_mode
    found = fix(path)
    assert [f.rule for f in found.fixed] == ["UPC102", "UPC401"]
    assert path.stat().st_mode == mode
    np.testing.assert_allclose(ran(path.read_bytes(), "onnxruntime"), before, rtol=1e-4, atol=1e-4)
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[2].dim_param == "h"
    once = path.read_bytes()
    assert fix(path).fixed == ()
    assert path.read_bytes() == once


def test_a_repair_is_of_its_own_node_alone(tmp_path):
    model = parsed(
        "g (float[1, 1, 3] x) => (float[1, 1, M] z) <float[1, 1, 2] w = {1, 2}, float c = {2}>"
        "{ a = ConvTranspose(x, w) b = Mul(a, c) d = ConvTranspose(b, w) z = Mul(d, c) }"
    )
    model.graph.node[2].metadata_props.add(key="upconv.lint.ignore", value="UPC401")
    onnx.save(model, tmp_path / "model.onnx")
    assert [f.node for f in fix(tmp_path / "model.onnx").fixed] == ["a"]
    kinds = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert kinds == ["ConvTranspose", "ConvTranspose", "Mul"]


def test_a_node_of_the_same_name_in_another_graph_is_another(tmp_path):
    branch = "{ [up] t = ConvTranspose(x, w) z = Mul(t, c) }"
    model = parsed(
        f"""g (float[1, 1, 3] x, bool flag) => (float[1, 1, M] z)
        <float[1, 1, 2] w = {{1, 2}}, float c = {{2}}>
        {{ z = If (flag) < then_branch = a () => (float[1, 1, P] z) {branch},
                          else_branch = b () => (float[1, 1, Q] z) {branch} > }}"""
    )
    other = model.graph.node[0].attribute[0].g.node[0]
    other.metadata_props.add(key="upconv.lint.ignore", value="UPC401")
    onnx.save(model, tmp_path / "model.onnx")
    assert [f.graph for f in fix(tmp_path / "model.onnx").fixed] == ["b"]
    branches = onnx.load(tmp_path / "model.onnx").graph.node[0].attribute
    assert {one.g.name: "Mul" in [node.op_type for node in one.g.node] for one in branches} == {
        "a": True,
        "b": False,
    }


def test_what_cannot_be_repaired_is_left_whole(tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx.ModelProto.FromString(BAD["UPC401"][0].SerializeToString())
    onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(FileError, match="has weights in other files"):
        fix(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files


# Models that nobody vouches for -------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"strides": [1 << 47, 2]},
        {"strides": [2, 2], "dilations": [1 << 47, 1]},
        {"group": 5},
        {"output_shape": [1 << 45, 1 << 45], "strides": [2, 2]},
        {"kernel_shape": [1 << 40, 3], "strides": [2, 2]},
        {**SAME, "pads": [0] * 4},
    ],
)
def test_absurd_attributes_end_quickly(said):
    for w in (W33, (6, 4, 1 << 40, 1 << 40)):
        found = lint(deconv(w, **said), runtime="onnxruntime")
        json.dumps(found.as_json(), allow_nan=False)
        assert found.as_text()


def test_a_weight_declared_with_too_few_axes():
    model = parsed(
        "g (float[1, 1, 3] x) => (float[1, 1, M] y) <float[1, 1, 4] v = {1, 2, 3, 4}, float[9] w>"
        '{ w = Identity(v) y = ConvTranspose<auto_pad = "SAME_UPPER", strides = [2]>(x, w) }'
    )
    assert lint(model).nodes == 1


def test_a_model_without_transposed_convolutions():
    node = helper.make_node("Relu", ["x"], ["y"])
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    found = lint(helper.make_model(helper.make_graph([node], "g", info[:1], info[1:])))
    assert (found.nodes, found.findings) == (0, ())
    assert found.as_text() == "the model: no findings in 0 transposed convolutions"


# The page ----------------------------------------------------------------------------------------


def test_the_page_ends_with_what_upconv_rule_prints():
    page = ROOT / "docs" / "onnx-lint.md"
    rules = "\n\n".join(rule.markdown() for rule in RULES.values())
    assert page.read_text(encoding="utf-8").endswith(f"\n## Rules\n\n{rules}\n")
