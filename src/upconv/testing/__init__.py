"""Tools for engine authors: test cases, an oracle from the definition, tolerances and checks.

from upconv import testing
for problem in testing.cases():                      # small problems of every kind
    testing.check(my_engine, problem)
for seed in range(1000):                             # layers as large as in real models
    testing.check(my_engine, testing.layer(seed))
"""

from __future__ import annotations

from .cases import cases
from .checks import check, check_adjoint, compute, compute_all, ends_of, require_engine
from .error_bounds import error_bound, tolerance
from .layers import FAMILIES, layer
from .oracle import Expected, Operands, by_taps, expected, operands, scatter
from .trust import mistrusted

__all__ = [
    "FAMILIES",
    "Expected",
    "Operands",
    "by_taps",
    "cases",
    "check",
    "check_adjoint",
    "compute",
    "compute_all",
    "ends_of",
    "error_bound",
    "expected",
    "layer",
    "mistrusted",
    "operands",
    "require_engine",
    "scatter",
    "tolerance",
]


def __dir__() -> list[str]:
    return __all__
