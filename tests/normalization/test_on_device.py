"""Batch normalization of arrays on a GPU: a made-up one, by cuDNN's graphs and without them, and a
real one where there is one."""

import numpy as np
import pytest

import upconv
from tests.support.made_up_gpu import GpuArray, MadeUpNorms, made_up_array
from tests.support.real_gpu import reason_without
from upconv import arrays
from upconv.normalization import on_device

RNG = np.random.default_rng(3)
SHAPES = [
    ((4, 6, 5, 7), 1),
    ((4, 5, 7, 6), -1),
    ((3, 16, 40), 1),
    ((64, 8), 1),
    ((2, 3, 4, 8, 5), 3),
]


@pytest.fixture(params=["by cuDNN", "by sums", "torch"], autouse=True)
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Takes an array to the GPU."""
    if request.param == "torch":
        if reason_without("torch"):
            pytest.skip(reason_without("torch"))
        import torch

        return lambda array: torch.from_numpy(np.ascontiguousarray(array)).cuda()
    norms = MadeUpNorms(refuses=request.param == "by sums")
    monkeypatch.setattr(arrays, "device_array", made_up_array)
    monkeypatch.setattr(on_device, "_engine", lambda x: norms)
    return GpuArray


def back(result) -> np.ndarray:
    return result if isinstance(result, np.ndarray) else result.cpu().numpy()


def given(shape, axis: int, dtype: str):
    x = RNG.standard_normal(shape).astype(dtype)
    return x, *(RNG.uniform(0.5, 1.5, shape[axis]).astype("float32") for _ in range(4))


@pytest.mark.parametrize("flags", [{}, {"fix_gamma": True}])
@pytest.mark.parametrize("how", [{"training": True}, {"training": True, "statistics": "mxnet"}, {}])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_values_beside_the_processors(there, shape, axis: int, dtype: str, how, flags) -> None:
    near = {"float32": 2e-5, "float16": 4e-3}[dtype]
    x, *parameters = given(shape, axis, dtype)
    wanted = upconv.batch_norm(x, *parameters, axis=axis, **how, **flags)
    got = upconv.batch_norm(*map(there, (x, *parameters)), axis=axis, **how, **flags)
    for name in wanted._fields:
        mine = back(getattr(got, name))
        np.testing.assert_allclose(mine, getattr(wanted, name), rtol=near, atol=near)
    g = RNG.standard_normal(shape).astype(dtype)
    saved = [each.astype("float32") for each in (wanted.saved_mean, wanted.saved_invstd)]
    how = {"training": how.get("training", False), "axis": axis} | flags
    gradients = upconv.batch_norm_backward(g, *saved, x, *parameters, **how)
    operands = [*map(there, (g, *saved, x, *parameters))]
    found = upconv.batch_norm_backward(*operands, **how)
    for name in gradients._fields:
        mine, theirs = back(getattr(found, name)), getattr(gradients, name)
        np.testing.assert_allclose(mine, theirs, rtol=40 * near, atol=40 * near)
        assert mine.dtype == theirs.dtype
    only = upconv.batch_norm_backward(*operands, needs="beta", **how)
    assert only.x is None
    np.testing.assert_allclose(back(only.beta), back(found.beta), rtol=near, atol=near)


def test_parameters_may_lie_anyhow_and_x_be_empty(there) -> None:
    x, gamma, beta, mean, var = given((4, 6, 5), 1, "float32")
    wanted = upconv.batch_norm(x, gamma, beta, mean, var, training=True)
    spread = [there(np.repeat(each, 2)) for each in (gamma, beta, mean, var)]
    if there is GpuArray:
        for each in spread:
            each.native = each.native[::2]
    else:
        spread = [each[::2] for each in spread]
    got = upconv.batch_norm(there(x), *spread, training=True)
    np.testing.assert_allclose(back(got.y), wanted.y, rtol=2e-5, atol=2e-5)
    empty = upconv.batch_norm(there(x[:0]), *spread)
    assert empty.y.shape == (0, 6, 5)


def test_a_fixed_gamma_has_no_gradient_beside_nan(there) -> None:
    x, *_ = given((4, 6, 5), 1, "float32")
    g = np.full_like(x, np.nan)
    saved = [there(np.ones(6, np.float32)) for _ in range(2)]
    found = upconv.batch_norm_backward(there(g), *saved, there(x), fix_gamma=True)
    np.testing.assert_array_equal(back(found.gamma), np.zeros(6))


def test_refusals(there) -> None:
    x, gamma, *_ = given((4, 6, 5), 1, "float32")
    on_gpu = there(x)
    with pytest.raises(upconv.DTypeError, match=r"out .*None.*Leave it out"):
        upconv.batch_norm(on_gpu, training=True, out=x)
    with pytest.raises(upconv.DTypeError, match=r"gamma .*main memory.*cuda:0"):
        upconv.batch_norm(on_gpu, gamma, training=True)
    with pytest.raises(upconv.ShapeError, match=r"gamma\.shape"):
        upconv.batch_norm(on_gpu, there(gamma[:5]), training=True)
    with pytest.raises(upconv.DTypeError, match="mean is None"):
        upconv.batch_norm(on_gpu)
    with pytest.raises(upconv.ShapeError, match="elements to train on"):
        upconv.batch_norm(there(x[:0]), training=True, statistics="mxnet")
