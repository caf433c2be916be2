"""How far results on tiles are from exact ones: within the bounds of docs/error-bounds.md.

2,000 layers of real sizes, for minutes:

    python -m pytest tests/engines/jit/test_tiles_precision.py -m long
"""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

import upconv
from tests.engines.test_precision import halved, layers
from tests.support.processes import require_feature
from tests.support.repeating import only
from tests.support.tile_engines import LOWERINGS, TileEngine
from upconv import testing
from upconv.engines import load
from upconv.engines.jit import cpu as cpus
from upconv.engines.jit.cpu import VARIABLE
from upconv.problem import DataLayout, Direction, DType, Problem

RNG = np.random.default_rng(8)
SHAPE, WEIGHT = (1, 64, 16, 18), (64, 48, 4, 4)
HOW: dict[str, Any] = {"stride": 2, "padding": 1}


def check(seeds: range, lowering: str) -> int:
    """The layers of which operands are of bfloat16 or rounded, in both layouts."""
    count = 0
    for seed, problem in layers(only(seeds)):
        if problem.direction is Direction.WEIGHT_GRAD or load("jit").refuses(problem):
            continue
        testing.check(TileEngine.numbered(lowering, seed), problem, seed, threads=1 + seed % 2)
        count += 1
    return count


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_layers_of_real_sizes(lowering: str) -> None:
    """By the usual error of random sums, which is less than the bound."""
    assert check(range(30) if lowering else range(60, 64), lowering) > 4


@pytest.mark.long
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("part", range(20))
def test_many_layers_of_real_sizes(part: int, lowering: str) -> None:
    first = 1000 + 75 * part
    assert check(range(first, first + (75 if lowering else 9)), lowering) > 6


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine computes for a Sapphire Rapids, whatever this processor is besides."""
    require_feature("amx-bf16")
    if not cpus.permitted():
        pytest.skip("the system does not permit tiles")
    monkeypatch.setenv(VARIABLE, "sapphirerapids")


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("kind", ["bfloat16", "rounded"])
def test_layers_take_tiles_by_themselves(kind: str, layout: DataLayout) -> None:
    how = HOW | {"layout": layout.value, "precision": "bfloat16", "threads": 1}
    dtype = DType.BFLOAT16.numpy if kind == "bfloat16" else np.float32
    shape = SHAPE if layout is DataLayout.NCX else (1, 16, 18, 64)
    lines = str(upconv.explain(shape, np.zeros(WEIGHT, dtype), **how)).splitlines()
    for name in ("plan", "conv_transpose", "gradient of x"):
        assert any(line.split(maxsplit=len(name.split())) == [*name.split(), "jit tiles"]
                   for line in lines), name  # fmt: skip


@pytest.mark.usefixtures("amx")
def test_results_of_float32_arrays_are_within_the_bound() -> None:
    """Of plans, single calls and gradients: what rounding both operands can make of exact sums."""
    x, w = (RNG.standard_normal(shape, np.float32) for shape in (SHAPE, WEIGHT))
    how = HOW | {"precision": "bfloat16", "engine": "jit"}
    plan = upconv.plan(x.shape, w, **how)
    exact, magnitude = (
        upconv.conv_transpose(*(each(a).astype("f8") for a in (x, w)), engine="reference", **HOW)
        for each in (np.asarray, abs)
    )
    single = upconv.conv_transpose(x, w, **how)
    assert single.tobytes() == plan(x).tobytes()
    assert_within(plan.problem, single, exact, magnitude)
    grad = RNG.standard_normal(exact.shape).astype(np.float32)
    mine = upconv.conv_transpose_backward(grad, x, w, **how).x
    exact, magnitude = (
        upconv.conv_transpose_backward(
            *(each(a).astype("f8") for a in (grad, x, w)), engine="reference", **HOW
        ).x
        for each in (np.asarray, abs)
    )
    backward = plan.problem.replace(direction=Direction.INPUT_GRAD)
    assert_within(backward, mine, exact, magnitude)


def assert_within(problem: Problem, result: Any, exact: Any, magnitude: Any) -> None:
    bound = testing.error_bound(problem)
    assert 0.0078 < bound < 0.0081
    assert result.dtype == np.float32
    errors = np.abs(result - exact) / magnitude
    assert errors.max() <= bound
    assert errors.max() > 1e-4, "operands are rounded"


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_only_operands_are_rounded(lowering: str) -> None:
    """Sums, bias and results of float32 arrays have the errors of float32 alone."""
    axes = plan_axes()
    problem = Problem(Direction.FORWARD, axes, 1, 64, 48, bias=True, rounded=True)
    given = testing.operands(problem)
    exact, magnitude = (
        upconv.conv_transpose(
            each(halved(given.a)), each(halved(given.b)), each(given.bias.astype("f8")),
            engine="reference", **HOW
        )
        for each in (np.asarray, abs)
    )  # fmt: skip
    result = testing.compute(TileEngine(lowering), problem, given)
    bound = testing.error_bound(problem.replace(rounded=False))
    assert (np.abs(result - exact) <= bound * magnitude).all()
    stored = testing.compute(
        TileEngine(lowering),
        problem.replace(dtype=DType.BFLOAT16, rounded=False),
        testing.Operands(
            given.a.astype(DType.BFLOAT16.numpy), given.b.astype(DType.BFLOAT16.numpy),
            given.bias, None, given.before.astype(DType.BFLOAT16.numpy),
        ),
    )  # fmt: skip
    assert stored.tobytes() == result.astype(DType.BFLOAT16.numpy).tobytes(), "rounded once"


def plan_axes() -> tuple[Any, ...]:
    return upconv.plan(SHAPE, np.zeros(WEIGHT, np.float32), **HOW).problem.axes
