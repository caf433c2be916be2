"""Expected results: operands, the definition in float64, and tolerances.

`scatter` is the definition itself: for every input position i and tap t the product x[i] * w[t]
belongs to output s*i + d*t - p. `by_taps` computes the same for all positions of one tap at a time,
which suits problems of real size. Both share only the meaning of layouts with the engines. The
activations are implemented independently.

A result may differ only by rounding: by the tolerance of `error_bounds` and the rounding of the
stored result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import erf, prod, sqrt
from typing import Any, cast

import numpy as np

from ..activations import Activation
from ..arrays import Array
from ..geometry import Axis
from ..problem import Direction, DType, Problem
from .error_bounds import STEEPEST, tolerance


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """Arrays for one problem: operands (a, b) in the form of `Primitive.run`, with b not packed.

    `before` is the content of the output array before the call, to which an accumulating problem
    adds. The array of a second result has the same shape and dtype.
    """

    a: Array
    b: Array
    bias: Array | None
    residual: Array | None
    before: Array
    slopes: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The expected result in float64, the tolerance of each element, and any second result."""

    value: Array
    allowed: Array
    second: Expected | None = None


def operands(problem: Problem, seed: int = 0) -> Operands:
    """Draw reproducible normal operands; the weight is scaled so that results are of order 1.

    >>> axes = (Axis(4, 2, 2),)
    >>> operands(Problem(Direction.FORWARD, axes, 1, 3, 5)).a.shape
    (1, 3, 4)
    """
    rng = np.random.default_rng([seed, problem.batch, problem.in_channels, problem.rank])
    dtype = problem.dtype.numpy

    def draw(shape: tuple[int, ...], scale: float = 1.0) -> Array:
        values: Array = (rng.standard_normal(shape) * scale).astype(dtype)
        return values

    scale = 1 / sqrt(problem.longest_sum)
    a_shape, b_shape = problem.operand_shapes
    channels = (problem.result_channels,)
    return Operands(
        a=draw(a_shape),
        b=draw(b_shape, scale),
        bias=draw(channels) if problem.bias else None,
        residual=draw(problem.result_shape) if problem.epilogue.residual else None,
        before=draw(problem.result_shape),
        slopes=rng.uniform(-1, 1, channels).astype(dtype) if problem.epilogue.slopes else None,
    )


def scatter(problem: Problem, a: Array, b: Array) -> Array:
    """Return the result without bias, epilogue and accumulation in float64, by the definition.

    It loops over every pair of input position and tap, so use it for small problems only.

    >>> axes = (Axis(size=3, kernel=3, stride=2, crop_begin=1, crop_end=0),)
    >>> problem = Problem(Direction.FORWARD, axes, 1, 1, 1, dtype=DType.FLOAT64)
    >>> x, w = np.array([[[1.0, 2.0, 3.0]]]), np.array([[[1.0, 10.0, 100.0]]])
    >>> scatter(problem, x, w)
    array([[[ 10., 102.,  20., 203.,  30., 300.]]])
    """
    form, out = _Form.of(problem, a.astype(np.float64), b.astype(np.float64)), problem.out_size
    for i in product(*(range(axis.size) for axis in problem.axes)):
        for t in product(*(range(axis.kernel) for axis in problem.axes)):
            o = tuple(map(_lands, problem.axes, i, t))
            if all(0 <= at < size for at, size in zip(o, out, strict=True)):
                here = (tuple(slice(at, at + 1) for at in index) for index in (i, o))
                form.meet(problem.direction, t, *here)
    return form.result(problem)


def by_taps(problem: Problem, a: Array, b: Array) -> Array:
    """Return the result of `scatter` with one matrix product per tap, for problems of any size.

    >>> problem = Problem(Direction.FORWARD, (Axis(3, 3, 2, crop_begin=1),), 1, 1, 1)
    >>> x, w = np.array([[[1.0, 2.0, 3.0]]]), np.array([[[1.0, 10.0, 100.0]]])
    >>> by_taps(problem, x, w)
    array([[[ 10., 102.,  20., 203.,  30., 300.]]])
    """
    form = _Form.of(problem, a.astype(np.float64), b.astype(np.float64))
    for t in product(*(range(axis.kernel) for axis in problem.axes)):
        pairs = [_meeting(axis, tap) for axis, tap in zip(problem.axes, t, strict=True)]
        if all(i.start < i.stop for i, _ in pairs):
            form.meet(problem.direction, t, *zip(*pairs, strict=True))
    return form.result(problem)


_SMALL = 4000  # largest number of pairs of positions and taps for which `expected` loops


def expected(problem: Problem, inputs: Operands, rounds_sums: bool = False) -> Expected:
    """Return the complete result of a problem on its operands by the definition, with tolerances.

    rounds_sums: whether the engine stores sums in the problem's dtype before bias, residual and
        activation, as engines with the attribute of that name do.

    >>> problem = Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5)
    >>> bool(expected(problem, operands(problem)).allowed.max() < 1e-5)
    True
    """
    small = prod(problem.size) * prod(problem.kernel) <= _SMALL
    defined = scatter if small else by_taps
    a, b = (multiplied(problem, array) for array in (inputs.a, inputs.b))
    value = defined(problem, a, b)
    magnitude = by_taps(problem, np.abs(a), np.abs(b))
    stored = problem.dtype.epsilon * np.abs(value) if rounds_sums else 0.0
    by_channel = problem.layout.by_channel(problem.rank)
    bias = None if inputs.bias is None else inputs.bias.reshape(by_channel)
    for addend in (bias, inputs.residual, inputs.before if problem.accumulate else None):
        if addend is not None:
            wide = addend.astype(np.float64)
            value, magnitude = value + wide, magnitude + np.abs(wide)
    epilogue, slope = problem.epilogue, np.asarray(problem.epilogue.slope)
    if inputs.slopes is not None:
        slope = inputs.slopes.astype(np.float64).reshape(by_channel)
    value = _ACTIVATED[epilogue.activation](value, slope)
    steepest = max(STEEPEST.values())
    allowed = tolerance(problem) * magnitude + max(steepest, abs(epilogue.slope)) * stored
    second = None
    if epilogue.has_second:
        other = _ACTIVATED[epilogue.second](value, epilogue.second_slope)
        steepest = max(steepest, abs(epilogue.second_slope))
        second = Expected(other, steepest * allowed + 2 * _rounding(problem, other))
    return Expected(value, allowed + _rounding(problem, value), second)


def multiplied(problem: Problem, array: Array) -> Array:
    """Return an operand rounded to `Problem.precision`, to nearest even, as for multiplication."""
    if not problem.rounded:
        return array
    mantissa, exponent = np.frexp(array.astype(np.float64))
    one = 2 / problem.precision.epsilon
    rounded: Array = np.ldexp(np.rint(mantissa * one) / one, exponent).astype(array.dtype)
    return rounded


_erf = np.vectorize(erf, otypes=[float])  # slow, but exact

_ACTIVATED: dict[Activation, Callable[[Array, Any], Array]] = {
    Activation.NONE: lambda v, _: v,
    Activation.RELU: lambda v, _: np.where(v > 0, v, 0.0),
    Activation.LEAKY_RELU: lambda v, slope: np.where(v > 0, v, slope * v),
    Activation.TANH: lambda v, _: np.tanh(v),
    Activation.SIGMOID: lambda v, _: 1 / (1 + np.exp(-v)),
    Activation.SILU: lambda v, _: v / (1 + np.exp(-v)),
    Activation.GELU: lambda v, _: v * (1 + _erf(v / sqrt(2))) / 2,
    Activation.RELU6: lambda v, _: np.clip(v, 0, 6),
    Activation.HARD_SWISH: lambda v, _: v * np.clip(v + 3, 0, 6) / 6,
}


def _rounding(problem: Problem, value: Array) -> Array:
    """Return the rounding error of the stored result, plus the smallest normal number."""
    smallest = float(np.finfo(finfo_type(problem.dtype)).tiny)
    allowed: Array = problem.dtype.epsilon * np.abs(value) + smallest
    if {problem.epilogue.activation, problem.epilogue.second} != {Activation.NONE}:
        allowed += 8 * problem.dtype.accumulator.epsilon  # a few units of numbers near 1
    return allowed


def finfo_type(dtype: DType) -> type[Any]:
    """Return a NumPy type with the same smallest normal number; bfloat16 has float32's."""
    return {DType.FLOAT16: np.float16, DType.FLOAT64: np.float64}.get(dtype, np.float32)


@dataclass(slots=True, eq=False)
class _Form:
    """Arrays g, x and w as (N, G, F, *o), (N, G, C, *i) and (G, C, F, *t); one is the result."""

    g: Array
    x: Array
    w: Array

    @classmethod
    def of(cls, problem: Problem, a: Array, b: Array) -> _Form:
        result = np.zeros(problem.result_shape)
        g, x, w = {
            Direction.FORWARD: (result, a, b),
            Direction.INPUT_GRAD: (a, result, b),
            Direction.WEIGHT_GRAD: (a, b, result),
        }[problem.direction]
        return cls(_data_view(problem, g), _data_view(problem, x), _weight_view(problem, w))

    def meet(
        self, direction: Direction, t: tuple[int, ...], i: tuple[slice, ...], o: tuple[slice, ...]
    ) -> None:
        """Add the products of inputs i and tap t to the result; they belong to outputs o."""
        at_o, at_i, at_t = (cast(Any, (..., *at)) for at in (o, i, t))
        g, x, w = self.g[at_o], self.x[at_i], self.w[at_t]
        if direction is Direction.FORWARD:
            g += _flat_product(w.swapaxes(1, 2), x)
        elif direction is Direction.INPUT_GRAD:
            x += _flat_product(w, g)
        else:
            w += (_flat(x) @ _flat(g).swapaxes(2, 3)).sum(axis=0)

    def result(self, problem: Problem) -> Array:
        """Return the result in the problem's layout."""
        if problem.direction is Direction.WEIGHT_GRAD:
            ungrouped = self.w.reshape(problem.in_channels, *self.w.shape[2:])
            return ungrouped.transpose(np.argsort(problem.weight_layout.to_iox(problem.rank)))
        data = self.g if problem.direction is Direction.FORWARD else self.x
        ungrouped = data.reshape(data.shape[0], problem.result_channels, *data.shape[3:])
        return ungrouped.transpose(np.argsort(problem.layout.to_ncx(problem.rank)))


def _data_view(problem: Problem, data: Array) -> Array:
    ncx = data.transpose(problem.layout.to_ncx(problem.rank))
    n, channels, *size = ncx.shape
    return np.array(ncx.reshape(n, problem.groups, channels // problem.groups, *size))


def _weight_view(problem: Problem, weight: Array) -> Array:
    iox = weight.transpose(problem.weight_layout.to_iox(problem.rank))
    per_group = problem.in_channels // problem.groups
    return np.array(iox.reshape(problem.groups, per_group, *iox.shape[1:]))


def _lands(axis: Axis, i: int, t: int) -> int:
    """Return the output position of input i and tap t: the definition, duplicated on purpose."""
    return axis.stride * i + axis.dilation * t - axis.crop_begin


def _flat(data: Array) -> Array:
    """Return (N, G, K, *positions) with all positions along one axis."""
    return data.reshape(*data.shape[:3], prod(data.shape[3:]))


def _flat_product(matrix: Array, data: Array) -> Array:
    """Multiply a (G, M, K) matrix by (N, G, K, *positions)."""
    flat: Array = matrix @ _flat(data)
    return flat.reshape(*flat.shape[:3], *data.shape[3:])


def _meeting(axis: Axis, t: int) -> tuple[slice, slice]:
    """Return the inputs that reach an output through tap t, and these outputs."""
    begin = axis.crop_begin - axis.dilation * t
    first = max(-(-begin // axis.stride), 0)
    last = min((begin + axis.out - 1) // axis.stride, axis.size - 1)
    start, stop = _lands(axis, first, t), _lands(axis, last, t) + 1
    return slice(first, last + 1), slice(start, max(start, stop), axis.stride)
