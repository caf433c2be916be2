"""The public functions: arrays in and out of every form, `out`, overlap, accumulation, plans."""

import math
import pickle

import numpy as np
import pytest

import upconv
from tests.support.one_axis import transposed
from upconv import Gradients
from upconv.engines import load
from upconv.geometry import Axis

HOW = {"stride": (2, 3), "padding": ((1, 0), (2, 3)), "groups": 3}
RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 6, 5, 7)).astype(np.float32)
W = RNG.standard_normal((6, 4, 3, 2)).astype(np.float32)
B = RNG.standard_normal(12).astype(np.float32)
Y = upconv.conv_transpose(X, W, B, **HOW)
GRAD = RNG.standard_normal(Y.shape).astype(np.float32)
GRADS = upconv.conv_transpose_backward(GRAD, X, W, **HOW)


def test_the_values_are_right() -> None:
    x, w = RNG.standard_normal(6), RNG.standard_normal(5)
    for begin, end in ((0, 0), (2, -4)):
        padding = ((begin, end),)
        got = upconv.conv_transpose(x[None, None], w[None, None], stride=3, padding=padding)
        wanted = transposed(x, w, Axis(6, 5, 3, 1, begin, end))
        np.testing.assert_allclose(got[0, 0], wanted, rtol=1e-13, atol=1e-15)


def test_positions_that_nothing_reaches_hold_the_bias() -> None:
    y = upconv.conv_transpose(X, W, B, stride=7, padding=-3, output_padding=9, groups=3)
    assert (y[:, :, :3] == B[None, :, None, None]).all()
    assert (y[:, :, -9:] == B[None, :, None, None]).all()
    assert (y[:, :, 3 + 3 : 3 + 7] == B[None, :, None, None]).all()


@pytest.mark.parametrize("weight_layout", ["IOX", "OIX", "XIO", "XOI", "IXO", "OXI"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_layouts_are_permutations(layout: str, weight_layout: str) -> None:
    to_layout = (0, 1, 2, 3) if layout == "NCX" else (0, 2, 3, 1)
    letters = {"I": [0], "O": [1], "X": [2, 3]}
    to_weight = [axis for letter in weight_layout for axis in letters[letter]]
    x, w, grad = (
        np.ascontiguousarray(array.transpose(order))
        for array, order in ((X, to_layout), (W, to_weight), (GRAD, to_layout))
    )
    how = HOW | {"layout": layout, "weight_layout": weight_layout}
    y = upconv.conv_transpose(x, w, B, **how)
    np.testing.assert_allclose(y, Y.transpose(to_layout), atol=1e-5)
    assert upconv.output_shape(x.shape, w.shape, **how) == y.shape
    grads = upconv.conv_transpose_backward(grad, x, w, **how)
    np.testing.assert_allclose(grads.x, GRADS.x.transpose(to_layout), atol=1e-4)
    np.testing.assert_allclose(grads.weight, GRADS.weight.transpose(to_weight), atol=1e-4)
    np.testing.assert_allclose(grads.bias, GRADS.bias, atol=1e-4)


def test_unbatched() -> None:
    for n in range(2):
        y = upconv.conv_transpose(X[n], W, B, residual=GRAD[n], **HOW)
        np.testing.assert_allclose(y, Y[n] + GRAD[n], atol=1e-5)
        grads = upconv.conv_transpose_backward(GRAD[n], X[n], W, **HOW)
        np.testing.assert_allclose(grads.x, GRADS.x[n], atol=1e-5)
        assert grads.weight.shape == W.shape
    each = [upconv.conv_transpose_backward(GRAD[n], X[n], W, **HOW) for n in range(2)]
    np.testing.assert_allclose(each[0].weight + each[1].weight, GRADS.weight, atol=1e-4)
    np.testing.assert_allclose(each[0].bias + each[1].bias, GRADS.bias, atol=1e-4)
    how = HOW | {"layout": "NXC"}
    y = upconv.conv_transpose(np.moveaxis(X[0], 0, -1), W, B, **how)
    np.testing.assert_allclose(np.moveaxis(y, -1, 0), Y[0], atol=1e-5)
    plan = upconv.plan(X[0].shape, W, B, **HOW)
    np.testing.assert_allclose(plan(X[0]), Y[0], atol=1e-5)


def test_convolution_is_the_gradient_of_its_transpose() -> None:
    how = {"stride": 2, "padding": 1, "groups": 3}
    y = upconv.conv(X, W.reshape(12, 2, 3, 2), B, activation="relu", **how)
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    w = W.reshape(12, 2, 3, 2)
    wanted = np.zeros_like(y)
    for f in range(12):
        group = padded[:, f // 4 * 2 : f // 4 * 2 + 2]
        for i in range(y.shape[2]):
            for j in range(y.shape[3]):
                window = group[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2]
                wanted[:, f, i, j] = (window * w[f]).sum((1, 2, 3)) + B[f]
    np.testing.assert_allclose(y, np.maximum(wanted, 0), atol=1e-5)


def test_convolution_by_rule_and_size() -> None:
    for rule, begin in (("same_upper", 0), ("same_lower", 1)):
        y = upconv.conv(np.arange(1.0, 7)[None, None], np.ones((1, 1, 3)), stride=2, padding=rule)
        padded = np.pad(np.arange(1.0, 7), (begin, 1 - begin))
        assert y[0, 0].tolist() == [padded[i : i + 3].sum() for i in (0, 2, 4)]
    y = upconv.conv(np.arange(1.0, 7)[None, None], np.ones((1, 1, 2)), padding=((-1, -2),))
    assert y[0, 0].tolist() == [5.0, 7.0]


def test_same_padding_follows_onnx() -> None:
    x, w = np.arange(1.0, 6)[None, None], np.array([[[1.0, 10.0, 100.0]]])
    full = upconv.conv_transpose(x, w, stride=2)
    upper = upconv.conv_transpose(x, w, stride=2, padding="same_upper")
    lower = upconv.conv_transpose(x, w, stride=2, padding="same_lower")
    np.testing.assert_array_equal(upper, full[..., :10])
    np.testing.assert_array_equal(lower, full[..., 1:])
    sized = upconv.conv_transpose(x, w, stride=2, padding="same_upper", output_size=8)
    np.testing.assert_array_equal(sized, full[..., 1:9])
    grown = upconv.conv_transpose(x, w, stride=4, padding="same_lower")
    assert grown.shape[-1] == 20
    assert grown[0, 0, -1] == 0


def test_output_size_cuts_the_end() -> None:
    x, w = np.arange(1.0, 4)[None, None], np.array([[[1.0, 10.0, 100.0]]])
    full = upconv.conv_transpose(x, w, stride=2)
    for size in (1, 5, 6):
        got = upconv.conv_transpose(x, w, stride=2, padding=1, output_size=size)
        np.testing.assert_array_equal(got, full[..., 1 : 1 + size])
    longer = upconv.conv_transpose(x, w, stride=2, output_size=(12,))
    assert longer[0, 0].tolist() == [*full[0, 0], 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", lambda v: np.maximum(v, 0)),
        ("leaky_relu", lambda v: np.where(v < 0, 0.01 * v, v)),
        (("leaky_relu", 0.3), lambda v: np.where(v < 0, 0.3 * v, v)),
        ("leaky_relu:0.3", lambda v: np.where(v < 0, 0.3 * v, v)),
        ("tanh", np.tanh),
        ("sigmoid", lambda v: 1 / (1 + np.exp(-v))),
        ("silu", lambda v: v / (1 + np.exp(-v))),
        ("gelu", lambda v: v * (1 + np.vectorize(math.erf)(v / math.sqrt(2))) / 2),
        (None, lambda v: v),
    ],
)
def test_epilogue_order_is_bias_residual_activation(activation, function) -> None:
    got = upconv.conv_transpose(X, W, B, residual=GRAD, activation=activation, **HOW)
    np.testing.assert_allclose(got, function((Y + GRAD).astype(np.float64)), atol=1e-5)


class TestOut:
    def test_is_the_object_returned(self) -> None:
        out = np.full_like(Y, np.nan)
        assert upconv.conv_transpose(X, W, B, out=out, **HOW) is out
        np.testing.assert_array_equal(out, Y)

    def test_may_be_a_view(self) -> None:
        wide = np.full((*Y.shape[:-1], 2 * Y.shape[-1]), 9, np.float32)
        upconv.conv_transpose(X, W, B, out=wide[..., ::2], **HOW)
        np.testing.assert_array_equal(wide[..., ::2], Y)
        assert (wide[..., 1::2] == 9).all()

    @pytest.mark.parametrize("shift", [0, 1, 7])
    def test_may_overlap_the_input(self, shift: int) -> None:
        weight = np.ones((1, 1, 3, 3), np.float32)
        memory = RNG.standard_normal(400).astype(np.float32)
        x = memory[shift : shift + 100].reshape(1, 1, 10, 10)
        wanted = upconv.conv_transpose(x.copy(), weight, padding=1)
        out = memory[:100].reshape(1, 1, 10, 10)
        assert upconv.conv_transpose(x, weight, padding=1, out=out) is out
        np.testing.assert_array_equal(out, wanted)

    def test_may_overlap_weight_bias_and_residual(self) -> None:
        memory = RNG.standard_normal(16).astype(np.float32)
        x = RNG.standard_normal((1, 4, 1)).astype(np.float32)
        weight, out = memory.reshape(4, 4, 1), memory[4:8].reshape(1, 4, 1)
        wanted = upconv.conv_transpose(x, weight.copy(), residual=out.copy())
        upconv.conv_transpose(x, weight, residual=out, out=out)
        np.testing.assert_array_equal(out, wanted)

    def test_of_a_plan_may_overlap(self) -> None:
        weight = np.ones((1, 1, 3), np.float32)
        x = RNG.standard_normal((1, 1, 50)).astype(np.float32)
        wanted = upconv.conv_transpose(x, weight, padding=1)
        plan = upconv.plan(x.shape, weight, padding=1)
        assert plan(x, out=x) is x
        np.testing.assert_array_equal(x, wanted)

    def test_gradients_go_where_they_are_told(self) -> None:
        out = Gradients(x=np.empty_like(X), bias=np.empty_like(B))
        got = upconv.conv_transpose_backward(GRAD, X, W, out=out, **HOW)
        assert got.x is out.x
        assert got.bias is out.bias
        for name in ("x", "weight", "bias"):
            np.testing.assert_array_equal(getattr(got, name), getattr(GRADS, name))

    def test_gradients_accumulate(self) -> None:
        before = Gradients(x=np.ones_like(X), weight=np.ones_like(W), bias=np.ones_like(B))
        got = upconv.conv_transpose_backward(GRAD, X, W, out=before, accumulate=True, **HOW)
        for name in ("x", "weight", "bias"):
            assert getattr(got, name) is getattr(before, name)
            wanted = 1 + getattr(GRADS, name)
            np.testing.assert_allclose(getattr(got, name), wanted, atol=1e-5)

    @pytest.mark.parametrize("accumulate", [False, True])
    def test_gradients_may_overwrite_their_operands(self, accumulate: bool) -> None:
        grad, x, w = GRAD.copy(), X.copy(), W.copy()
        out = Gradients(x=x, weight=w, bias=grad[0, 0, 0, :12])
        bias_before = out.bias.copy()
        got = upconv.conv_transpose_backward(grad, x, w, out=out, accumulate=accumulate, **HOW)
        for name, before in (("x", X), ("weight", W), ("bias", bias_before)):
            wanted = getattr(GRADS, name) + accumulate * before
            np.testing.assert_allclose(getattr(got, name), wanted, atol=1e-5)

    def test_convolution_gradients_accumulate(self) -> None:
        x, w = RNG.standard_normal((2, 3, 9)), RNG.standard_normal((5, 3, 4))
        grad = RNG.standard_normal((2, 5, 3))
        plain = upconv.conv_backward(grad, x, w, stride=2)
        out = Gradients(x=np.ones_like(x), weight=np.ones_like(w), bias=np.ones(5))
        upconv.conv_backward(grad, x, w, stride=2, out=out, accumulate=True)
        np.testing.assert_allclose(out.x, 1 + plain.x)
        np.testing.assert_allclose(out.weight, 1 + plain.weight)
        np.testing.assert_allclose(out.bias, 1 + plain.bias)

    def test_is_untouched_by_an_error(self) -> None:
        out = Gradients(x=np.ones_like(X), weight=np.ones((1, 2), np.float32))
        with pytest.raises(upconv.ShapeError, match=r"out\.weight\.shape"):
            upconv.conv_transpose_backward(GRAD, X, W, out=out, **HOW)
        assert (out.x == 1).all()


def test_needs_chooses_gradients() -> None:
    for needs in ("x", ("weight",), ["bias", "x"], ()):
        got = upconv.conv_transpose_backward(GRAD, X, W, needs=needs, **HOW)
        for name in ("x", "weight", "bias"):
            assert (getattr(got, name) is not None) == (name in needs)


class TestArraysAreTaken:
    def test_of_any_strides(self) -> None:
        for x in (np.asfortranarray(X), X[::-1][::-1], np.repeat(X, 2, -1)[..., ::2]):
            np.testing.assert_array_equal(upconv.conv_transpose(x, W, B, **HOW), Y)
        broadcast = np.broadcast_to(X[:1], (4, 6, 5, 7))
        got = upconv.conv_transpose(broadcast, W, B, **HOW)
        np.testing.assert_allclose(got, np.repeat(Y[:1], 4, 0), atol=1e-6)

    def test_read_only(self) -> None:
        x = X.copy()
        x.flags.writeable = False
        np.testing.assert_array_equal(upconv.conv_transpose(x, W, B, **HOW), Y)

    def test_in_the_other_byte_order(self) -> None:
        swapped = X.astype(X.dtype.newbyteorder())
        got = upconv.conv_transpose(swapped, W, B, **HOW)
        assert got.dtype.isnative
        np.testing.assert_array_equal(got, Y)

    def test_through_array_and_dlpack(self) -> None:
        class ByArray:
            def __array__(self, dtype=None, copy=None):
                return X

        class ByDlpack:
            def __dlpack__(self, **keywords):
                return X.__dlpack__(**keywords)

            def __dlpack_device__(self):
                return X.__dlpack_device__()

        for x in (ByArray(), ByDlpack()):
            np.testing.assert_array_equal(upconv.conv_transpose(x, W, B, **HOW), Y)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
    def test_of_other_types(self, dtype: str) -> None:
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes", reason="bfloat16 arrays are ml_dtypes'")
        kind = upconv.plan(X.shape, W, B, dtype=dtype, **HOW)(X.astype(_dtype(dtype))).dtype
        assert kind == _dtype(dtype)
        x, w, b = (array.astype(kind) for array in (X, W, B))
        got = upconv.conv_transpose(x, w, b, **HOW)
        assert got.dtype == kind
        exact = [array.astype(np.float64) for array in (x, w, b)]
        wanted = upconv.conv_transpose(*exact, **HOW)
        step = {"float16": 2**-11, "bfloat16": 2**-8, "float64": 1e-15}[dtype]
        assert (np.abs(got.astype(np.float64) - wanted) <= 1.1 * step * np.abs(wanted) + 1e-6).all()


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def test_numpy_integers_and_lists_are_integers() -> None:
    how = {"stride": np.array([2, 3]), "padding": [[1, np.int8(0)], (2, 3)], "groups": np.int64(3)}
    np.testing.assert_array_equal(upconv.conv_transpose(X, W, B, **how), Y)


def test_gradients_pickle_and_errors_too() -> None:
    error = upconv.ShapeError("x.shape", "(1,)", "3 axes", "Add one.")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "x.shape is (1,); expected 3 axes. Add one."
    problem = upconv.explain(X.shape, W, **HOW).problem
    assert pickle.loads(pickle.dumps(problem)) == problem


def test_engines_are_listed() -> None:
    names = [status.name for status in upconv.engines()]
    assert names[-1] == "reference"
    assert load("reference").fingerprint() == upconv.engines()[-1].fingerprint
