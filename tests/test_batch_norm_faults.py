"""The tests of batch normalisation are tested: a planted fault must not pass `Case.check`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from norm_oracle import Case
from upconv.engines import normalization
from upconv.engines.normalization import Moments, Totals, normalizer

HONEST = normalizer("reference")


def biased_wrongly(primitive, y, x, gamma, beta, given) -> Moments:
    """The variance divided by n - 1."""
    mean, var = primitive.forward(y, x, gamma, beta, given)
    n = primitive.problem.count
    return Moments(mean, var * n / (n - 1)) if given is None else Moments(mean, var)


def eps_forgotten(primitive, y, x, gamma, beta, given) -> Moments:
    moments = primitive.forward(y, x, gamma, beta, given)
    scale = np.sqrt(moments.var + primitive.problem.eps) / np.sqrt(moments.var)
    return primitive.forward(y, x, gamma * scale, beta, given)


def gamma_forgotten(primitive, y, x, gamma, beta, given) -> Moments:
    return primitive.forward(y, x, np.ones_like(gamma), beta, given)


def channels_shifted(primitive, y, x, gamma, beta, given) -> Moments:
    return primitive.forward(y, x, np.roll(gamma, 1), np.roll(beta, 1), given)


def statistics_ignored(primitive, y, x, gamma, beta, given) -> Moments:
    """The batch's own where others were given."""
    return primitive.forward(y, x, gamma, beta, None)


def one_element_off(primitive, y, x, gamma, beta, given) -> Moments:
    moments = primitive.forward(y, x, gamma, beta, given)
    y[(-1,) * y.ndim] *= y.dtype.type(1.1)
    return moments


def mean_in_single_precision(primitive, y, x, gamma, beta, given) -> Moments:
    mean, var = primitive.forward(y, x, gamma, beta, given)
    return Moments(mean.astype("f").astype("d"), var)


def sums_left_out(primitive, dx, grad, x, gamma, mean, invstd) -> Totals:
    """The gradient of inference in training."""
    totals = primitive.backward(dx, grad, x, gamma, mean, invstd)
    shape = [1] * x.ndim
    shape[primitive.problem.axis] = -1
    dx[...] = grad * (gamma * invstd).reshape(shape)
    return totals


def mean_term_left_out(primitive, dx, grad, x, gamma, mean, invstd) -> Totals:
    totals = primitive.backward(dx, grad, x, gamma, mean, invstd)
    shape = [1] * x.ndim
    shape[primitive.problem.axis] = -1
    dx += (gamma * invstd * totals.g / primitive.problem.count).reshape(shape).astype(dx.dtype)
    return totals


def totals_exchanged(primitive, dx, grad, x, gamma, mean, invstd) -> Totals:
    g, gx = primitive.backward(dx, grad, x, gamma, mean, invstd)
    return Totals(gx, g)


def not_normalised(primitive, dx, grad, x, gamma, mean, invstd) -> Totals:
    """The sum of g times the deviation, not divided by it."""
    g, gx = primitive.backward(dx, grad, x, gamma, mean, invstd)
    return Totals(g, gx / invstd)


FORWARD = [
    biased_wrongly,
    eps_forgotten,
    gamma_forgotten,
    channels_shifted,
    statistics_ignored,
    one_element_off,
    mean_in_single_precision,
]
BACKWARD = [sums_left_out, mean_term_left_out, totals_exchanged, not_normalised]


class Planted:
    """The NumPy engine, one of its directions going through a function that may do wrong."""

    name = "reference"
    resident_bytes = workspace_bytes = 0

    def __init__(self, forward: Callable | None = None, backward: Callable | None = None) -> None:
        self._forward, self._backward = forward, backward

    def fingerprint(self) -> str:
        return "planted"

    def refuses(self, problem: object) -> None:
        return None

    def build(self, problem, threads: int, variant: str = "") -> Planted:
        built = Planted(self._forward, self._backward)
        built.inner = HONEST.build(problem, threads)
        return built

    def forward(self, *operands) -> Moments:
        run = self._forward
        return run(self.inner, *operands) if run else self.inner.forward(*operands)

    def backward(self, *operands) -> Totals:
        run = self._backward
        return run(self.inner, *operands) if run else self.inner.backward(*operands)

    def close(self) -> None:
        pass


def _case(dtype: str, axis: int, training: bool, shift: float) -> Case:
    x = np.random.default_rng(axis + 5).standard_normal((3, 4, 5)).astype(dtype)
    return Case(x + x.dtype.type(shift), axis, training=training)


CASES = [_case("f", 1, True, 100), _case("f", -1, False, 0), _case("d", 0, True, 0)]


def passes(monkeypatch: pytest.MonkeyPatch, engine: Planted) -> bool:
    monkeypatch.setattr(normalization, "made", lambda place: engine)
    try:
        for case in CASES:
            case.check()
    except AssertionError:
        return False
    return True


def test_without_a_fault_everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes(monkeypatch, Planted())


@pytest.mark.parametrize("fault", FORWARD, ids=lambda fault: fault.__name__)
def test_a_fault_in_forward_is_caught(monkeypatch: pytest.MonkeyPatch, fault: Callable) -> None:
    assert not passes(monkeypatch, Planted(forward=fault))


@pytest.mark.parametrize("fault", BACKWARD, ids=lambda fault: fault.__name__)
def test_a_fault_in_backward_is_caught(monkeypatch: pytest.MonkeyPatch, fault: Callable) -> None:
    assert not passes(monkeypatch, Planted(backward=fault))
