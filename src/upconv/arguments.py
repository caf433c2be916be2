"""Normalising what callers write, once, at the border.

Two steps. `frozen` makes a keyword hashable and exact in its types (so that 1, True and 1.0 are
never taken for one another); it runs on every call. The rest turns frozen keywords into axes,
enums and an epilogue; it runs once per signature, because `signatures` remembers its results.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from .activations import Activation
from .errors import ArgumentError, DTypeError, ShapeError, brief
from .geometry import LIMIT, Axis, centred, convolved, fitted, padded, same_padding, scaled, strided
from .problem import Epilogue

Frozen = Any
"""int | str | None | a tuple of those, at most two deep."""

_MOST_ENTRIES = 128
_LEAKY_SLOPE = 0.01  # the slope PyTorch, ONNX and Keras 2 take where none is given

Choice = TypeVar("Choice", bound=Enum)


def frozen(argument: str, value: object, depth: int = 2) -> Frozen:
    """`value` with lists and arrays as tuples and every integer a Python int.

    >>> frozen("padding", [(0, 1), np.array([2, 3])])
    ((0, 1), (2, 3))
    """
    if type(value) is int or value is None or type(value) is str or _is_frozen(value):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # str() of a member of an enum of strings is its name
    if isinstance(value, np.ndarray) and value.ndim and value.size <= _MOST_ENTRIES:
        value = value.tolist()
    if isinstance(value, list | tuple) and len(value) > _MOST_ENTRIES:
        got, expected = f"{len(value)} values", "an int, or one int per spatial axis"
        raise ArgumentError(argument, got, expected, _ONE_EACH)
    if isinstance(value, list | tuple) and depth:
        return tuple(frozen(f"{argument}[{i}]", entry, depth - 1) for i, entry in enumerate(value))
    refusal = DTypeError(
        argument,
        f"{brief(value)} ({type(value).__name__})",
        "an int, or a tuple of ints",
        "Convert it with int() if it is a whole number.",
    )
    if isinstance(value, bool | np.bool_):
        raise refusal
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # TypeError where there is no __index__, anything where it fails
        raise refusal from None


def _is_frozen(value: object) -> bool:
    """Whether `value` is a tuple of ints, or of tuples of ints: the forms met on most calls."""
    if type(value) is not tuple or len(value) > _MOST_ENTRIES:
        return False
    for entry in value:
        if type(entry) is not int and not (type(entry) is tuple and _only_integers(entry)):
            return False
    return True


def _only_integers(entries: tuple[object, ...]) -> bool:
    for entry in entries:
        if type(entry) is not int:
            return False
    return len(entries) <= _MOST_ENTRIES


def integers(argument: str, value: Frozen, rank: int, low: int) -> tuple[int, ...]:
    """One integer per axis, each >= `low`; a single one stands for all axes.

    >>> integers("stride", 2, rank=3, low=1)
    (2, 2, 2)
    """
    if isinstance(value, int):
        return (_bounded(argument, value, low),) * rank
    if not isinstance(value, tuple) or any(not isinstance(entry, int) for entry in value):
        raise ArgumentError(argument, brief(value), _FORMS.format(rank=rank), _ONE_EACH)
    if len(value) != rank:
        raise ArgumentError(argument, brief(value), _FORMS.format(rank=rank), _ONE_EACH)
    return tuple(_bounded(f"{argument}[{i}]", entry, low) for i, entry in enumerate(value))


def boolean(argument: str, value: object) -> bool:
    """`value` if it is True or False, else `DTypeError`: "no" and [0] are true to Python."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise DTypeError(argument, brief(value), "a bool", "Write True or False.")


_ONE_EACH = "One int stands for all axes."
_FORMS = "an int, or one int per spatial axis (the weight has {rank})"


class Same(Enum):
    """Padding by rule: which end the odd position goes to."""

    UPPER = "same_upper"
    LOWER = "same_lower"


Pairs = tuple[tuple[int, int], ...]


def paddings(value: Frozen, rank: int) -> Pairs | Same:
    """(begin, end) per axis, of either sign, or a rule.

    >>> paddings((1, (0, 2)), rank=2)
    ((1, 1), (0, 2))
    """
    if isinstance(value, str):
        return _named_padding(value, rank)
    if isinstance(value, int):
        value = (value,) * rank
    if not isinstance(value, tuple) or len(value) != rank:
        hint = "For one axis write ((begin, end),)." if rank == 1 else _PAIRS
        raise ArgumentError("padding", brief(value), _PADDING_FORMS.format(rank=rank), hint)
    return tuple(_pair(f"padding[{i}]", entry) for i, entry in enumerate(value))


_PAIRS = "Pairs are ((begin, end), ...), negative values add positions."
_PADDING_FORMS = (
    "an int, or one int or (begin, end) pair per spatial axis (the weight has {rank}), or 'valid',"
    " 'same_upper' or 'same_lower'"
)


def _named_padding(value: str, rank: int) -> Pairs | Same:
    if value == "valid":
        return ((0, 0),) * rank
    for rule in Same:
        if value == rule.value:
            return rule
    same = "'same' alone does not say which end gets the odd position."
    hint = same if value == "same" else _PAIRS
    raise ArgumentError("padding", brief(value), _PADDING_FORMS.format(rank=rank), hint)


def _pair(argument: str, entry: Frozen) -> tuple[int, int]:
    if isinstance(entry, int):
        entry = (entry, entry)
    if (
        not isinstance(entry, tuple)
        or len(entry) != 2
        or any(type(end) is not int for end in entry)
    ):
        raise ArgumentError(argument, brief(entry), "an int or a (begin, end) pair of ints", _PAIRS)
    begin, end = (_bounded(argument, value, -LIMIT) for value in entry)
    return begin, end


def _bounded(argument: str, value: int, low: int) -> int:
    if low <= value <= LIMIT:
        return value
    expected = f"an integer >= {low}" if value < low else f"an integer <= 2**48 = {LIMIT}"
    raise ArgumentError(argument, brief(value), expected, _REMEDIES[argument.partition("[")[0]])


_REMEDIES = {
    "stride": "Use 1 where nothing is to be upsampled.",
    "dilation": "Use 1 for a dense kernel.",
    "padding": "It counts positions cut off, below 0 positions added.",
    "output_padding": "To cut the end use padding=((begin, end), ...).",
    "output_size": "Leave it out for the size that follows from the rest.",
    "iterations": "Leave it out for a limit that follows from the size.",
    "length": "It is the number of inputs of the whole call whose bits are wanted.",
}


_LETTERS = "N is the batch, C channels, I and O channels in and out, X all spatial axes."


def one_of(argument: str, value: Frozen, kinds: type[Choice], remedy: str = _LETTERS) -> Choice:
    """The member of an enum that `value` spells.

    >>> one_of("padding", "same_lower", Same)
    <Same.LOWER: 'same_lower'>
    """
    for kind in kinds:
        if kind.value == value:
            return kind
    names = ", ".join(repr(kind.value) for kind in kinds)
    raise ArgumentError(argument, brief(value), f"one of {names}", remedy)


def epilogue(activation: Frozen, residual: bool) -> Epilogue:
    """An epilogue from None, a name, (name, slope) or "name:slope".

    >>> epilogue("leaky_relu:0.2", residual=False).slope
    0.2
    """
    if activation is None:
        return Epilogue(residual=residual)
    name, slope = activation, None
    if isinstance(activation, str) and ":" in activation:
        name, _, slope = activation.partition(":")
    elif isinstance(activation, tuple) and len(activation) == 2:
        name, slope = activation
    kinds = [kind for kind in Activation if kind.value == name and name]
    if not kinds:
        raise ArgumentError("activation", brief(activation), _ACTIVATIONS, _OTHERS)
    if kinds[0] is not Activation.LEAKY_RELU:
        if slope is not None:
            expected = f"{name!r} alone: it has no slope"
            raise ArgumentError("activation", brief(activation), expected, "Leave the slope out.")
        return Epilogue(kinds[0], residual=residual)
    factor = _LEAKY_SLOPE if slope is None else _slope(slope)
    return Epilogue(Activation.LEAKY_RELU, factor, residual)


def frozen_activation(value: object) -> Frozen:
    """`value` made hashable; what it means is for `epilogue` to say."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], str):
        return (str.__str__(value[0]), _slope(value[1]))
    got = f"{brief(value)} ({type(value).__name__})"
    raise DTypeError("activation", got, _ACTIVATIONS, _OTHERS)


_SLOPE = "It is the factor of negative values, as in ('leaky_relu', 0.2)."


def _slope(value: object) -> float:
    expected = "a finite number"
    if isinstance(value, bool) or not isinstance(value, str | int | float | np.number):
        got = f"{brief(value)} ({type(value).__name__})"
        raise DTypeError("activation slope", got, expected, _SLOPE)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError("activation slope", brief(value), expected, _SLOPE) from None


_OTHERS = "Apply any other function to the result."
_ACTIVATIONS = (
    "None or one of "
    + ", ".join(repr(kind.value) for kind in Activation if kind.value)
    + "; leaky_relu also as ('leaky_relu', slope)"
)


def transposed_axes(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Frozen,
    padding: Frozen,
    output_padding: Frozen,
    dilation: Frozen,
    output_size: Frozen,
) -> tuple[Axis, ...]:
    """The axes of a transposed convolution as `conv_transpose` spells them.

    1. "same_upper"/"same_lower": out = output_size, or size*stride; the total crop, output padding
       added, is shared out (ONNX from opset 11; `geometry.centred`).
    2. output_size: begin is cut as given, the end so that the size comes out.
    3. otherwise begin and end are cut as given and output padding extends the end.

    Raises `ArgumentError` where output_size and output_padding both speak of the size, differently.
    """
    rank = len(kernel)
    strides, dilations = (
        integers("stride", stride, rank, 1),
        integers("dilation", dilation, rank, 1),
    )
    extra = integers("output_padding", output_padding, rank, 0)
    pairs = paddings(padding, rank)
    wanted = None if output_size is None else integers("output_size", output_size, rank, 0)
    if wanted is not None and any(extra):
        raise ArgumentError(
            "output_padding",
            brief(output_padding),
            f"0 when output_size is given ({brief(output_size)})",
            "output_size fixes the end; for ONNX's rule see dialects.from_onnx.",
        )
    axes = []
    for i, (n, k, s, d) in enumerate(zip(size, kernel, strides, dilations, strict=True)):
        try:
            if isinstance(pairs, Same):
                out = scaled(n, s) if wanted is None else wanted[i]
                upper = pairs is Same.UPPER
                axis = centred(n, k, s, d, out, upper=upper, output_padding=extra[i])
            elif wanted is not None:
                axis = fitted(n, k, s, d, pairs[i][0], wanted[i])
            else:
                axis = padded(n, k, s, d, *pairs[i], extra[i])
        except ArgumentError as error:
            raise _on_axis(i, error) from None
        axes.append(axis)
    return tuple(axes)


def convolved_axes(
    size: Sequence[int], kernel: Sequence[int], stride: Frozen, padding: Frozen, dilation: Frozen
) -> tuple[Axis, ...]:
    """The axes of the transposed convolution whose input gradient is `conv` on `size` positions."""
    rank = len(kernel)
    strides, dilations = (
        integers("stride", stride, rank, 1),
        integers("dilation", dilation, rank, 1),
    )
    pairs = paddings(padding, rank)
    axes = []
    for i, (n, k, s, d) in enumerate(zip(size, kernel, strides, dilations, strict=True)):
        try:
            if isinstance(pairs, Same):
                begin, _ = same_padding(n, k, s, d, upper=pairs is Same.UPPER)
                axes.append(fitted(strided(n, s), k, s, d, begin, n))
            else:
                axes.append(convolved(n, k, s, d, *pairs[i]))
        except ArgumentError as error:
            raise _on_axis(i, error) from None
    return tuple(axes)


def _on_axis(i: int, error: ArgumentError) -> ShapeError:
    """The same error, saying which spatial axis it is about."""
    name = f"spatial axis {i}: {error.argument}"
    return ShapeError(name, error.got, error.expected, error.remedy)
