"""Arrays as in NumPy: `mx.np`. Other names are operators of `mx.np`.

NumPy computes its functions for which there is no operator. They have no gradient: on an array that
is being recorded they are refused.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as _numpy

from .base import MXNetError
from .fluent import FUNCTIONS, two
from .ndarray import NDArray, creating, drawing, function, plain
from .operators import OPERATORS
from .tape import STATE


class ndarray(NDArray):  # noqa: N801 - MXNet's and NumPy's name
    """An `NDArray` with NumPy's rules: axes may be none, comparisons are bool."""

    numpy_like = True

    def as_nd_ndarray(self) -> NDArray:
        """The same values with MXNet's older rules."""
        return NDArray(self.value)


NDArray.as_np_ndarray = lambda self: ndarray(self.value)  # type: ignore[attr-defined]


array, zeros, ones, empty, full, arange = (
    creating(name, ndarray) for name in ("array", "zeros", "ones", "zeros", "full", "arange")
)
random = SimpleNamespace(
    uniform=drawing("uniform", ndarray, None), normal=drawing("normal", ndarray, None)
)


def copy(a: Any) -> Any:
    """A copy, which gradients pass."""
    return a.copy()


def concatenate(seq: Any, axis: int = 0) -> Any:
    """Arrays one after another along an axis."""
    return seq[0].call("concatenate", *seq[1:], axis=axis)


def _by_numpy(name: str) -> Any:
    def apply(*values: Any, **named: Any) -> Any:
        everything = [*values, *named.values()]
        if STATE.recording and any(getattr(x, "source", None) is not None for x in everything):
            raise MXNetError(f"mx.np.{name} has no gradient here; docs/mxnet.md lists what has.")
        named = {key: plain(value) for key, value in named.items()}
        result = getattr(_numpy, name)(*map(plain, values), **named)
        wraps = isinstance(result, _numpy.ndarray | _numpy.generic)
        return ndarray(_numpy.asarray(result)) if wraps else result

    apply.__name__ = name
    return apply


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return lambda x1, x2: two(FUNCTIONS[name], x1, x2)
    if f"_npi_{name}" in OPERATORS:
        return function(name, OPERATORS[f"_npi_{name}"])
    theirs = getattr(_numpy, name, None) if not name.startswith("_") else None
    if theirs is None:
        raise AttributeError(f"upconv.mxnet.np has no {name!r}.")
    # Types and constants are NumPy's own.
    return _by_numpy(name) if callable(theirs) and not isinstance(theirs, type) else theirs
