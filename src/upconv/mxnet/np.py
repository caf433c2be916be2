"""Arrays as in NumPy: `mx.np`. Names that are not defined here are operators of `mx.np`.

NumPy computes its own functions that have no operator. They have no gradient, so they refuse an
array that is being recorded.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as _numpy

from .base import MXNetError
from .fluent import FUNCTIONS, named
from .ndarray import CREATORS, NDArray, creating, drawing, function, plain
from .operators import OPERATORS
from .tape import STATE


class ndarray(NDArray):  # noqa: N801 - MXNet's and NumPy's name
    """An `NDArray` with NumPy's rules: it may have no axes, and comparisons return bool."""

    numpy_like = True

    def as_nd_ndarray(self) -> NDArray:
        """Return the values with MXNet's older rules."""
        return NDArray(self.value)


NDArray.as_np_ndarray = lambda self: ndarray(self.value)  # type: ignore[attr-defined]


array, zeros, ones, empty, full, arange = (creating(name, ndarray) for name in CREATORS)
random = SimpleNamespace(
    uniform=drawing("uniform", ndarray, None), normal=drawing("normal", ndarray, None)
)


def copy(a: Any) -> Any:
    """Return a copy, through which gradients pass."""
    return a.copy()


def concatenate(seq: Any, axis: int = 0) -> Any:
    """Join arrays along an axis."""
    return seq[0].call("concatenate", *seq[1:], axis=axis)


def _by_numpy(name: str) -> Any:
    def apply(*values: Any, **named: Any) -> Any:
        sources = (getattr(x, "source", None) for x in (*values, *named.values()))
        if STATE.recording and any(source is not None for source in sources):
            raise MXNetError(f"mx.np.{name} has no gradient here; docs/mxnet.md lists what has.")
        named = {key: plain(value) for key, value in named.items()}
        result = getattr(_numpy, name)(*map(plain, values), **named)
        wraps = isinstance(result, _numpy.ndarray | _numpy.generic)
        return ndarray(_numpy.asarray(result)) if wraps else result

    apply.__name__ = name
    return apply


def __getattr__(name: str) -> Any:
    value = None if name.startswith("_") else getattr(_numpy, name, None)
    if value is None or name in FUNCTIONS or f"_npi_{name}" in OPERATORS:
        return named(name, function, "_npi_")
    # Types and constants are NumPy's own.
    return _by_numpy(name) if callable(value) and not isinstance(value, type) else value
