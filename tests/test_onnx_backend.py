"""ConvTranspose on arrays and as a backend: ONNX's own tests, the definition, errors in words."""

from __future__ import annotations

import itertools
import unittest
from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx

from upconv.errors import ArgumentError, DTypeError, ModelError, ShapeError
from upconv.onnx import backend
from upconv.onnx.backend import ConvTransposeBackend, conv_transpose

NODE_TESTS = {
    "test_convtranspose",
    "test_convtranspose_1d",
    "test_convtranspose_3d",
    "test_convtranspose_autopad_same",
    "test_convtranspose_dilations",
    "test_convtranspose_group_2",
    "test_convtranspose_group_2_image_3",
    "test_convtranspose_kernel_shape",
    "test_convtranspose_output_shape",
    "test_convtranspose_pad",
    "test_convtranspose_pads",
}
CONVERTED_TESTS = {
    "test_ConvTranspose2d",
    "test_ConvTranspose2d_no_bias",
    "test_operator_convtranspose",
}


@pytest.fixture(scope="module")
def suite() -> dict[str, unittest.TestCase]:
    """ONNX's own tests of the operator, by name."""
    import_module("onnx.backend.test.case.node.convtranspose")  # its cases are made as it is
    from onnx.backend.test import loader
    from onnx.backend.test.runner import Runner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "import_recursive", lambda _: None)  # 10 s of other operators' cases
        runner = Runner(ConvTransposeBackend, __name__)
    runner.include("(?i)convtranspose")
    return {
        name.removesuffix("_cpu"): case(name)
        for case in runner.test_cases.values()
        for name in dir(case)
        if "convtranspose" in name.lower() and name.endswith("_cpu")
    }


@pytest.mark.parametrize("name", sorted(NODE_TESTS | CONVERTED_TESTS))
def test_onnx_s_own_test_passes(name: str, suite: dict[str, unittest.TestCase]) -> None:
    result = unittest.TestResult()
    suite[name].run(result)
    assert result.testsRun == 1
    assert [*result.failures, *result.errors, *result.skipped] == []


def test_onnx_has_these_tests_and_no_more(suite: dict[str, unittest.TestCase]) -> None:
    assert set(suite) == NODE_TESTS | CONVERTED_TESTS, "a newer onnx brings tests to be named here"


def test_onnx_s_own_test_sees_a_shift(
    suite: dict[str, unittest.TestCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: every result is moved by one pixel."""
    right = backend.conv_transpose
    monkeypatch.setattr(backend, "conv_transpose", lambda *a, **k: np.roll(right(*a, **k), 1, -1))
    result = unittest.TestResult()
    suite["test_convtranspose"].run(result)
    assert len(result.failures) == 1


def defined(x, w, b, begins, outs, strides, dilations, groups):
    """The sum the text describes, one product after the other, in float64."""
    rank, per = x.ndim - 2, w.shape[1]
    y = np.zeros((x.shape[0], per * groups, *outs))
    for n, c, m in itertools.product(*map(range, (x.shape[0], x.shape[1], per))):
        channel = c // (x.shape[1] // groups) * per + m
        for i in itertools.product(*map(range, x.shape[2:])):
            for t in itertools.product(*map(range, w.shape[2:])):
                at = [strides[a] * i[a] + dilations[a] * t[a] - begins[a] for a in range(rank)]
                if all(0 <= o < outs[a] for a, o in enumerate(at)):
                    y[(n, channel, *at)] += float(x[(n, c, *i)]) * float(w[(c, m, *t)])
    return y if b is None else y + b.astype(np.float64).reshape(-1, *[1] * rank)


X = np.random.default_rng(0).standard_normal((2, 6, 4, 3))
W = np.random.default_rng(1).standard_normal((6, 2, 3, 2))
B = np.random.default_rng(2).standard_normal(6)

# attributes -> (crop at the begin, output size) per axis, worked out by hand from the text.
# Axis 0: size 4, k 3, s 2: full 9, or 11 with dilation 2. Axis 1: size 3, k 2, s 3: full 8.
CASES = [
    ({}, (0, 0), (9, 8)),
    ({"pads": [1, 0, 0, 2]}, (1, 0), (8, 6)),
    ({"output_padding": [1, 2]}, (0, 0), (10, 10)),
    ({"auto_pad": "VALID"}, (0, 0), (9, 8)),
    ({"auto_pad": b"SAME_UPPER"}, (0, 0), (8, 9)),
    ({"auto_pad": "SAME_LOWER"}, (1, 0), (8, 9)),
    ({"output_shape": [6, 5]}, (2, 2), (6, 5)),
    ({"output_shape": [6, 5], "auto_pad": "SAME_UPPER"}, (1, 1), (6, 5)),
    ({"output_shape": [6, 5], "opset": 10}, (1, 1), (6, 5)),
    ({"output_shape": [6, 5], "auto_pad": "SAME_UPPER", "opset": 10}, (2, 2), (6, 5)),
    ({"output_shape": [10, 9]}, (0, 0), (10, 9)),
    ({"dilations": [2, 1], "kernel_shape": [3, 2]}, (0, 0), (11, 8)),
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("attributes", "begins", "outs"), CASES, ids=lambda case: str(case)[:60])
def test_values_are_those_of_the_definition(attributes, begins, outs, dtype) -> None:
    if dtype == "bfloat16":
        if attributes.get("opset", 22) < 22:
            pytest.skip("no bfloat16 before opset 22")
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    x, w, b = (array.astype(dtype) for array in (X, W, B))
    y = conv_transpose(x, w, b, strides=[2, 3], group=3, **attributes)
    expected = defined(x, w, b, begins, outs, (2, 3), attributes.get("dilations", (1, 1)), groups=3)
    assert y.dtype == x.dtype
    assert y.shape == expected.shape
    eps = {2: 2**-10, 4: 2**-23, 8: 2**-52}[x.dtype.itemsize]
    eps = 2**-7 if x.dtype.name == "bfloat16" else eps
    products = 2 * 3 * 2 + 1  # channels of a group times taps, and the bias
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=eps, atol=eps * products)


def test_rules_of_runtimes_are_asked_for() -> None:
    x, w = np.float32([[[1, 2]]]), np.float32([[[1, 10]]])
    same = {"strides": [3], "auto_pad": "SAME_UPPER"}
    assert conv_transpose(x, w, **same).tolist() == [[[1, 10, 0, 2, 20, 0]]]
    assert conv_transpose(x, w, **same, rule="onnxruntime").tolist() == [[[1, 10, 0, 2, 20]]]


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_every_rank_is_computed(rank: int) -> None:
    rng = np.random.default_rng(rank)
    x, w = rng.standard_normal((1, 2, *[2] * rank)), rng.standard_normal((2, 1, *[2] * rank))
    y = conv_transpose(x, w, strides=[2] * rank)
    ones = (1,) * rank
    expected = defined(x, w, None, (0,) * rank, (4,) * rank, (2,) * rank, ones, 1)
    np.testing.assert_allclose(y, expected, atol=1e-14)


REFUSED = [
    ({"strides": [0, 1]}, ArgumentError, r"strides\[0\] is 0"),
    ({"group": 4}, ArgumentError, "group is 4; expected a divisor of the 6 input channels"),
    ({"kernel_shape": [3, 3]}, ShapeError, r"kernel_shape is \(3, 3\); expected \(3, 2\)"),
    ({"pads": [0] * 4, "auto_pad": "SAME_UPPER"}, ArgumentError, "pads is given together"),
    ({"rule": "mine"}, ArgumentError, "rule"),
    ({"W": W[:5]}, ShapeError, r"W.shape is \(5, .*expected 6 there"),
    ({"W": W[0]}, ShapeError, "W.shape is .* 4 axes"),
    ({"X": X[0, 0]}, ShapeError, "X.shape is"),
    ({"B": B[:5]}, ShapeError, r"B.shape is \(5,\); expected \(2,\)"),
    ({"B": B.astype(np.float32)}, DTypeError, "B.dtype is float32; expected float64"),
    ({"X": X.astype(np.int32)}, DTypeError, "X.dtype is int32"),
    ({"X": "x"}, DTypeError, "X"),
    ({"X": X[:, :0], "W": W[:0]}, ShapeError, r"W.shape is .*no axis of size 0"),
    ({"W": W[:, :0]}, ShapeError, r"W.shape is .*no axis of size 0"),
]


@pytest.mark.parametrize(("change", "kind", "message"), REFUSED, ids=lambda part: str(part)[:40])
def test_errors_name_onnx_s_words(change, kind, message) -> None:
    operands = {"X": X, "W": W, "B": None}
    operands |= {name: change[name] for name in operands if name in change}
    attributes = {name: value for name, value in change.items() if name not in operands}
    with pytest.raises(kind, match=message):
        conv_transpose(**operands, **attributes)


def test_bfloat16_came_with_opset_22() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x, w = X.astype(bfloat16), W.astype(bfloat16)
    with pytest.raises(DTypeError, match=r"X.dtype is bfloat16; .* So says opset 11"):
        conv_transpose(x, w, opset=11)


def model(body: str, opset: int = 22) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> '
        f"g (float[1,1,2] x) => (float[N] y) <float[1,1,2] w = {{1, 10}}> {{ {body} }}"
    )


def test_a_chain_runs_with_its_initialisers() -> None:
    chain = model("a = ConvTranspose(x, w) y = ConvTranspose <strides = [2]> (a, w, )")
    (y,) = ConvTransposeBackend.run_model(chain, [np.float32([[[1, 2]]])])
    assert y.tolist() == [[[1, 10, 12, 120, 20, 200]]]
    (named,) = ConvTransposeBackend.run_model(chain, {"x": np.float32([[[1, 2]]])})
    np.testing.assert_array_equal(y, named)


def test_a_node_runs_alone() -> None:
    node = onnx.helper.make_node("ConvTranspose", ["x", "w", ""], ["y"], output_shape=[2])
    operands = [np.float32([[[1, 2]]]), np.float32([[[1, 10]]])]
    assert ConvTransposeBackend.run_node(node, operands)[0].tolist() == [[[12, 20]]]
    (old,) = ConvTransposeBackend.run_node(node, operands, opset_version=1)
    assert old.tolist() == [[[1, 12]]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = ConvTranspose(x)", "has input size 1 not in range"),
        ("y = ConvTranspose(x, v)", "input 'v' of node"),
        ("y = ConvTranspose <bias = 1> (x, w)", "Unrecognized attribute: bias"),
        ("z = ConvTranspose(x, w)", "output 'y' is not an output of any node"),
    ],
)
def test_other_models_are_refused(body: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ConvTransposeBackend.run_model(model(body), [np.ones((1, 1, 2), np.float32)])


def test_what_it_can_run_is_told_before() -> None:
    assert ConvTransposeBackend.is_compatible(model("y = ConvTranspose(x, w)"))
    assert not ConvTransposeBackend.is_compatible(model("y = Relu(x)"))
    assert not ConvTransposeBackend.is_compatible(model("y = ConvTranspose(x, w)"), "CUDA")
    with pytest.raises(ArgumentError, match="device is 'CUDA'; expected 'CPU'"):
        ConvTransposeBackend.prepare(model("y = ConvTranspose(x, w)"), "CUDA")
    with pytest.raises(ArgumentError, match="inputs is 2 arrays; expected 1: x"):
        ConvTransposeBackend.run_model(model("y = ConvTranspose(x, w)"), [X, X])
