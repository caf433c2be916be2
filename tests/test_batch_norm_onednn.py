"""Batch normalisation by libdnnl: it agrees with NumPy's, and refuses in words what it cannot."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import upconv
from norm_oracle import Case, available, close
from upconv import BatchNormGradients, batch_norm, batch_norm_backward

pytestmark = pytest.mark.skipif("onednn" not in available(), reason="libdnnl is not installed")

BF16 = np.dtype(ml_dtypes.bfloat16)
SINGLE = 2**-23


def normal(shape: tuple[int, ...], dtype: object = np.float32) -> np.ndarray:
    values = np.random.default_rng([9, *shape]).standard_normal(shape) * 1.5 + 0.5
    return values.astype(dtype)


def agree(case: Case) -> None:
    """Both engines, forward and backward, to what sums in float32 cost."""
    one, other = case.run(engine="reference"), case.run(engine="onednn")
    part = SINGLE * (16 + 2 * case.count**0.5)
    kind = case.x.dtype
    close(other.y, one.y.astype("d"), part, kind)
    for name in ("saved_mean", "saved_invstd", "moving_mean", "moving_var"):
        close(getattr(other, name), getattr(one, name).astype("d"), part)
    wanted = case.run_backward(one, engine="reference")
    got = case.run_backward(one, engine="onednn")
    for name in ("x", "gamma", "beta"):
        kind = case.x.dtype if name == "x" else case.gamma.dtype
        close(getattr(got, name), getattr(wanted, name).astype("d"), 4 * part, kind)


def has(dtype: np.dtype) -> bool:
    """Whether this processor's libdnnl computes on a type."""
    try:
        batch_norm(normal((2, 3), dtype), training=True, engine="onednn")
    except upconv.EngineRefusal:
        return False
    return True


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4, 6, 5, 7), 1),
        ((4, 6, 5, 7), -1),
        ((4, 6, 5, 7), 2),
        ((9, 16), 1),
        ((9, 16), 0),
        ((8, 64, 20, 20), 1),
        ((8, 20, 20, 64), -1),
        ((2, 17, 3, 4, 5), 1),
    ],
)
def test_it_agrees_with_numpy(dtype, training: bool, shape: tuple[int, ...], axis: int) -> None:
    if not has(np.dtype(dtype)):
        pytest.skip("refused here")
    agree(Case(normal(shape, dtype), axis, training=training))


@settings(max_examples=100)
@given(st.data())
def test_it_agrees_on_random_layouts(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(2, 5), min_size=2, max_size=5), label="shape"))
    order = data.draw(st.permutations(range(len(shape))), label="order")
    step = data.draw(st.sampled_from([1, 2, -1]), label="step")
    axis = data.draw(st.integers(-len(shape), len(shape) - 1), label="axis")
    x = normal((shape[0] * abs(step), *shape[1:]))[::step].transpose(order)
    agree(Case(x, axis, training=data.draw(st.booleans(), label="training"), eps=1e-2))


def test_gradients_are_added_and_written_over_operands() -> None:
    case = Case(normal((3, 4, 5)))
    done, wanted = case.run(), case.gradients()
    into = BatchNormGradients(*(np.full_like(a, 2) for a in (case.x, case.gamma, case.beta)))
    grads = case.run_backward(done, out=into, accumulate=True, engine="onednn")
    for name, value in wanted.items():
        close(getattr(grads, name), value + 2, 1e-5)
    some = case.run_backward(done, needs=("beta",), engine="onednn")
    assert some.x is None
    close(some.beta, wanted["beta"], 1e-5)


def test_a_constant_channel_without_eps_has_a_gradient_of_zero() -> None:
    x = np.full((2, 3, 4), 3, "f")
    grad = normal(x.shape)
    d_x = [
        batch_norm_backward(grad, np.full(3, 3.0), np.zeros(3), x, eps=0, engine=engine).x
        for engine in ("reference", "onednn")
    ]
    np.testing.assert_array_equal(d_x[0], np.zeros_like(x))
    np.testing.assert_array_equal(d_x[1], d_x[0])


REFUSED = [
    (lambda: normal((2, 3), np.float64), "libdnnl computes on no float64"),
    (lambda: np.empty((0, 3), "f"), "libdnnl takes no arrays without elements"),
    (
        lambda: np.broadcast_to(np.float32(1), (1 << 20, 3, 1 << 20)),
        "libdnnl counts in 32 bits, and x has 3298534883328 elements",
    ),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_it_refuses_in_words(make, reason: str) -> None:
    from upconv.engines.normalization import Normalization, normalizer
    from upconv.problem import DType

    x = make()
    kind = DType(x.dtype.name)
    problem = Normalization(x.shape, 1, kind, (x.strides, x.strides))
    assert normalizer("onednn").refuses(problem) == reason
    if x.size < 1000:
        said = rf"Engine 'onednn' cannot do batch norm forward .*: {reason}. Use engine=None"
        with pytest.raises(upconv.EngineRefusal, match=said):
            batch_norm(x, training=True, engine="onednn")
        batch_norm(x, training=True)


def test_eviction_frees_what_the_library_made() -> None:
    from upconv.engines.normalization import Normalization, normalizer
    from upconv.primitives import PrimitiveCache
    from upconv.problem import DType

    cache, engine = PrimitiveCache(max_entries=2), normalizer("onednn")
    closed = []
    for n in range(2, 8):
        strides = (12, 4)
        problem = Normalization((n, 3), 1, DType.FLOAT32, (strides, strides))
        with cache.lease(problem, engine, 1) as primitive:
            closed.append(primitive)
    assert cache.info().entries == 2
    for primitive in closed[:4]:
        with pytest.raises(upconv.EngineError, match="closed"):
            _ = primitive._descriptor.address
