"""Array comparisons and gradient checks for MXNet's own tests: `mx.test_utils`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.testing import assert_allclose

from .base import cpu, current_context, nothing, py_str, use_np
from .ndarray import NDArray, array
from .operators import OPERATORS
from .operators.elementwise import summed_to
from .random import generator
from .symbol import Symbol, compose, var

__all__ = [
    "almost_equal", "assert_allclose", "assert_almost_equal",
    "check_numeric_gradient", "collapse_sum_like", "default_context", "default_device",
    "effective_dtype", "py_str", "rand_ndarray", "rand_shape_nd", "same", "set_default_context",
    "use_np",
]  # fmt: skip

default_context = default_device = current_context
set_default_context = nothing


def _numpy(x: Any) -> Any:
    return x.asnumpy() if isinstance(x, NDArray) else np.asarray(x)


def same(a: Any, b: Any) -> bool:
    """Return whether two arrays are equal."""
    return bool(np.array_equal(_numpy(a), _numpy(b)))


def _limits(rtol: float | None, atol: float | None, *arrays: Any) -> tuple[float, float]:
    usual = 1e-2 if any(x.dtype == np.float16 for x in arrays) else 1e-5
    return (usual if rtol is None else rtol), (usual if atol is None else atol)


def almost_equal(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False
) -> bool:
    """Return whether two arrays are equal within tolerances."""
    a, b = _numpy(a), _numpy(b)
    return bool(np.allclose(a, b, *_limits(rtol, atol, a, b), equal_nan))


def assert_almost_equal(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None,
    names: Any = ("a", "b"), equal_nan: bool = False, **unused: Any,
) -> None:  # fmt: skip
    """Raise `AssertionError` unless two arrays are equal within tolerances."""
    a, b = _numpy(a), _numpy(b)
    assert_allclose(a, b, *_limits(rtol, atol, a, b), equal_nan)


def rand_shape_nd(num_dim: int, dim: int = 10) -> tuple[int, ...]:
    """Draw a shape with sizes from 1 to dim."""
    return tuple(int(n) for n in generator().randint(1, dim + 1, num_dim))


def rand_ndarray(
    shape: Any, stype: str = "default", density: Any = None, dtype: Any = None, **unused: Any
) -> Any:
    """Draw an array with values from -1 to 1."""
    return array(generator().uniform(-1, 1, shape), dtype=dtype or np.float32)


def effective_dtype(dat: Any) -> Any:
    """Return the type that determines the precision of a computation."""
    return np.dtype(dat.dtype)


def collapse_sum_like(a: Any, shape: Any) -> Any:
    """Sum over the axes along which an array of this shape was broadcast."""
    return summed_to(_numpy(a), tuple(shape))


def check_numeric_gradient(
    sym: Symbol, location: Any, aux_states: Any = None, numeric_eps: float | None = None,
    rtol: float | None = None, atol: float | None = None, grad_nodes: Any = None,
    use_forward_train: bool = True, ctx: Any = None, dtype: Any = np.float32, **unused: Any,
) -> None:  # fmt: skip
    """Compare gradients with differences of float64 forward calls, along a random projection.

    location: arrays by name, or in the order of `list_arguments`; further arrays are ignored.
    """
    names, states = sym.list_arguments(), sym.list_auxiliary_states()
    inputs = location if isinstance(location, Mapping) else dict(zip(names, location, strict=False))
    kept = aux_states or {}
    kept = kept if isinstance(kept, Mapping) else dict(zip(states, kept, strict=True))
    values = {name: _numpy(inputs[name]).astype(dtype) for name in names}
    shape = sym.infer_shape(**{name: x.shape for name, x in values.items()})[1][0]
    values["__proj"] = (generator().random_sample(shape) + 0.1).astype(dtype)
    projected = sym[0].with_other("mul", var("__proj"))
    loss = compose(OPERATORS["MakeLoss"], [projected.call("sum")], {})

    def bind(kind: Any) -> Any:
        arrays = {name: array(x, dtype=kind) for name, x in values.items()}
        grads = {name: array(np.zeros(x.shape), dtype=kind) for name, x in values.items()}
        aux = {name: array(_numpy(kept[name]), dtype=kind) for name in states}
        return loss.bind(cpu(), arrays, grads, "write", aux)

    tested, reference = bind(dtype), bind(np.float64)
    tested.forward(is_train=True)
    tested.backward()
    step = numeric_eps or 1e-3
    for name in [n for n in grad_nodes or names if n in names]:
        x = reference.arg_dict[name]
        slopes = np.zeros(x.shape)
        for index in np.ndindex(x.shape):
            old, ends = x.value[index], []
            for sign in (0.5, -0.5):
                x[index] = old + sign * step
                ends.append(reference.forward(is_train=use_forward_train)[0].asscalar())
            x[index] = old
            slopes[index] = (ends[0] - ends[1]) / step
        assert_almost_equal(slopes, tested.grad_dict[name], rtol or 1e-2, atol or 1e-4)
