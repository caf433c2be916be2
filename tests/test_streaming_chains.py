"""Chains of streams: the bits of their layers on the whole, their latency, sums that add up."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import upconv
from stream_cases import cut, same_bits, streamed
from upconv.streaming import add, chain


def vocoder(rng: np.random.Generator, layout: str = "NCX", dtype: Any = np.float32):
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
            upconv.stream,
            upconv.conv_transpose,
            weight(c, c // 2, 2 * s),
            stride=s,
            padding=s // 2,
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


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_chain_has_the_bits_of_its_layers_on_the_whole(layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    decoder, whole = vocoder(rng, layout, dtype)
    axis = -1 if layout == "NCX" else -2
    x = rng.standard_normal((2, 8, 23) if layout == "NCX" else (2, 23, 8)).astype(dtype)
    expected = whole(x)
    for sizes in ([1] * 22, [5, 0, 11], [23]):
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
    both = add((), shorter)
    both.push(np.ones((1, 1, 5), np.float32))
    with pytest.raises(upconv.ShapeError, match="different totals, by up to 2"):
        both.finish()
    with pytest.raises(upconv.ShapeError, match="of one shape"):
        add(up, upconv.stream(np.ones((1, 3, 2), np.float32), stride=2)).push(
            np.ones((1, 1, 2), np.float32)
        )
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
