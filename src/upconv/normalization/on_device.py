"""Batch normalization of arrays on a GPU.

In training cuDNN computes, where it takes the layer: it wants a multiple of eight channels or so.
Elsewhere the arrays' own library adds up, in float64, and our kernel scales and shifts. Statistics
are float32 here, as cuDNN keeps them: on the processor they are float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..checks import boolean
from ..choices import engine_on
from ..devices import DeviceArray, same_place
from ..errors import ArgumentError, DTypeError, EngineRefusal, ShapeError
from ..gradients import gradient_targets
from .checks import (
    GIVEN,
    ChannelAxis,
    epsilon,
    moving_rule,
    require_like_x,
    require_spread,
    required,
)

_FLOAT32 = np.dtype(np.float32)


class _Layout:
    """x as the library counts it: (batch, channels, positions), contiguous, channels first or last.

    Channels on any other axis are brought to the first by a copy.
    """

    def __init__(self, x: DeviceArray, axis: int) -> None:
        self.last = axis == x.ndim - 1 and axis != 1
        others = [i for i in range(x.ndim) if i != axis]
        at = x.ndim - 1 if self.last else min(1, x.ndim - 1)
        self._order = (*others[:at], axis, *others[at:])
        self._back = tuple(self._order.index(i) for i in range(x.ndim))
        shape = tuple(x.shape[i] for i in self._order)
        rest = shape[1:-1] if self.last else shape[2:]
        positions = int(np.prod(rest, dtype=np.int64))
        self.sizes = shape[0] if x.ndim > 1 else 1, x.shape[axis], positions
        self.channel = at
        self.others = tuple(i for i in range(x.ndim) if i != at)
        self.along = tuple(-1 if i == at else 1 for i in range(x.ndim))

    def ready(self, array: DeviceArray) -> DeviceArray:
        """The array in the library's order."""
        ordered = array.transpose(self._order)
        return ordered if ordered.contiguous and ordered.pointer % 16 == 0 else ordered.copy()

    def back(self, array: DeviceArray) -> DeviceArray:
        """A result in the caller's order of axes."""
        return array.transpose(self._back)


def _engine(x: DeviceArray) -> Any:
    return engine_on(None, x.library, x.device)


def _floats(array: DeviceArray | None, like: DeviceArray, default: float) -> DeviceArray:
    """A per-channel array in float32; None is a default for all channels."""
    if array is not None:
        native = array.library.cast(array.native, _FLOAT32)
        vector = like.library.array("a parameter", native)
        return vector if vector.contiguous and vector.pointer % 16 == 0 else vector.copy()
    new = like.empty((like.shape[0],), _FLOAT32)
    new.native[...] = default
    return new


def _vector(x: DeviceArray, channels: int) -> DeviceArray:
    return x.empty((channels,), _FLOAT32)


def batch_norm(
    arrays: tuple[Any, ...], flags: tuple[Any, ...], eps: Any, momentum: Any, axis: Any,
    statistics: Any, out: Any,
) -> dict[str, Any]:  # fmt: skip
    """The results of `upconv.batch_norm` by their names, as arrays of x's library."""
    x, gamma, beta, mean, var = arrays
    training, fix_gamma, use_global_stats = flags
    if out is not None:
        expected = "None: results on a GPU are new arrays"
        raise DTypeError("out", f"a {type(out).__name__}", expected, "Leave it out.")
    channel = ChannelAxis.of(x, axis)
    rule, weight = moving_rule(statistics, momentum)
    named = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    parameters = {name: channel.parameter(name, value) for name, value in named.items()}
    same_place({"x": x} | parameters)
    uses_batch = channel.uses_batch(training, use_global_stats)
    if boolean("fix_gamma", fix_gamma):
        parameters["gamma"] = None
    like, eps = _vector(x, channel.channels), epsilon(eps)
    scale = _floats(parameters["gamma"], like, 1)  # type: ignore[arg-type]
    shift = _floats(parameters["beta"], like, 0)  # type: ignore[arg-type]
    layout = _Layout(x, channel.axis)
    moving = {name: parameters[name] for name in ("mean", "var")}
    if uses_batch:
        require_spread(channel, rule)
        if not channel.count:
            raise ShapeError("x.shape", str(x.shape), "elements to train on", "Pass some.")
        y, stats = _training(x, layout, scale, shift, eps)
        count = channel.count
        biased: Any = stats["batch_var"].native * ((count - 1) / count) if count > 1 else 0.0
        batch = {"mean": stats["batch_mean"].native, "var": rule.variance(biased, count)}
        saved = stats["mean"].native, stats["invstd"].native
    else:
        for name, value in moving.items():
            required(name, value, GIVEN)
        y, saved = _with_statistics(x, layout, scale, shift, moving, eps)
        batch, weight = {}, 0.0
    results = {"y": y.native, "saved_mean": saved[0], "saved_invstd": saved[1]}
    for name, old in moving.items():
        if old is not None:
            new = old.native * (1 - weight) + batch[name] * weight if weight else +old.native  # type: ignore[attr-defined]
            results[f"moving_{name}"] = x.library.cast(new, old.dtype)
    return _given_back(x, results)


def _given_back(x: DeviceArray, results: dict[str, Any]) -> dict[str, Any]:
    """The results as arrays of the caller's library."""
    back = x.given_back
    return results if back is None else {name: back(value) for name, value in results.items()}


def _training(
    x: DeviceArray, layout: _Layout, scale: DeviceArray, shift: DeviceArray, eps: float
) -> tuple[DeviceArray, dict[str, DeviceArray]]:
    ready, channels = layout.ready(x), scale.shape[0]
    y = x.empty(ready.shape)
    zeros = _floats(None, scale, 0)
    names = "mean", "invstd", "batch_mean", "batch_var"
    stats = {name: _vector(x, channels) for name in names}
    arrays = {"x": ready, "gamma": scale, "beta": shift, "old_mean": zeros, "old_var": zeros}
    try:
        _engine(x).normalize("forward", layout.sizes, layout.last, arrays | {"y": y} | stats, eps)
    except EngineRefusal:
        return _by_sums(ready, layout, scale, shift, eps)
    return layout.back(y), stats


def _by_sums(
    x: DeviceArray, layout: _Layout, scale: DeviceArray, shift: DeviceArray, eps: float
) -> tuple[DeviceArray, dict[str, DeviceArray]]:
    """`_training` by the library's sums, of x in the library's order."""
    count = x.size // scale.shape[0]
    values = x.library.cast(x.native, _FLOAT32)
    mean = x.library.sums(values, layout.others) / count
    spread = (values - mean.reshape(layout.along)) ** 2
    var = x.library.sums(spread, layout.others) / count
    unbiased = var * (count / (count - 1)) if count > 1 else var
    invstd = (var + eps) ** -0.5
    statistics_ = {"mean": mean, "invstd": invstd, "batch_mean": mean, "batch_var": unbiased}
    stats = {name: _float_vector(x, value) for name, value in statistics_.items()}
    y, slope = x.empty(x.shape), scale.native * invstd
    offset = shift.native - mean * slope
    _engine(x).scaled(y, x, _float_vector(x, slope), _float_vector(x, offset), layout.channel)
    return layout.back(y), stats


def _float_vector(x: DeviceArray, native: Any) -> DeviceArray:
    return x.library.array("a vector", x.library.cast(native, _FLOAT32))


def _with_statistics(
    x: DeviceArray, layout: _Layout, scale: DeviceArray, shift: DeviceArray, moving: Any, eps: float
) -> tuple[DeviceArray, tuple[Any, Any]]:
    mean, var = (_floats(moving[name], scale, 0).native for name in ("mean", "var"))
    invstd = (var + eps) ** -0.5
    vector = x.library.array
    slope = vector("scale", scale.native * invstd)
    offset = vector("shift", shift.native - mean * slope.native)
    ordered = layout.ready(x)
    y = x.empty(ordered.shape)
    _engine(x).scaled(y, ordered, slope, offset, layout.channel)
    return layout.back(y), (+mean, invstd)


def batch_norm_backward(
    given_arrays: tuple[Any, ...], flags: tuple[Any, ...],
    wanted_of: tuple[tuple[str, ...], type], eps: Any, axis: Any, needs: Iterable[str], out: Any,
    accumulate: Any,
) -> dict[str, Any]:  # fmt: skip
    """The results of `upconv.batch_norm_backward` by their names, as arrays of x's library."""
    grad, saved_mean, saved_invstd, x, gamma, beta, mean, var = given_arrays
    (training, fix_gamma, use_global_stats), (known, holder) = flags, wanted_of
    if out is not None or boolean("accumulate", accumulate):
        expected = "None: results on a GPU are new arrays"
        raise ArgumentError("out", "set", expected, "Leave it and accumulate out.")
    channel = ChannelAxis.of(x, axis)
    named = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    parameters = {name: channel.parameter(name, value) for name, value in named.items()}
    uses_batch = channel.uses_batch(training, use_global_stats)
    saved = {"saved_mean": saved_mean, "saved_invstd": saved_invstd}
    for name, value in saved.items():
        if uses_batch or value is not None:
            saved[name] = channel.parameter(name, required(name, value, _SAVED), any_type=True)
    same_place({"x": x, "grad": grad} | parameters | saved)
    require_like_x(grad, x)
    wanted = gradient_targets(known, holder, needs, None, accumulate=False)
    like, eps, fixed = _vector(x, channel.channels), epsilon(eps), boolean("fix_gamma", fix_gamma)
    scale = _floats(None if fixed else parameters["gamma"], like, 1)  # type: ignore[arg-type]
    layout = _Layout(x, channel.axis)
    if uses_batch:
        stats = [_floats(saved[name], like, 0) for name in saved]
        results = _training_gradients(x, grad, layout, scale, stats, eps)
    else:
        for name in ("mean", "var"):
            required(name, parameters[name], GIVEN)
        results = _gradients_with_statistics(x, grad, layout, scale, parameters, eps)
    if fixed:
        results["gamma"] = _floats(None, like, 0).native
    for name in ("gamma", "beta"):
        owner = parameters[name]
        kind = x.dtype if owner is None else owner.dtype
        results[name] = x.library.cast(results[name], kind)
    return _given_back(x, {name: results[name] for name in known if name in wanted})


_SAVED = "In training it is the forward's result: result.saved_mean, result.saved_invstd."


def _training_gradients(
    x: DeviceArray, grad: DeviceArray, layout: _Layout, scale: DeviceArray,
    stats: list[DeviceArray], eps: float,
) -> dict[str, Any]:  # fmt: skip
    ready, channels = layout.ready(x), scale.shape[0]
    dx, dgamma, dbeta = x.empty(ready.shape), _vector(x, channels), _vector(x, channels)
    arrays = {"x": ready, "grad": layout.ready(grad), "mean": stats[0], "invstd": stats[1]}
    arrays |= {"gamma": scale, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}
    try:
        _engine(x).normalize("backward", layout.sizes, layout.last, arrays, eps)
    except EngineRefusal:
        return _gradients_by_sums(ready, arrays["grad"], layout, scale, stats)
    return {"x": layout.back(dx).native, "gamma": dgamma.native, "beta": dbeta.native}


def _gradients_by_sums(
    x: DeviceArray, grad: DeviceArray, layout: _Layout, scale: DeviceArray,
    stats: list[DeviceArray],
) -> dict[str, Any]:  # fmt: skip
    """`_training_gradients` by the library's sums, of x and grad in the library's order.

    d_x = gamma * r * (g - mean(g) - xh * mean(g * xh)), as in `backward`.
    """
    mean, invstd = (statistic.native.reshape(layout.along) for statistic in stats)
    normal, products, total = _sums(x, grad, layout, mean, invstd)
    count = x.size // scale.shape[0]
    of_mean, of_products = (sums.reshape(layout.along) / count for sums in (total, products))
    g = x.library.cast(grad.native, _FLOAT32)
    dx = (scale.native.reshape(layout.along) * invstd) * (g - of_mean - normal * of_products)
    result = x.library.array("a gradient", x.library.cast(dx, x.dtype))
    return {"x": layout.back(result).native, "gamma": products, "beta": total}


def _sums(
    x: DeviceArray, grad: DeviceArray, layout: _Layout, mean: Any, invstd: Any
) -> tuple[Any, Any, Any]:
    """xh, and per channel the sums of g * xh and of g, in float64."""
    values, g = (x.library.cast(array.native, _FLOAT32) for array in (x, grad))
    normal = (values - mean) * invstd
    return normal, x.library.sums(g * normal, layout.others), x.library.sums(g, layout.others)


def _gradients_with_statistics(
    x: DeviceArray, grad: DeviceArray, layout: _Layout, scale: DeviceArray, moving: Any, eps: float
) -> dict[str, Any]:
    library, channel = x.library, layout.channel
    mean, var = (_floats(moving[name], scale, 0).native for name in ("mean", "var"))
    invstd = (var + eps) ** -0.5
    ready, g = layout.ready(x), layout.ready(grad)
    dx = x.empty(g.shape)
    slope = library.array("scale", scale.native * invstd)
    _engine(x).scaled(dx, g, slope, None, channel)
    along = (statistic.reshape(layout.along) for statistic in (mean, invstd))
    _, products, total = _sums(ready, g, layout, *along)
    return {"x": layout.back(dx).native, "gamma": products, "beta": total}
