"""The public function `batch_norm`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arguments import boolean
from ..arrays import Array, as_array, check_out
from ..engines.normalization import Moments, Normalization
from ..errors import ArgumentError, DTypeError
from ..gradients import require_separate
from .checks import Frame, epsilon, moving_rule, require_spread, required
from .results import BatchNormResult
from .running import apart, delivered, leased, new_like


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
    engine: str | None = None,
    out: Array | BatchNormResult | None = None,
) -> BatchNormResult:
    """Batch normalisation: y = gamma * (x - mean) / sqrt(var + eps) + beta, channel by channel.

    With `training`, and without `use_global_stats`, mean and variance are those of the batch: over
    all axes of x but `axis`, the variance divided by n, the elements of a channel. Otherwise they
    are the moving ones given as `mean` and `var`.

    x: any shape with C channels on `axis` (default 1, as in (N, C, *size); -1 for (N, *size, C)).
    gamma, beta: (C,), or None for 1 and 0. `fix_gamma` takes gamma for 1, whatever it holds.
    mean, var: (C,), the moving statistics; may be None where the batch's are used.
    eps: added to the variance. Where it and a batch's variance are both 0, y is beta.
    statistics, momentum: whose rule the new moving statistics follow, where the batch's were used:
        "torch"  old * (1-momentum) + batch * momentum, the variance divided by n-1; usually 0.1;
        "mxnet"  old * momentum + batch * (1-momentum), the variance divided by n; usually 0.9;
        `momentum` is from 0 to 1; None is the usual one.
    engine: None lets upconv choose; or the name of an engine.
    out: an array of x's shape and dtype for y, which may be x itself; or a `BatchNormResult` with
        arrays for any of the results. Nothing of the caller's is written otherwise: to have moving
        statistics updated in place say `out=BatchNormResult(moving_mean=mean, moving_var=var)`.

    x is float16, bfloat16, float32 or float64, of any strides; the parameters are of its dtype, or
    float32 with 16-bit x. Sums are kept in float64, by "onednn" in float32. In training a channel
    with a NaN or an infinity has NaN for its variance and its y. Where there are no elements at all
    the moving statistics stay as they are.

    Returns a `BatchNormResult`: y; saved_mean and saved_invstd, for `batch_norm_backward`; and
    moving_mean and moving_var, new arrays, with the values given where the batch was not used.
    Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arguments that do not fit together, and
    one element per channel in training with "torch"; `EngineRefusal`; `MemoryLimitError`.

    >>> import numpy as np
    >>> x = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> result = batch_norm(x, mean=np.zeros(2), var=np.ones(2), eps=0, training=True)
    >>> result.y, result.saved_mean, result.saved_invstd
    (array([[-1., -1.], [ 1.,  1.]]), array([ 2., 20.]), array([1. , 0.1]))
    >>> result.moving_mean, result.moving_var
    (array([0.2, 2. ]), array([ 1.1, 20.9]))
    """
    x = as_array("x", x)
    frame = Frame.of(x, axis)
    rule, weight = moving_rule(statistics, momentum)
    gamma, beta = frame.parameter("gamma", gamma), frame.parameter("beta", beta)
    old_mean, old_var = frame.parameter("mean", mean), frame.parameter("var", var)
    uses_batch = boolean("training", training)
    uses_batch = not boolean("use_global_stats", use_global_stats) and uses_batch
    if boolean("fix_gamma", fix_gamma):
        gamma = None
    if uses_batch:
        require_spread(frame, rule)
        given = None
    else:
        given = Moments(_moving(frame, "mean", old_mean), _moving(frame, "var", old_var))
    # Copies: what they lie in may be written before they are looked at.
    old = {
        name: _Moving(frame.vector(parameter, 0), parameter.dtype)
        for name, parameter in (("moving_mean", old_mean), ("moving_var", old_var))
        if parameter is not None
    }
    asked = _asked(out)
    targets = _targets(asked, "out" if isinstance(out, np.ndarray) else "out.y", frame, x, old)
    y = apart(targets["y"], (x,)) if "y" in targets else new_like(x, "the result")
    problem = Normalization(
        frame.shape, frame.axis, frame.dtype, (x.strides, y.strides), epsilon(eps), uses_batch
    )
    with leased(problem, engine) as primitive:
        moments = primitive.forward(y, x, frame.vector(gamma, 1), frame.vector(beta, 0), given)
    values: dict[str, Array] = {
        "y": y,
        "saved_mean": moments.mean,
        "saved_invstd": problem.inverse_deviation(moments.var),
    }
    weight = weight if uses_batch and frame.count else 0.0
    var = rule.variance(moments.var, frame.count) if weight else moments.var
    for name, batch in (("moving_mean", moments.mean), ("moving_var", var)):
        if name in old:
            values[name] = old[name].moved(batch, weight)
    for name, value in values.items():
        delivered(value, targets.get(name))
    # The very objects the caller passed, where some were passed.
    return BatchNormResult(
        **{name: asked.get(name, value) for name, value in values.items()},
    )


class _Moving(NamedTuple):
    """A moving statistic as it came: its values in float64, and its dtype."""

    values: Array
    dtype: np.dtype[Any]

    def moved(self, batch: Array, weight: float) -> Array:
        """What it is after a batch."""
        with np.errstate(all="ignore"):
            if weight:  # else a batch's NaN would get through with no weight
                return (self.values * (1 - weight) + batch * weight).astype(self.dtype)
            return self.values.astype(self.dtype)


def _moving(frame: Frame, name: str, parameter: Array | None) -> Array:
    """A moving statistic that is normalised with, in float64."""
    why = "Without training, or with use_global_stats, it is what x is normalised with."
    return frame.vector(required(name, parameter, why), 0)


def _asked(out: object) -> dict[str, Array]:
    """What `out` holds, by the names of the results."""
    given = BatchNormResult(y=out) if isinstance(out, np.ndarray) else out
    if given is not None and not isinstance(given, BatchNormResult):
        expected = "a numpy.ndarray for y, an upconv.BatchNormResult or None"
        raise DTypeError("out", f"of type {type(out).__name__}", expected, "Leave it out.")
    fields = (given or BatchNormResult())._asdict()
    return {name: target for name, target in fields.items() if target is not None}


def _targets(
    asked: dict[str, Array], name_of_y: str, frame: Frame, x: Array, old: dict[str, _Moving]
) -> dict[str, Array]:
    """The same arrays, each fit for its result."""
    double = np.dtype(np.float64)
    dtypes = {"y": x.dtype, "saved_mean": double, "saved_invstd": double}
    dtypes |= {name: moving.dtype for name, moving in old.items()}
    targets: dict[str, Array] = {}
    for name, target in asked.items():
        if name not in dtypes:
            expected = f"None where {name.removeprefix('moving_')} is"
            raise ArgumentError(f"out.{name}", "an array", expected, "Give both or neither.")
        argument = name_of_y if name == "y" else f"out.{name}"
        shape = frame.shape if name == "y" else (frame.channels,)
        targets[name] = check_out(argument, target, shape, dtypes[name])
    require_separate(targets)
    return targets
