"""The public function `batch_norm_backward`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..arguments import boolean
from ..arrays import Array, as_array, check_out, same_dtype
from ..errors import ShapeError
from ..execution import delivered
from ..gradients import gradient_targets, require_separate, rounded_total
from .channels import Channels, affine, inverse_deviation
from .checks import GIVEN, ChannelAxis, epsilon
from .results import BatchNormGradients

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
    channel_axis = ChannelAxis.of(x, axis)
    same_dtype("x", x.dtype, "grad", grad.dtype)
    if grad.shape != x.shape:
        remedy = "It is the gradient of y."
        raise ShapeError("grad.shape", str(grad.shape), f"{x.shape}, the shape of x", remedy)
    gamma, beta = channel_axis.parameter("gamma", gamma), channel_axis.parameter("beta", beta)
    uses_batch = channel_axis.uses_batch(training, use_global_stats)
    fixed, adds = boolean("fix_gamma", fix_gamma), boolean("accumulate", accumulate)
    saved = (
        channel_axis.parameter("saved_mean", saved_mean, any_type=True),
        channel_axis.parameter("saved_invstd", saved_invstd, any_type=True),
    )
    moving = (channel_axis.parameter("mean", mean), channel_axis.parameter("var", var))
    center, invstd = _statistics(
        channel_axis, saved if uses_batch else moving, eps, batch=uses_batch
    )
    wanted = gradient_targets(_NEEDS, BatchNormGradients, needs, out, accumulate=adds)
    dtypes = {
        name: x.dtype if parameter is None else parameter.dtype
        for name, parameter in (("x", x), ("gamma", gamma), ("beta", beta))
    }
    targets = _checked(wanted, channel_axis, dtypes)
    dx = (
        channel_axis.place("the gradient of x", targets.get("x"), (x, grad))
        if "x" in wanted
        else None
    )
    scale = channel_axis.vector(None if fixed else gamma, 1) * invstd
    work = _Gradients(channel_axis, x, grad, center, invstd, uses_batch)
    totals = work.totals()
    if dx is not None:
        work.input_gradient(dx, scale, totals, accumulate=adds)
    values: dict[str, Array] = {"beta": totals[0], "gamma": totals[1] * (0 if fixed else 1)}
    results = {
        name: rounded_total(values[name], dtypes[name], targets.get(name), accumulate=adds)
        for name in values
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


def _checked(
    wanted: dict[str, Array | None], channel_axis: ChannelAxis, dtypes: dict[str, np.dtype[Any]]
) -> dict[str, Array]:
    """The arrays given for results, each fit for its own."""
    targets = {
        name: check_out(f"out.{name}", target, channel_axis.shape_of(name), dtypes[name])
        for name, target in wanted.items()
        if target is not None
    }
    require_separate(targets)
    return targets


def _statistics(
    channel_axis: ChannelAxis, given: tuple[Array | None, Array | None], eps: float, *, batch: bool
) -> tuple[Array, Array]:
    """The mean and the inverse deviation that x was normalised with, float64."""
    number = epsilon(eps)
    if batch:
        why = "In training it is the forward's result: result.saved_mean, result.saved_invstd."
        return channel_axis.statistics(("saved_mean", "saved_invstd"), given, why)
    mean, var = channel_axis.statistics(("mean", "var"), given, GIVEN)
    return mean, inverse_deviation(var, number, batch=False)


class _Gradients:
    """Sums, and the gradient of x, by what x was normalised with."""

    def __init__(
        self,
        channel_axis: ChannelAxis,
        x: Array,
        grad: Array,
        mean: Array,
        invstd: Array,
        uses_batch: bool,
    ) -> None:
        self._channels = Channels.of(x, channel_axis.axis)
        self._x, self._grad = self._channels.matrix(x), self._channels.matrix(grad)
        self._mean, self._invstd = mean, invstd
        self._count = channel_axis.count if uses_batch else 0
        self._kind = channel_axis.dtype.accumulator.numpy

    def totals(self) -> tuple[Array, Array]:
        """sum(g) and sum(g * xh) of every channel."""
        with np.errstate(all="ignore"):  # overflow and NaN are results, not accidents
            total, products = self._channels.totals(self._mean, self._x, self._grad)
            return total, products * self._invstd

    def input_gradient(
        self, dx: Array, scale: Array, totals: tuple[Array, Array], *, accumulate: bool
    ) -> None:
        """Put d_x into dx, or add it; `scale` is gamma * r."""
        channels, kind, n = self._channels, self._kind, self._count
        result = channels.matrix(dx)
        with np.errstate(all="ignore"):
            if n:
                slope, constant = -scale * self._invstd * totals[1] / n, -scale * totals[0] / n
                vectors = affine(self._mean, slope, constant, kind)
                grad = (scale.astype(kind), self._grad)
                channels.combine(result, self._x, vectors, grad, accumulate=accumulate)
            else:  # no batch that statistics depend on
                zero = np.zeros_like(scale)
                vectors = affine(zero, scale, zero, kind)
                channels.combine(result, self._grad, vectors, accumulate=accumulate)
            channels.store(dx, result)
