"""The public function `batch_norm_backward`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..arguments import boolean
from ..arrays import Array, as_array, check_out, same_dtype
from ..engines.normalization import Normalization
from ..errors import ShapeError
from ..gradients import gradient_targets, require_separate
from .checks import Frame, epsilon, required
from .results import BatchNormGradients
from .running import apart, delivered, leased, new_like

_NEEDS = ("x", "gamma", "beta")


def batch_norm_backward(
    grad: Any,
    saved_mean: Any,
    saved_invstd: Any,
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    mean: Any = None,
    var: Any = None,
    *,
    eps: float = 1e-5,
    training: bool = True,
    fix_gamma: bool = False,
    use_global_stats: bool = False,
    axis: int = 1,
    needs: Iterable[str] = _NEEDS,
    engine: str | None = None,
    out: BatchNormGradients | None = None,
    accumulate: bool = False,
) -> BatchNormGradients:
    """The gradients of `batch_norm` with respect to x, gamma and beta.

    With `training`, and without `use_global_stats`, the batch's statistics depend on x, and so

        d_x = gamma * r * (g - mean(g) - xh * mean(g * xh))    xh = (x - saved_mean) * r

    with r = saved_invstd; otherwise xh is made with `mean` and r = 1 / sqrt(var + eps), and
    d_x = gamma * r * g. Either way d_gamma = sum(g * xh) and d_beta = sum(g).

    grad: the gradient of a scalar with respect to y, of x's shape and dtype.
    saved_mean, saved_invstd: (C,), of the forward's result, in any floating type; None
        where the moving ones are used. A mean rounded to float32 costs data far from zero digits.
    x, gamma, beta, mean, var: as in the forward call. beta has no bearing on the gradients, nor
        have mean and var where the saved statistics are used. None of them is written.
    fix_gamma: gamma counts as 1, and its gradient is 0.
    needs: which gradients to compute, any of "x", "gamma", "beta".
    out: a `BatchNormGradients` holding arrays to write into, for all needed or some; that of x may
        be grad or x itself. accumulate: add to what `out` holds; every needed one must be in it.

    Returns `BatchNormGradients`: `.x` of x's shape; `.gamma` and `.beta` (C,), of gamma's and
    beta's dtypes, or of x's where those are None. Without elements the sums are 0.
    Raises what `batch_norm` raises.

    >>> import numpy as np
    >>> from upconv import batch_norm
    >>> x, g = np.array([[1.0], [3.0], [5.0]]), np.array([[1.0], [0.0], [0.0]])
    >>> done = batch_norm(x, eps=0, training=True)
    >>> d_x, d_gamma, d_beta = batch_norm_backward(g, done.saved_mean, done.saved_invstd, x, eps=0)
    >>> d_x.round(4), d_gamma.round(4), d_beta
    (array([[ 0.1021], [-0.2041], [ 0.1021]]), array([-1.2247]), array([1.]))
    """
    x, grad = as_array("x", x), as_array("grad", grad)
    frame = Frame.of(x, axis)
    same_dtype("x", x.dtype, "grad", grad.dtype)
    if grad.shape != x.shape:
        raise ShapeError(
            "grad.shape", str(grad.shape), f"{x.shape}, the shape of x", "It is the gradient of y."
        )
    gamma, beta = frame.parameter("gamma", gamma), frame.parameter("beta", beta)
    saved = [
        frame.parameter(name, value, any_type=True)
        for name, value in (("saved_mean", saved_mean), ("saved_invstd", saved_invstd))
    ]
    moving = [frame.parameter("mean", mean), frame.parameter("var", var)]
    uses_batch = boolean("training", training)
    uses_batch = not boolean("use_global_stats", use_global_stats) and uses_batch
    fixed, adds = boolean("fix_gamma", fix_gamma), boolean("accumulate", accumulate)
    dtypes = {"x": x.dtype, "gamma": _dtype_of(gamma, x), "beta": _dtype_of(beta, x)}
    wanted = gradient_targets(_NEEDS, BatchNormGradients, needs, out, accumulate=adds)
    targets = _checked(wanted, frame, dtypes)
    dx = _input_target(wanted, targets, grad, x)
    unused = x.strides if dx is None else dx.strides
    problem = Normalization(
        frame.shape,
        frame.axis,
        frame.dtype,
        (grad.strides, x.strides, unused),
        epsilon(eps),
        uses_batch,
        backward=True,
        accumulate=adds,
    )
    center, invstd = _statistics(frame, problem, saved, moving)
    factor = frame.vector(None if fixed else gamma, 1)
    with leased(problem, engine) as primitive:
        totals = primitive.backward(dx, grad, x, factor, center, invstd)
    sums = {"gamma": np.zeros_like(totals.gx) if fixed else totals.gx, "beta": totals.g}
    results: dict[str, Array] = {
        name: _total(sums[name], dtypes[name], targets.get(name), accumulate=adds)
        for name in ("gamma", "beta")
        if name in wanted
    }
    if dx is not None:
        results["x"] = delivered(dx, targets.get("x"))
    # The very objects the caller passed, where some were passed.
    return BatchNormGradients(
        **{
            name: result if wanted[name] is None else wanted[name]
            for name, result in results.items()
        }
    )


def _dtype_of(parameter: Array | None, x: Array) -> np.dtype[Any]:
    return x.dtype if parameter is None else parameter.dtype


def _checked(
    wanted: dict[str, Array | None], frame: Frame, dtypes: dict[str, np.dtype[Any]]
) -> dict[str, Array]:
    """The arrays given for results, each fit for its own."""
    shapes = {"x": frame.shape, "gamma": (frame.channels,), "beta": (frame.channels,)}
    targets = {
        name: check_out(f"out.{name}", target, shapes[name], dtypes[name])
        for name, target in wanted.items()
        if target is not None
    }
    require_separate(targets)
    return targets


def _input_target(
    wanted: dict[str, Array | None], targets: dict[str, Array], grad: Array, x: Array
) -> Array | None:
    """Where to make the gradient of x; None where it is not needed."""
    if "x" not in wanted:
        return None
    return apart(targets["x"], (grad, x)) if "x" in targets else new_like(x, "the gradient of x")


def _statistics(
    frame: Frame,
    problem: Normalization,
    saved: Sequence[Array | None],
    moving: Sequence[Array | None],
) -> tuple[Array, Array]:
    """The mean and the inverse deviation that x was normalised with, float64."""
    if problem.batch_statistics:
        why = "In training it is the forward's result: result.saved_mean, result.saved_invstd."
        names = ("saved_mean", "saved_invstd")
        first, second = (
            frame.vector(required(name, value, why), 0)
            for name, value in zip(names, saved, strict=True)
        )
        return first, second
    why = "Without training, or with use_global_stats, it is what x was normalised with."
    first, second = (
        frame.vector(required(name, value, why), 0)
        for name, value in zip(("mean", "var"), moving, strict=True)
    )
    return first, problem.inverse_deviation(second)


def _total(total: Array, dtype: np.dtype[Any], out: Array | None, *, accumulate: bool) -> Array:
    """A sum in the caller's array, or in a new one of `dtype`."""
    with np.errstate(all="ignore"):
        if out is None:
            return total.astype(dtype)
        out[...] = out + total if accumulate else total
    return out
