"""The sizes that layers have: seen in runs, inferred within nodes, and used there."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="forms are run in it")

import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_clock import Clock, decided_by
from upconv.onnx import optimize
from upconv.onnx.models import from_model, to_proto
from upconv.onnx.nodes import conv_transpose_nodes
from upconv.onnx.optimizing.sizes import input_shapes
from upconv.onnx.runtimes import ready

FLOAT = TensorProto.FLOAT


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Times made up."""
    return decided_by(monkeypatch)


def value(name: str, *shape: object) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape or None)


def up(x: str, y: str, name: str) -> onnx.NodeProto:
    return helper.make_node("ConvTranspose", [x, "w"], [y], name=name, strides=[2, 2])


def branch(operator: str, out: str, name: str) -> onnx.GraphProto:
    """Both branches call their inner value `r`, which they may."""
    nodes = [helper.make_node(operator, ["x"], ["r"]), up("r", out, name)]
    return helper.make_graph(nodes, name, [], [value(out)])


def model() -> onnx.ModelProto:
    """A layer in each branch of an If, of different sizes, and one behind it."""
    branches = {
        "then_branch": branch("Relu", "t", "in_then"),
        "else_branch": branch("GlobalAveragePool", "e", "in_else"),
    }
    chosen = helper.make_node("If", ["c"], ["y"], **branches)
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), value("x", "N", 8, "H", 7)]
    w = np.random.default_rng(1).standard_normal((8, 8, 2, 2)).astype(np.float32)
    graph = helper.make_graph(
        [chosen, up("y", "z", "behind")],
        "g",
        inputs,
        [value("z")],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FEEDS = {"c": np.array(True), "x": np.ones((2, 8, 5, 7), np.float32)}
SHAPES = {"in_then": (2, 8, 5, 7), "in_else": (2, 8, 1, 1), "behind": (2, 8, 10, 14)}


def seen(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    whole = from_model(proto)
    found = conv_transpose_nodes(whole)
    shapes = input_shapes(whole, found, ready("onnxruntime"), FEEDS)
    return {str(found[i].node.name): shape for i, shape in shapes.items()}


def test_layers_within_nodes_have_sizes_too() -> None:
    assert seen(model()) == SHAPES


def test_what_inference_cannot_tell_is_left_out() -> None:
    proto = model()
    for attribute in proto.graph.node[0].attribute:
        kept = attribute.g.node[0]
        kept.op_type = "NonZero"  # of a size that depends on values
    assert "in_then" not in seen_without_run(proto)


def seen_without_run(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of what cannot run: no layer of the main graph is asked for."""
    del proto.graph.node[1:]
    proto.graph.output[0].name = "y"
    return seen(proto)


def test_a_loop_s_layer_is_found() -> None:
    body = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["r"]), up("r", "t", "in_loop"),
         helper.make_node("Identity", ["more"], ["again"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("more", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, []), value("t")],
    )  # fmt: skip
    proto = model()
    proto.graph.node[0].CopyFrom(helper.make_node("Loop", ["n", "c"], ["y"], body=body))
    proto.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    assert seen_without_run(proto) == {"in_loop": (2, 8, 5, 7)}


def test_layers_within_nodes_are_rewritten_and_proven(clock: Clock) -> None:
    clock({"sub_pixel:unfolded": 0.5, "whole": 0.7})
    found = optimize(model(), inputs=FEEDS, fresh=True)
    assert {layer.node: layer.chosen for layer in found.layers} == dict.fromkeys(
        SHAPES, "sub_pixel:unfolded"
    )
    assert {layer.node: layer.place for layer in found.layers} == {
        "in_then": "in_then", "in_else": "in_else", "behind": "",
    }  # fmt: skip
    assert found.proven
    whole = to_proto(from_model(found.proto))
    assert "ConvTranspose" not in str(whole.graph)
    for condition in (True, False):
        feeds = {**FEEDS, "c": np.array(condition)}
        with ready("onnxruntime").session(whole, threads=1) as session:
            got = session.run(feeds)["z"]
        with ready("onnxruntime").session(model(), threads=1) as session:
            np.testing.assert_allclose(got, session.run(feeds)["z"], rtol=1e-4, atol=1e-4)
