"""Batch normalisation: moving statistics, arrays written into, odd values and sizes, threads."""

import numpy as np
import pytest

from tests.support.norm_oracle import Case, close, normal
from tests.support.racing import in_threads
from upconv import BatchNormGradients, BatchNormResult, batch_norm, batch_norm_backward

# Moving statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "momentum", "mean", "var"),
    [
        # x = 1, 3, 8: mean 4, variance 26/3 by n, 13 by n - 1; before: 10 and 2
        ("torch", 0.25, 10 * 0.75 + 4 * 0.25, 2 * 0.75 + 13 * 0.25),
        ("mxnet", 0.25, 10 * 0.25 + 4 * 0.75, 2 * 0.25 + 26 / 3 * 0.75),
        ("torch", None, 10 * 0.9 + 4 * 0.1, 2 * 0.9 + 13 * 0.1),
        ("mxnet", None, 10 * 0.9 + 4 * 0.1, 2 * 0.9 + 26 / 3 * 0.1),
        ("torch", 0, 10, 2),
        ("mxnet", 1, 10, 2),
        ("torch", 1, 4, 13),
    ],
)
def test_the_rule_of_moving_statistics(rule: str, momentum, mean: float, var: float) -> None:
    x = np.array([[1.0], [3.0], [8.0]])
    old = np.array([10.0]), np.array([2.0])
    done = batch_norm(x, None, None, *old, momentum=momentum, statistics=rule, training=True)
    np.testing.assert_allclose(done.moving_mean, [mean], rtol=1e-14)
    np.testing.assert_allclose(done.moving_var, [var], rtol=1e-14)
    assert (old[0][0], old[1][0]) == (10, 2)


def test_moving_statistics_are_updated_in_place_where_asked() -> None:
    case = Case(normal((3, 4, 5)))
    wanted = case.run()
    mean, var = case.mean, case.var
    done = case.run(out=BatchNormResult(moving_mean=mean, moving_var=var))
    assert done.moving_mean is mean
    assert done.moving_var is var
    np.testing.assert_array_equal(mean, wanted.moving_mean)
    np.testing.assert_array_equal(var, wanted.moving_var)


def test_without_moving_statistics_none_come_back() -> None:
    done = batch_norm(normal((3, 4, 5)), training=True)
    assert done.moving_mean is None
    assert done.moving_var is None


# out --------------------------------------------------------------------------------------------


def test_y_may_be_written_over_x() -> None:
    case = Case(normal((3, 4, 5)))
    wanted = case.y()
    for make in (lambda x: x, lambda x: x[::-1], lambda x: x.swapaxes(0, 2).swapaxes(0, 2)):
        x = case.x.copy()
        out = make(x)
        case_now = Case(x)
        done = case_now.run(out=out)
        assert done.y is out
        close(out, wanted, 1e-6)


def test_what_lies_in_out_is_read_before_it_is_written() -> None:
    case = Case(normal((3, 4, 5)))
    wanted = case.run()
    room = np.empty(case.x.size + 8, "f")
    out = room[4:64].reshape(case.x.shape)
    case.gamma, case.beta, case.mean, case.var = (room[n : n + 4] for n in (4, 20, 40, 50))
    fresh = Case(case.x)
    for name in ("gamma", "beta", "mean", "var"):
        getattr(case, name)[...] = getattr(fresh, name)
    done = case.run(out=out)
    for name in BatchNormResult._fields:
        np.testing.assert_array_equal(getattr(done, name), getattr(wanted, name))


def test_an_array_of_a_subclass_is_written_and_returned_itself() -> None:
    case = Case(normal((3, 4, 5)))
    out = np.zeros_like(case.x).view(np.recarray)
    assert case.run(out=out).y is out
    close(np.asarray(out), case.y(), 1e-6)


def test_the_gradient_may_be_written_over_an_operand() -> None:
    case = Case(normal((3, 4, 5)))
    done, wanted = case.run(), case.gradients()["x"]
    for name in ("grad", "x"):
        again = Case(case.x.copy())
        target = getattr(again, name)
        grads = again.run_backward(done, out=BatchNormGradients(x=target))
        assert grads.x is target
        close(target, wanted, 1e-5)


def test_out_of_any_strides() -> None:
    case = Case(normal((3, 4, 5)))
    room = np.full((5, 8, 3), 7, "f")
    out = room[:, ::2].transpose(2, 1, 0)
    done = case.run(out=BatchNormResult(y=out, saved_mean=np.empty(4)))
    assert done.y is out
    close(out, case.y(), 1e-6)
    assert (room[:, 1::2] == 7).all()
    close(done.saved_mean, case.moments()[0], 1e-6)


# What is no ordinary number or size -------------------------------------------------------------


def test_nan_and_infinity_stay_in_their_channel() -> None:
    x = normal((4, 3, 5))
    x[0, 0, 0], x[1, 1, 1] = np.nan, np.inf
    clean = batch_norm(normal((4, 3, 5)), training=True)
    done = batch_norm(x, training=True, mean=np.zeros(3, "f"), var=np.ones(3, "f"))
    assert np.isnan(done.y[:, :2]).all()
    np.testing.assert_array_equal(done.y[:, 2], clean.y[:, 2])
    assert np.isnan(done.moving_var[:2]).all()
    assert np.isfinite(done.moving_var[2])


def test_an_infinity_in_front_is_one_anywhere() -> None:
    x = normal((4, 1, 5))
    x[0, 0, 0] = np.inf
    assert batch_norm(x, training=True).saved_mean[0] == np.inf
    assert batch_norm(x[::-1], training=True).saved_mean[0] == np.inf


def test_inference_keeps_nan_and_infinity_where_they_are() -> None:
    x = normal((4, 3, 5))
    x[0, 0, 0], x[1, 1, 1] = np.nan, -np.inf
    y = batch_norm(x, mean=np.zeros(3, "f"), var=np.ones(3, "f")).y
    assert np.isnan(y[0, 0, 0])
    assert y[1, 1, 1] == -np.inf
    assert np.isfinite(y).sum() == y.size - 2


def test_a_constant_channel_gives_beta() -> None:
    x = np.full((2, 3, 4), 3, "f")
    beta = np.array([1, 2, 3], "f")
    for eps in (0.0, 1e-5):
        done = batch_norm(x, None, beta, eps=eps, training=True)
        np.testing.assert_array_equal(done.y, np.broadcast_to(beta[:, None], (2, 3, 4)))
    assert (batch_norm(x, eps=0, training=True).saved_invstd == 0).all()


def test_one_element_per_channel_by_the_rule_of_mxnet() -> None:
    x, zeros, ones = np.full((1, 2), 3, "f"), np.zeros(2, "f"), np.ones(2, "f")
    rule = {"statistics": "mxnet", "training": True}
    done = batch_norm(x, None, None, zeros, ones, eps=1e-3, **rule)
    # What MXNet 1.9.1 gives, 31.62 being 1 / sqrt(1e-3).
    np.testing.assert_array_equal(done.y, [[0, 0]])
    np.testing.assert_allclose(done.saved_invstd, 31.6227766, rtol=1e-6)
    np.testing.assert_allclose(done.moving_mean, [0.3, 0.3], rtol=1e-6)
    np.testing.assert_allclose(done.moving_var, [0.9, 0.9], rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (0, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_no_elements_leave_moving_statistics_alone(shape: tuple[int, ...], training: bool) -> None:
    """As PyTorch 2.13 answers in forward; its backward ends the process (FPE)."""
    x, mean, var = np.empty(shape, "f"), np.full(3, 2, "f"), np.full(3, 5, "f")
    done = batch_norm(x, None, None, mean, var, training=training)
    assert done.y.shape == shape
    np.testing.assert_array_equal(done.moving_mean, mean)
    np.testing.assert_array_equal(done.moving_var, var)
    grads = batch_norm_backward(
        x, done.saved_mean, done.saved_invstd, x, None, None, mean, var, training=training
    )
    assert grads.x.shape == shape
    np.testing.assert_array_equal(grads.gamma, np.zeros(3))
    np.testing.assert_array_equal(grads.beta, np.zeros(3))


def test_many_threads_at_once() -> None:
    assert in_threads(8, Case(normal((4, 6, 50, 30))).check) == [None] * 8
