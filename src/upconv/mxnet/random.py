"""Random numbers, and what parameters begin with: `mx.random` and `mx.init`.

`mx.nd.random` and `mx.np.random` draw from the same generator. An initializer is a function of a
shape that returns values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .base import MXNetError

_STATE = np.random.RandomState()
Initializer = Callable[[tuple[int, ...]], Any]


def generator() -> np.random.RandomState:
    """What everything random here draws from."""
    return _STATE


def seed(seed_state: int, ctx: Any = None) -> None:
    """Begin the sequence that belongs to this seed."""
    _STATE.seed(seed_state)


def Constant(value: Any = 0.0) -> Initializer:  # noqa: N802 - MXNet's names, here and below
    """One value everywhere, or an array of values."""
    return lambda shape: np.broadcast_to(np.asarray(value, np.float32), shape)


def Uniform(scale: float = 0.07) -> Initializer:  # noqa: N802
    """Uniform between -scale and scale."""
    return lambda shape: _STATE.uniform(-scale, scale, shape)


def Normal(sigma: float = 0.01) -> Initializer:  # noqa: N802
    """Normal with a standard deviation of sigma."""
    return lambda shape: _STATE.normal(0, sigma, shape)


Zero, One = partial(Constant, 0), partial(Constant, 1)
"""Zeros, and ones."""
_WORDS: dict[str, Callable[..., Initializer]] = {
    "zeros": Zero,
    "ones": One,
    "uniform": Uniform,
    "normal": Normal,
}


def initializer(value: Any) -> Initializer:
    """An initializer, from itself, from a word, or from a number or an array."""
    if isinstance(value, str):
        if value not in _WORDS:
            raise MXNetError(f"init is {value!r}; expected one of {', '.join(_WORDS)}.")
        return _WORDS[value]()
    return value if callable(value) else Constant(value)
