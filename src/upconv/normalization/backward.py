"""The public function `batch_norm_backward` and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import memory
from ..argument_checks import boolean
from ..arrays import Array, as_operand
from ..devices import DeviceArray, out_of_memory, same_place
from ..errors import ArgumentError
from ..execution import delivered
from ..forks import importing
from ..gradients import fitting, gradient_targets, rounded_total
from .channels import Channels, affine, inverse_deviation
from .checks import GIVEN, ChannelAxis, epsilon, require_like_x, required

_NEEDS = ("x", "gamma", "beta")


class BatchNormGradients(NamedTuple):
    """The gradients of one batch normalization; None for a gradient that was not needed.

    >>> d_x, d_gamma, d_beta = BatchNormGradients()
    >>> d_gamma is None
    True
    """

    x: Array | None = None
    gamma: Array | None = None
    beta: Array | None = None


@memory.bounded("the gradients of the normalization")
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

    With `training` and without `use_global_stats`, the batch's statistics depend on x. Then

        d_x = gamma * r * (g - mean(g) - xh * mean(g * xh))    xh = (x - saved_mean) * r

    with r = saved_invstd. Otherwise xh = (x - mean) * r, with r = 1 / sqrt(var + eps), and
    d_x = gamma * r * g. In both cases d_gamma = sum(g * xh) and d_beta = sum(g).

    grad: the gradient of a scalar with respect to y, of x's shape and dtype.
    saved_mean, saved_invstd: (C,), from the forward result, in any floating type; None if the
        moving statistics are used. Data far from zero needs a float64 mean.
    x, gamma, beta, mean, var: as in the forward call. The gradients do not depend on beta, nor on
        mean and var if the saved statistics are used. None of these arrays is written.
    fix_gamma: gamma counts as 1, and its gradient is 0.
    needs: the gradients to compute, any of "x", "gamma", "beta".
    out: a `BatchNormGradients` of arrays to write into, for all or some of the needed gradients.
        Its x may be grad or x. accumulate: add to the values of `out`, which then needs all arrays.

    Returns `BatchNormGradients`: `.x` of x's shape; `.gamma` and `.beta` (C,), with the dtypes of
    gamma and beta, or x's if those are None. Without elements the sums are 0.
    Raises the same errors as `batch_norm`.

    >>> import numpy as np
    >>> from upconv import batch_norm
    >>> x, g = np.array([[1.0], [3.0], [5.0]]), np.array([[1.0], [0.0], [0.0]])
    >>> y = batch_norm(x, eps=0, training=True)
    >>> d_x, d_gamma, d_beta = batch_norm_backward(g, y.saved_mean, y.saved_invstd, x, eps=0)
    >>> d_x.round(4), d_gamma.round(4), d_beta
    (array([[ 0.1021], [-0.2041], [ 0.1021]]), array([-1.2247]), array([1.]))
    """
    x, grad = as_operand("x", x), as_operand("grad", grad)
    on_device = isinstance(x, DeviceArray)
    if on_device and (out is not None or boolean("accumulate", accumulate)):
        expected = "None: results on a GPU are new arrays"
        raise ArgumentError("out", "set", expected, "Leave it and accumulate out.")
    channel_axis = ChannelAxis.of(x, axis)
    same_place({"x": x, "grad": grad})
    require_like_x(grad, x)
    gamma, beta = channel_axis.parameter("gamma", gamma), channel_axis.parameter("beta", beta)
    uses_batch = channel_axis.uses_batch(training, use_global_stats)
    fixed, adds = boolean("fix_gamma", fix_gamma), boolean("accumulate", accumulate)
    values = {"saved_mean": saved_mean, "saved_invstd": saved_invstd, "mean": mean, "var": var}
    saved = {
        name: channel_axis.parameter(name, value, any_type=name.startswith("saved"))
        for name, value in values.items()
    }
    same_place({"x": x, "gamma": gamma, "beta": beta} | saved)
    number, why = epsilon(eps), _SAVED if uses_batch else GIVEN
    names = ("saved_mean", "saved_invstd") if uses_batch else ("mean", "var")
    statistics = [required(name, saved[name], why) for name in names]
    wanted = gradient_targets(_NEEDS, BatchNormGradients, needs, out, accumulate=adds)
    dtypes = {
        name: x.dtype if parameter is None else parameter.dtype
        for name, parameter in (("x", x), ("gamma", gamma), ("beta", beta))
    }
    shapes = {name: channel_axis.shape_of(name) for name in wanted}
    targets = wanted | fitting(wanted, shapes, dtypes)
    call = channel_axis, x, grad, gamma, statistics, targets, dtypes
    options: dict[str, Any] = {"eps": number, "uses_batch": uses_batch, "fixed": fixed}
    if on_device:
        results = _on_device(*call, **options)
    else:
        results = _on_processor(*call, **options, adds=adds)
    # Return the caller's objects, not views of them.
    passed = {name: target for name, target in wanted.items() if target is not None}
    return BatchNormGradients(**results | passed)


_SAVED = "In training it comes from the forward result: result.saved_mean, result.saved_invstd."


def _on_device(channel_axis: ChannelAxis, x: Any, *rest: Any, **options: Any) -> dict[str, Any]:
    with importing:
        from . import on_device
    with x.library.on(x.device), out_of_memory(x.library, "the gradients of the normalization"):
        return on_device.batch_norm_backward(channel_axis, x, *rest, **options)


def _on_processor(
    channel_axis: ChannelAxis, x: Array, grad: Array, gamma: Array | None,
    statistics: Sequence[Array], targets: Mapping[str, Array | None],
    dtypes: Mapping[str, np.dtype[Any]], *, eps: float, uses_batch: bool, fixed: bool, adds: bool,
) -> dict[str, Array]:  # fmt: skip
    center, invstd = (channel_axis.vector(statistic, 0) for statistic in statistics)
    if not uses_batch:
        invstd = inverse_deviation(invstd, eps, batch=False)
    scale = channel_axis.vector(None if fixed else gamma, 1) * invstd
    results: dict[str, Array] = {}
    if "x" in targets:
        results["x"] = channel_axis.place("the gradient of x", targets["x"], (x, grad))
    channels, count = Channels.of(x, channel_axis.axis), channel_axis.count
    values, g = channels.matrix(x), channels.matrix(grad)
    with np.errstate(all="ignore"):  # overflow and NaN are results, not accidents
        total, products = channels.totals(center, values, g)
        products *= invstd
        if "x" in targets:
            dx, kind = results["x"], channel_axis.dtype.accumulator.numpy
            result = channels.matrix(dx)
            if uses_batch and count:
                slope, constant = -scale * invstd * products / count, -scale * total / count
                vectors = affine(center, slope, constant, kind)
                channels.combine(result, values, vectors, (scale.astype(kind), g), accumulate=adds)
            else:
                zero = np.zeros_like(scale)
                channels.combine(result, g, affine(zero, scale, zero, kind), accumulate=adds)
            channels.store(dx, result)
            results["x"] = delivered(dx, targets["x"])
    for name, value in (("beta", total), ("gamma", products * (0 if fixed else 1))):
        if name in targets:
            results[name] = rounded_total(value, dtypes[name], targets[name], accumulate=adds)
    return results
