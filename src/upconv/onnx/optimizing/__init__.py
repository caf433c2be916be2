"""The measured optimiser: every transposed convolution in the form its runtime is fastest with.

`optimize` is the way in; `results` holds what it returns.
"""

from __future__ import annotations

from .optimize import optimize
from .results import Optimization

__all__ = ["Optimization", "optimize"]
