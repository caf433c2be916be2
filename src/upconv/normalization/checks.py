"""Checks for batch normalization: axis, parameters, eps, momentum, rules and targets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from .. import memory
from ..argument_checks import boolean, frozen, number, one_of
from ..arrays import Array, copied, element_type, optional_operand, overlap, same_dtype
from ..errors import DTypeError, ShapeError, brief
from ..problem import DType

_MAX_VECTORS = 32
"""Upper bound on the per-channel float64 arrays that a call holds at any time."""


class Statistics(Enum):
    """The update rule for the moving statistics, by the name that users write.

    The rules weight old and new values differently, and PyTorch divides the variance by n - 1.
    """

    TORCH = "torch"
    MXNET = "mxnet"

    def variance(self, var: Array, count: int) -> Array:
        """Return the variance that the rule uses, given `count` elements' biased variance."""
        return var * (count / (count - 1)) if self is Statistics.TORCH else var


@dataclass(frozen=True, slots=True)
class ChannelAxis:
    """The channels of x: their axis, their number, the elements per channel, and the dtype."""

    shape: tuple[int, ...]
    axis: int
    channels: int
    count: int
    dtype: DType

    @classmethod
    def of(cls, x: Array, axis: object) -> ChannelAxis:
        """Return the channels of x; raises `ShapeError` if x lacks the axis or channels on it."""
        index = frozen("axis", axis, depth=0)
        if not isinstance(index, int):
            raise DTypeError("axis", brief(axis), "an integer", "It is the axis of the channels.")
        if not -x.ndim <= index < x.ndim:
            expected = f"an axis of x, whose shape is {x.shape}: from {-x.ndim} to {x.ndim - 1}"
            remedy = "It is the axis of the channels: 1 in (N, C, *size), -1 in (N, *size, C)."
            raise ShapeError("axis", brief(index), expected if x.ndim else "an axis of x", remedy)
        index %= x.ndim
        channels = x.shape[index]
        if channels < 1:
            expected = f"at least 1 channel on axis {index}"
            remedy = "Only the other axes may be empty."
            raise ShapeError("x.shape", str(x.shape), expected, remedy)
        memory.require(8 * _MAX_VECTORS * channels, f"computing statistics of {channels} channels")
        return cls(x.shape, index, channels, x.size // channels, element_type("x", x.dtype))

    def parameter(self, name: str, value: object, *, any_type: bool = False) -> Array | None:
        """Return a per-channel array, None for None; raise `ShapeError` or `DTypeError`."""
        where = f"one value per channel on axis {self.axis} of x"
        remedy = f"x is {self.shape}; axis= is the axis of its channels."
        dtype = None if any_type else self.dtype
        return per_channel(name, value, self.channels, "x", dtype, where, remedy)

    def uses_batch(self, training: object, use_global_stats: object) -> bool:
        """Return whether the batch's statistics are used."""
        asked = boolean("training", training)
        return not boolean("use_global_stats", use_global_stats) and asked

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a result: x's shape for x and y, else one value per channel."""
        return self.shape if name in ("x", "y") else (self.channels,)

    def place(self, purpose: str, target: Array | None, operands: tuple[Array, ...]) -> Array:
        """Return an array for a result like x (`operands[0]`): new, `target` or a copy of it.

        A new array has x's memory order. The target is copied if it partly overlaps an operand.
        It may be the operand itself: each element is read before it is written.
        """
        if target is None:
            name = f"{purpose}, of shape {self.shape},"
            memory.require(operands[0].nbytes, name)
            try:
                return np.empty_like(operands[0])
            except (MemoryError, ValueError) as error:
                raise memory.refused(name, error) from None
        others = [operand for operand in operands if not _is_same(target, operand)]
        return copied("a copy of out", target) if overlap(target, others) else target

    def vector(self, parameter: Array | None, default: float) -> Array:
        """Return a copy of a parameter in float64; None means `default` for every channel."""
        if parameter is None:
            return np.full(self.channels, default)
        return np.array(parameter, dtype=np.float64)


def per_channel(
    name: str, value: object, channels: int, owner: str, dtype: DType | None, where: str,
    remedy: str,
) -> Array | None:  # fmt: skip
    """Return an array with one value per channel, None for None.

    Its dtype is the `owner`'s or the accumulator's, or any floating type if `dtype` is None.
    """
    array = optional_operand(name, value)
    if array is None:
        return None
    if array.shape != (channels,):
        raise ShapeError(f"{name}.shape", str(array.shape), f"({channels},), {where}", remedy)
    if dtype is not None:
        allowed = {dtype.numpy, dtype.accumulator.numpy}
        if array.dtype not in allowed:
            kinds = " or ".join(sorted(map(str, allowed)))
            expected = f"{kinds}, as {owner} is {dtype.value}"
            remedy = f"Convert it, as in {name}.astype('{dtype.accumulator.value}')."
            raise DTypeError(f"{name}.dtype", str(array.dtype), expected, remedy)
    return array


def required(name: str, parameter: Array | None, why: str) -> Array:
    """Return a parameter that cannot be None here; raises `DTypeError` with the reason."""
    if parameter is None:
        raise DTypeError(name, "None", "an array with one value per channel", why)
    return parameter


def epsilon(value: object) -> float:
    """Return eps as a float."""
    remedy = "It is added to the variance; the default of PyTorch is 1e-5, of MXNet 1e-3."
    return number("eps", value, 0, remedy=remedy)


GIVEN = "Without training, or with use_global_stats, it normalizes x."
"""Why mean and var cannot be None."""

_RULES = "It names the rule by which moving statistics are updated."


def moving_rule(statistics: object, momentum: object) -> tuple[Statistics, float]:
    """Return the rule by its name, and the batch's weight."""
    rule = one_of("statistics", frozen("statistics", statistics), Statistics, _RULES)
    weighs_new = rule is Statistics.TORCH
    if momentum is None:
        momentum = 0.1 if weighs_new else 0.9  # the framework's default
    remedy = "It weighs the new statistics with statistics='torch', the old ones with 'mxnet'."
    weight = number("momentum", momentum, 0, 1, remedy)
    return rule, weight if weighs_new else 1 - weight


def moved(old: Any, batch: Any, weight: float) -> Any:
    """Return new moving statistics; with weight 0 the old ones, even if the batch has NaN."""
    return old * (1 - weight) + batch * weight if weight else +old


def require_spread(channel_axis: ChannelAxis, rule: Statistics) -> None:
    """Raise `ShapeError` for one element per channel: PyTorch's variance needs a second."""
    if rule is Statistics.TORCH and channel_axis.count == 1:
        raise ShapeError(
            "x.shape",
            f"{channel_axis.shape}, with 1 element per channel",
            "more than 1 for the unbiased variance of statistics='torch'",
            "Train on more elements, or use statistics='mxnet', whose variance is then 0.",
        )


def require_like_x(grad: Array, x: Array) -> None:
    """Raise unless the gradient of y has the shape and dtype of x."""
    same_dtype("x", x.dtype, "grad", grad.dtype)
    if grad.shape != x.shape:
        remedy = "It is the gradient of y."
        raise ShapeError("grad.shape", str(grad.shape), f"{x.shape}, the shape of x", remedy)


def _is_same(first: Array, second: Array) -> bool:
    same_place = first.__array_interface__["data"][0] == second.__array_interface__["data"][0]
    return same_place and first.shape == second.shape and first.strides == second.strides
