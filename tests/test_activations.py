"""The activations against the standard library's functions, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upconv.activations import Activation, apply, erf

# Every branch of the approximation of erf, both signs, and the joints between branches.
POINTS = np.concatenate(
    [np.linspace(-8, 8, 4001), [-0.46875, 0.46875, -4, 4, 1e-300, -0.0, 30, 1e300]]
)


@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 4e-16), (np.float32, 2.5e-7)])
def test_erf(dtype: type, allowed: float) -> None:
    points = POINTS.clip(-1e30, 1e30).astype(dtype)
    wanted = np.array([math.erf(float(point)) for point in points])
    assert np.abs(erf(points) - wanted).max() <= allowed


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
    high = {Activation.TANH: 1.0, Activation.SIGMOID: 1.0}
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
