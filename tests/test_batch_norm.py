"""Batch normalisation: values by the definition, real MXNet, PyTorch, finite differences."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from norm_oracle import Case, close
from upconv import BatchNormGradients, BatchNormResult, batch_norm, batch_norm_backward

FILE = Path(__file__).with_name("data") / "mxnet_batchnorm.npz"
BF16 = np.dtype(ml_dtypes.bfloat16)


def normal(shape: tuple[int, ...], dtype: object = np.float32, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * 1.5 + 0.5
    return values.astype(dtype)


# The definition ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BF16], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("training", [True, False])
def test_every_type_axis_and_mode(dtype, axis: int, training: bool) -> None:
    Case(normal((4, 6, 5, 3), dtype), axis, training=training).check()


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7, 5), 1), ((7, 5), 0), ((9,), 0), ((2, 3, 2, 3, 2), 1), ((3, 2, 1, 2, 2, 2, 2), 3)],
)
def test_every_rank(shape: tuple[int, ...], axis: int) -> None:
    Case(normal(shape), axis, training=len(shape) > 1).check()


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 3, 70_001), 1),
        ((70_001, 3), 1),
        ((3, 70, 1001), 1),
        ((2, 70_001), 1),
        ((300, 7, 37), 1),
    ],
)
def test_more_than_one_block(shape: tuple[int, ...], axis: int) -> None:
    Case(normal(shape), axis).check()
    Case(normal(shape), axis, training=False).check()


VIEWS = {
    "reversed": lambda x: x[::-1, :, ::-1],
    "every second": lambda x: x[:, :, ::2, 1::2],
    "transposed": lambda x: x.transpose(3, 1, 0, 2),
    "Fortran": np.asfortranarray,
    "broadcast": lambda x: np.broadcast_to(x[:, :, :1], x.shape),
    "read-only": lambda x: _frozen(x),
    "big-endian": lambda x: x.astype(">f4"),
}


def _frozen(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("view", VIEWS)
def test_any_strides(view: str) -> None:
    x = VIEWS[view](normal((4, 6, 8, 10)))
    for axis in (1, 3):
        native = Case(x.astype(np.float32), axis)
        done = batch_norm(x, native.gamma, native.beta, axis=axis, eps=native.eps, training=True)
        close(done.y, native.y(), 1e-6)


def test_the_result_lies_in_memory_as_x_does() -> None:
    x = normal((2, 5, 7, 3)).transpose(0, 3, 1, 2)
    y = batch_norm(x, training=True).y
    assert y.strides == x.strides
    grads = batch_norm_backward(x, np.zeros(3), np.ones(3), x)
    assert grads.x.strides == x.strides


@settings(max_examples=150)
@given(st.data())
def test_random_layouts(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=5), label="shape"))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1), label="axis")
    order = data.draw(st.permutations(range(len(shape))), label="order")
    steps = data.draw(st.lists(st.sampled_from([1, 2, -1]), min_size=len(shape), max_size=5))
    dtype = data.draw(st.sampled_from([np.float64, np.float32, np.float16]), label="dtype")
    cut = tuple(slice(None, None, step) for step in steps[: len(shape)])
    x = normal(shape, dtype).transpose(order)[cut]
    training = data.draw(st.booleans()) and x.size > x.shape[axis]
    eps = data.draw(st.sampled_from([1e-1, 1e-3]))
    case = Case(x, axis, eps=eps, training=training, seed=len(shape))
    case.check()


@pytest.mark.parametrize("offset", [1e3, 1e6, -1.5e7])
@pytest.mark.parametrize("first", [False, True])
def test_data_far_from_zero_lose_nothing(offset: float, first: bool) -> None:
    """The float32 x is what it is; from there on no digit goes: not by a float32 mean either."""
    x = (np.random.default_rng(1).standard_normal((8, 3, 50, 40)) * 30 + offset).astype("f")
    if first:
        x[0, :, 0, 0] = 0  # the pivot is a stray: the sums are made again
    Case(x).check()


def test_float64_data_far_from_zero() -> None:
    x = np.random.default_rng(1).standard_normal((8, 3, 500)) + 1e9
    x[0, :, 0] = 0
    case = Case(x)
    done = case.run()
    close(done.y, case.y(), 1e-12)
    close(1 / done.saved_invstd**2, case.moments()[1] + case.eps, 1e-12)


def test_the_extremes_of_float32_do_not_overflow_on_the_way() -> None:
    x = np.array([[-3e38], [3e38]], "f")
    done = batch_norm(x, training=True)
    np.testing.assert_allclose(done.y, [[-1], [1]], rtol=1e-6)
    np.testing.assert_allclose(done.saved_invstd, 1 / 3e38, rtol=1e-6)


# MXNet and PyTorch ------------------------------------------------------------------------------


def golden() -> dict[str, dict[str, np.ndarray]]:
    with np.load(FILE, allow_pickle=False) as file:
        return {
            name: {
                key.partition(".")[2]: file[key] for key in file.files if key.startswith(f"{name}.")
            }
            for name in json.loads(str(file["index"]))
        }


GOLDEN = golden()


def test_there_are_twenty_one_golden_cases() -> None:
    assert len(GOLDEN) == 21


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_mxnet(name: str) -> None:
    """The real MXNet 1.9.1, forward and backward; its gamma of ones is not written to ours."""
    case = GOLDEN[name]
    told = json.loads(str(case["attrs"]))
    five = [case[part] for part in ("data", "gamma", "beta", "moving_mean", "moving_var")]
    before = [array.copy() for array in five]
    common = {key: told[key] for key in ("eps", "axis", "fix_gamma", "use_global_stats")}
    done = batch_norm(
        *five,
        training=told["forward_train"],
        momentum=told["momentum"],
        statistics="mxnet",
        **common,
    )
    grads = batch_norm_backward(
        case["out_grad"],
        done.saved_mean.astype("f"),
        done.saved_invstd.astype("f"),
        *five,
        training=told["backward_train"],
        **common,
    )
    pairs = [
        (done.y, "out"),
        (done.saved_mean, "mean"),
        (done.saved_invstd, "invstd"),
        (grads.x, "d_data"),
        (grads.gamma, "d_gamma"),
        (grads.beta, "d_beta"),
    ]
    if told["backward_train"]:  # MXNet updates in its backward pass, and in training only
        pairs += [(done.moving_mean, "moving_mean_after"), (done.moving_var, "moving_var_after")]
    for got, part in pairs:
        close(got, case[part].astype(np.longdouble), 2e-5)
    for array, old in zip(five, before, strict=True):
        np.testing.assert_array_equal(array, old)


torch_only = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("torch") is None, reason="PyTorch is not installed"
)


@torch_only
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 6, 5, 7), (9, 3), (3, 4, 5), (2, 3, 4, 3, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_pytorch(training: bool, shape: tuple[int, ...], affine: bool) -> None:
    import torch

    case = Case(normal(shape), training=training, eps=1e-5)
    x = torch.from_numpy(case.x).requires_grad_()
    weight, bias = (torch.from_numpy(a.copy()).requires_grad_() for a in (case.gamma, case.beta))
    moving = [torch.from_numpy(a.copy()) for a in (case.mean, case.var)]
    pair = (weight, bias) if affine else (None, None)
    y = torch.nn.functional.batch_norm(x, *moving, *pair, training, 0.3, 1e-5)
    y.backward(torch.from_numpy(case.grad))
    gamma, beta = (case.gamma, case.beta) if affine else (None, None)
    common = {"training": training}
    stats = (case.mean, case.var)
    done = batch_norm(case.x, gamma, beta, *stats, momentum=0.3, **common)
    grads = batch_norm_backward(
        case.grad, done.saved_mean, done.saved_invstd, case.x, gamma, beta, *stats, **common
    )
    close(done.y, y.detach().numpy(), 2e-6)
    close(done.moving_mean, moving[0].numpy(), 2e-6)
    close(done.moving_var, moving[1].numpy(), 2e-6)
    close(grads.x, x.grad.numpy(), 5e-6)
    if affine:
        close(grads.gamma, weight.grad.numpy(), 5e-6)
        close(grads.beta, bias.grad.numpy(), 5e-6)


@torch_only
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_pytorch_16_bits_with_parameters_of_32(name: str) -> None:
    import torch

    kind = {"float16": np.float16, "bfloat16": BF16}[name]
    case = Case(normal((5, 4, 6), kind), eps=1e-5)
    x = torch.from_numpy(case.x.astype("f")).to(getattr(torch, name))
    moving = [torch.from_numpy(a.copy()) for a in (case.mean, case.var)]
    pair = (torch.from_numpy(case.gamma), torch.from_numpy(case.beta))
    y = torch.nn.functional.batch_norm(x, *moving, *pair, True, 0.1, 1e-5)
    done = case.run()
    assert done.y.dtype == kind
    assert done.moving_mean.dtype == np.float32
    close(done.y, y.float().numpy(), 1e-6, kind)
    close(done.moving_mean, moving[0].numpy(), 1e-5)
    close(done.moving_var, moving[1].numpy(), 1e-5)


# Gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fix_gamma", [True, False])
def test_gradients_by_finite_differences(training: bool, fix_gamma: bool) -> None:
    case = Case(normal((3, 2, 4), np.float64), eps=1e-2, training=training)
    flags = {"eps": 1e-2, "training": training, "fix_gamma": fix_gamma}
    five = [case.x, case.gamma, case.beta, case.mean, case.var]

    def loss(place: int, direction: np.ndarray) -> float:
        moved = [a + direction if i == place else a for i, a in enumerate(five)]
        return float((batch_norm(*moved, **flags).y * case.grad).sum())

    done = batch_norm(*five, **flags)
    grads = batch_norm_backward(case.grad, done.saved_mean, done.saved_invstd, *five, **flags)
    rng = np.random.default_rng(3)
    for place, grad in enumerate(grads):
        for _ in range(4):
            way = rng.standard_normal(grad.shape)
            slope = (loss(place, 1e-6 * way) - loss(place, -1e-6 * way)) / 2e-6
            assert slope == pytest.approx(float((grad * way).sum()), rel=1e-6, abs=1e-7)


def test_fixed_gamma_is_one_and_has_no_gradient() -> None:
    case = Case(normal((3, 4, 5)))
    plain = batch_norm(case.x, None, case.beta, training=True)
    fixed = batch_norm(case.x, case.gamma, case.beta, training=True, fix_gamma=True)
    np.testing.assert_array_equal(plain.y, fixed.y)
    assert (case.gamma != 1).all()
    grads = case.run_backward(fixed, fix_gamma=True)
    np.testing.assert_array_equal(grads.gamma, np.zeros(4))


def test_global_statistics_in_training_are_inference() -> None:
    case = Case(normal((3, 4, 5)))
    globally = case.run(use_global_stats=True)
    case.training = False
    np.testing.assert_array_equal(case.run().y, globally.y)
    np.testing.assert_array_equal(globally.moving_mean, case.mean)
    np.testing.assert_array_equal(globally.saved_mean, case.mean.astype("d"))


def test_only_the_gradients_that_are_needed() -> None:
    case = Case(normal((3, 4, 5)))
    done, wanted = case.run(), case.gradients()
    for name in ("x", "gamma", "beta"):
        grads = case.run_backward(done, needs=(name,))
        assert [part for part in grads._fields if getattr(grads, part) is not None] == [name]
        close(getattr(grads, name), wanted[name], 1e-5)


def test_gradients_are_added_where_asked() -> None:
    case = Case(normal((3, 4, 5)))
    done, wanted = case.run(), case.gradients()
    into = BatchNormGradients(*(np.full_like(a, 2) for a in (case.x, case.gamma, case.beta)))
    grads = case.run_backward(done, out=into, accumulate=True)
    for name, value in wanted.items():
        assert getattr(grads, name) is getattr(into, name)
        close(getattr(grads, name), value + 2, 1e-5)


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


# Threads --------


def test_many_threads_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    case = Case(normal((4, 6, 50, 30)))
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(case.check) for _ in range(16)]
        for job in jobs:
            job.result()
