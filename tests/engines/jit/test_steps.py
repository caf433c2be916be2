"""Steps of a primitive compute what its `run` computes, bit for bit."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.random_problems import case
from upconv import testing
from upconv.activations import Activation
from upconv.engines import load
from upconv.engines.base import Array
from upconv.engines.jit import pool
from upconv.engines.jit.cpu import host
from upconv.engines.jit.steps import Step
from upconv.engines.jit.walk import walk_code
from upconv.engines.workspace import Workspace
from upconv.errors import ArgumentError, EngineError
from upconv.geometry import Axis, fitted
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

JIT = load("jit")


def number(address: int) -> int:
    return int(np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int64 * 1).from_address(address))[0])


def run(steps: list[Step]) -> bool:
    """Run steps one after another; return whether their results hold."""
    for step in steps:
        pool.run(walk_code(host()).addresses["walk"], step.block.address, step.threads)
        assert number(step.over) == step.jobs > 0
    return not any(number(step.flag) for step in steps if step.flag)


def variants(problem: Problem, threads: int) -> Iterator[str]:
    """Every kernel that sums a problem directly, and the first of Winograd's tiles."""
    candidates = JIT.candidates(problem, threads, every=True)
    possible = [one for one in candidates if one.engine == "jit" and one.possible]
    yield from [one.variant for one in possible if not one.winograd]
    yield from [one.variant for one in possible if one.winograd][:1]


def apart(array: Array, layout: DataLayout) -> Array:
    """The same values with gaps between images and between channels that come first."""
    if layout is DataLayout.NXC:
        return array.copy()
    n, c, *size = array.shape
    room = np.zeros((n, c + 3, *size), array.dtype)
    view = room[:, 1 : c + 1]
    view[...] = array
    return view


def check(problem: Problem, threads: int, variant: str, seed: int = 0) -> None:
    operands = testing.operands(problem, seed)
    primitive = JIT.build(problem, threads, variant)
    weight = primitive.pack(operands.b)
    a, expected, out = (
        apart(array, problem.layout) for array in (operands.a, operands.before, operands.before)
    )
    residual = operands.residual
    residual = None if residual is None else apart(residual, problem.layout)
    slopes, twice = operands.slopes, problem.epilogue.has_second
    others = [apart(operands.before, problem.layout) if twice else None for _ in range(2)]
    primitive.run(expected, a, weight, operands.bias, residual, slopes, others[0])
    with Workspace(primitive.workspace_bytes) as scratch:
        arguments = a, weight, operands.bias, residual, scratch, slopes, others[1]
        held = run(primitive.steps(out, *arguments))
    assert held, "results of these operands are finite"
    assert out.tobytes() == expected.tobytes(), (problem, variant)
    if twice:
        assert others[0].tobytes() == others[1].tobytes(), (problem, variant)


@pytest.mark.parametrize("seed", range(80))
def test_random_problems(seed: int) -> None:
    one = case(seed)
    if JIT.refuses(one.problem) is None:
        for variant in variants(one.problem, one.threads):
            check(one.problem, one.threads, variant, seed)


BORDERS = {
    "margins of an image": (fitted(9, 3, 1, 1, -2, 15), fitted(300, 4, 1, 1, -3, 600)),
    "inputs that no output reads": (fitted(12, 3, 2, 1, 9, 7), fitted(30, 2, 2, 1, 10, 20)),
    "one tap of a row": (fitted(6, 3, 2, 1, 2, 9), Axis(2, 1, 1, 1, 1)),
    "nothing to multiply": (fitted(5, 2, 1, 1, 40, 7), fitted(7, 3, 1, 1, 1, 9)),
}


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.INPUT_GRAD])
@pytest.mark.parametrize("border", BORDERS)
def test_borders(border: str, direction: Direction, layout: DataLayout) -> None:
    for number, dtype in enumerate(DType):
        accumulate = number % 2 == 1
        epilogue = Epilogue(
            Activation.LEAKY_RELU, residual=number < 2, slopes=True, second=Activation.RELU
        )
        problem = Problem(
            direction, BORDERS[border], 2, 16, 24, dtype=dtype, layout=layout, bias=True,
            epilogue=epilogue, accumulate=accumulate,
        )  # fmt: skip
        for variant in variants(problem, 2):
            check(problem, 2, variant)


def layer(direction: Direction = Direction.FORWARD) -> Problem:
    return Problem(direction, (Axis(60, 4, 2, 1, 1, 1),), 1, 16, 16)


def test_each_step_has_arguments_of_its_own() -> None:
    """Two bindings of one primitive: neither sees the other's arrays."""
    problem = layer()
    operands = [testing.operands(problem, seed) for seed in (1, 2)]
    primitive = JIT.build(problem, 2)
    weight = primitive.pack(operands[0].b)
    outs = [one.before.copy() for one in operands]
    wanted = [one.before.copy() for one in operands]
    with Workspace(primitive.workspace_bytes) as scratch:
        bound = [
            primitive.steps(out, one.a, weight, None, None, scratch)
            for one, out in zip(operands, outs, strict=True)
        ]
        for steps in bound:
            run(steps)
    for one, out, result in zip(operands, outs, wanted, strict=True):
        primitive.run(result, one.a, weight)
        assert out.tobytes() == result.tobytes()


def test_steps_name_the_packed_weight() -> None:
    for variant in variants(layer(), 1):
        primitive = JIT.build(layer(), 1, variant)
        operands = testing.operands(layer())
        weight = primitive.pack(operands.b)
        array = getattr(weight, "transformed", weight)
        (step,) = primitive.steps(operands.before, operands.a, weight, None, None, 0)
        assert step.weights == (array.ctypes.data, array.nbytes)


def test_a_weight_that_is_not_finite_is_refused() -> None:
    operands = testing.operands(layer())
    operands.b[3, 2, 1] = np.inf
    primitive = JIT.build(layer(), 1)
    weight = primitive.pack(operands.b)
    with pytest.raises(
        ArgumentError, match=r"weight is not finite; expected finite numbers.* Call"
    ):
        primitive.steps(operands.before, operands.a, weight, None, None, 0)


@pytest.mark.parametrize("variant", ["positions", "channels", "winograd F(4,2)"])
def test_arrays_that_do_not_lie_well_are_refused(variant: str) -> None:
    operands = testing.operands(layer())
    primitive = JIT.build(layer(), 1, variant)
    weight = primitive.pack(operands.b)
    gaps = np.zeros((*operands.a.shape[:2], 120), np.float32)[..., ::2]
    with pytest.raises(EngineError, match="make a copy first"):
        primitive.steps(operands.before, gaps, weight, None, None, 0)
