"""Checks of an engine's results against the oracle."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..engines import load
from ..engines.base import Engine
from ..errors import EngineError
from ..problem import NO_EPILOGUE, Direction, Problem
from .error_bounds import tolerance
from .oracle import Expected, Operands, expected, finfo_type, multiplied, operands


def compute(engine: Engine, problem: Problem, inputs: Operands, threads: int = 1) -> Array:
    """Return the engine's result, written into a copy of `inputs.before`.

    >>> from upconv.engines import load
    >>> from upconv.geometry import Axis
    >>> problem = Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5)
    >>> compute(load("reference"), problem, operands(problem)).shape
    (1, 5, 8)
    """
    return compute_all(engine, problem, inputs, threads)[0]


def compute_all(
    engine: Engine, problem: Problem, inputs: Operands, threads: int = 1
) -> tuple[Array, ...]:
    """Return the engine's result, and the second result if the problem has one."""
    primitive = engine.build(problem, threads)
    try:
        b = inputs.b if problem.direction is Direction.WEIGHT_GRAD else primitive.pack(inputs.b)
        results = [inputs.before.copy() for _ in range(1 + problem.epilogue.has_second)]
        primitive.run(results[0], inputs.a, b, *ends_of(problem, inputs, *results[1:]))
        return tuple(results)
    finally:
        primitive.close()


def ends_of(
    problem: Problem, inputs: Operands, second: Array | None = None
) -> tuple[Array | None, ...]:
    """Return the arguments of `Primitive.run` after the weight, without trailing None: engines need
    not accept arguments that they do not support."""
    ends = inputs.bias, inputs.residual, inputs.slopes, second
    return ends if problem.epilogue.slopes or problem.epilogue.has_second else ends[:2]


def require_engine(layer: str, expected: str, *computed: object) -> None:
    """Raise `EngineError` if a layer is computed by an engine other than the expected one.

    Benchmarks call it after every result that is named after an engine. For example, a weight that
    is not finite silently goes to the reference engine.

    computed: plans, prepared or packed calls, packed weights, or names; a packed weight without an
        `engine` belongs to the engine that packed it.

    >>> import upconv
    >>> plan = upconv.plan((1, 1, 3), np.ones((1, 1, 2), np.float32), engine="reference")
    >>> require_engine("up1", "jit", plan)
    Traceback (most recent call last):
    upconv.errors.EngineError: up1 is computed by reference, but its result is named after jit.
    """
    for item in computed:
        engine = item if isinstance(item, str) else getattr(item, "engine", expected)
        name = engine if isinstance(engine, str) else engine.name
        if name != expected:
            message = f"{layer} is computed by {name}, but its result is named after {expected}."
            raise EngineError(message)


def check(engine: Engine, problem: Problem, seed: int = 0, threads: int = 1) -> None:
    """Raise `AssertionError` unless the engine's result is within tolerance everywhere.

    >>> from upconv.engines import load
    >>> from upconv.geometry import Axis
    >>> check(load("reference"), Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5))
    """
    inputs = operands(problem, seed)
    wanted = expected(problem, inputs, getattr(engine, "rounds_sums", False))
    results = compute_all(engine, problem, inputs, threads)
    compare(f"{engine.name}, seed {seed}: {problem}", results[0], wanted)
    if wanted.second is not None:
        compare(f"{engine.name}, second result, seed {seed}: {problem}", results[1], wanted.second)


def compare(context: str, result: Array, wanted: Expected) -> None:
    """Raise `AssertionError`, which begins with `context`, unless a result is within tolerance."""
    got = result.astype(np.float64)
    if got.shape != wanted.value.shape:
        raise AssertionError(f"{context}: shape {got.shape}, expected {wanted.value.shape}")
    wrong = ~(np.abs(got - wanted.value) <= wanted.allowed)
    if wrong.any():
        where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise AssertionError(
            f"{context}: {int(wrong.sum())} of {wrong.size} elements"
            f" are wrong, the first at {tuple(map(int, where))}: {got[where]!r}, expected"
            f" {wanted.value[where]!r} within {wanted.allowed[where]:.3g}"
        )


def check_adjoint(engine: Engine, problem: Problem, seed: int = 0, threads: int = 1) -> None:
    """Raise `AssertionError` unless <y(x, w), g> = <x, dx(g, w)> = <w, dw(g, x)>.

    The three directions are derivatives of one form, so the three numbers must be equal. No other
    implementation is needed for this check. If `engine` refuses a direction, the reference engine
    computes it.

    >>> from upconv.engines import load
    >>> from upconv.geometry import Axis
    >>> check_adjoint(load("reference"), Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5))
    """
    bare = problem.replace(bias=False, epilogue=NO_EPILOGUE, accumulate=False)
    by_direction = {direction: bare.replace(direction=direction) for direction in Direction}
    forward, backward = by_direction[Direction.FORWARD], by_direction[Direction.INPUT_GRAD]
    inputs, other = operands(forward, seed), operands(backward, seed + 1)
    # Each array is an operand twice and a factor once, so it is rounded once in advance.
    x, w, g = (multiplied(problem, array) for array in (inputs.a, inputs.b, other.a))
    arrays = ((x, w, g), (g, w, x), (g, x, w))  # operands and partner, in the order of `Direction`
    numbers, scale = [], 0.0
    for derivative, (a, b, partner) in zip(by_direction.values(), arrays, strict=True):
        before = np.zeros(derivative.result_shape, x.dtype)
        able = engine if engine.refuses(derivative) is None else load("reference")
        result = compute(able, derivative, Operands(a, b, None, None, before), threads)
        products = result.astype(np.float64) * partner.astype(np.float64)
        numbers.append(float(np.sum(products)))
        scale = max(scale, float(np.sum(np.abs(products))))
    allowed = 4 * (max(map(tolerance, by_direction.values())) + problem.dtype.epsilon) * scale
    allowed += float(np.finfo(finfo_type(problem.dtype)).tiny)
    if not max(numbers) - min(numbers) <= allowed:
        raise AssertionError(
            f"{engine.name}, seed {seed}: {bare}: the three derivatives give {numbers},"
            f" which may differ by at most {allowed:.3g}"
        )
