"""Batch normalisation folded into a layer: the folded layer is the layer and the normalisation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import upconv
from upconv.problem import WeightLayout

LAYOUTS = [layout.value for layout in WeightLayout]


def layer(order: str, groups: int, *, transposed: bool, dtype: object = np.float64, rank: int = 2):
    """x, weight and five vectors of distinct sizes, the weight in `order`."""
    rng = np.random.default_rng(7)
    i, o, kernel = (6, 4, (3, 2, 4)[:rank]) if transposed else (2, 6, (3, 2, 4)[:rank])
    channels, outputs = (i, o * groups) if transposed else (i * groups, o)
    x = rng.standard_normal((2, channels, *(5, 7, 4)[:rank]))
    weight = rng.standard_normal(WeightLayout(order).shape(i, o, kernel))
    vectors = [rng.standard_normal(outputs) for _ in range(4)] + [rng.random(outputs) + 0.25]
    return x.astype(dtype), weight.astype(dtype), [v.astype(dtype) for v in vectors]


@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_folded_is_layer_then_norm(
    order: str, groups: int, transposed: bool, with_bias: bool
) -> None:
    x, weight, (bias, *norm) = layer(order, groups, transposed=transposed)
    run = upconv.conv_transpose if transposed else upconv.conv
    words = {"groups": groups, "weight_layout": order}
    first = bias if with_bias else None
    kept = weight.copy()
    folded = upconv.fold_batch_norm(weight, first, *norm, eps=1e-3, transposed=transposed, **words)
    words |= {"stride": (2, 1), "padding": ((1, 0), 1), "engine": "reference"}
    wanted = upconv.batch_norm(run(x, weight, first, **words), *norm, eps=1e-3).y
    np.testing.assert_allclose(run(x, *folded, **words), wanted, rtol=0, atol=2e-13)
    np.testing.assert_array_equal(weight, kept)


@given(st.data())
def test_folded_is_layer_then_norm_for_any_layer(data: st.DataObject) -> None:
    rank, groups = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 3, 6]))
    order, layout = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.sampled_from(["NCX", "NXC"]))
    x, weight, (bias, *norm) = layer(order, groups, transposed=True, rank=rank)
    if layout == "NXC":
        x = np.moveaxis(x, 1, -1)
    words = {
        "groups": groups, "weight_layout": order, "layout": layout,
        "stride": data.draw(st.integers(1, 3)), "dilation": data.draw(st.integers(1, 2)),
        "padding": data.draw(st.integers(-1, 1)), "engine": "reference",
    }  # fmt: skip
    axis = 1 if layout == "NCX" else -1
    folded = upconv.fold_batch_norm(weight, bias, *norm, groups=groups, weight_layout=order)
    wanted = upconv.batch_norm(upconv.conv_transpose(x, weight, bias, **words), *norm, axis=axis).y
    np.testing.assert_allclose(
        upconv.conv_transpose(x, *folded, **words), wanted, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
def test_products_are_rounded_once(dtype: object) -> None:
    _, weight, (bias, *norm) = layer("IOX", 2, transposed=True, dtype=dtype)
    norm = [vector.astype("f") for vector in norm]
    folded = upconv.fold_batch_norm(weight, bias, *norm, groups=2)
    gamma, beta, mean, var = (vector.astype("d") for vector in norm)
    scale = gamma / np.sqrt(var + 1e-5)
    grouped = weight.astype("d").reshape(2, 3, 4, 3, 2) * scale.reshape(2, 1, 4, 1, 1)
    assert folded.weight.dtype == folded.bias.dtype == weight.dtype
    np.testing.assert_array_equal(folded.weight, grouped.reshape(weight.shape).astype(dtype))
    wanted = (bias.astype("d") - mean) * scale + beta
    np.testing.assert_array_equal(folded.bias, wanted.astype(dtype))


def test_a_weight_of_any_strides() -> None:
    _, weight, (bias, *norm) = layer("IOX", 2, transposed=True)
    strange = weight.copy()[:, ::-1, ::-1].swapaxes(0, 2).copy().swapaxes(0, 2)[:, ::-1, ::-1]
    first = upconv.fold_batch_norm(weight, bias, *norm, groups=2)
    second = upconv.fold_batch_norm(strange, bias, *norm, groups=2)
    np.testing.assert_array_equal(first.weight, second.weight)


def test_fixed_gamma_counts_as_one() -> None:
    _, weight, (bias, gamma, *norm) = layer("IOX", 1, transposed=True)
    fixed = upconv.fold_batch_norm(weight, bias, gamma, *norm, fix_gamma=True)
    np.testing.assert_array_equal(
        fixed.weight, upconv.fold_batch_norm(weight, bias, None, *norm).weight
    )
