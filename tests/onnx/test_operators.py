"""ConvTranspose on arrays and in the evaluator: ONNX's own tests, the definition, errors."""

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime", reason="values are compared with it")

import onnx
import onnx.reference
from onnx import helper

import upconv
from tests.support.onnx_cases import official
from tests.support.onnx_rewriting import values
from tests.support.onnx_texts import normal, parsed
from upconv.errors import ArgumentError, DTypeError, ModelError, ShapeError
from upconv.onnx import operators
from upconv.onnx.operators import conv, conv_transpose
from upconv.onnx.runtimes import Runtime

OFFICIAL = official()


def assert_onnx_agrees(name: str) -> None:
    """ONNX's own test of the operator, in its evaluator with upconv's operator."""
    model = OFFICIAL[name].model
    replaced = operators.evaluator_operators("spec", model.opset_import[0].version)
    evaluator = onnx.reference.ReferenceEvaluator(model, new_ops=replaced)
    for inputs, outputs in OFFICIAL[name].data_sets:
        given = {value.name: x for value, x in zip(model.graph.input, inputs, strict=True)}
        found = evaluator.run(None, given)
        for y, z in zip(outputs, found, strict=True):
            assert y.dtype == z.dtype
            np.testing.assert_allclose(z, y, rtol=1e-3, atol=1e-7)  # as ONNX's own runner has it


@pytest.mark.parametrize("name", OFFICIAL)
def test_onnx_s_own_test_passes(name: str) -> None:
    assert_onnx_agrees(name)


def test_onnx_s_own_test_sees_a_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every result is moved by one pixel."""
    right = operators.conv_transpose
    monkeypatch.setattr(operators, "conv_transpose", lambda *a, **k: np.roll(right(*a, **k), 1, -1))
    with pytest.raises(AssertionError):
        assert_onnx_agrees("test_convtranspose")


X = np.random.default_rng(0).standard_normal((2, 6, 4, 3))
W = np.random.default_rng(1).standard_normal((6, 2, 3, 2))
B = np.random.default_rng(2).standard_normal(6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_every_type_and_attribute_reaches_the_operator(dtype: str) -> None:
    """What attributes mean is tested with `upconv.dialects`, sums with the engines."""
    pytest.importorskip("ml_dtypes")
    x, w, b = (array.astype(dtype) for array in (X, W, B))
    said = {"pads": [1, 0, 0, 2], "output_padding": [1, 2], "dilations": [2, 1]}
    y = conv_transpose(x, w, b, strides=[2, 3], group=3, kernel_shape=[3, 2], **said)
    how = {"padding": ((1, 0), (0, 2)), "output_padding": (1, 2), "dilation": (2, 1)}
    wanted = upconv.conv_transpose(x, w, b, stride=(2, 3), groups=3, **how)
    assert (y.dtype, y.shape) == (x.dtype, (2, 6, 11, 8))
    np.testing.assert_array_equal(y, wanted)


def test_rules_of_runtimes_are_asked_for() -> None:
    x, w = np.float32([[[1, 2]]]), np.float32([[[1, 10]]])
    same = {"strides": [3], "auto_pad": "SAME_UPPER"}
    assert conv_transpose(x, w, **same).tolist() == [[[1, 10, 0, 2, 20, 0]]]
    assert conv_transpose(x, w, **same, rule="onnxruntime").tolist() == [[[1, 10, 0, 2, 20]]]
    odd = {"strides": [2], "output_shape": [3]}  # of which the position lost changed in opset 11
    assert conv_transpose(x, w, **odd).tolist() == [[[10, 2, 20]]]
    assert conv_transpose(x, w, **odd, opset=10).tolist() == [[[1, 10, 2]]]


REFUSED = [
    ({"strides": [0, 1]}, ArgumentError, r"strides\[0\] is 0"),
    ({"group": 4}, ArgumentError, "group is 4; expected a divisor of the 6 input channels"),
    ({"kernel_shape": [3, 3]}, ShapeError, r"kernel_shape is \(3, 3\); expected \(3, 2\)"),
    ({"W": W[:5]}, ShapeError, r"W.shape is \(5, .*expected 6 there"),
    ({"W": W[0]}, ShapeError, "W.shape is .* 4 axes"),
    ({"B": B[:5]}, ShapeError, r"B.shape is \(5,\); expected \(2,\)"),
    ({"B": B.astype(np.float32)}, DTypeError, "B.dtype is float32; expected float64"),
    ({"X": X.astype(np.int32)}, DTypeError, "X.dtype is int32"),
    ({"X": X[:, :0], "W": W[:0]}, ShapeError, r"W.shape is .*no axis of size 0"),
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
    with pytest.raises(DTypeError, match=r"X.dtype is bfloat16; .* a type of opset 11"):
        conv_transpose(x, w, opset=11)


# In ONNX's evaluator --------------------------------------------------------------------------

EPSILON = float(np.finfo(np.float32).eps)
WIDE = Runtime("reference", precision="f64")


def computed(runtime, model, x):
    """The first output."""
    return values(model, {"x": x}, runtime)[0]


def agrees(model):
    x = normal(3, 2, 4, 7, 8)
    right, got = (computed(n, model, x) for n in ("onnxruntime", "reference"))
    np.testing.assert_allclose(got, right, rtol=0, atol=32 * EPSILON * np.abs(right).max())


CONVS = {
    "asymmetric": "pads = [0, 2, 1, 0], strides = [2, 1]",
    "upper": 'auto_pad = "SAME_UPPER", strides = [2, 3]',
    "lower": 'auto_pad = "SAME_LOWER", strides = [3, 2]',
    "valid": 'auto_pad = "VALID", dilations = [2, 1]',
    "bare": "group = 1",
}


@pytest.mark.parametrize("how", CONVS.values(), ids=CONVS)
def test_conv_agrees_with_onnxruntime(how):
    model = parsed(f"g (float[2, 4, 7, 8] x) => (y) {{y = Conv<{how}>(x, w, b)}}",
                   w=normal(1, 6, 4, 3, 2), b=normal(2, 6))  # fmt: skip
    agrees(model)


TRANSPOSED = {
    "group, bias, M/group > 1": "group = 2, strides = [2, 3], pads = [1, 0, 0, 2]",
    "output_shape": "group = 2, strides = [2, 2], output_shape = [13, 16]",
    "output_shape, upper": "group = 2, strides = [2, 2], output_shape = [14, 15],"
    ' auto_pad = "SAME_UPPER"',
    "lower": 'group = 2, strides = [2, 1], auto_pad = "SAME_LOWER"',
    "dilated": "group = 2, strides = [2, 2], dilations = [2, 3], output_padding = [1, 0]",
}


@pytest.mark.parametrize("how", TRANSPOSED.values(), ids=TRANSPOSED)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "in a function in an If"])
def test_conv_transpose_agrees_with_onnxruntime(how, nested):
    node = f"ConvTranspose<{how}>(x, w, b)"
    body = f"y = {node}"
    if nested:
        body = """y = If (c) <
            then_branch = a () => (float[?, ?, ?, ?] t) {t = local.up(x, w, b)},
            else_branch = b () => (float[?, ?, ?, ?] e) {e = Neg(x)}>"""
    model = parsed(f"g (float[2, 4, 7, 8] x) => (float[A, B, C, D] y) {{{body}}}",
                   w=normal(1, 4, 3, 3, 2), b=normal(2, 6), c=np.array(True))  # fmt: skip
    if nested:
        inner = onnx.parser.parse_function(
            f'<opset_import: ["": 17], domain: "local"> up (x, w, b) => (y) {{y = {node}}}'
        )
        model.functions.append(inner)
        model.opset_import.append(helper.make_opsetid("local", 1))
    agrees(model)


def test_errors_of_the_operators_name_the_node():
    model = parsed("g (float[1, 2, 3] x) => (y) {y = ConvTranspose<output_padding = [5]>(x, w)}",
                   w=normal(1, 2, 1, 3))  # fmt: skip
    model.graph.node[0].name = "up1"
    with pytest.raises(ModelError, match=r"ConvTranspose node 'up1': output_padding\[0\] is 5"):
        computed("reference", model, normal(0, 1, 2, 3))


@pytest.mark.parametrize(("how", "words"), [
    ({"kernel_shape": [2]}, "kernel_shape"),
    ({"pads": [1]}, "1 begins, then 1 ends"),
    ({"auto_pad": b"SAME"}, "auto_pad is 'SAME'"),
])  # fmt: skip
def test_attributes_that_do_not_fit_are_refused(how, words):
    with pytest.raises(ArgumentError, match=words):
        conv(normal(0, 1, 2, 5), normal(1, 2, 2, 3), **how)


def test_conv_takes_no_input_without_a_batch() -> None:
    with pytest.raises(ShapeError, match="3 axes, like the weight"):
        conv(normal(0, 2, 5), normal(1, 2, 2, 3))


# float64 ------------------------------------------------------------------------------------------


def test_float64_reaches_every_corner():
    """Weights, Constants, Casts, shapes filled, an If: results far below float32's rounding."""
    model = parsed("""g (float16[2, 3] x, bool c) => (float[2, 3] y, float16[2, 3] z) {
        third = Constant<value_float = 0.3333333432674408>()
        many = Constant<value_floats = [1.0, 2.0, 0.1]>()
        size = Shape(x)
        zeros = ConstantOfShape(size)
        wide = Cast<to = 1>(x)
        t = If (c) <
            then_branch = a () => (float[2, 3] p) {
                k = Constant<value = float[1] {0.1}>()
                p = Mul(wide, k)
            },
            else_branch = b () => (float[2, 3] q) {q = Neg(wide)}>
        u = Mul(t, third)
        v = Div(u, many)
        y0 = Add(v, w)
        y = Add(y0, zeros)
        z = Cast<to = 10>(y)
    }""", w=normal(5, 3))  # fmt: skip
    x = normal(1, 2, 3).astype(np.float16)
    y, z = values(model, {"x": x, "c": np.array(True)}, WIDE)
    f = lambda v: np.float64(np.float32(v))  # noqa: E731
    wanted = x.astype(np.float64) * f(0.1) * f(0.3333333432674408) / f([1, 2, 0.1])
    wanted = wanted + f(normal(5, 3))
    assert y.dtype == z.dtype == np.float64
    np.testing.assert_allclose(y, wanted, rtol=1e-15)
    np.testing.assert_array_equal(z, y)


NORM = """g (float[1, 2, 5] x) => (float[1, 3, 12] y) {
  c = ConvTranspose <strides = [2]> (x, w)
  y = BatchNormalization <epsilon = 0.1> (c, s, b, m, v)
}"""
DEQUANTISED = """g (float[1, 2, 5] x) => (float[1, 3, 12] y) {
  w = DequantizeLinear <axis = 1> (q, s, z)
  y = ConvTranspose <strides = [2]> (x, w)
}"""


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("precision", ["", "f64"])
def test_operators_that_onnx_changed_are_right_in_every_opset(opset, precision):
    rng, x = np.random.default_rng(0), normal(9, 1, 2, 5)
    quantised = {
        "q": rng.integers(-128, 128, (2, 3, 4)).astype(np.int8),
        "s": rng.uniform(0.01, 0.1, 3).astype(np.float32),
        "z": rng.integers(-5, 5, 3).astype(np.int8),
    }
    norm = {name: normal(i, 3) ** 2 for i, name in enumerate("sbmv")}
    for model in (
        parsed(NORM, opset, w=normal(0, 2, 3, 4), **norm),
        parsed(DEQUANTISED, opset, **quantised),
    ):
        right = computed("onnxruntime", model, x)
        found = computed(Runtime("reference", precision=precision), model, x)
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())
