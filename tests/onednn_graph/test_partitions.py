"""oneDNN Graph's six functions compute the definition, on every engine and by either rule."""

import numpy as np
import pytest

from tests.support.onednn_graph_cases import FUNCTIONS, KINDS, case
from tests.support.repeating import seeds
from upconv import EngineRefusal, onednn_graph
from upconv.geometry import fitted
from upconv.problem import DType

WINDOW = {"strides": [2], "pads_begin": [1], "pads_end": [0], "dilations": [1]}
DTYPES = [np.float32, np.float32, np.float16, DType.BFLOAT16]


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def check(seed: int, kind: str, rule: str) -> None:
    dtype = DTYPES[seed % len(DTYPES)]
    one = case(seed, kind, rule, True, dtype.numpy if isinstance(dtype, DType) else dtype)
    got = one.run(engine="reference")
    assert got.dtype == one.arrays[0].dtype
    difference = one.difference(got, one.oracle())
    assert not difference, difference


@pytest.mark.parametrize("rule", ["library", "document"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_computes_the_definition(kind: str, rule: str) -> None:
    for seed in seeds(20):
        check(seed, kind, rule)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["library", "document"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_computes_the_definition_at_length(kind: str, rule: str) -> None:
    for seed in seeds(1000, 1400):
        check(seed, kind, rule)


@pytest.mark.parametrize("kind", KINDS)
def test_one_position_to_the_side_is_noticed(kind: str) -> None:
    """The oracle, an axis of whose problem is moved, disagrees."""
    noticed = 0
    for seed in seeds(12):
        one = case(seed, kind, beyond=True)
        *others, a = one.problem.axes
        moved = fitted(a.size, a.kernel, a.stride, a.dilation, a.crop_begin + 1, a.out)
        wrong = one.oracle(one.problem.replace(axes=(*others, moved)))
        noticed += bool(one.difference(wrong, one.oracle()))
    assert noticed >= 8  # nothing moves where all is cut off


def test_any_engine_computes(engine) -> None:
    ran = 0
    for seed in seeds(30):
        one = case(seed, list(KINDS)[seed % 6], beyond=True)
        try:
            got = one.run(engine=engine.name)
        except EngineRefusal:
            continue
        ran += 1
        difference = one.difference(got, one.oracle())
        assert not difference, difference
    assert ran >= 5


def test_a_transposed_convolution_worked_by_hand() -> None:
    """x = [1, 2, 3], w = [1, 10, 100], s = 2, p = (1, 0): the example of the geometry page."""
    x = np.array([[[1], [2], [3]]], np.float32)
    w = np.array([1, 10, 100], np.float32).reshape(3, 1, 1)
    for function in (onednn_graph.convtranspose, onednn_graph.convolution_backward_data):
        assert function(x, w, **WINDOW).ravel().tolist() == [10, 102, 20, 203, 30, 300]


def test_the_size_of_backward_data_is_dst_shape() -> None:
    """s = 2, k = 3, I = 3, p = (1, 0): O is 6 or 7."""
    x, w = drawn((1, 3, 2), (3, 4, 2))
    function = onednn_graph.convolution_backward_data
    whole = function(x, w, **WINDOW, dst_shape=(1, 7, 4))
    assert whole.shape == (1, 7, 4)
    np.testing.assert_allclose(function(x, w, **WINDOW), whole[:, :6], rtol=1e-5, atol=1e-6)
    told = np.array([1, 7, 4], np.int32)
    got = function(x, w, **WINDOW, dst_shape=told, output_padding=[0])
    np.testing.assert_array_equal(got, whole)


def test_weights_shape_says_which_kernel() -> None:
    """Kernels of 3 and of 4 both map 7 positions to 3 with stride 2 and one pad."""
    x, y = drawn((1, 3, 2), (1, 7, 4))
    for k in (3, 4):
        got = onednn_graph.convtranspose_backward_weights(x, y, weights_shape=(k, 4, 2), **WINDOW)
        wanted = [
            sum(x[0, i, c] * y[0, 2 * i + t - 1, o] for i in range(3) if 0 <= 2 * i + t - 1 < 7)
            for t in range(k)
            for o in range(4)
            for c in range(2)
        ]
        np.testing.assert_allclose(got.ravel(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["library", "document"])
@pytest.mark.parametrize("family", ["ConvTranspose", "Convolution"])
def test_gradients_are_adjoint_with_groups_dilation_and_same(family: str, rule: str) -> None:
    """<y(x, w), g> = <x, dx(g, w)> = <w, dw(x, g)>, beyond what libdnnl does."""
    words = {
        "strides": [3, 2], "dilations": [2, 3], "groups": 3, "data_format": "NCX",
        "auto_pad": "SAME_UPPER" if rule == "library" else "same_upper", "rule": rule,
    }  # fmt: skip
    transposed = family == "ConvTranspose"
    documented = transposed and rule == "document"
    x, w, g = drawn((2, 6, 3, 4), (2, 6, 3, 2) if documented else (6, 2, 3, 2), (2, 6, 9, 8))
    words["weights_format"] = "IOX" if transposed else "OIX"
    if not transposed:
        x, g = g, x
    y = FUNCTIONS[family](x, w, **words)
    shape = {} if transposed else {"dst_shape": x.shape}
    if not transposed:
        words["rule"], words["auto_pad"] = "library", "SAME_UPPER"  # the document's is another
    dx = FUNCTIONS[f"{family}BackwardData"](g, w, **words, **shape)
    dw = FUNCTIONS[f"{family}BackwardWeights"](x, g, **words, weights_shape=w.shape)
    np.testing.assert_allclose([np.vdot(x, dx), np.vdot(w, dw)], np.vdot(y, g), rtol=1e-4)


def test_an_empty_batch_and_arrays_of_any_strides() -> None:
    w = np.ones((3, 4, 2), np.float32)
    assert onednn_graph.convtranspose(w[:0, :3], w, **WINDOW).shape == (0, 6, 4)
    x, w = drawn((2, 6, 4), (2, 4, 3))
    x, w = x[::-1, ::2, ::2], w.transpose(2, 1, 0)
    got = onednn_graph.convtranspose(x, w, **WINDOW)
    np.testing.assert_array_equal(got, onednn_graph.convtranspose(x.copy(), w.copy(), **WINDOW))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["library", "document"])
def test_a_result_is_written_where_asked(kind: str, rule: str) -> None:
    one = case(5, kind, rule, beyond=True)
    wanted = one.run()
    out = np.empty((2, *one.result), np.float32)[0]
    assert one.run(out=out) is out
    np.testing.assert_array_equal(out, wanted)
