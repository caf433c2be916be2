"""The activations against the standard library's functions, element by element."""

import math

import numpy as np
import pytest

from upconv.activations import Activation, apply, erf


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_erf(dtype: type) -> None:
    """Published values (DLMF, table 7.23), in any order of memory, with signs and limits."""
    points = np.array([[0.5, 2.0, np.inf], [-0.5, -0.0, np.nan]], dtype).T
    wanted = np.array([[0.5204998778, 0.9953222650, 1], [-0.5204998778, -0.0, np.nan]]).T
    found = erf(points)
    assert (found.dtype, found.shape) == (dtype, (3, 2))
    np.testing.assert_allclose(found, wanted, rtol=max(np.finfo(dtype).eps, 1e-9))
    assert np.signbit(found[1, 1])
    assert erf(points[:0]).shape == (0, 2)


def logistic(v: float) -> float:
    return 1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v))


WANTED = {
    Activation.NONE: lambda v: v,
    Activation.RELU: lambda v: max(v, 0.0),
    Activation.LEAKY_RELU: lambda v: v if v > 0 else 0.25 * v,
    Activation.TANH: math.tanh,
    Activation.SIGMOID: logistic,
    Activation.SILU: lambda v: v * logistic(v),
    Activation.GELU: lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
    Activation.RELU6: lambda v: min(max(v, 0.0), 6.0),
    Activation.HARD_SWISH: lambda v: v * min(max(v + 3, 0.0), 6.0) / 6,
}


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values(activation: Activation, dtype: type) -> None:
    values = np.linspace(-20, 20, 40_001).astype(dtype)  # more than one piece
    wanted = np.array([WANTED[activation](float(value)) for value in values])
    apply(activation, 0.25 if activation is Activation.LEAKY_RELU else 0.0, values)
    assert values.dtype == dtype
    step = np.finfo(dtype).eps
    assert (np.abs(values - wanted) <= 8 * step * np.maximum(np.abs(wanted), 1)).all()


@pytest.mark.parametrize("activation", Activation)
def test_special_values(activation: Activation) -> None:
    """NaN stays NaN; at infinity every activation is at its limit."""
    values = np.array([np.nan, np.inf, -np.inf])
    slope = 0.25 if activation is Activation.LEAKY_RELU else 0.0
    apply(activation, slope, values)
    low = {Activation.NONE: -np.inf, Activation.LEAKY_RELU: -np.inf, Activation.TANH: -1.0}
    high = {Activation.TANH: 1.0, Activation.SIGMOID: 1.0, Activation.RELU6: 6.0}
    wanted = [np.nan, high.get(activation, np.inf), low.get(activation, 0.0)]
    np.testing.assert_array_equal(values, wanted)


def test_any_strides() -> None:
    wide = np.linspace(-3, 3, 70_000).reshape(200, 350)
    view = wide[::2, ::-3]
    wanted = view.copy()
    apply(Activation.GELU, 0.0, wanted)
    untouched = wide[1::2].copy()
    apply(Activation.GELU, 0.0, view)
    np.testing.assert_array_equal(view, wanted)
    np.testing.assert_array_equal(wide[1::2], untouched)
