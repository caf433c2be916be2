"""Volumes in chunks: the bits of the whole for any chunks, exact sizes, nothing before its time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import upconv
from tests.support.processes import printed

da = pytest.importorskip("dask.array", reason="needs Dask")
dask = pytest.importorskip("dask")
lazy = pytest.importorskip("upconv.dask")


@st.composite
def chunked(draw: Any, total: int) -> tuple[int, ...]:
    """Any sizes that make up the total."""
    if not total:
        return (0,)
    sizes: list[int] = []
    while sum(sizes) < total:
        sizes.append(draw(st.integers(1, total - sum(sizes))))
    return tuple(sizes)


@st.composite
def layers(draw: Any) -> tuple[bool, np.ndarray, np.ndarray, np.ndarray | None, dict[str, Any]]:
    """(is it a convolution, x, weight, bias, keywords) of any rank and geometry."""
    rank, convolves = draw(st.integers(1, 3)), draw(st.booleans())

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.sampled_from((1, 1, 2)))
    first = draw(st.booleans())
    keywords: dict[str, Any] = {
        "stride": each(1, 3),
        "dilation": each(1, 2),
        "padding": tuple((draw(st.integers(-2, 3)), draw(st.integers(-2, 3))) for _ in range(rank)),
        "groups": groups,
        "layout": "NCX" if first else "NXC",
        "activation": draw(st.sampled_from((None, "relu", "gelu"))),
    }
    if not convolves:
        keywords["output_padding"] = each(0, 2)
    c, f = (groups * draw(st.sampled_from((1, 2, 9))) for _ in range(2))
    rng = np.random.default_rng(draw(st.integers(0, 5)))
    dtype = draw(st.sampled_from((np.float32, np.float64, np.float16)))
    size, batch = each(0 if rank < 3 else 1, (20, 9, 6)[rank - 1]), draw(st.integers(0, 2))
    shape = (batch, c, *size) if first else (batch, *size, c)
    weight = (f, c // groups) if convolves else (c, f // groups)
    x = rng.standard_normal(shape).astype(dtype)
    w = rng.standard_normal((*weight, *each(1, 4))).astype(dtype)
    bias = rng.standard_normal(f).astype(dtype) if draw(st.booleans()) else None
    return convolves, x, w, bias, keywords


def exactly(lazy_result: Any, expected: np.ndarray) -> None:
    """Shape, dtype, chunks and bits."""
    assert lazy_result.shape == expected.shape
    assert lazy_result.dtype == expected.dtype
    with dask.config.set(scheduler="synchronous"):
        found = lazy_result.compute()
        corner = lazy_result.blocks[(0,) * expected.ndim].compute()
    assert corner.shape == tuple(sizes[0] for sizes in lazy_result.chunks)
    assert found.tobytes() == expected.tobytes()


@settings(max_examples=40)
@given(layers(), st.data())
def test_any_chunks_have_the_bits_of_the_whole(layer: Any, data: Any) -> None:
    convolves, x, w, bias, keywords = layer
    chunks = tuple(data.draw(chunked(size)) for size in x.shape)
    whole, call = (upconv.conv, lazy.conv) if convolves else (
        upconv.conv_transpose, lazy.conv_transpose,
    )  # fmt: skip
    volume = da.from_array(x, chunks=chunks)
    try:
        expected = whole(x, w, bias, engine="jit", algorithm="direct", **keywords)
    except upconv.ShapeError as error:
        with pytest.raises(upconv.ShapeError, match=re.escape(str(error))):
            call(volume, w, bias, **keywords)
        return
    exactly(call(volume, w, bias, **keywords), expected)
    first = 2 if keywords["layout"] == "NCX" else 1
    spatial = expected.shape[first : first + w.ndim - 2]
    own = tuple(data.draw(chunked(size)) for size in spatial)
    again = call(volume, w, bias, chunks=own, **keywords)
    assert again.chunks[first : first + w.ndim - 2] == own
    exactly(again, expected)


@settings(max_examples=25)
@given(layers(), st.data())
def test_gradients(layer: Any, data: Any) -> None:
    """Of x with the whole's bits; of the weight within rounding, the same for any scheduler."""
    convolves, x, w, _, keywords = layer
    keywords = {k: v for k, v in keywords.items() if k != "activation"}
    x, w = x.astype(np.float64), w.astype(np.float64)
    forward, backward, other = (
        (upconv.conv, upconv.conv_backward, lazy.conv_backward)
        if convolves
        else (upconv.conv_transpose, upconv.conv_transpose_backward, lazy.conv_transpose_backward)
    )
    try:
        y = forward(x, w, engine="jit", **keywords)
    except upconv.ShapeError:
        return
    grad = np.random.default_rng(1).standard_normal(y.shape)
    expected = backward(grad, x, w, engine="jit", algorithm="direct", **keywords)
    chunks = [tuple(data.draw(chunked(size)) for size in one.shape) for one in (grad, x)]
    given_ = [da.from_array(one, chunks=c) for one, c in zip((grad, x), chunks, strict=True)]
    found = other(*given_, w, **keywords)
    exactly(found.x, expected.x)
    assert found.x.chunks[2:-1] == given_[1].chunks[2:-1]
    for name in ("weight", "bias"):
        lazy_one, eager = getattr(found, name), getattr(expected, name)
        assert lazy_one.shape == eager.shape
        results = [lazy_one.compute(scheduler=s) for s in ("synchronous", "threads")]
        np.testing.assert_allclose(results[0], eager, rtol=0, atol=1e-9 * max(1, grad.size))
        assert results[0].tobytes() == results[1].tobytes()


def test_a_layer_of_a_real_size() -> None:
    """A U-Net's upsampling of a volume, with axes that chunks cut at odd places."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 32, 20, 37, 50), np.float32)
    w = rng.standard_normal((32, 16, 2, 2, 2), np.float32)
    volume = da.from_array(x, chunks=(1, 20, (7, 13), 16, (1, 30, 19)))
    how = {"engine": "jit", "algorithm": "direct"}
    whole = upconv.conv_transpose(x, w, stride=2, **how)
    exactly(lazy.conv_transpose(volume, w, stride=2), whole)
    k = rng.standard_normal((8, 32, 3, 3, 3), np.float32)
    exactly(lazy.conv(volume, k, padding=1), upconv.conv(x, k, padding=1, **how))


def test_nothing_is_computed_before_its_time() -> None:
    def never(*_: Any) -> np.ndarray:
        raise AssertionError("computed")

    x = da.from_delayed(dask.delayed(never)(), (1, 2, 40, 40), np.float32).rechunk((1, 2, 10, 20))
    w = np.ones((2, 3, 4, 4), np.float32)
    y = lazy.conv_transpose(x, w, stride=2, padding=1)
    found = lazy.conv_transpose_backward(y, x, w, stride=2, padding=1)
    assert y.shape == (1, 3, 80, 80)
    assert y.numblocks == (1, 1, 4, 2)
    assert found.weight.shape == w.shape
    with pytest.raises(AssertionError, match="computed"):
        y.compute()


def test_a_chunk_reads_only_what_it_needs() -> None:
    """A result far from a broken chunk comes out; halos are those of the geometry."""
    blocks = [
        da.ones((1, 1, 10)),
        da.from_delayed(dask.delayed(lambda: 1 / 0)(), (1, 1, 10), float),
    ]
    x = da.concatenate(blocks, axis=2)
    y = lazy.conv_transpose(x, np.ones((1, 1, 4)), stride=2, padding=1, chunks=((19, 1, 20),))
    assert y.blocks[0, 0, 0].compute().shape == (1, 1, 19)  # output 18 reads input 9 at most
    with pytest.raises(ZeroDivisionError):
        y.blocks[0, 0, 1].compute()


def test_regular_chunks_stay_regular_for_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="needs zarr: pip install zarr")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 30, 50), np.float32)
    w = rng.standard_normal((3, 4, 5, 4), np.float32)
    keywords = {"stride": (3, 2), "padding": ((1, 2), (0, 1))}
    stored = zarr.open(
        str(tmp_path / "x.zarr"), mode="w", shape=x.shape, chunks=(1, 2, 8, 16), dtype="f4"
    )
    stored[...] = x
    y = lazy.conv_transpose(da.from_zarr(str(tmp_path / "x.zarr")), w, **keywords)
    y.to_zarr(str(tmp_path / "y.zarr"))
    found = zarr.open(str(tmp_path / "y.zarr"), mode="r")
    expected = upconv.conv_transpose(x, w, engine="jit", algorithm="direct", **keywords)
    assert found.chunks == (1, 4, 24, 32)
    assert np.asarray(found[...]).tobytes() == expected.tobytes()


CLUSTER = """
import numpy as np, dask, dask.array as da, upconv, upconv.dask as lazy
from importlib.util import find_spec

def main():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 40, 30), np.float32)
    w = rng.standard_normal((3, 4, 4, 4), np.float32)
    whole = upconv.conv_transpose(x, w, stride=2, padding=1, activation="gelu", engine="jit")
    grads = upconv.conv_transpose_backward(whole, x, w, stride=2, padding=1)
    volume = da.from_array(x, chunks=(1, 2, 17, 11))
    y = lazy.conv_transpose(volume, w, stride=2, padding=1, activation="gelu")
    g = lazy.conv_transpose_backward(da.from_array(whole, chunks=(1, 4, 30, 25)), volume, w,
                                     stride=2, padding=1)
    weights = [g.weight.compute(scheduler="synchronous")]
    for scheduler in ("threads",) if find_spec("distributed") else ("threads", "processes"):
        with dask.config.set(scheduler=scheduler, num_workers=2):
            assert y.compute().tobytes() == whole.tobytes(), scheduler
            weights.append(g.weight.compute())
    if find_spec("distributed"):
        from distributed import Client, LocalCluster
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            with Client(cluster):
                assert y.compute().tobytes() == whole.tobytes()
                weights.append(g.weight.compute())
        print("cluster")
    assert len({weight.tobytes() for weight in weights}) == 1
    np.testing.assert_allclose(weights[0], grads.weight, rtol=2e-4, atol=1e-2)

if __name__ == "__main__":
    main()
"""


def test_threads_and_processes_agree(tmp_path: Path) -> None:
    """In a process of its own, which starts others: a cluster's where that is installed."""
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    told = printed(
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')",
        script, UPCONV_NUM_THREADS="1",
    )  # fmt: skip
    try:
        import distributed  # noqa: F401
    except ImportError:
        pytest.skip("needs distributed for the cluster; threads and processes agree")
    assert "cluster" in told


def test_arguments_are_refused_at_once() -> None:
    x, w = da.ones((1, 2, 10), chunks=5), np.ones((2, 3, 4))
    with pytest.raises(upconv.DTypeError, match=r"x is of type ndarray; expected a dask.array"):
        lazy.conv_transpose(np.ones((1, 2, 10)), w)
    with pytest.raises(upconv.DTypeError, match=r"weight is a dask.array.*weight.compute\(\)"):
        lazy.conv_transpose(x, da.from_array(w))
    with pytest.raises(upconv.DTypeError, match=r"x.dtype is int64"):
        lazy.conv_transpose(x.astype(int), w)
    with pytest.raises(upconv.ShapeError, match="compute_chunk_sizes"):
        lazy.conv_transpose(x[:, :, x[0, 0] > 0], w)
    with pytest.raises(upconv.ArgumentError, match=r"chunks is .*Dask says"):
        lazy.conv_transpose(x, w, chunks=((3, 4),))
    with pytest.raises(upconv.ArgumentError, match="needs"):
        lazy.conv_transpose_backward(da.ones((1, 3, 13)), x, w, needs="y")
    with pytest.raises(upconv.ArgumentError, match=r"engine is .none."):
        lazy.conv_transpose(x, w, engine="none")
    with pytest.raises(upconv.EngineRefusal, match="at most 65536 taps"):
        lazy.conv_transpose(da.ones((1, 1, 9), chunks=5), np.ones((1, 1, 1 << 17)), engine="jit")
