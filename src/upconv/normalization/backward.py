"""The public function `batch_norm_backward`, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .. import memory
from ..arrays import Array, as_operand
from ..checks import boolean
from ..devices import DeviceArray, out_of_memory, same_place
from ..execution import delivered
from ..forks import importing
from ..gradients import fitting, gradient_targets, rounded_total
from .channels import Channels, affine, inverse_deviation
from .checks import GIVEN, ChannelAxis, epsilon, require_like_x

_NEEDS = ("x", "gamma", "beta")


class BatchNormGradients(NamedTuple):
    """The gradients of one batch normalisation; None for one that was not needed.

    >>> d_x, d_gamma, d_beta = BatchNormGradients()
    >>> d_gamma is None
    True
    """

    x: Array | None = None
    gamma: Array | None = None
    beta: Array | None = None


@memory.bounded("the gradients of the normalisation")
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
    """Compute the gradients of `batch_norm` with respect to x, gamma and beta.

    The batch's statistics depend on x with `training` and without `use_global_stats`. Then

        d_x = gamma * r * (g - mean(g) - xh * mean(g * xh))    xh = (x - saved_mean) * r

    with r = saved_invstd. Otherwise xh = (x - mean) * r, with r = 1 / sqrt(var + eps), and
    d_x = gamma * r * g. In both cases d_gamma = sum(g * xh) and d_beta = sum(g).

    grad: the gradient of a scalar with respect to y, of x's shape and dtype.
    saved_mean, saved_invstd: (C,), of the forward's result, in any floating type; None if the
        moving statistics are used. Data far from zero need a mean in float64.
    x, gamma, beta, mean, var: as in the forward call. The gradients do not depend on beta, nor on
        mean and var if the saved statistics are used. None of them is written.
    fix_gamma: gamma counts as 1, and its gradient is 0.
    needs: the gradients to compute, any of "x", "gamma", "beta".
    out: a `BatchNormGradients` of arrays to write into, for all needed gradients or some. That of x
        may be grad or x. accumulate: add to the values of `out`, which needs all arrays then.

    Returns `BatchNormGradients`: `.x` of x's shape; `.gamma` and `.beta` (C,), of the dtypes of
    gamma and beta, or of x if those are None. Without elements the sums are 0.
    Raises the errors of `batch_norm`.

    >>> import numpy as np
    >>> from upconv import batch_norm
    >>> x, g = np.array([[1.0], [3.0], [5.0]]), np.array([[1.0], [0.0], [0.0]])
    >>> y = batch_norm(x, eps=0, training=True)
    >>> d_x, d_gamma, d_beta = batch_norm_backward(g, y.saved_mean, y.saved_invstd, x, eps=0)
    >>> d_x.round(4), d_gamma.round(4), d_beta
    (array([[ 0.1021], [-0.2041], [ 0.1021]]), array([-1.2247]), array([1.]))
    """
    x, grad = as_operand("x", x), as_operand("grad", grad)
    if isinstance(x, DeviceArray):
        arrays = grad, saved_mean, saved_invstd, x, gamma, beta, mean, var
        flags = training, fix_gamma, use_global_stats
        return _on_device(arrays, flags, eps, axis, needs, out, accumulate)
    channel_axis = ChannelAxis.of(x, axis)
    same_place({"x": x, "grad": grad})
    require_like_x(grad, x)
    gamma, beta = channel_axis.parameter("gamma", gamma), channel_axis.parameter("beta", beta)
    uses_batch = channel_axis.uses_batch(training, use_global_stats)
    fixed, adds = boolean("fix_gamma", fix_gamma), boolean("accumulate", accumulate)
    names = ("saved_mean", "saved_invstd") if uses_batch else ("mean", "var")
    values = {"saved_mean": saved_mean, "saved_invstd": saved_invstd, "mean": mean, "var": var}
    saved = {
        name: channel_axis.parameter(name, value, any_type=name.startswith("saved"))
        for name, value in values.items()
    }
    same_place({"x": x, "gamma": gamma, "beta": beta} | saved)
    number, why = epsilon(eps), _SAVED if uses_batch else GIVEN
    center, invstd = channel_axis.statistics(names, (saved[names[0]], saved[names[1]]), why)
    if not uses_batch:
        invstd = inverse_deviation(invstd, number, batch=False)
    wanted = gradient_targets(_NEEDS, BatchNormGradients, needs, out, accumulate=adds)
    dtypes = {
        name: x.dtype if parameter is None else parameter.dtype
        for name, parameter in (("x", x), ("gamma", gamma), ("beta", beta))
    }
    targets = fitting(wanted, {name: channel_axis.shape_of(name) for name in wanted}, dtypes)
    scale = channel_axis.vector(None if fixed else gamma, 1) * invstd
    results: dict[str, Array] = {}
    if "x" in wanted:
        results["x"] = channel_axis.place("the gradient of x", targets.get("x"), (x, grad))
    channels = Channels.of(x, channel_axis.axis)
    matrices = channels.matrix(x), channels.matrix(grad)
    with np.errstate(all="ignore"):  # overflow and NaN are results, not accidents
        total, products = channels.totals(center, *matrices)
        products *= invstd
        if "x" in wanted:
            dx, count = results["x"], channel_axis.count if uses_batch else 0
            kind, sums = channel_axis.dtype.accumulator.numpy, (total, products, center, invstd)
            result = channels.matrix(dx)
            _input_gradient(channels, result, *matrices, scale, sums, count, kind, adds)
            channels.store(dx, result)
            results["x"] = delivered(dx, targets.get("x"))
    for name, value in (("beta", total), ("gamma", products * (0 if fixed else 1))):
        if name in wanted:
            results[name] = rounded_total(value, dtypes[name], targets.get(name), accumulate=adds)
    # Return the caller's objects, not views of them.
    passed = {name: target for name, target in wanted.items() if target is not None}
    return BatchNormGradients(**results | passed)


def _on_device(arrays: tuple[Any, ...], flags: tuple[Any, ...], *rest: Any) -> BatchNormGradients:
    with importing:
        from . import on_device
    wanted = _NEEDS, BatchNormGradients
    x = arrays[3]
    with x.library.on(x.device), out_of_memory(x.library, "the gradients of the normalisation"):
        return BatchNormGradients(**on_device.batch_norm_backward(arrays, flags, wanted, *rest))


_SAVED = "In training it is the forward's result: result.saved_mean, result.saved_invstd."


def _input_gradient(
    channels: Channels, result: Array, x: Array, grad: Array, scale: Array,
    sums: tuple[Array, Array, Array, Array], count: int, kind: np.dtype[Any], adds: bool,
) -> None:  # fmt: skip
    """Write d_x into a matrix, or add it; `scale` is gamma * r, `count` 0 without a batch."""
    total, products, mean, invstd = sums
    if count:
        slope, constant = -scale * invstd * products / count, -scale * total / count
        vectors = affine(mean, slope, constant, kind)
        channels.combine(result, x, vectors, (scale.astype(kind), grad), accumulate=adds)
    else:
        zero = np.zeros_like(scale)
        channels.combine(result, grad, affine(zero, scale, zero, kind), accumulate=adds)
