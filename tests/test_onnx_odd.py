"""Models that are odd, or wrong where nobody looks: an answer or an error of the library."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

import onnx
from onnx import helper, numpy_helper

from onnx_texts import parsed
from upconv.onnx import optimize
from upconv.onnx.linting import lint
from upconv.onnx.runtimes import ready
from upconv.onnx.verifying import verify

ONES = np.ones((2, 2, 4, 4), np.float32)


def quick(model: onnx.ModelProto) -> object:
    return optimize(model, seconds=0.01, threads=1)


def sparse() -> onnx.ModelProto:
    """A weight that is a sparse initialiser, and a declared output."""
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    places = numpy_helper.from_array(np.array([3, 40], np.int64), "places")
    model = parsed(
        "g (float[1, 2, 5, 5] x) => (float[1, 2, 10, 10] y) <float[2, 2, 4, 4] w>"
        " { y = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) }"
    )
    del model.graph.value_info[:]
    tensor = helper.make_sparse_tensor(values, places, [2, 2, 4, 4])
    model.graph.sparse_initializer.append(tensor)
    return model


def test_lint_takes_a_sparse_weight() -> None:
    assert lint(sparse()).nodes == 1


def test_layers_within_nodes_of_a_model_with_sparse_weights() -> None:
    """A sparse initialiser is a node in onnx-ir and none in the proto."""
    model = sparse()
    text = """g (bool c, float[1, 2, 5, 5] x) => (y)
      { y = If(c) <then_branch = t () => (p) { p = ConvTranspose(x, w) },
                   else_branch = e () => (q) { q = ConvTranspose(x, w) }> }"""
    other = parsed(text.replace("(p)", "(float[A, B, C, D] p)").replace("(q)", "(float[A, B] q)"))
    other.graph.sparse_initializer.append(model.graph.sparse_initializer[0])
    quick(other)


def test_lint_takes_a_weight_declared_with_too_few_axes() -> None:
    model = parsed(
        "g (float[1, 1, 3] x) => (float[1, 1, M] y) <float[1, 1, 4] v = {1, 2, 3, 4}, float[9] w>"
        '{ w = Identity(v) y = ConvTranspose<auto_pad = "SAME_UPPER", strides = [2]>(x, w) }'
    )
    assert lint(model).nodes == 1


def test_a_function_called_as_the_operator_is_none() -> None:
    model = parsed(
        "g (float[1, 2, 4, 4] x) => (y) { q = Neg(x) y = ConvTranspose<strides = [2, 2]>(q, w) }",
        w=ONES,
    )
    model.graph.node[0].CopyFrom(helper.make_node("ConvTranspose", ["x", "w"], ["q"], domain="my"))
    relu, opsets = helper.make_node("Relu", ["x"], ["y"]), [helper.make_opsetid("", 17)]
    own = helper.make_function("my", "ConvTranspose", ["x", "w"], ["y"], [relu], opsets)
    model.functions.append(own)
    model.opset_import.add(domain="my", version=1)
    assert len(quick(model).layers) == 1


def misdeclared() -> onnx.ModelProto:
    """The output's rank is wrong; ONNX Runtime runs it nevertheless."""
    return parsed(
        "g (float[1, 2, 4, 4] x) => (float[1, 2] y) <float[1] k = {2}, float[1, 2] c>"
        " { c = ConvTranspose<strides = [2, 2], output_shape = [8, 8]>(x, w) y = Mul(c, k) }",
        w=ONES,
    )


def test_an_output_of_another_rank_than_declared_is_measured() -> None:
    assert quick(misdeclared()).layers


def test_a_bound_output_of_another_rank_is_made_anew() -> None:
    x = np.ones((1, 2, 4, 4), np.float32)
    with ready("onnxruntime").session(misdeclared(), threads=1) as session:
        again = session.bind({"x": x})
        again()
        again()


def test_sequences_are_compared_in_onnxruntime() -> None:
    text = "g (float[1, 2] x) => (seq(float[1, 2]) y, float[1, 2] z)"
    same = parsed(text + " { y = SequenceConstruct(x, x) z = Neg(x) }")
    other = parsed(text + " { z = Neg(x) y = SequenceConstruct(x, z) }")
    assert verify(same, same).equal
    [run] = verify(same, other, runtimes=["onnxruntime"]).runs
    found = [(one.name, one.equal) for one in run.outputs]
    assert found == [("y[0]", True), ("y[1]", False), ("z", True)]


def test_names_of_ours_in_a_model_are_no_clash() -> None:
    model = parsed(
        "g (float[1, 2, 4, 4] x) => (y) { q = Relu(x) y = ConvTranspose<strides = [2, 2]>(q, w) }",
        w=ONES,
    )
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "upconv.shape.0"
    assert quick(model).layers
