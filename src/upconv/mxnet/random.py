"""Random numbers: `mx.random`. `mx.nd.random` and `mx.np.random` draw from the same generator."""

from __future__ import annotations

from typing import Any

import numpy as np

_STATE = np.random.RandomState()


def generator() -> np.random.RandomState:
    """Return the generator of all random numbers of this package."""
    return _STATE


def seed(seed_state: int, ctx: Any = None) -> None:
    """Begin the sequence of this seed."""
    _STATE.seed(seed_state)
