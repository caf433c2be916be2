"""Batch normalization of arrays on a GPU, beside that of the processor."""

import numpy as np
import pytest

import upconv
from tests.support.real_gpu import reason_without

pytestmark = pytest.mark.skipif(bool(reason_without("torch")), reason=reason_without("torch"))

RNG = np.random.default_rng(3)
SHAPES = [
    ((4, 6, 5, 7), 1), ((4, 5, 7, 6), -1), ((3, 16, 40), 1), ((64, 8), 1), ((2, 3, 4, 8, 5), 3),
]  # fmt: skip


def arrays(shape, axis, dtype="float32"):
    channels = shape[axis]
    x = RNG.standard_normal(shape).astype(dtype)
    parameters = [RNG.uniform(0.5, 1.5, channels).astype("float32") for _ in range(4)]
    return x, *parameters


def there(*values):
    import torch

    return [None if value is None else torch.from_numpy(value).cuda() for value in values]


def close(got, wanted, tolerance: float) -> None:
    np.testing.assert_allclose(
        got.float().cpu().numpy(), np.asarray(wanted, np.float32), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("how", [{"training": True}, {"training": True, "statistics": "mxnet"}, {}])
def test_forward_and_backward(shape, axis: int, dtype: str, how) -> None:
    x, gamma, beta, mean, var = arrays(shape, axis, dtype)
    tolerance = {"float32": 2e-5, "float16": 4e-3}[dtype]
    wanted = upconv.batch_norm(x, gamma, beta, mean, var, axis=axis, **how)
    got = upconv.batch_norm(*there(x, gamma, beta, mean, var), axis=axis, **how)
    for name in wanted._fields:
        close(getattr(got, name), getattr(wanted, name), tolerance)
    assert got.y.shape == x.shape
    g = RNG.standard_normal(shape).astype(dtype)
    training = {"training": how.get("training", False), "axis": axis}
    saved = wanted.saved_mean.astype("float32"), wanted.saved_invstd.astype("float32")
    gradients = upconv.batch_norm_backward(g, *saved, x, gamma, beta, mean, var, **training)
    on_gpu = upconv.batch_norm_backward(*there(g, *saved, x, gamma, beta, mean, var), **training)
    for name in gradients._fields:
        close(getattr(on_gpu, name), getattr(gradients, name), 40 * tolerance)


def test_refusals() -> None:
    import torch

    x, gamma, *_ = arrays((4, 6, 5), 1)
    x, gamma = there(x, gamma)
    with pytest.raises(upconv.DTypeError, match=r"out .*None.*Leave it out"):
        upconv.batch_norm(x, training=True, out=torch.empty_like(x))
    with pytest.raises(upconv.DTypeError, match=r"gamma .*main memory.*cuda:0"):
        upconv.batch_norm(x, np.ones(6, np.float32), training=True)
    with pytest.raises(upconv.ShapeError, match=r"gamma\.shape"):
        upconv.batch_norm(x, gamma[:5], training=True)
    with pytest.raises(upconv.DTypeError, match="mean is None"):
        upconv.batch_norm(x)
