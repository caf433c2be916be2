"""Chains of streams: the bits of their layers on the whole, their latency, sums that add up."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support.stream_cases import cut, same_bits, streamed
from upconv.streaming import add, chain


def vocoder(rng: np.random.Generator, layout: str = "NCX", dtype: Any = np.float32) -> Any:
    """A small HiFi-GAN: (chain, whole). Two upsamplings, two residual blocks each."""
    kind = {"layout": layout}
    steps: list[Any] = []

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.prod(shape) ** 0.5).astype(dtype)

    def layer(make: Any, call: Any, w: np.ndarray, **keywords: Any) -> tuple[Any, Any]:
        stream = make(w, **keywords, **kind)
        return stream, lambda x: call(x, w, engine=stream.engine, **keywords, **kind)

    def leaky(x: np.ndarray) -> np.ndarray:
        # what a layer of one tap and weight 1 ends in: the activation inside a layer
        eye = np.eye(x.shape[1 if layout == "NCX" else 2], dtype=dtype)[..., None]
        return upconv.conv(x, eye, activation="leaky_relu:0.1", engine="jit", **kind)

    for c, s in ((8, 4), (4, 2)):
        up, whole_up = layer(
            upconv.stream, upconv.conv_transpose, weight(c, c // 2, 2 * s), stride=s, padding=s // 2
        )
        branches, wholes = [], []
        for k, d in ((3, 1), (7, 3)):
            one, whole_one = layer(
                upconv.conv_stream,
                upconv.conv,
                weight(c // 2, c // 2, k),
                dilation=d,
                padding=d * (k - 1) // 2,
            )
            branches.append(add((), ("leaky_relu:0.1", one)))
            wholes.append(lambda x, f=whole_one: x + f(leaky(x)))
        steps.append((up, whole_up, branches, wholes))
    stages: list[Any] = []
    for up, _, branches, _ in steps:
        stages += [("leaky_relu", 0.1), up, add(*branches, scale=0.5)]

    def whole(x: np.ndarray) -> np.ndarray:
        for _, whole_up, _, wholes in steps:
            x = whole_up(leaky(x))
            x = (wholes[0](x) + wholes[1](x)) * x.dtype.type(0.5)
        return x

    return chain(*stages), whole


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("NCX", np.float32), ("NXC", np.float32), ("NCX", np.float64), ("NXC", np.float16)],
)
def test_a_chain_has_the_bits_of_its_layers_on_the_whole(layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    decoder, whole = vocoder(rng, layout, dtype)
    axis = -1 if layout == "NCX" else -2
    x = rng.standard_normal((2, 8, 23) if layout == "NCX" else (2, 23, 8)).astype(dtype)
    expected = whole(x)
    for sizes in ([1] * 5, [5, 0, 11]):
        chunks = cut(x, axis, sizes)
        assert same_bits(streamed(decoder, chunks, axis), expected)
        decoder.reset()
    for chunk in cut(x, axis, [7, 6])[:2]:
        decoder.push(chunk)
    others = [decoder.copy(), decoder.from_bytes(decoder.to_bytes()), copy.copy(decoder),
              copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))]  # fmt: skip
    rest = streamed(decoder, [x.take(range(13, 23), axis)], axis)
    for other in others:
        assert same_bits(streamed(other, [x.take(range(13, 23), axis)], axis), rest)


def test_the_latency_of_a_chain_is_exact() -> None:
    decoder, _ = vocoder(np.random.default_rng(5))
    x = np.ones((1, 8, 1), np.float32)
    returned = np.cumsum([decoder.push(x).shape[-1] for _ in range(60)])
    behind = [8 * (i + 1) - n for i, n in enumerate(returned)][20:]
    assert max(behind) == min(behind) == decoder.latency
    assert decoder.lookahead == -(-decoder.latency // 8)


def test_a_sum_refuses_what_does_not_add_up() -> None:
    up = upconv.stream(np.ones((1, 1, 2), np.float32), stride=2)
    with pytest.raises(upconv.ArgumentError, match="of rates 1, 2"):
        add((), up)
    shorter = upconv.conv_stream(np.ones((1, 1, 3), np.float32))
    with pytest.raises(upconv.ShapeError, match="different totals, by up to 2"):
        add((), shorter)
    with pytest.raises(upconv.ShapeError, match="of one shape"):
        add(up, upconv.stream(np.ones((1, 3, 2), np.float32), stride=2))
    down = upconv.conv_stream(np.ones((1, 1, 2), np.float32), stride=2)
    odd = add((), (down, up))  # as many results as inputs, where these are even in number
    odd.push(np.ones((1, 1, 5), np.float32))
    with pytest.raises(upconv.ShapeError, match="4 and 5; expected equal"):
        odd.finish()
    with pytest.raises(upconv.DTypeError, match=r"stages\[0\] is 3"):
        chain(3)
    with pytest.raises(upconv.ArgumentError, match="one layout and dtype"):
        chain(up, upconv.conv_stream(np.ones((1, 1, 3), np.float64)))
    with pytest.raises(upconv.ArgumentError, match="scale"):
        add((), scale=float("nan"))


def test_what_is_returned_is_not_the_callers_array() -> None:
    x = np.ones((1, 2, 3))
    for one in (chain(), add(()), add((), ())):
        y = one.push(x)
        assert not np.may_share_memory(x, y)
        assert one.finish().shape == (1, 2, 0)


def test_a_layer_that_kernels_refuse_is_part_of_a_chain() -> None:
    """NumPy evaluates such a chain, of which cuts change no bit."""
    rng = np.random.default_rng(3)
    w, k = rng.standard_normal((1, 1, 5)), rng.standard_normal((1, 1, 3))
    w[0, 0, 3] = np.inf
    filtered, smooth = upconv.stream(w, padding=2), upconv.conv_stream(k, padding=1)
    both = chain(filtered, add((), ("relu", smooth)))
    x = rng.standard_normal((1, 1, 40)) * (np.arange(40) % 7 == 0)  # most sums are finite
    y = upconv.conv_transpose(x, w, padding=2, engine=filtered.engine)
    expected = y + upconv.conv(np.maximum(y, 0), k, padding=1, engine=smooth.engine)
    assert filtered.engine.name == "ordered"
    for sizes in ([40], [1, 30, 0, 5]):
        np.testing.assert_array_equal(streamed(both, cut(x, -1, sizes), -1), expected)
        both.reset()


def test_a_chain_takes_chunks_without_a_batch_and_batches_of_none() -> None:
    decoder, _ = vocoder(np.random.default_rng(5), "NXC")
    x = np.random.default_rng(1).standard_normal((9, 8)).astype(np.float32)
    expected = streamed(decoder, [x[None]], -2)
    decoder.reset()
    assert same_bits(streamed(decoder, [x[:4], x[4:]], -2), expected[0])
    decoder.reset()
    empty = np.empty((0, 9, 8), np.float32)
    assert streamed(decoder, [empty], -2).shape == (0, *expected.shape[1:])
    decoder.reset()
    decoder.push(x)
    for bad, kind in ((x[None], upconv.ShapeError), (x.T[:7], upconv.ShapeError),
                      (x.astype(np.float64), upconv.DTypeError)):  # fmt: skip
        with pytest.raises(kind, match="chunk"):
            decoder.push(bad)


def test_a_chain_without_layers_takes_what_comes() -> None:
    for dtype in (np.float64, np.float32, np.float16):
        one = chain("relu", add((), (), scale=0.5))
        x = np.array([[1, -2], [3, 4], [-5, 6]], dtype)
        first = one.push(x)
        assert same_bits(first, np.maximum(x, 0))
        assert same_bits(one.from_bytes(one.to_bytes()).push(x), first)
