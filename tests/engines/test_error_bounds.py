"""The published error bound holds: for cancelling sums, for sums of one sign, and by Winograd."""

import random

import numpy as np
import pytest

import upconv
from tests.support import winograd_layers
from upconv import testing
from upconv.engines import load
from upconv.engines.jit.winograd import weights as winograd_weights
from upconv.geometry import Axis
from upconv.problem import Direction, DType, Problem

LONG = {
    Direction.FORWARD: Problem(Direction.FORWARD, (Axis(20, 2, 2),), 1, 20_000, 3),
    Direction.INPUT_GRAD: Problem(Direction.INPUT_GRAD, (Axis(20, 3),), 1, 3, 7_000),
    Direction.WEIGHT_GRAD: Problem(Direction.WEIGHT_GRAD, (Axis(20_000, 2),), 1, 3, 2),
}


SEEDS = range(10)


def test_tests_allow_no_more_than_the_bound() -> None:
    """Twice the bound in float64, which the oracle computes in."""
    for problem in testing.cases():
        most = testing.error_bound(problem) * (2 if problem.dtype is DType.FLOAT64 else 1)
        assert 0 < testing.tolerance(problem) <= most


@pytest.mark.parametrize("name", ["jit", "onednn", "reference"])
@pytest.mark.parametrize("direction", Direction)
def test_sums_of_one_sign(direction: Direction, name: str) -> None:
    """Whose errors do not cancel: every sum is of equal numbers that are rounded."""
    status = {status.name: status for status in upconv.engines()}[name]
    if not status.available:
        pytest.skip(status.reason)
    problem = LONG[direction]
    drawn = testing.operands(problem)
    for value in (0.1, 1 / 3, 0.7):
        a, b = (np.full_like(operand, value) for operand in (drawn.a, drawn.b))
        given = testing.Operands(a, b, None, None, drawn.before)
        wanted = testing.expected(problem, given).value
        error = np.abs(testing.compute(load(name), problem, given) - wanted)
        assert (error <= testing.error_bound(problem) * wanted).all(), value


def winograd_error(seed: int) -> float:
    """The largest error of a random variant of a random layer, over its bound."""
    problem, threads = winograd_layers.layer(seed)
    variant = random.Random(seed).choice(winograd_layers.variants(problem, threads))
    given = testing.operands(problem, seed)
    wanted = testing.expected(problem, given).value
    if not wanted.size:
        return 0.0
    error = np.abs(winograd_layers.computed(problem, variant, threads, given) - wanted).max()
    x, w, *others = (
        0.0 if array is None else float(np.abs(array).max(initial=0))
        for array in (given.a, given.b, given.bias, given.residual)
    )
    magnitude = problem.longest_sum * x * w + sum(others)
    return float(error / (testing.error_bound(problem, variant) * magnitude))


def test_winograd() -> None:
    ratios = [winograd_error(seed) for seed in SEEDS]
    assert 0 < max(ratios) <= 1
    assert np.median(ratios) > 1e-6, "a bound that says nothing"


def test_a_planted_fault_exceeds_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight's transform that is a fiftieth too large at one point."""
    terms = winograd_weights._terms

    def wrong(*arguments: object) -> tuple[np.ndarray, np.ndarray]:
        counts, factors = terms(*arguments)
        factors[:, :, 1:2] *= 1.02
        return counts, factors

    monkeypatch.setattr(winograd_weights, "_terms", wrong)
    assert np.median([winograd_error(seed) for seed in SEEDS]) > 1


def test_a_bound_that_is_none() -> None:
    endless = Problem(Direction.WEIGHT_GRAD, (Axis(1 << 25, 1),), 1, 1, 1)
    assert testing.error_bound(endless) == np.inf
