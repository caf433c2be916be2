"""Sizes that no array has: neither ONNX's inference nor a runtime ends the process over them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

import onnx
from onnx import helper, numpy_helper

from onnx_texts import parsed
from upconv.onnx.inference import infer_shapes

NEGATIVE = """g (float[1, 1, 3] x) => (float[1, 1, M] y)
    <float[1, 1, 4] w = {1, 2, 3, 4}, int64[1] s = {-3}, int64[1] e = {2}, int64[1] a = {2}>
    { c = ConvTranspose<pads = [5, 3]>(x, w) y = Slice(c, s, e, a) }"""

TRIES = """
import sys
from upconv.errors import UpconvError
from upconv.onnx.linting import lint
from upconv.onnx.optimizing import optimize
from upconv.onnx.verifying import verify
import onnx
path = sys.argv[1]
calls = [
    lambda: lint(path),
    lambda: verify(path, path),
    lambda: optimize(path, seconds=0.01, threads=1),
]
for call in calls:
    try:
        call()
    except UpconvError as error:
        print(error)
"""


def _outlived(model: onnx.ModelProto, folder: Path) -> str:
    path = folder / "model.onnx"
    onnx.save(model, path)
    command = [sys.executable, "-c", TRIES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_negative_size_before_a_slice_ends_no_process(tmp_path: Path) -> None:
    said = _outlived(parsed(NEGATIVE), tmp_path)
    assert "onnxruntime does not take the model: it ended its process" in said


def test_a_declared_negative_size_ends_no_process(tmp_path: Path) -> None:
    model = parsed("g (float[1, 1, 3] x) => (y) <int64[1] s = {-3}> { y = Slice(x, s, s) }")
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -5
    model.graph.value_info.append(helper.make_tensor_value_info("q", 1, [-5]))
    _outlived(model, tmp_path)


@pytest.mark.parametrize(
    "nodes",
    [
        "t = Tile(x, n) y = Slice(t, s, s)",
        "t = ConvTranspose<strides = [4611686018427387904]>(x, w) y = Slice(t, s, s)",
    ],
)
def test_what_onnxruntime_s_own_inference_gets_wrong(nodes: str, tmp_path: Path) -> None:
    weights = "<int64[3] n = {1, 2, -2}, int64[1] s = {-3}, float[1, 1, 2] w = {1, 2}>"
    said = _outlived(parsed(f"g (float[1, 1, 9] x) => (y) {weights} {{ {nodes} }}"), tmp_path)
    assert said.startswith("onnxruntime")


def test_nodes_within_nodes_and_functions_are_guarded() -> None:
    """In a child process only were it not so; nothing of ours is left in the answer."""
    model = parsed(NEGATIVE)
    body = model.graph.node[:]
    function = helper.make_function(
        "my", "cut", ["x", "w", "s", "e", "a"], ["y"], body, [helper.make_opsetid("", 17)]
    )
    model.functions.append(function)
    model.opset_import.add(domain="my", version=1)
    model.graph.node.append(helper.make_node("cut", ["x", "w", "s", "e", "a"], ["z"], domain="my"))
    told = infer_shapes(model)
    assert told.graph.node == model.graph.node
    assert told.functions == model.functions
    assert told.opset_import == model.opset_import
    assert {info.name for info in told.graph.value_info} <= {"c", "z"}


def test_shapes_that_are_cut_are_followed() -> None:
    """A Slice of a computed shape is what many exporters write."""
    text = "g (float[2, 3, 4] x, float[24] v) => (y) <int64[1] s = {0}, int64[1] e = {1}>"
    model = parsed(
        f"{text} {{ a = Shape(x) b = Slice(a, s, e) c = Neg(v) y = Reshape(c, b2) }}".replace(
            "b2", "d"
        ).replace("y =", "d = Concat<axis = 0>(b, m) y =")
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([12], np.int64), "m"))
    plain = onnx.shape_inference.infer_shapes(model, data_prop=True)
    guarded = infer_shapes(model, data_prop=True)
    assert guarded.graph.output == plain.graph.output
    key = {info.name: info for info in plain.graph.value_info}
    assert {info.name: info for info in guarded.graph.value_info} == key
