"""Weights that are not finite: computed by the reference engine, and never silently."""

import numpy as np
import pytest

import upconv

BAD = (np.nan, np.inf, -np.inf)


def layer(bad: float) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.ones((1, 3, 40), np.float32), np.ones((3, 4, 4), np.float32)
    w[1, 2, 3] = bad
    return x, w


@pytest.mark.parametrize("bad", BAD)
def test_plan_explain_and_cache_tell(bad: float, engine, fresh_cache) -> None:
    x, w = layer(bad)
    name = engine.name
    plan = upconv.plan(x.shape, w, stride=2, engine=name)
    told = upconv.explain(x.shape, w, stride=2, engine=name)
    assert plan.engine == told.engine == "reference"
    changed = name != "reference"
    assert upconv.cache_info().fallbacks == changed
    assert [refusal.engine for refusal in told.refusals] == [name] * changed
    upconv.conv_transpose(x, w, stride=2, engine=name)
    assert upconv.cache_info().fallbacks == 2 * changed
    upconv.cache_clear()
    assert upconv.cache_info().fallbacks == 0


def test_a_finite_weight_or_a_shape_tells_nothing(fresh_cache) -> None:
    x, w = layer(1.0)
    for weight in (w, w.shape, 3e38 * w):
        assert upconv.explain(x.shape, weight, stride=2).engine == "jit"
    plan = upconv.plan(x.shape, 3e38 * w, stride=2)
    assert plan.engine == "jit"
    assert upconv.cache_info().fallbacks == 0


def test_a_weight_gradient_that_is_not_finite_is_counted(fresh_cache) -> None:
    x, w = np.ones((1, 16, 9), np.float32), np.ones((16, 16, 4), np.float32)
    g = np.ones((1, 16, 20), np.float32)
    g[0, 3, 5] = np.nan
    try:
        upconv.conv_transpose_backward(g, x, w, stride=2, needs="weight", engine="onednn")
    except upconv.EngineMissing as missing:
        pytest.skip(str(missing))
    assert upconv.cache_info().fallbacks == 1


def test_what_a_gradient_is_added_to_is_kept(fresh_cache) -> None:
    x, w = np.ones((1, 4, 6, 6), np.float32), np.ones((4, 8, 3, 3), np.float32)
    grad = np.ones((1, 8, 13, 13), np.float32)
    expected = 7 + upconv.conv_transpose_backward(grad, x, w, stride=2, needs="x").x
    w[0, 5, 1, 1] = np.nan
    out = upconv.Gradients(x=np.full_like(x, 7))
    how = {"stride": 2, "needs": "x", "out": out, "accumulate": True, "engine": "jit"}
    with np.errstate(all="ignore"):
        upconv.conv_transpose_backward(grad, x, w, **how)
    assert upconv.cache_info().fallbacks == 1
    assert np.isnan(out.x[:, 0]).all()
    np.testing.assert_array_equal(out.x[:, 1:], expected[:, 1:])


@pytest.mark.parametrize("order", ["IOX", "XIO"])
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("backward", [False, True])
def test_packers_see_every_number(backward: bool, algorithm: str, order: str, fresh_cache) -> None:
    """Wherever in the weight it lies: with some channels and lanes beside the last whole vector."""
    axes = {"IOX": (0, 1, 2, 3), "XIO": (2, 3, 0, 1)}[order]
    rng, shape, run = np.random.default_rng(1), (37, 83, 4, 4), upconv.conv_transpose
    weight = rng.standard_normal(shape, np.float32).transpose(axes).copy()
    x, grad = np.ones((1, 37, 6, 6), np.float32), np.ones((1, 83, 12, 12), np.float32)
    how = {"stride": 2, "padding": 1, "weight_layout": order, "engine": "jit"}
    given = (x, weight)
    if backward:
        run, given = upconv.conv_transpose_backward, (grad, x, weight)
        how["needs"] = "x"
    places = rng.choice(weight.size, 60, replace=False)
    for count, place in enumerate((0, weight.size - 1, *places), 1):
        kept = weight.flat[place]
        weight.flat[place] = BAD[count % 3]
        with np.errstate(all="ignore"):
            run(*given, algorithm=algorithm, **how)
        assert upconv.cache_info().fallbacks == count, np.unravel_index(place, weight.shape)
        weight.flat[place] = kept
    run(*given, algorithm=algorithm, **how)
    assert upconv.cache_info().fallbacks == count
