"""Layers as matrices: exact adjoints, the transpose that gave the operation its name, inverses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import upconv

pytest.importorskip("scipy", reason="needs SciPy")
linear = pytest.importorskip("upconv.linear")


@st.composite
def layers(draw: Any) -> tuple[tuple[int, ...], np.ndarray, dict[str, Any]]:
    """(input shape, weight, keywords): any geometry with small numbers."""
    rank, transposed = draw(st.integers(1, 3)), draw(st.booleans())

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups, layout = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from(("NCX", "NXC")))
    keywords: dict[str, Any] = {
        "transposed": transposed,
        "stride": each(1, 3),
        "dilation": each(1, 2),
        "padding": tuple((draw(st.integers(-2, 2)), draw(st.integers(-2, 2))) for _ in range(rank)),
        "groups": groups,
        "layout": layout,
    }
    if transposed:
        keywords["output_padding"] = each(0, 2)
    c, f = (groups * draw(st.integers(1, 3)) for _ in range(2))
    order = draw(st.sampled_from((None, "IOX", "XIO", "OXI")))
    sizes = {"I": c, "O": f // groups} if transposed else {"I": c // groups, "O": f}
    axes = order or ("IOX" if transposed else "OIX")
    keywords["weight_layout"] = order
    shape = [n for letter in axes for n in ([sizes[letter]] if letter != "X" else each(1, 3))]
    w = np.random.default_rng(draw(st.integers(0, 9))).standard_normal(shape)
    size = each(1, (9, 5, 4)[rank - 1])
    inner = (c, *size) if layout == "NCX" else (*size, c)
    batch = draw(st.sampled_from((None, 1, 2)))
    return (inner if batch is None else (batch, *inner)), w, keywords


def called(x: np.ndarray, w: np.ndarray, keywords: dict[str, Any]) -> np.ndarray:
    """The layer by upconv's own function."""
    words = {k: v for k, v in keywords.items() if k != "transposed" and v is not None}
    call = upconv.conv_transpose if keywords["transposed"] else upconv.conv
    return call(x, w, **words)


@settings(max_examples=60)
@given(layers())
def test_operators_and_matrices_are_the_layer(layer: Any) -> None:
    """The adjoint to rounding, <Ax, y> = <x, A'y>, and both as the matrix from the geometry."""
    shape, w, keywords = layer
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape)
    try:
        result = called(x, w, keywords)
    except upconv.ShapeError:
        with pytest.raises(upconv.ShapeError):
            linear.operator(shape, w, **keywords)
        return
    A = linear.operator(shape, w, **keywords)
    assert A.output_shape == result.shape
    assert A.shape == (result.size, x.size)
    y = rng.standard_normal(result.size)
    Ax, back = A @ x.reshape(-1), A.T @ y
    np.testing.assert_allclose(Ax, result.reshape(-1), rtol=0, atol=1e-12)
    scale = np.abs(w).sum() * np.abs(x).sum() * np.abs(y).sum() + 1
    assert abs(Ax @ y - x.reshape(-1) @ back) < 4e-16 * scale
    M = linear.as_matrix(shape, w, **keywords)
    assert M.shape == A.shape
    np.testing.assert_allclose(M @ x.reshape(-1), Ax, rtol=0, atol=1e-12)
    np.testing.assert_allclose(M.T @ y, back, rtol=0, atol=1e-12)


def test_the_transposed_convolution_is_the_transpose_of_a_convolution() -> None:
    """One weight, one geometry, two matrices."""
    w = np.random.default_rng(0).standard_normal((6, 2, 3, 2))
    keywords: dict[str, Any] = {"stride": (2, 3), "padding": 1, "groups": 2}
    up = linear.as_matrix((2, 6, 4, 5), w, **keywords)
    shape = linear.operator((2, 6, 4, 5), w, **keywords).output_shape
    down = linear.as_matrix(shape, w, transposed=False, weight_layout="OIX", **keywords)
    assert (down != up.T).nnz == 0
    assert up.nnz == down.nnz > 0


def test_several_vectors_and_scipys_solvers() -> None:
    from scipy.sparse.linalg import svds

    w = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    A = linear.operator((2, 9), w, stride=2)
    M = linear.as_matrix((2, 9), w, stride=2)
    assert A.dtype == M.dtype == np.float32
    X = np.random.default_rng(1).standard_normal((18, 5))
    np.testing.assert_allclose(A @ X, M @ X, rtol=0, atol=1e-5)
    most = svds(A, k=1, return_singular_vectors=False)[0]
    assert abs(most - np.linalg.norm(M.toarray(), 2)) < 1e-4


# Deconvolution ----------------------------------------------------------------------------------

INJECTIVE = {
    "upsampling": ((1, 2, 30), (2, 4, 4), {"stride": 2, "padding": 1}),
    "more channels": ((2, 3, 5, 4), (3, 8, 3, 3), {"stride": (1, 2), "padding": ((1, 0), (0, 1))}),
    "groups and dilation": ((1, 4, 20), (4, 3, 3), {"dilation": 2, "groups": 2}),
    "channels last": ((1, 7, 6, 2), (2, 5, 2, 2), {"stride": 2, "layout": "NXC"}),
    "same": ((1, 2, 12), (2, 5, 4), {"stride": 2, "padding": "same_upper"}),
    "output padding": ((2, 12), (2, 4, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "a convolution": ((1, 2, 16), (5, 2, 3), {"padding": 1, "transposed": False}),
    "a strided convolution": (
        (1, 1, 15),
        (4, 1, 3),
        {"padding": 1, "stride": 2, "transposed": False},
    ),
}


@pytest.mark.parametrize("name", INJECTIVE)
@pytest.mark.parametrize("method", ["lsqr", "cg"])
def test_deconvolution_recovers_the_input_of_an_injective_layer(name: str, method: str) -> None:
    shape, weight, keywords = INJECTIVE[name]
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape), rng.standard_normal(weight)
    matrix = linear.as_matrix(shape, w, **keywords).toarray()
    assert np.linalg.matrix_rank(matrix) == x.size, "the case is injective"
    y = called(x, w, {"transposed": True, **keywords})
    found = linear.deconvolve(y, w, method=method, **keywords)
    assert found.converged, found
    assert found.residual < 1e-9
    assert found.x.shape == x.shape
    assert np.abs(found.x - x).max() < 1e-6


def test_damping_is_that_of_the_formula() -> None:
    """And what is not in the layer's range is projected: least squares."""
    rng = np.random.default_rng(0)
    w, y = rng.standard_normal((2, 3, 4)), rng.standard_normal((1, 3, 16))
    M = linear.as_matrix((1, 2, 7), w, stride=2).toarray()
    for damp in (0.0, 0.7):
        expected = np.linalg.solve(M.T @ M + damp**2 * np.eye(14), M.T @ y.reshape(-1))
        for method in ("lsqr", "cg"):
            found = linear.deconvolve(y, w, stride=2, damp=damp, method=method)
            assert found.converged
            np.testing.assert_allclose(found.x.reshape(-1), expected, rtol=0, atol=1e-9)
            assert found.residual > 0.1


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("damp", [0.0, 0.3])
def test_circular_borders_in_closed_form(layout: str, transposed: bool, damp: float) -> None:
    """Against the circular matrix, made of the layer on x repeated."""
    rng = np.random.default_rng(3)
    size, groups, kernel = (6, 5), 2, (3, 2)
    c, f = 4, 6
    w = rng.standard_normal((c, f // groups, *kernel) if transposed else (f, c // groups, *kernel))
    keywords: dict[str, Any] = {"dilation": (1, 2), "padding": ((1, 0), (-1, 2)), "groups": groups}
    call = upconv.conv_transpose if transposed else upconv.conv

    def circular(x: np.ndarray) -> np.ndarray:
        """From the middle of three by three copies, where no border is seen."""
        tiled = np.tile(x, (1, 1, 3, 3))
        plain = {k: v for k, v in keywords.items() if k != "padding"}
        y, sign = call(tiled, w, **plain), 1 if transposed else -1
        at = [n + sign * begin for n, (begin, _) in zip(size, keywords["padding"], strict=True)]
        return y[:, :, at[0] : at[0] + size[0], at[1] : at[1] + size[1]]

    eye = np.eye(c * 30).reshape(-1, c, *size)
    M = circular(eye).reshape(len(eye), -1).T
    x = rng.standard_normal((2, c, *size))
    y = circular(x) + rng.standard_normal((2, f, *size))
    right = y.reshape(2, -1).T
    expected = np.linalg.solve(M.T @ M + damp**2 * np.eye(M.shape[1]), M.T @ right).T.reshape(
        x.shape
    )
    given_y = y if layout == "NCX" else np.moveaxis(y, 1, -1)
    found = linear.deconvolve(
        given_y, w, transposed=transposed, border="circular", damp=damp, layout=layout, **keywords
    )
    assert found.converged
    assert found.iterations == 0
    result = found.x if layout == "NCX" else np.moveaxis(found.x, -1, 1)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-9)
    error = np.linalg.norm(M @ expected.reshape(2, -1).T - right) / np.linalg.norm(right)
    assert abs(found.residual - error) < 1e-9


@pytest.mark.parametrize(("padding", "begin"), [(2, 2), ("same_upper", 2), ("same_lower", 3)])
def test_circular_borders_recover_an_input(padding: Any, begin: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 40)), rng.standard_normal((3, 5, 6))
    moved = (np.roll(x, t - begin, axis=-1) for t in range(6))
    y = sum(np.einsum("cf,cn->fn", w[:, :, t], each) for t, each in enumerate(moved))
    found = linear.deconvolve(y, w, padding=padding, border="circular")
    assert np.abs(found.x - x).max() < 1e-9


def test_what_does_not_converge_is_told() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 1, 200)), np.array([[[1.0, 2.0, 1.0]]])
    y = upconv.conv_transpose(x, w)
    for method in ("lsqr", "cg"):
        found = linear.deconvolve(y, w, method=method, iterations=3)
        assert not found.converged
        assert found.iterations == 3
        assert found.reason == "the limit of iterations was reached"
    assert linear.deconvolve(np.zeros_like(y), w).converged
    assert linear.deconvolve(y.astype(np.float32), w).x.dtype == np.float32


def test_arguments_are_refused_in_words() -> None:
    w = np.ones((2, 3, 4))
    with pytest.raises(upconv.ShapeError, match="input_shape is"):
        linear.operator((1, 2), w)
    with pytest.raises(upconv.DTypeError, match=r"weight.dtype is float16"):
        linear.operator((1, 2, 5), w.astype(np.float16))
    with pytest.raises(upconv.DTypeError, match="the vector is complex128"):
        linear.operator((1, 2, 5), w).matvec(np.ones(10) * 1j)
    with pytest.raises(upconv.ArgumentError, match="Only a transposed convolution"):
        linear.operator((1, 4, 5), w, transposed=False, output_padding=1)
    with pytest.raises(upconv.MemoryLimitError, match="a matrix of"):
        linear.as_matrix((1, 200, 300, 300), np.ones((200, 200, 3, 3)))
    y = np.ones((1, 3, 9))
    with pytest.raises(upconv.ArgumentError, match="method is 'gmres'; expected one of 'lsqr'"):
        linear.deconvolve(y, w, method="gmres")
    with pytest.raises(upconv.ArgumentError, match="border is 'reflect'"):
        linear.deconvolve(y, w, border="reflect")
    with pytest.raises(upconv.ArgumentError, match="damp is -1"):
        linear.deconvolve(y, w, damp=-1)
    with pytest.raises(upconv.ArgumentError, match=r"stride is 2; expected 1 for circular"):
        linear.deconvolve(y, w, stride=2, border="circular")
    with pytest.raises(upconv.ShapeError, match=r"y.shape is"):
        linear.deconvolve(y, w, stride=2)
    with pytest.raises(upconv.ArgumentError, match="iterations is 0"):
        linear.deconvolve(y, w, iterations=0)


def test_copies_and_pickles_plan_anew() -> None:
    A = linear.operator((1, 2, 5), np.ones((2, 3, 4)), stride=2)
    x = np.arange(10.0)
    for other in (copy.deepcopy(A), pickle.loads(pickle.dumps(A))):
        np.testing.assert_array_equal(other.matvec(x), A.matvec(x))
        np.testing.assert_array_equal(other.rmatvec(A.matvec(x)), A.rmatvec(A.matvec(x)))
