"""The tests of batch normalisation are tested: a planted fault must not pass `Case.check`."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.norm_oracle import Case
from upconv.normalization import backward, channels, forward
from upconv.normalization.channels import Channels

MOMENTS, TOTALS, COMBINE = Channels.moments, Channels.totals, Channels.combine
AFFINE, INVERSE = channels.affine, channels.inverse_deviation


def biased_wrongly(self, x):
    """The variance divided by n - 1."""
    mean, var = MOMENTS(self, x)
    return mean, var * self.count / (self.count - 1)


def mean_in_single_precision(self, x):
    mean, var = MOMENTS(self, x)
    return mean.astype("f").astype("d"), var


def one_element_off(self, out, x, vectors, grad=None, **words):
    COMBINE(self, out, x, vectors, grad, **words)
    out[-1, -1] *= out.dtype.type(1.1)


def totals_exchanged(self, pivot, x, grad=None):
    total, products = TOTALS(self, pivot, x, grad)
    return (total, products) if grad is None else (products, total)


def slope_left_out(self, out, x, vectors, grad=None, **words):
    """The gradient without its term in xh."""
    mean, slope, constant = vectors
    COMBINE(self, out, x, (mean, slope if grad is None else 0 * slope, constant), grad, **words)


def mean_term_left_out(self, out, x, vectors, grad=None, **words):
    mean, slope, constant = vectors
    COMBINE(self, out, x, (mean, slope, constant if grad is None else 0 * constant), grad, **words)


METHODS = {
    "moments": (biased_wrongly, mean_in_single_precision),
    "combine": (one_element_off, slope_left_out, mean_term_left_out),
    "totals": (totals_exchanged,),
}
FUNCTIONS = {
    "eps_forgotten": (
        forward,
        "inverse_deviation",
        lambda v, eps, batch: INVERSE(v, 0, batch=batch),
    ),
    "channels_shifted": (forward, "affine", lambda m, s, t, d: AFFINE(m, np.roll(s, 1), t, d)),
    "shift_forgotten": (forward, "affine", lambda m, s, t, d: AFFINE(m, s, 0 * t, d)),
    "not_rounded_apart": (backward, "affine", lambda m, s, t, d: (m * 0, s, t)),
}


def _case(dtype: str, axis: int, training: bool, shift: float) -> Case:
    x = np.random.default_rng(axis + 5).standard_normal((3, 4, 5)).astype(dtype)
    return Case(x + x.dtype.type(shift), axis, training=training)


CASES = [_case("f", 1, True, 100), _case("f", -1, False, 0), _case("d", 0, True, 0)]


def passes() -> bool:
    try:
        for case in CASES:
            case.check()
    except AssertionError:
        return False
    return True


def test_without_a_fault_everything_passes() -> None:
    assert passes()


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, faults in METHODS.items() for fault in faults]
)
def test_a_fault_in_the_arithmetic_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable
) -> None:
    monkeypatch.setattr(Channels, name, fault)
    assert not passes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fault_in_a_factor_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, function, fault = FUNCTIONS[name]
    monkeypatch.setattr(module, function, fault)
    assert not passes()
