"""The measured optimiser: every deconvolution of a model in the form its runtime is fastest with.

`optimize` (in `optimization`) is the way in; `results` holds what it returns.
"""

from __future__ import annotations

from .optimization import optimize
from .results import Optimization

__all__ = ["Optimization", "optimize"]
