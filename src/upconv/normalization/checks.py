"""The checks of a batch normalisation: axis, parameters, eps, momentum, rules and targets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from .. import memory
from ..arrays import Array, copied, element_type, optional_array, overlap
from ..checks import boolean, frozen, number, one_of
from ..errors import DTypeError, ShapeError, brief
from ..problem import DType

_MOST_VECTORS = 32
"""Per-channel arrays of float64 that a call has at a time, at most."""


class Statistics(Enum):
    """Whose rule the moving statistics follow; the value is what users write.

    The rules weigh old and new differently, and PyTorch's variance divides by n - 1.
    """

    TORCH = "torch"
    MXNET = "mxnet"

    @property
    def usual_momentum(self) -> float:
        """What the framework takes where no momentum is given."""
        return 0.1 if self is Statistics.TORCH else 0.9

    def new_weight(self, momentum: float) -> float:
        """The weight of the batch's statistics; the old ones get the rest."""
        return momentum if self is Statistics.TORCH else 1 - momentum

    def variance(self, var: Array, count: int) -> Array:
        """What goes into the moving variance, of the biased variance of `count` elements."""
        return var * (count / (count - 1)) if self is Statistics.TORCH else var


@dataclass(frozen=True, slots=True)
class ChannelAxis:
    """x seen as channels: which axis is theirs, how many there are, elements of each, the dtype."""

    shape: tuple[int, ...]
    axis: int
    channels: int
    count: int
    dtype: DType

    @classmethod
    def of(cls, x: Array, axis: object) -> ChannelAxis:
        """The channel axis of x; `ShapeError` where the axis, or channels on it, are missing."""
        where = frozen("axis", axis, depth=0)
        if not isinstance(where, int):
            raise DTypeError("axis", brief(axis), "an integer", "It is the axis of the channels.")
        if not -x.ndim <= where < x.ndim:
            expected = f"an axis of x, whose shape is {x.shape}: from {-x.ndim} to {x.ndim - 1}"
            remedy = "It is the axis of the channels: 1 in (N, C, *size), -1 in (N, *size, C)."
            raise ShapeError("axis", brief(where), expected if x.ndim else "an axis of x", remedy)
        where %= x.ndim
        channels = x.shape[where]
        if channels < 1:
            expected = f"at least 1 channel on axis {where}"
            remedy = "Only the other axes may be empty."
            raise ShapeError("x.shape", str(x.shape), expected, remedy)
        memory.require(8 * _MOST_VECTORS * channels, f"statistics of {channels} channels")
        return cls(x.shape, where, channels, x.size // channels, element_type("x", x.dtype))

    def parameter(self, name: str, value: object, *, any_type: bool = False) -> Array | None:
        """A per-channel array of the caller's, None for None; `ShapeError`, `DTypeError`."""
        where = f"one value per channel on axis {self.axis} of x"
        remedy = f"x is {self.shape}: say which axis holds the channels (axis=)."
        kind = None if any_type else Owner("x", self.dtype)
        return per_channel(name, value, self.channels, kind, where, remedy)

    def uses_batch(self, training: object, use_global_stats: object) -> bool:
        """Whether the statistics are the batch's own."""
        asked = boolean("training", training)
        return not boolean("use_global_stats", use_global_stats) and asked

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a result: x's for those that are like x, else one value per channel."""
        return self.shape if name in ("x", "y") else (self.channels,)

    def statistics(
        self, names: tuple[str, str], given: tuple[Array | None, Array | None], why: str
    ) -> tuple[Array, Array]:
        """Two parameters that cannot be None here, in float64."""
        first, second = map(required, names, given, (why, why))
        return self.vector(first, 0), self.vector(second, 0)

    def place(self, purpose: str, target: Array | None, operands: tuple[Array, ...]) -> Array:
        """Where to compute a result like x, `operands[0]`: a new array, its axes in the order of
        x's, or `target`, or a copy of it where it overlaps an operand and is not that very array.

        An element of each operand is read before that place of the target is written.
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
        """A parameter in float64, in memory of its own; `default` in every place for None."""
        if parameter is None:
            return np.full(self.channels, default)
        return np.array(parameter, dtype=np.float64)


class Owner(NamedTuple):
    """The array whose dtype a parameter has to follow."""

    name: str
    dtype: DType


def per_channel(
    name: str, value: object, channels: int, owner: Owner | None, where: str, remedy: str
) -> Array | None:
    """An array with one value per channel, None for None; any floating type without an `owner`."""
    array = optional_array(name, value)
    if array is None:
        return None
    if array.shape != (channels,):
        raise ShapeError(f"{name}.shape", str(array.shape), f"({channels},), {where}", remedy)
    if owner is not None:
        allowed = {owner.dtype.numpy, owner.dtype.accumulator.numpy}
        if array.dtype not in allowed:
            kinds = " or ".join(sorted(map(str, allowed)))
            expected = f"{kinds}, {owner.name} being {owner.dtype.value}"
            remedy = f"Convert it, as in {name}.astype('{owner.dtype.accumulator.value}')."
            raise DTypeError(f"{name}.dtype", str(array.dtype), expected, remedy)
    return array


def required(name: str, parameter: Array | None, why: str) -> Array:
    """A parameter that cannot be None here; `DTypeError` with the reason."""
    if parameter is None:
        raise DTypeError(name, "None", "an array with one value per channel", why)
    return parameter


def epsilon(value: object) -> float:
    """eps as a float."""
    remedy = "It is added to the variance; PyTorch takes 1e-5, MXNet's operator 1e-3."
    return number("eps", value, 0, remedy=remedy)


GIVEN = "Without training, or with use_global_stats, it is what x is normalised with."
"""Why mean and var cannot be None."""

_RULES = "It names the rule by which moving statistics are updated."


def moving_rule(statistics: object, momentum: object) -> tuple[Statistics, float]:
    """The rule by its name, and the weight it gives to the batch."""
    rule = one_of("statistics", frozen("statistics", statistics), Statistics, _RULES)
    if momentum is None:
        momentum = rule.usual_momentum
    remedy = "It weighs the new statistics with statistics='torch', the old ones with 'mxnet'."
    given = number("momentum", momentum, 0, 1, remedy)
    return rule, rule.new_weight(given)


def require_spread(channel_axis: ChannelAxis, rule: Statistics) -> None:
    """PyTorch's variance needs a second element."""
    if rule is Statistics.TORCH and channel_axis.count == 1:
        raise ShapeError(
            "x.shape",
            f"{channel_axis.shape}, with 1 element per channel",
            "more than 1 for the unbiased variance of statistics='torch'",
            "Train on more elements, or take statistics='mxnet', whose variance is then 0.",
        )


def _is_same(first: Array, second: Array) -> bool:
    same_place = first.__array_interface__["data"][0] == second.__array_interface__["data"][0]
    return same_place and first.shape == second.shape and first.strides == second.strides
