"""Batch normalisation: values by the definition, real MXNet, PyTorch, finite differences."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.norm_oracle import Case, close, normal
from tests.support.paths import DATA
from upconv import BatchNormGradients, batch_norm, batch_norm_backward

FILE = DATA / "mxnet_batchnorm.npz"
BF16 = np.dtype(ml_dtypes.bfloat16)


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


@settings(max_examples=80)
@given(st.data())
def test_random_layouts(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=5), label="shape"))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1), label="axis")
    order = data.draw(st.permutations(range(len(shape))), label="order")
    steps = data.draw(st.lists(st.sampled_from([1, 2, -1]), min_size=len(shape), max_size=5))
    dtype = data.draw(st.sampled_from([np.float64, np.float32, np.float16]), label="dtype")
    cut = tuple(slice(None, None, step) for step in steps[: len(shape)])
    values = normal(shape, np.float64, data.draw(st.integers(0, 999), label="seed"))
    far, spread = data.draw(st.sampled_from([(0, 1), (0, 1), (300, 1), (3, 0.01), (-3e3, 2)]))
    x = (values * spread + far).astype(dtype).transpose(order)[cut]
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
        case["out_grad"], done.saved_mean.astype("f"), done.saved_invstd.astype("f"), *five,
        training=told["backward_train"], **common,
    )  # fmt: skip
    pairs = [
        (done.y, "out"), (done.saved_mean, "mean"), (done.saved_invstd, "invstd"),
        (grads.x, "d_data"), (grads.gamma, "d_gamma"), (grads.beta, "d_beta"),
    ]  # fmt: skip
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
