"""The largest error of a result: the bound that docs/error-bounds.md derives.

In any order, the error of a sum of k rounded operations is at most gamma(k) = k*u / (1 - k*u),
relative to the sum of magnitudes; u is the accumulator's unit roundoff (N. J. Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd edition, 2002, section 3.1). Winograd's transforms add
steps, and multiply magnitudes by the norms of their matrices.
"""

from __future__ import annotations

import re
from functools import cache
from math import inf, prod, sqrt

import numpy as np

from ..activations import Activation
from ..problem import Direction, DType, Problem

_WINOGRAD = "winograd "
_POINTS = (0.0, 1.0, -1.0, 2.0, -0.5)  # of Toom and Cook, in addition to infinity
STEEPEST = {
    Activation.SIGMOID: 0.25,
    Activation.SILU: 1.1,
    Activation.GELU: 1.13,
    Activation.HARD_SWISH: 1.5,
}
"""The steepest slope of each activation; all others have 1."""


def error_bound(problem: Problem, variant: str = "") -> float:
    """Return the largest error that rounding can cause, as a multiple of a magnitude M.

    variant: the variant from `upconv.explain`; names that begin with "winograd" use transforms, all
        others direct sums.

    For direct sums each element has its own M: the sum of the magnitudes of its products, its bias,
    its residual and its previous value if accumulated. For Winograd's algorithm, M is that of the
    largest possible element: `problem.longest_sum * max|x| * max|w|`, plus the largest magnitudes
    of the other terms. The rounding of the stored result to its dtype and the error of the
    activation are extra. Operands and results must be finite, normal numbers. Returns inf if no
    digit is certain. The exact result is always that of the operands before rounding to bfloat16,
    or before TF32 truncates them to a ten-bit fraction.

    >>> from upconv.geometry import Axis
    >>> layer = Problem(Direction.FORWARD, (Axis(40, 4, 2),), 1, 64, 32)
    >>> error_bound(layer) == 128 * 2**-24 / (1 - 128 * 2**-24)  # 64 channels of two taps
    True
    >>> round(error_bound(layer, "winograd F(2,2)") / error_bound(layer), 2)
    1.08
    """
    unit = problem.dtype.accumulator.epsilon / 2
    others = problem.bias + problem.epilogue.residual + problem.accumulate
    if variant.startswith(_WINOGRAD):
        growth, steps = _winograd(problem, variant.removeprefix(_WINOGRAD))
    else:
        growth, steps = 1.0, problem.longest_sum
    rounded = (steps + others) * unit
    if rounded >= 1:
        return inf
    sums = growth * rounded / (1 - rounded)
    product = (1 + _operand_error(problem)) ** 2 - 1
    return _steepness(problem) * (sums + (1 + sums) * product)


def tolerance(problem: Problem) -> float:
    """Return the largest error of direct sums accepted on random numbers, as a multiple of M.

    Rounding errors of random numbers partly cancel: they grow like the square root of a sum's
    length (N. J. Higham and T. Mary, "A new approach to probabilistic rounding error analysis",
    2019). For long sums this tolerance is therefore far below `error_bound`. It is never larger
    than that bound, or twice it for float64, where the oracle errs too.

    >>> from upconv.geometry import Axis
    >>> axes = (Axis(4, 2, 2),)
    >>> tolerance(Problem(Direction.FORWARD, axes, 1, 16, 5)) < 2e-6
    True
    """
    problem = problem.replace(rounded=False)  # the oracle rounds operands too
    unit = problem.dtype.accumulator.epsilon / 2
    oracles = 2 if problem.dtype is DType.FLOAT64 else 1  # in float64 the oracle errs as much
    product = (1 + _operand_error(problem)) ** 2 - 1
    likely = unit * (8 + 4 * sqrt(problem.longest_sum)) + product
    return min(likely, oracles * error_bound(problem))


def _operand_error(problem: Problem) -> float:
    """Return the relative error of rounding the operands before multiplication."""
    return problem.precision.epsilon / 2 if problem.rounded else 2.0**-10 * problem.tf32


def _steepness(problem: Problem) -> float:
    """Return the largest factor by which the activation multiplies an error. PReLU's slopes are
    assumed to be at most 1."""
    kind, slope = problem.epilogue.activation, abs(problem.epilogue.slope)
    return max(1.0, slope) if kind is Activation.LEAKY_RELU else STEEPEST.get(kind, 1.0)


def _winograd(problem: Problem, transforms: str) -> tuple[float, int]:
    """Return the transforms' factor on magnitudes, and the rounded operations per result."""
    channels = problem.in_channels // problem.groups
    if problem.direction is Direction.INPUT_GRAD:
        phases = prod(axis.period for axis in problem.axes)  # of the operand, added like channels
        channels = problem.out_channels // problem.groups * phases
    norms, pieces, steps = 1.0, 1, 1  # a transformed weight is rounded once
    for m, r in re.findall(r"F\((\d+),(\d+)\)", transforms):
        if m == "1":
            pieces *= int(r)
        else:
            norm, transform_steps = _transform(int(m), int(r))
            norms, steps = norms * norm, steps + transform_steps
    growth = channels * pieces * norms / problem.longest_sum
    return max(1.0, growth), steps + channels * pieces


@cache
def _transform(m: int, r: int) -> tuple[float, int]:
    """Return the norm and the steps of F(m, r).

    The norm is the largest row sum of |A| (|G| 1 * |B| 1). A row of A or B needs one rounded
    operation per nonzero entry.
    """
    points = np.array(_POINTS[: m + r - 2])
    a = np.array([[*points**i, float(i == m - 1)] for i in range(m)])
    differences = [np.delete(p - points, i) for i, p in enumerate(points)]
    g = [
        np.abs(p ** np.arange(r) / d.prod()).sum() for p, d in zip(points, differences, strict=True)
    ]
    b = [np.poly(np.delete(points, i)) for i in range(len(points))] + [np.poly(points)]
    sizes = np.array([*g, 1.0]) * [np.abs(row).sum() for row in b]
    entries = max(map(np.count_nonzero, a)) + max(map(np.count_nonzero, b))
    return float((np.abs(a) @ sizes).max()), int(entries)
