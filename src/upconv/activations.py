"""The activations of an epilogue, computed in place on NumPy arrays.

gelu is exact: x * (1 + erf(x / sqrt 2)) / 2. NumPy has no erf. Python's erf takes 50 ns per
element, no longer than a rational approximation in NumPy takes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_PIECE = 16384
SCRATCH_BYTES = 16 * _PIECE * 8
"""Upper bound of the temporary bytes of `apply`: gelu uses several temporaries of one piece."""


class Activation(Enum):
    """An activation; its value is the name that users write ("" for none)."""

    NONE = ""
    RELU = "relu"
    LEAKY_RELU = "leaky_relu"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    SILU = "silu"
    GELU = "gelu"
    RELU6 = "relu6"
    HARD_SWISH = "hard_swish"


def apply(activation: Activation, slope: float | Array, values: Array) -> None:
    """Apply an activation to `values` (float32 or float64) in place.

    slope: for LEAKY_RELU, a number or an array of the same dtype that broadcasts to `values`.
    """
    if activation is Activation.NONE or not values.size:
        return
    several = isinstance(slope, np.ndarray)
    operands: list[Any] = [values, slope] if several else [values]
    flags: list[Any] = [["readwrite"], ["readonly"]]
    with np.errstate(all="ignore"):  # infinity and NaN are valid results
        # Pieces keep the temporaries small enough for the cache.
        pieces: Any = np.nditer(
            operands, ["external_loop", "buffered"], flags[: len(operands)], buffersize=_PIECE
        )
        with pieces:
            for piece in pieces:
                _IN_PLACE[activation](*(piece if several else (piece, slope)))


def erf(x: Array) -> Array:
    """Return the error function of each element, in the dtype of `x`."""
    values = np.ascontiguousarray(x, np.float64).ravel()
    results = np.fromiter(map(math.erf, values.data), np.float64, values.size)
    return results.astype(x.dtype, copy=False).reshape(x.shape)


def _silu(values: Array, slope: float) -> None:
    logistic = _logistic(values)
    values *= logistic
    values[(logistic == 0) & np.isnan(values)] = 0  # -inf * 0, whose limit is 0


def _gelu(values: Array, slope: float) -> None:
    half = values.dtype.type(0.5)
    weight = half * (1 + erf(values * values.dtype.type(0.5**0.5)))
    values *= weight
    values[(weight == 0) & np.isnan(values)] = 0  # -inf * 0, whose limit is 0


def _hard_swish(values: Array, slope: float) -> None:
    share = np.minimum(values + 3, 6) * values.dtype.type(1 / 6)
    values *= share
    values[share <= 0] = 0  # also at -inf, whose product is infinite


def _logistic(values: Array) -> Array:
    """Return 1 / (1 + exp(-v)) without overflow: the argument of exp is never positive."""
    decay = np.exp(-np.abs(values))
    result: Array = np.where(values >= 0, 1, decay) / (1 + decay)
    return result


def _as(values: Array, slope: Any) -> Any:
    """Return a slope in the dtype of the values; an array of slopes has it already."""
    return slope if isinstance(slope, np.ndarray) else values.dtype.type(slope)


_IN_PLACE: dict[Activation, Callable[[Array, Any], object]] = {
    Activation.RELU: lambda v, _: np.maximum(v, 0, out=v),
    Activation.LEAKY_RELU: lambda v, slope: np.multiply(v, _as(v, slope), v, where=v < 0),
    Activation.TANH: lambda v, _: np.tanh(v, out=v),
    Activation.SIGMOID: lambda v, _: np.copyto(v, _logistic(v)),
    Activation.SILU: _silu,
    Activation.GELU: _gelu,
    Activation.RELU6: lambda v, _: np.minimum(np.maximum(v, 0, out=v), 6, out=v),
    Activation.HARD_SWISH: _hard_swish,
}
