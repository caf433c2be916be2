"""Operators that ONNX's reference evaluator has wrong or not at all: the runtime has its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_texts import normal
from upconv.errors import EngineRefusal
from upconv.onnx import optimize, rewrite, verify
from upconv.onnx.runtimes import RUNTIMES, Reference
from upconv.onnx.runtimes.operators import batch_norm

OPSETS = (13, 14, 15)


def made(
    opset: int, nodes: list[onnx.NodeProto], shapes: dict[str, list[int]], **arrays: np.ndarray
) -> onnx.ModelProto:
    """A model from x to y; `shapes` are of the two."""
    declared = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    old = []  # before version 4 of the format an initialiser is an input too
    if opset < 9:
        old = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items()
        ]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [declared["x"], *old], [declared["y"]], weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3 + (opset > 8) * 4
    )


def normalised(opset: int, outputs: int = 1, **said: Any) -> onnx.ModelProto:
    names = ["y", *(f"more{i}" for i in range(1, outputs))]
    return made(
        opset,
        [
            helper.make_node("ConvTranspose", ["x", "w"], ["c"], "up", strides=[2]),
            helper.make_node("BatchNormalization", ["c", *"sbmv"], names, "norm", **said),
        ],
        {"x": [1, 2, 5], "y": [1, 3, 12]},
        w=normal(0, 2, 3, 4), s=normal(1, 3), b=normal(2, 3), m=normal(3, 3), v=normal(4, 3) ** 2,
    )  # fmt: skip


def run(runtime: Any, model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    with runtime.session(model, threads=1) as session:
        found: np.ndarray = session.run({"x": x})["y"]
        return found


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("said", [{}, {"momentum": 0.5, "epsilon": 0.1}])
def test_batch_normalization_infers_in_every_opset(opset: int, said: dict[str, Any]) -> None:
    model, x = normalised(opset, **said), normal(9, 1, 2, 5)
    right = run(RUNTIMES["onnxruntime"], model, x)
    for runtime in (Reference(), Reference(in_float64=True)):
        y = run(runtime, model, x)
        np.testing.assert_allclose(y, right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("opset", OPSETS)
def test_a_folded_normalisation_is_proven_equal(opset: int) -> None:
    model = normalised(opset)
    after = rewrite(model, ["fold_batch_norm"]).proto()
    assert [node.op_type for node in after.graph.node] == ["ConvTranspose"]
    assert verify(model, after, runtimes=["reference", "onnxruntime"]).equal
    for target in ("none", "onnxruntime"):
        found = optimize(model, target=target, profile="npu", seconds=0.01, fresh=True)
        assert found.proven, found.remarks
        assert "float64" in {proof.evaluated_by for proof in found.proofs}


def test_each_element_has_its_own_parameters_where_spatial_is_0() -> None:
    x, *given = (normal(i, 2, 3, 4) if i == 0 else normal(i, 3, 4) for i in range(4))
    scale, b, mean = given
    var = normal(7, 3, 4) ** 2
    wanted = (x - mean) / np.sqrt(var + 0.5) * scale + b
    found = batch_norm(x, scale, b, mean, var, epsilon=0.5, spatial=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_training_is_refused_in_words() -> None:
    with pytest.raises(EngineRefusal, match=r"BatchNormalization node 'norm'.*training"):
        run(RUNTIMES["reference"], normalised(9, 5), normal(9, 1, 2, 5))


# Quantised weights --------------------------------------------------------------------------------


def dequantised(opset: int, axis: int | None) -> onnx.ModelProto:
    """A deconvolution whose weight is dequantised, per tensor or along an axis."""
    count = () if axis is None else ((2, 3)[axis],)
    numbers = np.random.default_rng(0)
    said = {} if axis is None else {"axis": axis}
    return made(
        opset,
        [
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], "dq", **said),
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2]),
        ],
        {"x": [1, 2, 5], "y": [1, 3, 12]},
        q=numbers.integers(-128, 128, (2, 3, 4)).astype(np.int8),
        scale=numbers.uniform(0.01, 0.1, count).astype(np.float32),
        zero=numbers.integers(-5, 5, count).astype(np.int8),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("opset", "axis"),
    [(10, None), (13, None), (13, 0), (13, 1), (17, 1), (18, 0), (19, 1), (21, 0)],
)
def test_weights_are_dequantised_in_every_opset(opset: int, axis: int | None) -> None:
    model, x = dequantised(opset, axis), normal(9, 1, 2, 5)
    right = run(RUNTIMES["onnxruntime"], model, x)
    for runtime in (Reference(), Reference(in_float64=True)):
        y = run(runtime, model, x)
        np.testing.assert_allclose(y, right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_a_quantised_model_obeys_a_profile() -> None:
    found = optimize(dequantised(17, 1), target="none", profile="no-1d")
    assert found.proven


# Sparse tensors -----------------------------------------------------------------------------------

FLAT, PLACES = [1, 7], [[0, 0, 1], [0, 2, 1]]  # the same two of a weight (1, 3, 3)


def sparse(
    indices: list[Any], *, constant: bool, dims: tuple[int, ...] = (1, 3, 3)
) -> onnx.ModelProto:
    """A deconvolution whose weight is sparse: an initialiser, or out of a Constant."""
    values = numpy_helper.from_array(np.float32([2, -3]), "" if constant else "w")
    at = numpy_helper.from_array(np.array(indices, np.int64))
    weight = helper.make_sparse_tensor(values, at, dims)
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=weight))
    model = made(17, nodes, {"x": [1, 1, 4], "y": [1, 3, 9]})
    if not constant:
        model.graph.sparse_initializer.append(weight)
    return model


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("indices", [FLAT, PLACES])
def test_sparse_weights_are_what_they_stand_for(indices: list[Any], constant: bool) -> None:
    model, x = sparse(indices, constant=constant), normal(9, 1, 1, 4)
    before = model.SerializeToString()
    wanted = np.zeros((1, 3, 9), np.float32)
    wanted[0, 0, 1:9:2], wanted[0, 2, 1:9:2] = 2 * x[0, 0], -3 * x[0, 0]
    for runtime in (Reference(), Reference(in_float64=True)):
        np.testing.assert_allclose(run(runtime, model, x), wanted, rtol=1e-6)
    found = optimize(model, target="none", profile="npu")
    assert found.proven
    assert "ConvTranspose" not in [node.op_type for node in found.proto.graph.node]
    assert model.SerializeToString() == before


def test_sparse_tensors_of_any_size_are_refused_at_once() -> None:
    huge = sparse(FLAT, constant=False, dims=(1 << 20, 1 << 20, 3))
    with pytest.raises(EngineRefusal, match="written out"):
        run(RUNTIMES["reference"], huge, normal(9, 1, 1, 4))
