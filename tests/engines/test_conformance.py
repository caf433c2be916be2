"""The one suite every engine passes: values against the definition, in every direction.

A new engine is picked up from the table of engines; what it refuses must be refused in a sentence.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import upconv
from upconv import testing
from upconv.activations import Activation
from upconv.engines import ON_DEVICES, load
from upconv.engines.base import Engine
from upconv.geometry import fitted
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem, WeightLayout

CASES = testing.cases()
HERE = [status for status in upconv.engines() if status.available]
AVAILABLE = [status.name for status in HERE if status.name != ON_DEVICES]


def able(engine: Engine, problem: Problem) -> bool:
    """False where the engine refuses, which it has to do in a sentence."""
    reason = engine.refuses(problem)
    assert reason is None or len(reason.split()) >= 3
    return reason is None


def test_few_cases_are_refused(engine: Engine) -> None:
    library = engine.name == "onednn"  # which is asked for no PReLU and no second result
    cases = [p for p in CASES if not (library and (p.epilogue.slopes or p.epilogue.has_second))]
    refused = [str(problem) for problem in cases if not able(engine, problem)]
    assert len(refused) <= (0.25 * len(cases) if library else 0), refused


@pytest.mark.parametrize("problem", CASES, ids=str)
def test_values(engine: Engine, problem: Problem) -> None:
    if able(engine, problem):
        testing.check(engine, problem, threads=2)


@pytest.mark.parametrize("problem", [p for p in CASES if p.direction is Direction.FORWARD], ids=str)
def test_the_three_directions_are_one_form(engine: Engine, problem: Problem) -> None:
    if able(engine, problem):
        testing.check_adjoint(engine, problem)


@pytest.mark.parametrize("problem", CASES[::7], ids=str)
def test_any_strides(engine: Engine, problem: Problem) -> None:
    """Reversed, sliced, transposed and read-only operands, and an output that is a view.

    Not bit for bit: a matrix product may add in another order when its operands lie otherwise.
    """
    if not able(engine, problem):
        return
    given = testing.operands(problem)
    wanted = testing.expected(problem, given, getattr(engine, "rounds_sums", False))
    primitive = engine.build(problem, 1)
    a, b, out = (_restrided(array) for array in (given.a, given.b, given.before))
    a.flags.writeable = b.flags.writeable = False
    packed = b if problem.direction is Direction.WEIGHT_GRAD else primitive.pack(b)
    second = _restrided(given.before) if wanted.second else None
    primitive.run(out, a, packed, *testing.ends_of(problem, given, second))
    assert np.all(np.abs(out - wanted.value) <= wanted.allowed)
    if wanted.second:
        assert np.all(np.abs(second - wanted.second.value) <= wanted.second.allowed)


def _restrided(array: np.ndarray) -> np.ndarray:
    """The same values in a view with gaps, reversed and in Fortran's order."""
    wide = np.zeros([2 * n + 1 for n in array.shape[::-1]], array.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in array.shape)].T[..., ::-1]
    view[...] = array
    return view


GAPS = {
    "between images": lambda shape: np.zeros((2 * shape[0], *shape[1:]), np.float32)[::2],
    "in the second axis": lambda shape: np.zeros((shape[0], shape[1] + 3, *shape[2:]), np.float32)[
        :, 1:-2
    ],
    "in the last axis": lambda shape: np.zeros((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2],
}


@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("layout", DataLayout)
def test_output_and_residual_may_lie_differently(
    engine: Engine, layout: DataLayout, accumulate: bool, gaps: str
) -> None:
    axes = (fitted(5, 4, 2, 1, 1, 10), fitted(30, 4, 2, 1, 1, 60))
    epilogue = Epilogue(residual=True)
    problem = Problem(
        Direction.FORWARD, axes, 2, 6, 12, layout=layout, epilogue=epilogue, accumulate=accumulate
    )
    assert able(engine, problem)
    given = testing.operands(problem)
    wanted = testing.compute(engine, problem, given)
    primitive = engine.build(problem, 2)
    weight = primitive.pack(given.b)
    assert given.residual is not None
    for whose in ({"out"}, {"residual"}, {"out", "residual"}):
        out, residual = GAPS[gaps](problem.y_shape), GAPS[gaps](problem.y_shape)
        out[...], residual[...] = given.before, given.residual
        out = out if "out" in whose else out.copy()
        residual = residual if "residual" in whose else residual.copy()
        primitive.run(out, given.a, weight, given.bias, residual)
        np.testing.assert_array_equal(out, wanted, err_msg=f"gaps in {whose}")


def test_nothing_outside_the_output_is_touched(engine: Engine) -> None:
    problem = next(p for p in CASES if p.direction is Direction.FORWARD)
    given = testing.operands(problem)
    canvas = np.full([n + 4 for n in problem.result_shape], 7.5, np.float32)
    out = canvas[tuple(slice(2, -2) for _ in canvas.shape)]
    primitive = engine.build(problem, 2)
    primitive.run(out, given.a, primitive.pack(given.b), given.bias, given.residual)
    np.testing.assert_array_equal(out, testing.compute(engine, problem, given))
    out[...] = 7.5
    assert (canvas == 7.5).all()


def test_a_result_is_the_same_every_time(engine: Engine) -> None:
    for problem in CASES[::11]:
        if not able(engine, problem):
            continue
        given = testing.operands(problem)
        first = testing.compute(engine, problem, given)
        for _ in range(3):
            np.testing.assert_array_equal(testing.compute(engine, problem, given), first)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.INPUT_GRAD])
def test_special_values_stay_where_they_belong(
    engine: Engine, special: float, layout: DataLayout, direction: Direction
) -> None:
    """One NaN or infinity in x or g reaches the results its taps lie at, and no other."""
    axes = (fitted(5, 3, 2, 1, 1, 10), fitted(7, 4, 3, 1, 2, 21))
    problem = Problem(direction, axes, 2, 6, 12, 3, layout=layout)
    assert able(engine, problem)
    given = testing.operands(problem)
    place = (1, 2, 3, 4) if layout is DataLayout.NCX else (1, 3, 4, 2)
    given.a[place] = special
    reached = np.zeros(given.a.shape)
    reached[place] = 1
    touched = testing.scatter(problem, reached, np.ones(problem.weight_shape)) != 0
    result = testing.compute(engine, problem, given)
    assert not np.isfinite(result[touched]).any()
    assert np.isfinite(result[~touched]).all()
    assert 0 < touched.sum() < touched.size


SECONDS = (*[Activation.NONE] * 3, Activation.RELU, Activation.SIGMOID)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Problems small enough for the oracle, of every kind there is."""
    rank = draw(st.integers(1, 4))
    axes = []
    for _ in range(rank):
        size, kernel = draw(st.integers(0, 9 - 2 * rank)), draw(st.integers(1, 9 - 2 * rank))
        stride, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 4))
        begin, out = draw(st.integers(-4, 9)), draw(st.integers(0, 21 - 4 * rank))
        axes.append(fitted(size, kernel, stride, dilation, begin, out))
    groups = draw(st.integers(1, 3))
    direction = draw(st.sampled_from(Direction))
    activation = draw(st.sampled_from(Activation))
    plain = direction is Direction.WEIGHT_GRAD
    leaky = activation is Activation.LEAKY_RELU and not plain
    slopes = leaky and draw(st.booleans())
    epilogue = Epilogue(
        Activation.NONE if plain else activation,
        0.3 if leaky and not slopes else 0.0,
        residual=not plain and draw(st.booleans()),
        slopes=slopes,
        second=Activation.NONE if plain else draw(st.sampled_from(SECONDS)),
    )
    return Problem(
        direction, tuple(axes), batch=draw(st.integers(0, 3)),
        in_channels=groups * draw(st.integers(1, 4)), out_channels=groups * draw(st.integers(1, 4)),
        groups=groups, dtype=draw(st.sampled_from(DType)), layout=draw(st.sampled_from(DataLayout)),
        weight_layout=draw(st.sampled_from(WeightLayout)), bias=not plain and draw(st.booleans()),
        epilogue=epilogue, accumulate=draw(st.booleans()),
    )  # fmt: skip


@settings(max_examples=300)
@given(problems(), st.integers(0, 9))
def test_random_problems(problem: Problem, seed: int) -> None:
    assume(prod(problem.size) * prod(problem.kernel) <= 4000)
    for name in AVAILABLE:
        engine = load(name)
        if engine.refuses(problem) is None:
            testing.check(engine, problem, seed)


@pytest.mark.long
@settings(max_examples=20_000)
@given(problems(), st.integers(0, 9))
def test_many_random_problems(problem: Problem, seed: int) -> None:
    assume(prod(problem.size) * prod(problem.kernel) <= 4000)
    for name in AVAILABLE:
        engine = load(name)
        if engine.refuses(problem) is None:
            testing.check(engine, problem, seed)
            testing.check_adjoint(engine, problem, seed)


@pytest.mark.parametrize("direction", Direction)
def test_blocks_and_slabs_meet(direction: Direction, engine: Engine) -> None:
    """Sizes beyond every bound of a block."""
    axes = (fitted(70, 5, 2, 1, 1, 141), fitted(50, 4, 2, 1, 2, 99))
    problem = Problem(direction, axes, 3, 6, 40, 2, layout=DataLayout.NXC)
    assert able(engine, problem)
    testing.check(engine, problem)


# Each size and each kernel with both values of accumulate, in one layout or the other.
VARIED = list(enumerate(product(((3, 30), (2, 3, 35), (70,)), ((2, 2), (4, 2), (1, 1), (16, 8)))))


@pytest.mark.parametrize("layout", DataLayout)
def test_every_variant(engine: Engine, layout: DataLayout) -> None:
    """What tuning may choose computes the same, on rows that end in the middle of a tile."""
    for number, (size, (kernel, stride)) in VARIED:
        axes = tuple(fitted(n, kernel, stride, 1, 0, n * stride) for n in size)
        accumulate = number % 2 == tuple(DataLayout).index(layout)
        problem = Problem(Direction.FORWARD, axes, 2, 6, 12, layout=layout, accumulate=accumulate)
        assert able(engine, problem)
        given = testing.operands(problem)
        wanted = testing.expected(problem, given)
        for variant in engine.variants(problem, 2):
            primitive, out = engine.build(problem, 2, variant), given.before.copy()
            primitive.run(out, given.a, primitive.pack(given.b))
            wrong = ~(np.abs(out - wanted.value) <= 4 * wanted.allowed)
            assert not wrong.any(), (problem, variant)
