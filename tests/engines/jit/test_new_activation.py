"""A new activation is two tables: a test adds one there and runs it in every engine and kernel."""

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import upconv
from tests.support.held_kernels import Held
from upconv import activations, testing
from upconv.activations import Activation
from upconv.engine_choice import Algorithm, variants
from upconv.engines import load
from upconv.engines.base import Engine
from upconv.engines.jit import activation as emitted
from upconv.engines.jit.cpu import host
from upconv.geometry import Axis
from upconv.primitives import cache_clear
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

NAME, VALUE = "HARD_SIGMOID", "hard_sigmoid"
Array = np.ndarray


def hard_sigmoid(values: Array) -> Array:
    """The definition; it is not 0 at 0, so results that nothing reaches count."""
    result: Array = np.clip(values / 6 + 0.5, 0, 1)
    return result


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[Activation]:
    """The activation, in the tables of `activations.py` and `engines/jit/activation.py` alone."""
    member = object.__new__(Activation)
    member._name_, member._value_ = NAME, VALUE
    monkeypatch.setattr(Activation, "_member_names_", [*Activation._member_names_, NAME])
    monkeypatch.setitem(Activation._member_map_, NAME, member)
    monkeypatch.setitem(Activation._value2member_map_, VALUE, member)

    def in_place(values: Array, slope: float) -> None:
        values[...] = hard_sigmoid(values)

    def on_lanes(lanes, v):
        return lanes.at_most(1.0, lanes.at_least(0.0, v * (1 / 6) + 0.5))

    monkeypatch.setitem(activations._IN_PLACE, member, in_place)
    monkeypatch.setitem(emitted._EMITTERS, member, on_lanes)
    yield member
    cache_clear()


SQUARE = (Axis(9, 3, 1, 1, 1, 1), Axis(11, 3, 1, 1, 1, 1))
LAYERS = {
    "plain": Problem(Direction.FORWARD, SQUARE, 2, 6, 20, bias=True),
    "channels last": Problem(Direction.FORWARD, SQUARE, 2, 6, 20, layout=DataLayout.NXC),
    "depthwise": Problem(Direction.FORWARD, SQUARE, 2, 5, 5, 5, bias=True),
    "depthwise, channels last": Problem(
        Direction.FORWARD, SQUARE, 2, 19, 19, 19, layout=DataLayout.NXC
    ),
    "gaps": Problem(Direction.FORWARD, (Axis(5, 2, 3), Axis(7, 1, 4, 1, 0, -2)), 2, 6, 12),
    "pairs": Problem(Direction.FORWARD, SQUARE, 2, 6, 20, dtype=DType.BFLOAT16, bias=True),
    "convolution": Problem(Direction.INPUT_GRAD, SQUARE, 2, 6, 20, bias=True),
    "float64": Problem(Direction.FORWARD, SQUARE, 1, 6, 8, dtype=DType.FLOAT64, accumulate=True),
}


def check(engine: Engine, variant: str, problem: Problem) -> None:
    """The oracle's sums, activated here: it has no formula for the activation."""
    held = Held(f"{engine.name} {variant}", lambda *given: engine.build(*given, variant))
    bare = problem.replace(epilogue=Epilogue(residual=problem.epilogue.residual))
    operands = testing.operands(problem)
    sums = testing.expected(bare, operands)
    value = hard_sigmoid(sums.value)
    result = testing.compute(held, problem, operands, 2).astype(np.float64)
    rounding = problem.dtype.epsilon * (1 + np.abs(value))
    assert (np.abs(result - value) <= sums.allowed + rounding).all(), held.name


@pytest.mark.parametrize("residual", [False, True], ids=["bare", "residual"])
@pytest.mark.parametrize("name", LAYERS)
def test_an_activation_of_two_tables_runs_in_every_kernel(
    name: str, residual: bool, added: Activation
) -> None:
    problem = LAYERS[name].replace(epilogue=Epilogue(added, residual=residual))
    if problem.dtype is DType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    engines = [load(status.name) for status in upconv.engines() if status.available]
    for engine in engines:
        if engine.refuses(problem) is None:
            for variant in variants(engine, problem, 2, Algorithm.AUTO):
                check(engine, variant, problem)


def test_the_layers_reach_every_kernel() -> None:
    """And so the test above holds every kernel to the tables."""
    jit = load("jit")
    kernels = {
        variant.split()[0]
        for problem in LAYERS.values()
        for variant in variants(jit, problem, 2, Algorithm.AUTO)
        if variant
    }
    assert kernels == every_kernel()


def every_kernel() -> set[str]:
    """The names of the kernels that this processor has instructions for."""
    masks, dots, tiles = host().vector_bytes >= 32, host().dots > 0, host().tiles != ""
    optional = *["planes"] * masks, *["dots"] * dots, *["tiles"] * tiles
    return {"positions", "channels", "winograd", *optional}


def test_its_name_is_an_argument(added: Activation) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((1, 4, 9, 9), (4, 3, 3, 3)))
    plain = upconv.conv_transpose(x, w, stride=2)
    np.testing.assert_allclose(
        upconv.conv_transpose(x, w, stride=2, activation=VALUE), hard_sigmoid(plain), atol=1e-5
    )


def test_a_kernel_that_forgets_it_is_seen(
    added: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(emitted._EMITTERS, added, lambda lanes, v: v)
    problem = LAYERS["plain"].replace(epilogue=Epilogue(added, residual=True, slope=0.0))
    with pytest.raises(AssertionError, match="jit"):
        check(load("jit"), "channels", problem)
