"""For engine authors: cases every engine is held to, an oracle by definition, tolerances, checks.

The oracle, `scatter`, is the definition itself in float64: for every input position i and tap t the
product x[i] * w[t] belongs to output s*i + d*t - p. It loops where engines compute, and has
activations of its own; it shares with engines only what a layout means.

A result may differ from it by rounding alone. With u the accumulator's unit roundoff, n the length
of the sum and M the sum of the magnitudes that were added up, a float sum errs by about
u*sqrt(n)*M; `tolerance` allows a small multiple of that, and the rounding of the stored result.

    from upconv import testing
    for problem in testing.cases():
        testing.check(my_engine, problem)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import erf, sqrt
from typing import Any, cast

import numpy as np

from .activations import Activation
from .arrays import Array
from .engines import load
from .engines.base import Engine
from .geometry import Axis, fitted
from .problem import NO_EPILOGUE, DataLayout, Direction, DType, Epilogue, Problem, WeightLayout


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """Arrays for one problem: operands (a, b) as `Primitive.run` takes them, b not packed.

    `before` is what the output array holds at the start, which counts when the problem accumulates.
    """

    a: Array
    b: Array
    bias: Array | None
    residual: Array | None
    before: Array


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What a result should be, in float64, and how far each element may be from it."""

    value: Array
    allowed: Array


def operands(problem: Problem, seed: int = 0) -> Operands:
    """Reproducible operands: normal numbers, the weight scaled so that results are of order 1.

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
    )


def scatter(problem: Problem, a: Array, b: Array) -> Array:
    """The bare result (no bias, epilogue or accumulation) in float64, by the definition.

    Loops over every pair of input position and tap: for small problems only.

    >>> axes = (Axis(size=3, kernel=3, stride=2, crop_begin=1, crop_end=0),)
    >>> problem = Problem(Direction.FORWARD, axes, 1, 1, 1, dtype=DType.FLOAT64)
    >>> x, w = np.array([[[1.0, 2.0, 3.0]]]), np.array([[[1.0, 10.0, 100.0]]])
    >>> scatter(problem, x, w)
    array([[[ 10., 102.,  20., 203.,  30., 300.]]])
    """
    form = _Form.of(problem, a.astype(np.float64), b.astype(np.float64))
    for i in product(*(range(axis.size) for axis in problem.axes)):
        for t in product(*(range(axis.kernel) for axis in problem.axes)):
            o = tuple(_lands(axis, *at) for axis, *at in zip(problem.axes, i, t, strict=True))
            if all(0 <= at < axis.out for axis, at in zip(problem.axes, o, strict=True)):
                form.meet(problem.direction, i, t, o)
    return form.result(problem)


def expected(problem: Problem, given: Operands) -> Expected:
    """The whole result of a problem on operands, and its tolerance, by `scatter`.

    >>> problem = Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5)
    >>> bool(expected(problem, operands(problem)).allowed.max() < 1e-5)
    True
    """
    value = scatter(problem, given.a, given.b)
    magnitude = scatter(problem, np.abs(given.a), np.abs(given.b))
    if given.bias is not None:
        shape = [1] * value.ndim
        shape[1 if problem.layout is DataLayout.NCX else -1] = -1
        value = value + given.bias.astype(np.float64).reshape(shape)
        magnitude = magnitude + np.abs(given.bias.astype(np.float64)).reshape(shape)
    if given.residual is not None:
        value = value + given.residual.astype(np.float64)
        magnitude = magnitude + np.abs(given.residual.astype(np.float64))
    value = _ACTIVATED[problem.epilogue.activation](value, problem.epilogue.slope)
    if problem.accumulate:
        value = value + given.before.astype(np.float64)
        magnitude = magnitude + np.abs(given.before.astype(np.float64))
    return Expected(value, tolerance(problem) * magnitude + _rounding(problem, value))


_ACTIVATED: dict[Activation, Callable[[Array, float], Array]] = {
    Activation.NONE: lambda v, _: v,
    Activation.RELU: lambda v, _: np.where(v > 0, v, 0.0),
    Activation.LEAKY_RELU: lambda v, slope: np.where(v > 0, v, slope * v),
    Activation.TANH: lambda v, _: np.tanh(v),
    Activation.SIGMOID: lambda v, _: 1 / (1 + np.exp(-v)),
    Activation.SILU: lambda v, _: v / (1 + np.exp(-v)),
    Activation.GELU: lambda v, _: v * (1 + _erf(v / sqrt(2))) / 2,
}


def _erf(values: Array) -> Array:
    """math.erf for every element: slow, and nobody's approximation."""
    return np.array([erf(value) for value in values.ravel()]).reshape(values.shape)


def tolerance(problem: Problem) -> float:
    """How far an element may err, as a part of the sum of magnitudes that made it.

    >>> axes = (Axis(4, 2, 2),)
    >>> tolerance(Problem(Direction.FORWARD, axes, 1, 16, 5)) < 2e-6
    True
    """
    return problem.dtype.accumulator.epsilon * (4 + 2 * sqrt(problem.longest_sum))


def _rounding(problem: Problem, value: Array) -> Array:
    """What storing the result may change, the smallest numbers of the type included."""
    smallest = float(np.finfo(_finfo_type(problem.dtype)).tiny)
    allowed: Array = problem.dtype.epsilon * np.abs(value) + smallest
    if problem.epilogue.activation is not Activation.NONE:
        allowed += 8 * problem.dtype.accumulator.epsilon  # a few units of numbers of order 1
    return allowed


def _finfo_type(dtype: DType) -> type[Any]:
    """A type whose smallest number is the same: bfloat16 has float32's exponents."""
    return {DType.FLOAT16: np.float16, DType.FLOAT64: np.float64}.get(dtype, np.float32)


def compute(engine: Engine, problem: Problem, given: Operands, threads: int = 1) -> Array:
    """The engine's result, written into a copy of `given.before`.

    >>> from upconv.engines import load
    >>> problem = Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5)
    >>> compute(load("reference"), problem, operands(problem)).shape
    (1, 5, 8)
    """
    primitive = engine.build(problem, threads)
    try:
        b = given.b if problem.direction is Direction.WEIGHT_GRAD else primitive.pack(given.b)
        out = given.before.copy()
        primitive.run(out, given.a, b, given.bias, given.residual)
        return out
    finally:
        primitive.close()


def check(engine: Engine, problem: Problem, seed: int = 0, threads: int = 1) -> None:
    """Raise `AssertionError` unless the engine's result is within tolerance everywhere.

    >>> from upconv.engines import load
    >>> check(load("reference"), Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5))
    """
    given = operands(problem, seed)
    wanted = expected(problem, given)
    got = compute(engine, problem, given, threads).astype(np.float64)
    if got.shape != wanted.value.shape:
        raise AssertionError(f"{problem}: shape {got.shape}, expected {wanted.value.shape}")
    wrong = ~(np.abs(got - wanted.value) <= wanted.allowed)
    if wrong.any():
        where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise AssertionError(
            f"{engine.name}, seed {seed}: {problem}: {int(wrong.sum())} of {wrong.size} elements"
            f" are wrong, the first at {tuple(map(int, where))}: {got[where]!r}, expected"
            f" {wanted.value[where]!r} within {wanted.allowed[where]:.3g}"
        )


def check_adjoint(engine: Engine, problem: Problem, seed: int = 0, threads: int = 1) -> None:
    """Raise `AssertionError` unless <y(x, w), g> = <x, dx(g, w)> = <w, dw(g, x)>.

    The three directions are derivatives of one form, so the three numbers are one number; no other
    implementation is needed to see that they agree. Where `engine` refuses a direction, the
    reference engine computes it.

    >>> from upconv.engines import load
    >>> check_adjoint(load("reference"), Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5))
    """
    bare = problem.replace(bias=False, epilogue=NO_EPILOGUE, accumulate=False)
    by_direction = {way: bare.replace(direction=way) for way in Direction}
    forward, backward = by_direction[Direction.FORWARD], by_direction[Direction.INPUT_GRAD]
    given, other = operands(forward, seed), operands(backward, seed + 1)
    x, w, g = given.a, given.b, other.a
    pairs = {
        Direction.FORWARD: ((x, w), g),
        Direction.INPUT_GRAD: ((g, w), x),
        Direction.WEIGHT_GRAD: ((g, x), w),
    }
    numbers, scale = [], 0.0
    for way, ((a, b), partner) in pairs.items():
        before = np.zeros(by_direction[way].result_shape, x.dtype)
        able = engine if engine.refuses(by_direction[way]) is None else load("reference")
        result = compute(able, by_direction[way], Operands(a, b, None, None, before), threads)
        products = result.astype(np.float64) * partner.astype(np.float64)
        numbers.append(float(np.sum(products)))
        scale = max(scale, float(np.sum(np.abs(products))))
    allowed = 4 * (max(map(tolerance, by_direction.values())) + problem.dtype.epsilon) * scale
    allowed += float(np.finfo(_finfo_type(problem.dtype)).tiny)
    if not max(numbers) - min(numbers) <= allowed:
        raise AssertionError(
            f"{engine.name}, seed {seed}: {bare}: the form is {numbers} by its three derivatives,"
            f" which may differ by {allowed:.3g}"
        )


def cases() -> tuple[Problem, ...]:
    """The problems every engine is held to, in all three directions: small, and all different.

    Sizes are distinct so that swapped axes cannot agree by luck.

    >>> len(cases()) > 200
    True
    """
    return tuple(dict.fromkeys(_cases()))


def _cases() -> Iterator[Problem]:
    for problem in _forward_cases():
        for way in Direction:
            if way is Direction.WEIGHT_GRAD:
                yield problem.replace(direction=way, bias=False, epilogue=NO_EPILOGUE)
            else:
                yield problem.replace(direction=way)


def _forward_cases() -> Iterator[Problem]:
    base = Problem(Direction.FORWARD, _CROPPED, 2, 6, 12, bias=True)
    for axes in _AXES.values():
        yield base.replace(axes=axes)
    for groups in (2, 3, 6):
        yield base.replace(groups=groups)
        yield base.replace(groups=groups, axes=_AXES["rank 1"], layout=DataLayout.NXC)
    yield base.replace(groups=6, out_channels=6)  # depthwise
    yield base.replace(groups=6, out_channels=6, axes=_AXES["rank 3"])
    for layout, weight_layout in product(DataLayout, WeightLayout):
        yield base.replace(layout=layout, weight_layout=weight_layout, groups=2)
    for dtype, layout in product(DType, DataLayout):
        yield base.replace(dtype=dtype, layout=layout)
    for batch, i, o in ((0, 6, 12), (1, 1, 1), (1, 7, 5), (5, 1, 3), (3, 17, 2), (1, 3, 33)):
        yield base.replace(batch=batch, in_channels=i, out_channels=o)
    yield from _epilogue_cases(base)
    for axes in (_CROPPED, _AXES["rank 1"], _AXES["rank 3"]):
        yield base.replace(axes=axes, accumulate=True, groups=3)
    yield base.replace(accumulate=True, layout=DataLayout.NXC, dtype=DType.FLOAT16)


def _epilogue_cases(base: Problem) -> Iterator[Problem]:
    for activation in Activation:
        slope = 0.2 if activation is Activation.LEAKY_RELU else 0.0
        for residual in (False, True):
            epilogue = Epilogue(activation, slope, residual)
            yield base.replace(epilogue=epilogue, bias=activation is not Activation.TANH)
    yield base.replace(
        epilogue=Epilogue(Activation.RELU, residual=True),
        layout=DataLayout.NXC,
        dtype=DType.BFLOAT16,
        groups=3,
    )


_CROPPED = (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 3, 1, 2, 3))

_AXES: dict[str, tuple[Axis, ...]] = {
    "rank 1": (Axis(9, 5, 3, 2, 1, 2),),
    "rank 2": _CROPPED,
    "rank 3": (Axis(3, 2, 2), Axis(5, 3, 1, 1, 1, 1), Axis(4, 3, 2, 1, 0, 1)),
    "rank 4": (Axis(2, 2, 1), Axis(3, 2, 2), Axis(2, 3, 2, 1, 1, 0), Axis(4, 2, 3, 1, 0, -1)),
    "kernel = stride": (Axis(5, 2, 2), Axis(4, 3, 3)),
    "kernel = stride, cropped": (Axis(5, 2, 2, 1, 1, 0), Axis(4, 3, 3, 1, 0, 2)),
    "kernel = 2 strides": (Axis(5, 4, 2, 1, 1, 1), Axis(6, 8, 4, 1, 2, 2)),
    "kernel below stride": (Axis(5, 2, 3), Axis(4, 1, 4, 1, 0, -2)),
    "one tap": (Axis(5, 1), Axis(3, 1, 2, 3)),
    "stride 1": (Axis(5, 3, 1, 1, 1, 1), Axis(7, 5, 1, 1, 2, 2)),
    "dilated": (Axis(5, 3, 1, 2, 2, 2), Axis(6, 4, 1, 3, 0, 1)),
    "dilated, common divisor": (Axis(5, 3, 2, 2, 1, 0), Axis(4, 4, 6, 4, 3, 1)),
    "dilated, coprime": (Axis(5, 4, 3, 2, 2, 1), Axis(4, 3, 2, 5, 1, 0)),
    "one input": (Axis(1, 4), Axis(1, 3, 7, 2, 1, 1)),
    "kernel beyond input": (Axis(2, 9, 2, 1, 3, 3), Axis(1, 5, 1, 1, 2, 2)),
    "grown at both ends": (Axis(4, 3, 2, 1, -3, -2), Axis(3, 2, 3, 1, -1, -4)),
    "output padding at the stride": (Axis(4, 3, 2, 1, 1, 1 - 2), Axis(3, 2, 3, 2, 0, -3)),
    "cropped into the data": (Axis(9, 3, 2, 1, 6, 5), Axis(8, 2, 1, 1, 4, 1)),
    "cropped to one position": (Axis(5, 3, 2, 1, 5, 5), Axis(6, 2, 2, 1, 11, 0)),
    "cropped beyond the data": (fitted(3, 2, 2, 1, 9, 4), Axis(4, 3, 2)),
    "no output": (Axis(3, 3, 2, 1, 3, 4), Axis(4, 3, 2)),
    "no input": (Axis(0, 5, 2, 1, 0, 0), Axis(4, 3, 2)),
    "large stride": (Axis(3, 16, 8, 1, 4, 4), Axis(2, 40, 32, 1, 8, 8)),
}


@dataclass(slots=True, eq=False)
class _Form:
    """g, x and w as (N, G, F, *o), (N, G, C, *i) and (G, C, F, *t): two given, one summed up."""

    g: Array
    x: Array
    w: Array

    @classmethod
    def of(cls, problem: Problem, a: Array, b: Array) -> _Form:
        order = {
            Direction.FORWARD: ("x", "w", "g"),
            Direction.INPUT_GRAD: ("g", "w", "x"),
            Direction.WEIGHT_GRAD: ("g", "x", "w"),
        }[problem.direction]
        result = np.zeros(problem.result_shape)
        views = {"w": _weight_view, "x": _data_view, "g": _data_view}
        return cls(
            **{
                name: views[name](problem, array)
                for name, array in zip(order, (a, b, result), strict=True)
            }
        )

    def meet(
        self, direction: Direction, i: tuple[int, ...], t: tuple[int, ...], o: tuple[int, ...]
    ) -> None:
        """Input i meets tap t at output o: add the product to the result."""
        at_o, at_i, at_t = (cast(Any, (..., *at)) for at in (o, i, t))
        g, x, w = self.g[at_o], self.x[at_i], self.w[at_t]
        if direction is Direction.FORWARD:
            g += np.einsum("ngc,gcf->ngf", x, w)
        elif direction is Direction.INPUT_GRAD:
            x += np.einsum("ngf,gcf->ngc", g, w)
        else:
            w += np.einsum("ngf,ngc->gcf", g, x)

    def result(self, problem: Problem) -> Array:
        """The summed one, back in the problem's layout."""
        if problem.direction is Direction.WEIGHT_GRAD:
            whole = self.w.reshape(problem.in_channels, *self.w.shape[2:])
            return whole.transpose(np.argsort(problem.weight_layout.to_iox(problem.rank)))
        data = self.g if problem.direction is Direction.FORWARD else self.x
        whole = data.reshape(
            data.shape[0], -1 if data.size else problem.result_channels, *data.shape[3:]
        )
        return whole.transpose(np.argsort(problem.layout.to_ncx(problem.rank)))


def _data_view(problem: Problem, data: Array) -> Array:
    ncx = data.transpose(problem.layout.to_ncx(problem.rank))
    n, channels, *size = ncx.shape
    return np.array(ncx.reshape(n, problem.groups, channels // problem.groups, *size))


def _weight_view(problem: Problem, weight: Array) -> Array:
    iox = weight.transpose(problem.weight_layout.to_iox(problem.rank))
    per_group = problem.in_channels // problem.groups
    return np.array(iox.reshape(problem.groups, per_group, *iox.shape[1:]))


def _lands(axis: Axis, i: int, t: int) -> int:
    """The output position of input i and tap t: the definition, spelled once more on purpose."""
    return axis.stride * i + axis.dilation * t - axis.crop_begin
