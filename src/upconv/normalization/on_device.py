"""Batch normalization of GPU arrays.

cuDNN computes training if it supports the layer, typically for a multiple of eight channels. In
other cases the array library computes sums in float64, and upconv's kernel scales and shifts.
Statistics are float32 here, as in cuDNN; on the processor they are float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..devices import DeviceArray
from ..engine_choice import engine_on
from ..errors import EngineRefusal, ShapeError
from .checks import ChannelAxis, Statistics, moved

_FLOAT32 = np.dtype(np.float32)


class _Layout:
    """The form of x for cuDNN: (batch, channels, positions), contiguous, channels first or last.

    Channels on any other axis are moved to the front by a copy.
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
        """Return the array in cuDNN's order."""
        ordered = array.transpose(self._order)
        return ordered if ordered.contiguous and ordered.pointer % 16 == 0 else ordered.copy()

    def back(self, array: DeviceArray) -> DeviceArray:
        """Return a result in the caller's order of axes."""
        return array.transpose(self._back)


def _engine(x: DeviceArray) -> Any:
    return engine_on(None, x.library, x.device)


def _empty(x: DeviceArray, channels: int) -> DeviceArray:
    """Return a new per-channel array in float32."""
    return x.empty((channels,), _FLOAT32)


def _vector(x: DeviceArray, native: Any) -> DeviceArray:
    return x.library.array("a vector", x.library.cast(native, _FLOAT32))


def _floats(x: DeviceArray, array: Any, channels: int, default: float = 0) -> DeviceArray:
    """Return a per-channel array in float32; None means `default` in every channel."""
    if array is not None:
        vector = _vector(x, array.native)
        return vector if vector.contiguous and vector.pointer % 16 == 0 else vector.copy()
    new = _empty(x, channels)
    new.native[...] = default
    return new


def _given_back(x: DeviceArray, results: dict[str, Any]) -> dict[str, Any]:
    """Return the results as arrays of the caller's library."""
    back = x.given_back
    return results if back is None else {name: back(value) for name, value in results.items()}


def batch_norm(
    x: DeviceArray, channel: ChannelAxis, parameters: Mapping[str, Any], eps: float,
    uses_batch: bool, rule: Statistics, weight: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the results of `upconv.batch_norm` by name, as arrays of x's library."""
    channels = channel.channels
    scale = _floats(x, parameters["gamma"], channels, 1)
    shift = _floats(x, parameters["beta"], channels)
    layout, count, batch = _Layout(x, channel.axis), channel.count, dict[str, Any]()
    ready = layout.ready(x)
    if uses_batch:
        if not count:
            raise ShapeError("x.shape", str(x.shape), "elements to train on", "Pass some.")
        y, stats = _training(ready, layout, scale, shift, eps)
        biased: Any = stats["batch_var"].native * ((count - 1) / count) if count > 1 else 0.0
        batch = {"mean": stats["batch_mean"].native, "var": rule.variance(biased, count)}
        saved = stats["mean"].native, stats["invstd"].native
    else:
        mean, var = (_floats(x, parameters[name], channels).native for name in ("mean", "var"))
        weight, saved = 0.0, (+mean, (var + eps) ** -0.5)
        y = _scale_shift(ready, layout, scale, shift, *saved)
    results = {"y": layout.back(y).native, "saved_mean": saved[0], "saved_invstd": saved[1]}
    for name in ("mean", "var"):
        old = parameters[name]
        if old is not None:
            new = moved(old.native, batch.get(name), weight)
            results[f"moving_{name}"] = x.library.cast(new, old.dtype)
    return _given_back(x, results)


def _training(
    x: DeviceArray, layout: _Layout, scale: DeviceArray, shift: DeviceArray, eps: float
) -> tuple[DeviceArray, dict[str, DeviceArray]]:
    """Return y and the statistics of x, given in cuDNN's order; `batch_var` is divided by n-1."""
    y, channels = x.empty(x.shape), scale.shape[0]
    zeros = _floats(x, None, channels)
    stats = {name: _empty(x, channels) for name in ("mean", "invstd", "batch_mean", "batch_var")}
    arrays = {"x": x, "gamma": scale, "beta": shift, "old_mean": zeros, "old_var": zeros}
    try:
        _engine(x).normalize("forward", layout.sizes, layout.last, arrays | {"y": y} | stats, eps)
    except EngineRefusal:
        count = x.size // channels
        values = x.library.cast(x.native, _FLOAT32)
        mean = x.library.sums(values, layout.others) / count
        spread = (values - mean.reshape(layout.along)) ** 2
        var = x.library.sums(spread, layout.others) / count
        unbiased = var * (count / (count - 1)) if count > 1 else var
        invstd = (var + eps) ** -0.5
        natives = mean, invstd, mean, unbiased
        stats = {name: _vector(x, value) for name, value in zip(stats, natives, strict=True)}
        y = _scale_shift(x, layout, scale, shift, mean, invstd)
    return y, stats


def _scale_shift(
    x: DeviceArray, layout: _Layout, scale: DeviceArray, shift: DeviceArray, mean: Any, invstd: Any
) -> DeviceArray:
    """Compute (x - mean) * invstd * scale + shift with upconv's kernel, x in cuDNN's order."""
    y, slope = x.empty(x.shape), scale.native * invstd
    offset = shift.native - mean * slope
    _engine(x).scale_shift(y, x, _vector(x, slope), _vector(x, offset), layout.channel)
    return y


def batch_norm_backward(
    channel: ChannelAxis, x: DeviceArray, grad: DeviceArray, gamma: Any, statistics: Sequence[Any],
    targets: Mapping[str, Any], dtypes: Mapping[str, np.dtype[Any]], *, eps: float,
    uses_batch: bool, fixed: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the results of `upconv.batch_norm_backward` by name, as arrays of x's library."""
    channels = channel.channels
    scale = _floats(x, None if fixed else gamma, channels, 1)
    mean, invstd = (_floats(x, statistic, channels) for statistic in statistics)
    layout = _Layout(x, channel.axis)
    operands = layout.ready(x), layout.ready(grad), layout, scale, mean
    if uses_batch:
        results = _training_gradients(*operands, invstd, eps)
    else:
        invstd = _vector(x, (invstd.native + eps) ** -0.5)
        results = _gradients_by_sums(*operands, invstd, uses_batch=False)
    results["x"] = layout.back(results["x"])
    if fixed:
        results["gamma"] = _floats(x, None, channels)
    cast = x.library.cast
    return _given_back(x, {name: cast(results[name].native, dtypes[name]) for name in targets})


def _training_gradients(
    x: DeviceArray, grad: DeviceArray, layout: _Layout, scale: DeviceArray, mean: DeviceArray,
    invstd: DeviceArray, eps: float,
) -> dict[str, DeviceArray]:  # fmt: skip
    """Return the gradients if the statistics depend on x; x and grad are in cuDNN's order."""
    dx, dgamma, dbeta = x.empty(x.shape), *(_empty(x, scale.shape[0]) for _ in range(2))
    arrays = {"x": x, "grad": grad, "mean": mean, "invstd": invstd}
    arrays |= {"gamma": scale, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}
    try:
        _engine(x).normalize("backward", layout.sizes, layout.last, arrays, eps)
    except EngineRefusal:
        return _gradients_by_sums(x, grad, layout, scale, mean, invstd, uses_batch=True)
    return {"x": dx, "gamma": dgamma, "beta": dbeta}


def _gradients_by_sums(
    x: DeviceArray, grad: DeviceArray, layout: _Layout, scale: DeviceArray, mean: DeviceArray,
    invstd: DeviceArray, *, uses_batch: bool,
) -> dict[str, DeviceArray]:  # fmt: skip
    """Return the gradients from the array library's sums, as in `backward`; `normal` is xh."""
    library, along = x.library, layout.along
    values, g = (library.cast(array.native, _FLOAT32) for array in (x, grad))
    normal = (values - mean.native.reshape(along)) * invstd.native.reshape(along)
    products, total = (library.sums(terms, layout.others) for terms in (g * normal, g))
    slope = scale.native * invstd.native
    if uses_batch:
        count = x.size // scale.shape[0]
        of_mean, of_products = (sums.reshape(along) / count for sums in (total, products))
        native = slope.reshape(along) * (g - of_mean - normal * of_products)
        dx = library.array("a gradient", library.cast(native, x.dtype))
    else:
        dx = x.empty(grad.shape)
        _engine(x).scale_shift(dx, grad, _vector(x, slope), None, layout.channel)
    return {
        "x": dx,
        "gamma": library.array("a sum", products),
        "beta": library.array("a sum", total),
    }
