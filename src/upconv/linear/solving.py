"""Deconvolution: the x that minimizes |A x - y|^2 + damp^2 |x|^2, where A is a layer's matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from scipy.sparse import linalg

from .. import memory, shape_checks
from ..argument_checks import number, one_of
from ..arrays import Array, Operand, as_array, described
from ..engines.base import Engine
from ..errors import ArgumentError, ShapeError, brief
from ..keywords import Keywords, Same, integers, paddings
from ..problem import Problem, WeightLayout
from ..signatures import Layout, Padding, Sizes, WeightOrder
from .operators import ConvolutionOperator, operator_of, order_of

_METHODS = ("lsqr", "cg")
_BORDERS = ("zero", "circular")
_MAX_DAMP = 1e150  # its square does not overflow


@dataclass(frozen=True, slots=True, eq=False)
class Deconvolved:
    """The result of `deconvolve`.

    x: the input. residual: |A x - y| / |y|. gradient: |A'(A x - y) + damp^2 x| / |A'y|, which is 0
    at the minimum. converged: whether the gradient is at most 100 times the tolerance, or x has a
    closed form. iterations: the number of iterations. reason: why they ended, in words.

    >>> deconvolve(np.array([[[2.0, 4.0]]]), np.array([[[2.0]]])).x
    array([[[1., 2.]]])
    """

    x: Array
    residual: float
    gradient: float
    converged: bool
    iterations: int
    reason: str


def deconvolve(
    y: Any,
    weight: Any,
    *,
    transposed: bool = True,
    input_shape: Sequence[int] | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "NCX",
    weight_layout: WeightOrder | None = None,
    damp: float = 0.0,
    method: str = "lsqr",
    border: str = "zero",
    tolerance: float = 1e-12,
    iterations: int | None = None,
    engine: str | Engine | None = None,
) -> Deconvolved:
    """Return a layer's input, given its result y: the x minimizing |A x - y|^2 + damp^2 |x|^2.

    y: a result of `conv_transpose` (of `conv` with `transposed=False`), minus the bias.
    input_shape: the shape of x (default: the shape whose result has y's shape; for `conv` with a
        stride, the smallest of several).
    damp: 0 for least squares, with the smallest x if there are several solutions. A larger value
        suppresses noise where the layer nearly loses information.
    method: "lsqr", or "cg" on the normal equations, which is faster if A is well conditioned.
    border: "zero" as in layers, or "circular" for stride 1: x is periodic, y has x's size, and the
        solution is exact, by one small system per frequency.
    tolerance: the relative accuracy at which the iterations end. iterations: the maximum number of
        iterations (default: 4 times the size of x, at least 1000).

    Computes in float64; x has the dtype of y. There is no error if the iterations do not converge:
    check `converged`. Raises the errors of `operator`.

    >>> import upconv
    >>> x = np.random.default_rng(0).standard_normal((1, 2, 9))
    >>> w = np.random.default_rng(1).standard_normal((2, 4, 3))
    >>> result = deconvolve(upconv.conv_transpose(x, w, stride=2), w, stride=2)
    >>> result.converged, bool(np.abs(result.x - x).max() < 1e-9)
    (True, True)
    """
    y_array = as_array("y", y)
    y, weight = y_array.astype(np.float64), as_array("weight", weight).astype(np.float64)
    _require("method", method, _METHODS)
    _require("border", border, _BORDERS)
    damp = number("damp", damp, 0, _MAX_DAMP, "0 means no damping.")
    tolerance = number("tolerance", tolerance, 0, remedy="It is relative, such as 1e-12.")
    order = order_of(weight_layout, transposed)
    keywords = Keywords.of(stride, padding, output_padding, dilation, groups, None, layout, order)
    if border == "circular":
        return _cast(_by_frequency(y, weight, keywords, transposed, damp), y_array.dtype)
    shape = _input_shape(y, weight, keywords, transposed) if input_shape is None else input_shape
    A = operator_of(shape, weight, keywords, transposed, engine)  # noqa: N806  # as in the formula
    if A.output_shape != y.shape:
        expected = f"{A.output_shape}, the layer's result for {A.input_shape}"
        raise ShapeError("y.shape", str(y.shape), expected, "Pass input_shape and the keywords.")
    limit = max(1000, 4 * A.shape[1])
    if iterations is not None:
        limit = integers("iterations", iterations, 1, 1)[0]
    return _cast(_solved(A, y, damp, method, tolerance, limit), y_array.dtype)


def _require(argument: str, value: object, names: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in names:
        expected = f"one of {', '.join(map(repr, names))}"
        raise ArgumentError(argument, brief(value), expected, "Omit it to use the first.")


def _input_shape(y: Array, weight: Array, keywords: Keywords, transposed: bool) -> tuple[int, ...]:
    """Return the shape of x if the shape of y determines it.

    It is the opposite layer's output shape (a convolution's for a transposed one) with the same
    crops. A later check refuses a y that does not fit.
    """
    rank = max(1, weight.ndim - 2)  # a weight with fewer axes is refused later
    pads = paddings(keywords.padding, rank)
    if isinstance(pads, Same):
        if transposed:
            return _before(y, weight, keywords._replace(output_padding=0), transposed)
        remedy = "With 'same' padding several inputs could have produced y."
        raise ArgumentError("input_shape", "None", "the shape of x", remedy)
    extra = integers("output_padding", keywords.output_padding, rank, 0)
    ends = tuple((b, e - more) for (b, e), more in zip(pads, extra, strict=True))
    call = keywords._replace(padding=ends, output_padding=0)
    return _before(y, weight, call, transposed)


def _before(y: Array, weight: Array, keywords: Keywords, transposed: bool) -> tuple[int, ...]:
    """Return the output shape of the opposite layer, whose weight has its channels swapped."""
    back = shape_checks.convolution if transposed else shape_checks.transposed
    order = one_of("weight_layout", keywords.weight_layout, WeightLayout).value
    order = order.translate(str.maketrans("IO", "OI"))
    call, operands = keywords._replace(weight_layout=order), (described(y), described(weight))
    try:
        return back(*operands, None, None, call, None).shape
    except ShapeError as error:
        raise error.renamed("x.shape", "y.shape") from None


def _cast(result: Deconvolved, dtype: np.dtype[Any]) -> Deconvolved:
    with np.errstate(all="ignore"):
        return replace(result, x=result.x.astype(dtype, copy=False))


_WORDS = {
    0: "x = 0 is the solution",
    1: "A x = y within the tolerance",
    2: "the gradient is below the tolerance",
    3: "A is too ill-conditioned; use damp",
    4: "A x = y within the precision of float64",
    5: "the gradient is 0 within the precision of float64",
    6: "A is singular within the precision of float64; use damp",
    7: "the limit of iterations was reached",
}
"""LSQR's exit code -> reason why it ended."""


def _solved(
    A: ConvolutionOperator,  # noqa: N803  # as in the formula
    y: Array,
    damp: float,
    method: str,
    tolerance: float,
    limit: int,
) -> Deconvolved:
    right = y.reshape(-1)
    if method == "lsqr":
        x, stop, count = linalg.lsqr(
            A, right, damp, atol=tolerance, btol=tolerance, conlim=0, iter_lim=limit
        )[:3]
        reason = _WORDS[stop]
    else:
        iterates: list[Any] = []
        normal = linalg.LinearOperator(
            (A.shape[1],) * 2, lambda v: A.rmatvec(A.matvec(v)) + damp**2 * v, dtype=np.float64
        )
        steps = {"rtol": tolerance, "maxiter": limit, "callback": lambda _: iterates.append(None)}
        x, stop = linalg.cg(normal, A.rmatvec(right), **steps)
        count, reason = len(iterates), _WORDS[7 if stop else 2]
    residual = A.matvec(x) - right
    gradient = _ratio(A.rmatvec(residual) + damp**2 * x, A.rmatvec(right))
    enough = gradient <= max(tolerance, 1e-14) * 100 and bool(np.isfinite(x).all())
    shape = A.input_shape
    return Deconvolved(
        x.reshape(shape), _ratio(residual, right), gradient, enough, int(count), reason
    )


def _ratio(a: Array, b: Array) -> float:
    """Return |a| / |b|, or |a| if b is 0."""
    return float(np.linalg.norm(a) / (np.linalg.norm(b) or 1.0))


def _by_frequency(
    y: Array, weight: Array, keywords: Keywords, transposed: bool, damp: float
) -> Deconvolved:
    """Solve the circular layer: W x = y at every frequency, where W is a matrix over channels.

    W[f, c] = sum over t of w[c, f, t] exp(-i omega (d*t - p)). For a convolution, W is the
    conjugate transpose of the transposed convolution's matrix.
    """
    if not np.isfinite(weight).all():
        raise ArgumentError("weight", "not finite", "finite numbers", "Use border='zero'.")
    if any(stride > 1 for stride in integers("stride", keywords.stride, weight.ndim - 2, 1)):
        remedy = "For larger strides there is no closed form: use border='zero'."
        raise ArgumentError("stride", brief(keywords.stride), "1 for circular borders", remedy)
    pads = paddings(keywords.padding, max(1, weight.ndim - 2))
    same = keywords.padding if isinstance(pads, Same) else "same_upper"
    wide = keywords._replace(padding=same, output_padding=0)
    shape = _before(y, weight, wide, transposed)
    call = shape_checks.transposed if transposed else shape_checks.convolution
    signature = call(Operand(shape, y.dtype), described(weight), None, None, wide, None)
    problem, rank = signature.problem, signature.problem.rank
    if isinstance(pads, Same):
        pads = tuple((axis.crop_begin, 0) for axis in problem.axes)
    size = problem.out_size
    spectrum = _spectrum(problem, weight, [begin for begin, _ in pads], size)
    W = spectrum if transposed else spectrum.conj().swapaxes(-1, -2)  # noqa: N806
    batched = y if signature.batched else y[None]
    grouped = batched.transpose(problem.layout.to_ncx(rank))
    grouped = grouped.reshape(len(grouped), problem.groups, -1, *size)
    axes = tuple(range(3, 3 + rank))
    right = np.moveaxis(np.fft.fftn(grouped, axes=axes), (0, 2), (-1, -2))  # (g, *size, f, n)
    inverse = _damped_inverse(W, damp)
    solution = inverse @ right
    x = np.fft.ifftn(np.moveaxis(solution, (-1, -2), (0, 2)), axes=axes).real
    residual = W @ solution - right
    gradient = W.conj().swapaxes(-1, -2) @ residual + damp**2 * solution
    ncx = x.reshape(len(x), -1, *size)
    there = ncx.transpose(np.argsort(problem.layout.to_ncx(rank)))
    slope = _ratio(gradient, W.conj().swapaxes(-1, -2) @ right)
    result = np.ascontiguousarray(there if signature.batched else there[0])
    return Deconvolved(result, _ratio(residual, right), slope, True, 0, "the closed form")


def _spectrum(problem: Problem, weight: Array, begin: list[int], size: tuple[int, ...]) -> Array:
    """Return W for each group and frequency: (groups, *size, f, c)."""
    groups, rank = problem.groups, problem.rank
    i, f = problem.in_channels // groups, problem.out_channels // groups
    memory.require(32 * groups * f * i * prod(size), "the weight at every frequency")
    iox = weight.transpose(problem.weight_layout.to_iox(rank))
    impulse = np.zeros((groups, i, f, *size))
    for tap in product(*map(range, problem.kernel)):
        at = tuple(
            (axis.dilation * t - p) % n
            for axis, t, p, n in zip(problem.axes, tap, begin, size, strict=True)
        )
        to: Any = (..., *at)
        index: Any = (..., *tap)
        impulse[to] += iox[index].reshape(groups, i, f)
    axes = tuple(range(3, 3 + rank))
    return np.moveaxis(np.fft.fftn(impulse, axes=axes), (2, 1), (-2, -1))


def _damped_inverse(W: Array, damp: float) -> Array:  # noqa: N803
    """Return (W' W + damp^2)^-1 W' for each matrix; the pseudo-inverse if damp is 0."""
    if not damp:
        inverse: Array = np.linalg.pinv(W)
        return inverse
    back = W.conj().swapaxes(-1, -2)
    return np.linalg.solve(back @ W + damp**2 * np.eye(W.shape[-1]), back)
