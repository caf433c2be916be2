"""The public function `batch_norm` and its result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import memory
from ..argument_checks import boolean
from ..arrays import Array, as_operand, check_out
from ..devices import DeviceArray, out_of_memory, same_place
from ..errors import ArgumentError, DTypeError
from ..execution import delivered
from ..forks import importing
from ..gradients import fitting, gradient_targets
from .channels import Channels, affine, inverse_deviation
from .checks import GIVEN, ChannelAxis, epsilon, moved, moving_rule, require_spread, required


class BatchNormResult(NamedTuple):
    """The results of `batch_norm`; in `out`, None requests a new array.

    y: of x's shape and dtype. saved_mean, saved_invstd: (C,), float64, the mean and
    1 / sqrt(var + eps) with which y was computed. moving_mean, moving_var: (C,), of the dtypes of
    mean and var, None if those are None.

    >>> BatchNormResult().y is None
    True
    """

    y: Array | None = None
    saved_mean: Array | None = None
    saved_invstd: Array | None = None
    moving_mean: Array | None = None
    moving_var: Array | None = None


@memory.bounded("the normalization")
def batch_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    mean: Any = None,
    var: Any = None,
    *,
    eps: float = 1e-5,
    momentum: float | None = None,
    training: bool = False,
    fix_gamma: bool = False,
    use_global_stats: bool = False,
    axis: int = 1,
    statistics: str = "torch",
    out: Array | BatchNormResult | None = None,
) -> BatchNormResult:
    """Normalize channel by channel: y = gamma * (x - mean) / sqrt(var + eps) + beta.

    With `training`, and without `use_global_stats`, mean and variance are the batch's: over all
    axes of x except `axis`, with the variance divided by n, the number of elements in a channel.
    Otherwise they are the moving statistics `mean` and `var`.

    x: any shape with C channels on `axis` (default 1, as in (N, C, *size); -1 for (N, *size, C)).
    gamma, beta: (C,), or None for 1 and 0. `fix_gamma` treats gamma as 1.
    mean, var: (C,), the moving statistics; may be None if the batch's statistics are used.
    eps: added to the variance. If it and a batch's variance are both 0, y is beta.
    statistics, momentum: how to update the moving statistics, if the batch's statistics are used:
        "torch"  old * (1-momentum) + batch * momentum, the variance divided by n-1; default 0.1;
        "mxnet"  old * momentum + batch * (1-momentum), the variance divided by n; default 0.9;
        `momentum` is from 0 to 1; None means the default.
    out: an array of x's shape and dtype for y, which may be x; or a `BatchNormResult` with arrays
        for any of the results. No other array of the caller is written.
        `out=BatchNormResult(moving_mean=mean, moving_var=var)` updates moving statistics in place.

    x is float16, bfloat16, float32 or float64, with any strides; the parameters have its dtype, or
    float32 with 16-bit x. Sums are in float64. In training, a NaN or an infinity makes the variance
    and y of its channel NaN. Without elements the moving statistics keep their values.

    On a GPU, cuDNN computes training, statistics are float32, and all results are new arrays.

    Returns a `BatchNormResult`: y; saved_mean and saved_invstd, for `batch_norm_backward`; and
    moving_mean and moving_var, new arrays, with the old values if the batch was not used.
    Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arguments that do not fit together, and
    for one element per channel in training with "torch"; `MemoryLimitError`.

    >>> import numpy as np
    >>> x = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> result = batch_norm(x, mean=np.zeros(2), var=np.ones(2), eps=0, training=True)
    >>> result.y, result.saved_mean, result.saved_invstd
    (array([[-1., -1.], [ 1.,  1.]]), array([ 2., 20.]), array([1. , 0.1]))
    >>> result.moving_mean, result.moving_var
    (array([0.2, 2. ]), array([ 1.1, 20.9]))
    """
    x = as_operand("x", x)
    if isinstance(x, DeviceArray) and out is not None:
        expected = "None: results on a GPU are new arrays"
        raise DTypeError("out", f"a {type(out).__name__}", expected, "Leave it out.")
    channel_axis = ChannelAxis.of(x, axis)
    rule, weight = moving_rule(statistics, momentum)
    named = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    parameters = {name: channel_axis.parameter(name, value) for name, value in named.items()}
    same_place({"x": x} | parameters)
    uses_batch = channel_axis.uses_batch(training, use_global_stats)
    if boolean("fix_gamma", fix_gamma):
        parameters["gamma"] = None
    if uses_batch:
        require_spread(channel_axis, rule)
    else:
        for name in ("mean", "var"):
            required(name, parameters[name], GIVEN)
    if isinstance(x, DeviceArray):
        return _on_device(x, channel_axis, parameters, epsilon(eps), uses_batch, rule, weight)
    moving = {k: value for k in ("mean", "var") if (value := parameters[k]) is not None}
    # Copies: `out` may be written before they are read.
    old = {f"moving_{name}": channel_axis.vector(value, 0) for name, value in moving.items()}
    dtypes = {"y": x.dtype} | dict.fromkeys(("saved_mean", "saved_invstd"), np.dtype(np.float64))
    dtypes |= {f"moving_{name}": value.dtype for name, value in moving.items()}
    passed, targets = _targets(out, channel_axis, dtypes)
    y = channel_axis.place("the result", targets.get("y"), (x,))
    eps, kind = epsilon(eps), channel_axis.dtype.accumulator.numpy
    channels = Channels.of(x, channel_axis.axis)
    with np.errstate(all="ignore"):  # overflow and NaN are results, not accidents
        matrix, result = channels.matrix(x), channels.matrix(y)
        batch_mean, batch_var = channels.moments(matrix) if uses_batch else old.values()
        invstd = inverse_deviation(batch_var, eps, batch=uses_batch)
        scale = channel_axis.vector(parameters["gamma"], 1) * invstd
        shift = channel_axis.vector(parameters["beta"], 0)
        channels.combine(result, matrix, affine(batch_mean, scale, shift, kind))
        channels.store(y, result)
        values: dict[str, Array] = {"y": y, "saved_mean": batch_mean, "saved_invstd": invstd}
        if not uses_batch or not channel_axis.count:  # a batch without elements has no statistics
            weight = 0.0
        variance = rule.variance(batch_var, channel_axis.count) if weight else batch_var
        batch = {"moving_mean": batch_mean, "moving_var": variance}
        for name, value in old.items():
            values[name] = moved(value, batch[name], weight).astype(dtypes[name])
        for name, value in values.items():
            delivered(value, targets.get(name))
    # Return the caller's objects, not views of them.
    return BatchNormResult(**{name: passed.get(name, value) for name, value in values.items()})


def _on_device(x: Any, *rest: Any) -> BatchNormResult:
    with importing:
        from . import on_device  # never loaded for arrays in main memory
    with x.library.on(x.device), out_of_memory(x.library, "the normalization"):
        return BatchNormResult(**on_device.batch_norm(x, *rest))


def _targets(
    out: object, channel_axis: ChannelAxis, dtypes: dict[str, np.dtype[Any]]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the arrays of `out` by the results' names, as passed and as checked."""
    if isinstance(out, np.ndarray):
        return {"y": out}, {"y": check_out("out", out, channel_axis.shape, dtypes["y"])}
    names = BatchNormResult._fields
    wanted = gradient_targets(names, BatchNormResult, names, out, accumulate=False)
    passed = {name: target for name, target in wanted.items() if target is not None}
    for name in passed.keys() - dtypes.keys():
        expected = f"None if {name.removeprefix('moving_')} is None"
        raise ArgumentError(f"out.{name}", "an array", expected, "Give both or neither.")
    return passed, fitting(passed, {name: channel_axis.shape_of(name) for name in passed}, dtypes)
