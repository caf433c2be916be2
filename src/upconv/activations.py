"""The activations a result may end in, and what each computes on a NumPy array, in place.

gelu is the exact one, x * (1 + erf(x / sqrt 2)) / 2. NumPy has no erf: W. J. Cody's rational
approximations are used ("Rational Chebyshev approximation for the error function", Math. Comp. 23,
1969), which are good to about 1e-16.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


_PIECE = 16384
SCRATCH_BYTES = 16 * _PIECE * 8
"""What `apply` may allocate for a while: gelu takes a dozen temporaries of one piece."""


class Activation(Enum):
    """The activations; the value is the name users write ("" is none)."""

    NONE = ""
    RELU = "relu"
    LEAKY_RELU = "leaky_relu"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    SILU = "silu"
    GELU = "gelu"


def apply(activation: Activation, slope: float, values: Array) -> None:
    """Replace `values` (float32 or float64) by their activation; NaN stays NaN.

    `slope` is the factor of negative values in LEAKY_RELU.

    >>> values = np.array([-2.0, 3.0])
    >>> apply(Activation.LEAKY_RELU, 0.5, values)
    >>> values
    array([-1.,  3.])
    """
    if activation is Activation.NONE or not values.size:
        return
    with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
        # Piece by piece, so that temporaries stay in cache and do not grow with the array.
        pieces: Any = np.nditer(
            [values], ["external_loop", "buffered"], [["readwrite"]], buffersize=_PIECE
        )
        with pieces:
            for piece in pieces:
                _IN_PLACE[activation](piece, slope)


def erf(x: Array) -> Array:
    """The error function, elementwise, in the dtype of `x`."""
    with np.errstate(all="ignore"):
        magnitude = np.abs(x)
        square = magnitude * magnitude
        small = x * _ratio(np.minimum(square, 0.25), _SMALL)
        decay = np.exp(-square)
        middle = 1 - decay * _ratio(np.clip(magnitude, 0.46875, 4), _MIDDLE)
        far = np.maximum(magnitude, 4)
        inverse = 1 / (far * far)
        tail = 1 - decay / far * (_ONE_OVER_SQRT_PI - inverse * _ratio(inverse, _TAIL))
    signed = np.copysign(np.where(magnitude <= 4, middle, tail), x)
    result: Array = np.where(magnitude <= 0.46875, small, signed)
    return np.where(np.isnan(x), x, result)


def _relu(values: Array, slope: float) -> None:
    np.maximum(values, 0, out=values)


def _leaky_relu(values: Array, slope: float) -> None:
    np.multiply(values, values.dtype.type(slope), out=values, where=values < 0)


def _tanh(values: Array, slope: float) -> None:
    np.tanh(values, out=values)


def _sigmoid(values: Array, slope: float) -> None:
    values[...] = _logistic(values)


def _silu(values: Array, slope: float) -> None:
    logistic = _logistic(values)
    values *= logistic
    values[(logistic == 0) & np.isnan(values)] = 0  # -inf * 0, whose limit is 0


def _gelu(values: Array, slope: float) -> None:
    half = values.dtype.type(0.5)
    weight = half * (1 + erf(values * values.dtype.type(0.5**0.5)))
    values *= weight
    values[(weight == 0) & np.isnan(values)] = 0  # -inf * 0, whose limit is 0


def _logistic(values: Array) -> Array:
    """1 / (1 + exp(-v)) without overflow: exp only ever sees numbers at most 0."""
    decay = np.exp(-np.abs(values))
    result: Array = np.where(values >= 0, 1, decay) / (1 + decay)
    return result


_IN_PLACE: dict[Activation, Callable[[Array, float], None]] = {
    Activation.RELU: _relu,
    Activation.LEAKY_RELU: _leaky_relu,
    Activation.TANH: _tanh,
    Activation.SIGMOID: _sigmoid,
    Activation.SILU: _silu,
    Activation.GELU: _gelu,
}

_ONE_OVER_SQRT_PI = 0.56418958354775628695

# Cody's coefficients, highest power first: (numerator, denominator).
_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
     1.23033935480374942e3),
)  # fmt: skip
_TAIL = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
     1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1,
     6.05183413124413191e-2, 2.33520497626869185e-3),
)  # fmt: skip


def _ratio(x: Array, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    """numerator(x) / denominator(x), both by Horner's rule, in the dtype of `x`."""
    numerator, denominator = (np.zeros_like(x) for _ in range(2))
    for total, powers in zip((numerator, denominator), coefficients, strict=True):
        for coefficient in powers:
            total *= x
            total += x.dtype.type(coefficient)
    result: Array = numerator / denominator
    return result
