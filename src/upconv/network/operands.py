"""Operands of the builder's methods: weights, numbers per channel, activations, numbers per axis.

Methods copy arrays as float32, so changing an array later does not affect the network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..arrays import as_array, converted, copied
from ..checks import frozen, integer, number
from ..errors import ArgumentError, ShapeError, brief
from .graph import Array, Chain, Op
from .kinds import OpenShape, described_shape

_NAMES = (
    "relu", "relu6", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "hard_swish", "softplus",
    "mish", "abs", "exp", "sin", "cos", "square", "sqrt",
)  # fmt: skip
_CHAINS: dict[str, tuple[tuple[str, float | None], ...]] = {
    "hard_sigmoid": (("mul", 1 / 6), ("add", 0.5), ("maximum", 0.0), ("minimum", 1.0)),
    "log_sigmoid": (("mul", -1.0), ("softplus", None), ("mul", -1.0)),
    "selu": (("elu", 1.6732632423543772), ("mul", 1.0507009873554805)),
}
"""Activations that are chains of other operations."""
_NUMBERS = {"leaky_relu": 0.01, "elu": 1.0}
"""Activation with a number -> the number's default."""
_ARRAYS = ("prelu", "snake")
Pairs = tuple[tuple[int, int], ...]


def array_of(argument: str, value: object) -> Array:
    """Copy an array of finite numbers as read-only float32."""
    array = as_array(argument, value)
    same = array.dtype == np.float32
    result = copied(argument, array) if same else converted(argument, array, np.float32)
    if not np.isfinite(result).all():
        where = tuple(map(int, np.argwhere(~np.isfinite(result))[0]))
        remedy = "Infinity or NaN in a weight would spread to every result."
        expected = "numbers that are finite in float32"
        raise ArgumentError(argument, f"{array[where]} at {where}", expected, remedy)
    result.flags.writeable = False
    return result


def per_channel(argument: str, value: object, channels: int) -> Array:
    """Copy an array with one finite number per channel as read-only float32."""
    result = array_of(argument, value)
    if result.shape != (channels,):
        expected = f"({channels},), one number per channel"
        remedy = "Flatten it, as in values.reshape(-1), if it has more axes."
        raise ShapeError(f"{argument}.shape", str(result.shape), expected, remedy)
    return result


def scale_and_offset(scale: object, offset: object, channels: int) -> Chain:
    """Return the chain that multiplies by a scale and adds an offset, each per channel or None."""
    operands = (("mul", "scale", scale), ("add", "offset", offset))
    return tuple(
        Op(name, per_channel(argument, value, channels))
        for name, argument, value in operands
        if value is not None
    )


def batch_norm_chain(
    scale: object, offset: object, mean: object, variance: object, epsilon: object, channels: int
) -> Chain:
    """Return a batch norm's chain: a factor and a term per channel, computed in float64."""
    average = per_channel("mean", mean, channels).astype(np.float64)
    total = per_channel("variance", variance, channels) + number("epsilon", epsilon, 0)
    if (total <= 0).any():
        got = f"{total.min():g} in channel {total.argmin()}, including epsilon"
        raise ArgumentError("variance", got, "more than 0")
    factor = 1 if scale is None else per_channel("scale", scale, channels)
    factor = factor / np.sqrt(total.astype(np.float64))
    term = 0 if offset is None else per_channel("offset", offset, channels)
    return scale_and_offset(factor, term - average * factor, channels)


def activation_chain(value: object, channels: int) -> Chain:
    """Return the chain of an activation: None, a name, or (name, operand)."""
    if value is None:
        return ()
    name, operand = value if isinstance(value, tuple | list) and len(value) == 2 else (value, None)
    if isinstance(name, str) and name in _NAMES and operand is None:
        return (Op(name),)
    if isinstance(name, str) and name in _CHAINS and operand is None:
        return tuple(Op(*pair) for pair in _CHAINS[name])
    if isinstance(name, str) and name in _NUMBERS:
        plain = operand is None
        return (Op(name, _NUMBERS[name] if plain else number(f"the number of {name}", operand)),)
    if isinstance(name, str) and name in _ARRAYS and operand is not None:
        return (_with_array(name, operand, channels),)
    expected = f"one of {', '.join(map(repr, (*_NAMES, *_CHAINS, *_NUMBERS, *_ARRAYS)))}"
    remedy = "Write ('leaky_relu', 0.1), ('elu', 1.0), ('prelu', array) or ('snake', array)."
    raise ArgumentError("activation", brief(value), expected, remedy)


def with_constant(name: str, operand: float | Array) -> Op:
    """Return an operation with a constant operand, as a sum or product if possible."""
    if name == "sub":
        return Op("add", -operand)
    if name != "div":
        return Op(name, operand)
    if not np.all(operand):
        raise ArgumentError("y", "0", "numbers other than 0, since x is divided by them")
    inverse = 1 / np.asarray(operand, np.float64)
    return Op("mul", inverse.astype(np.float32) if inverse.ndim else float(inverse))


def one_or_all(name: str, shape: OpenShape, other: OpenShape) -> None:
    """Refuse to broadcast along only some spatial axes, or both values at once."""
    pairs = list(zip(shape, other, strict=True))
    some = [b == 1 for a, b in pairs[2:] if a != 1]
    if any(a == 1 != b for a, b in pairs) or (any(some) and not all(some)):
        got = f"{described_shape(other)} and {described_shape(shape)}"
        expected = "one value with extent 1 along all spatial axes, the channels or the batch"
        remedy = "Upsample it along the other axes first."
        raise ShapeError(f"the shapes in {name}", got, expected, remedy)


def _with_array(name: str, operand: object, channels: int) -> Op:
    argument = f"the array of {name}"
    if name == "prelu" and getattr(operand, "shape", None) == (1,) != (channels,):
        return Op("leaky_relu", float(array_of(argument, operand)[0]))  # one slope for all
    array = per_channel(argument, operand, channels)
    if name == "snake" and not array.all():
        remedy = "Add a small number, as models usually do before dividing."
        raise ArgumentError(
            argument, f"0 at {(array == 0).argmax()}", "numbers other than 0", remedy
        )
    return Op(name, array)


def numbers(argument: str, value: object) -> tuple[int, ...]:
    """Check and return a nonempty sequence of integers, each at least 0."""
    entries = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
    if not isinstance(entries, list | tuple | range) or not entries:
        raise ArgumentError(argument, brief(value), "a list of at least one number")
    return tuple(integer(f"{argument}[{i}]", entry, 0) for i, entry in enumerate(entries))


def per_axis(argument: str, value: object, rank: int, low: int) -> tuple[int, ...]:
    """Return an integer per spatial axis, each at least `low`; a single int means all axes."""
    entries = _entries(argument, value, rank, "an int, or one int")
    return tuple(integer(f"{argument}[{axis}]", entry, low) for axis, entry in enumerate(entries))


def pairs(argument: str, value: object, rank: int, low: int) -> Pairs:
    """Return a (begin, end) pair per spatial axis; an int means both ends, or all axes."""
    form = "an int, or one int or (begin, end)"
    result = []
    for axis, entry in enumerate(_entries(argument, value, rank, form)):
        ends = entry if isinstance(entry, tuple) else (entry, entry)
        if len(ends) != 2:
            raise ArgumentError(f"{argument}[{axis}]", brief(entry), "an int or (begin, end)")
        begin, end = (integer(f"{argument}[{axis}]", amount, low) for amount in ends)
        result.append((begin, end))
    return tuple(result)


def _entries(argument: str, value: object, rank: int, form: str) -> tuple[object, ...]:
    entries = frozen(argument, value)
    entries = (entries,) * rank if isinstance(entries, int) else entries
    if not isinstance(entries, tuple) or len(entries) != rank:
        expected = f"{form} per spatial axis (x has {rank})"
        remedy = "For one axis write (value,)." if rank == 1 else ""
        raise ArgumentError(argument, brief(value), expected, remedy)
    return entries


def window_padding(value: object, kernel: tuple[int, ...]) -> Pairs:
    """Return a pool's padding; raise if a window could consist of padding only."""
    padding = pairs("padding", value, len(kernel), 0)
    for axis, (ends, taps) in enumerate(zip(padding, kernel, strict=True)):
        if max(ends) >= taps:
            raise ArgumentError(f"padding[{axis}]", str(max(ends)), f"less than the kernel, {taps}")
    return padding


def one_each(argument: str, values: Sequence[object], names: Collection[str]) -> None:
    """Raise `ArgumentError` unless there is one value per name; `argument` names their number."""
    if len(values) != len(names):
        raise ArgumentError(argument, str(len(values)), f"{len(names)}: {', '.join(names)}")


def one_of(argument: str, value: object, names: Sequence[str]) -> None:
    """Raise `ArgumentError` unless a value is one of the names."""
    if not isinstance(value, str) or value not in names:
        raise ArgumentError(argument, brief(value), f"one of {', '.join(map(repr, names))}")
