"""Random numbers: `mx.random`. `mx.nd.random` and `mx.np.random` draw from the same generator."""

from __future__ import annotations

from typing import Any

import numpy as np

_STATE = np.random.RandomState()


def generator() -> np.random.RandomState:
    """Return the generator that draws all random numbers in this package."""
    return _STATE


def seed(seed_state: int, ctx: Any = None) -> None:
    """Seed the generator."""
    _STATE.seed(seed_state)
