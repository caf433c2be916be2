"""A layer's keywords, frozen to one hashable value and converted to axes and an epilogue.

`Keywords.of` runs on every call and checks types only. The other functions interpret frozen
keywords; they run when a call is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, TypeGuard

import numpy as np

from .activations import Activation
from .argument_checks import Frozen, frozen, integer
from .errors import ArgumentError, DTypeError, ShapeError, brief
from .geometry import LIMIT, Axis, centred, convolved, fitted, padded, same_padding, scaled, strided
from .problem import TF32, DType, Epilogue

_LEAKY_SLOPE = 0.01  # the default of PyTorch, ONNX and Keras 2


class Keywords(NamedTuple):
    """The frozen keywords of a call (a NamedTuple, since it is hashed on every call)."""

    stride: Frozen = 1
    padding: Frozen = 0
    output_padding: Frozen = 0
    dilation: Frozen = 1
    groups: Frozen = 1
    output_size: Frozen = None
    layout: Frozen = "NCX"
    weight_layout: Frozen = "IOX"
    precision: Frozen = None

    @classmethod
    def of(cls, *values: object) -> Keywords:
        """Freeze a caller's keywords, in the order of the fields; the last ones may be omitted.

        Raises `DTypeError` for a value that no keyword can have.
        """
        for value in values:  # most calls have nothing to freeze
            if type(value) not in _EXACT:
                return cls(*map(frozen, cls._fields, values))
        return tuple.__new__(cls, values) if len(values) == _COUNT else cls(*values)


_EXACT = (int, str, type(None))
_COUNT = len(Keywords._fields)


def rounds(precision: object, dtype: DType) -> bool:
    """Return whether a `precision` asks to round operands of `dtype` to bfloat16.

    Raises `ArgumentError` unless it is None or the dtype itself; float32 also allows bfloat16 and
    TF32.
    """
    if precision is None or precision == dtype.value:
        return False
    if precision == TF32 and dtype is DType.FLOAT32:
        return False
    if precision == DType.BFLOAT16.value and dtype is DType.FLOAT32:
        return True
    allowed = f"None or {dtype.value!r}, the arrays' own type"
    if dtype is DType.FLOAT32:
        allowed = "None, 'float32', 'bfloat16' or, on a GPU, 'tf32'"
    raise ArgumentError("precision", brief(precision), allowed, _PRECISION)


_PRECISION = "Only float32 operands can be rounded; convert other arrays with .astype(np.float32)."


def integers(argument: str, value: Frozen, rank: int, low: int) -> tuple[int, ...]:
    """Return one integer per axis, each >= `low`; a single one stands for all axes."""
    if isinstance(value, int):
        return (_bounded(argument, value, low),) * rank
    all_integers = isinstance(value, tuple) and all(isinstance(entry, int) for entry in value)
    if not all_integers or len(value) != rank:
        raise ArgumentError(argument, brief(value), _FORMS.format(rank=rank), _ONE_EACH)
    return tuple(_bounded(f"{argument}[{i}]", entry, low) for i, entry in enumerate(value))


_ONE_EACH = "One int stands for all axes."
_FORMS = "an int, or one int per spatial axis (the weight has {rank})"


class Same(Enum):
    """A padding rule; it decides which end gets the odd position."""

    UPPER = "same_upper"
    LOWER = "same_lower"


Pairs = tuple[tuple[int, int], ...]


def paddings(value: Frozen, rank: int) -> Pairs | Same:
    """Return (begin, end) per axis, of either sign, or a rule."""
    if isinstance(value, str):
        return _named_padding(value, rank)
    if isinstance(value, int):
        value = (value,) * rank
    if not isinstance(value, tuple) or len(value) != rank:
        hint = "For one axis write ((begin, end),)." if rank == 1 else _PAIRS
        raise ArgumentError("padding", brief(value), _PADDING_FORMS.format(rank=rank), hint)
    return tuple(_pair(f"padding[{i}]", entry) for i, entry in enumerate(value))


def paddings_of_stride_1(value: Frozen, kernel: Sequence[int], dilation: Sequence[int]) -> Pairs:
    """Return (begin, end) per axis of a stride-1 convolution, whose rules ignore the size."""
    pairs = paddings(value, len(kernel))
    if not isinstance(pairs, Same):
        return pairs
    upper, far = pairs is Same.UPPER, 1 << 40  # any size
    axes = zip(kernel, dilation, strict=True)
    return tuple(same_padding(far, k, 1, d, upper=upper) for k, d in axes)


_PAIRS = "Pairs are ((begin, end), ...); negative values add positions."
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
    if not isinstance(entry, tuple) or list(map(type, entry)) != [int, int]:
        raise ArgumentError(argument, brief(entry), "an int or a (begin, end) pair of ints", _PAIRS)
    begin, end = (_bounded(argument, value, -LIMIT) for value in entry)
    return begin, end


def _bounded(argument: str, value: int, low: int) -> int:
    return integer(argument, value, low, remedy=_REMEDIES[argument.partition("[")[0]])


_REMEDIES = {
    "stride": "Use 1 where nothing is to be upsampled.",
    "dilation": "Use 1 for a dense kernel.",
    "padding": "Positive values crop positions, negative values add them.",
    "output_padding": "To crop the end, use padding=((begin, end), ...).",
    "output_size": "Omit it to use the size that follows from the other arguments.",
    "iterations": "Omit it to use a limit that follows from the size.",
    "length": "It is the number of inputs of the whole call whose bits are to be reproduced.",
}


def epilogue(activation: Frozen, residual: bool) -> Epilogue:
    """Return an epilogue from None, a name, (name, slope), "name:slope" or ("prelu", Operand)."""
    if activation is None:
        return Epilogue(residual=residual)
    if isinstance(activation, tuple) and activation[0] == PRELU:
        return Epilogue(Activation.LEAKY_RELU, residual=residual, slopes=True)
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


PRELU = "prelu"


def is_prelu(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is ("prelu", slopes)."""
    return isinstance(value, list | tuple) and len(value) == 2 and str(value[0]) == PRELU


def frozen_activation(value: object) -> Frozen:
    """Return a hashable copy of an activation, for `epilogue` to interpret; refuse PReLU."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if is_prelu(value):
        remedy = "Only conv, conv_transpose, their plans and explain take it; elsewhere apply it."
        raise ArgumentError("activation", "'prelu'", _ACTIVATIONS.partition(", or")[0], remedy)
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], str):
        return (str.__str__(value[0]), _slope(value[1]))
    got = f"{brief(value)} ({type(value).__name__})"
    raise DTypeError("activation", got, _ACTIVATIONS, _OTHERS)


_SLOPE = "It is the factor for negative values, as in ('leaky_relu', 0.2)."


def _slope(value: object) -> float:
    expected = "a finite number"
    if isinstance(value, bool) or not isinstance(value, str | int | float | np.number):
        got = f"{brief(value)} ({type(value).__name__})"
        raise DTypeError("activation slope", got, expected, _SLOPE)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError("activation slope", brief(value), expected, _SLOPE) from None


_OTHERS = "Apply other functions to the result yourself."
_ACTIVATIONS = (
    "None or one of "
    + ", ".join(repr(kind.value) for kind in Activation if kind.value)
    + "; leaky_relu also as ('leaky_relu', slope), or ('prelu', slopes)"
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
    """Return the axes of a transposed convolution from the keywords of `conv_transpose`.

    1. "same_upper"/"same_lower": out = output_size, or size*stride. The total crop, including
       output padding, is divided between both ends (ONNX from opset 11; `geometry.centred`).
    2. output_size: the crop at the beginning is given; the crop at the end follows from the size.
    3. Otherwise both crops are given, and output padding extends the end.

    Raises `ArgumentError` if output_size is given together with a nonzero output_padding.
    """
    rank = len(kernel)
    strides, dilations, pairs, extra = _of_class(rank, stride, dilation, padding, output_padding)
    wanted = None if output_size is None else integers("output_size", output_size, rank, 0)
    if wanted is not None and any(extra):
        expected = f"0 when output_size is given ({brief(output_size)})"
        remedy = "output_size fixes the end; for ONNX's rule see dialects.from_onnx."
        raise ArgumentError("output_padding", brief(output_padding), expected, remedy)

    def axis(i: int, n: int, k: int, s: int, d: int) -> Axis:
        if isinstance(pairs, Same):
            out, upper = scaled(n, s) if wanted is None else wanted[i], pairs is Same.UPPER
            return centred(n, k, s, d, out, upper=upper, output_padding=extra[i])
        if wanted is not None:
            return fitted(n, k, s, d, pairs[i][0], wanted[i])
        return padded(n, k, s, d, *pairs[i], extra[i])

    return _axes(axis, size, kernel, strides, dilations)


def convolved_axes(
    size: Sequence[int], kernel: Sequence[int], stride: Frozen, padding: Frozen, dilation: Frozen
) -> tuple[Axis, ...]:
    """Return the axes of the transpose whose input gradient is `conv` on `size` positions."""
    strides, dilations, pairs, _ = _of_class(len(kernel), stride, dilation, padding, 0)

    def axis(i: int, n: int, k: int, s: int, d: int) -> Axis:
        if isinstance(pairs, Same):
            begin, _ = same_padding(n, k, s, d, upper=pairs is Same.UPPER)
            return fitted(strided(n, s), k, s, d, begin, n)
        return convolved(n, k, s, d, *pairs[i])

    return _axes(axis, size, kernel, strides, dilations)


@lru_cache(maxsize=1024, typed=True)
def _of_class(
    rank: int, stride: Frozen, dilation: Frozen, padding: Frozen, output_padding: Frozen
) -> tuple[tuple[int, ...], tuple[int, ...], Pairs | Same, tuple[int, ...]]:
    """Return strides, dilations, paddings and output paddings, which ignore the input size."""
    strides = integers("stride", stride, rank, 1)
    dilations = integers("dilation", dilation, rank, 1)
    extra = integers("output_padding", output_padding, rank, 0)
    return strides, dilations, paddings(padding, rank), extra


def _axes(make: Callable[..., Axis], *columns: Sequence[int]) -> tuple[Axis, ...]:
    """Call `make(i, *entries)` for every axis i with one entry per column; errors name the axis."""
    axes = []
    for i, row in enumerate(zip(*columns, strict=True)):
        try:
            axes.append(make(i, *row))
        except ArgumentError as error:
            name = f"spatial axis {i}: {error.argument}"
            raise ShapeError(name, error.got, error.expected, error.remedy) from None
    return tuple(axes)
