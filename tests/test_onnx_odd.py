"""Models that are odd, or wrong where nobody looks: an answer or an error of the library."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

import onnx
from onnx import helper

from onnx_texts import parsed
from upconv.onnx import optimize
from upconv.onnx.linting import lint

ONES = np.ones((2, 2, 4, 4), np.float32)


def quick(model: onnx.ModelProto) -> object:
    return optimize(model, seconds=0.01, threads=1)


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


def test_an_output_of_another_rank_than_declared_is_measured() -> None:
    """ONNX Runtime runs it nevertheless."""
    model = parsed(
        "g (float[1, 2, 4, 4] x) => (float[1, 2] y) <float[1] k = {2}, float[1, 2] c>"
        " { c = ConvTranspose<strides = [2, 2], output_shape = [8, 8]>(x, w) y = Mul(c, k) }",
        w=ONES,
    )
    assert quick(model).layers


def test_names_of_ours_in_a_model_are_no_clash() -> None:
    model = parsed(
        "g (float[1, 2, 4, 4] x) => (y) { q = Relu(x) y = ConvTranspose<strides = [2, 2]>(q, w) }",
        w=ONES,
    )
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "upconv.shape.0"
    assert quick(model).layers
