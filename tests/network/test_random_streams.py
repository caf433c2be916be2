"""Random networks in random chunks: the bits of one chunk, values within bounds, states, ends."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.support import random_networks, random_streams
from tests.support.random_streams import Streamable
from upconv.errors import ArgumentError, ShapeError
from upconv.network.streams import NetworkStream

AVERAGES = {"avg_pool", "layer_norm", "upsample", "softmax", "channel_pool"}


def stream_of(one: Streamable, **options: Any) -> NetworkStream:
    axis = one.axis
    shapes = {n: (None, *s[1:axis], None, *s[axis + 1 :]) for n, s in one.case.inputs.items()}
    return one.case.network(opened=True).stream(axis, shapes=shapes, threads=2, **options)


def pushed(stream: NetworkStream, arrays: list[np.ndarray], axis: int, span: slice) -> Any:
    results = stream.push(*(array[(*[slice(None)] * axis, span)] for array in arrays))
    return results if isinstance(results, tuple) else (results,)


def streamed(
    stream: NetworkStream, arrays: list[np.ndarray], axis: int, rng: random.Random, *, moves: bool
) -> list[np.ndarray]:
    """All results of random chunks; `moves` goes on with copies and restored streams between."""
    parts, start = [], 0
    for count in random_streams.cuts(rng, arrays[0].shape[axis]):
        parts.append(pushed(stream, arrays, axis, slice(start, start + count)))
        start += count
        if moves and rng.random() < 0.3:
            stream = rng.choice((stream.copy(), stream.from_bytes(stream.to_bytes())))
    last = stream.finish()
    parts.append(last if isinstance(last, tuple) else (last,))
    stream.reset()
    return [np.concatenate(each, axis) for each in zip(*parts, strict=True)]


def at_once(stream: NetworkStream, arrays: list[np.ndarray], axis: int) -> list[np.ndarray]:
    first, last = pushed(stream, arrays, axis, slice(None)), stream.finish()
    pairs = zip(first, last if isinstance(last, tuple) else (last,), strict=True)
    stream.reset()
    return [np.concatenate(pair, axis) for pair in pairs]


def check(seed: int) -> None:
    one, rng = random_streams.streamable(seed), random.Random(seed)
    precision, algorithm = rng.choice(
        (("float32", "direct"), ("float32", "direct"), ("float32", "auto"), ("bfloat16", "auto"))
    )
    options = {"precision": precision, "algorithm": algorithm, "chunk": rng.choice((1, 4, 64))}
    stream = stream_of(one, **options)
    with pytest.raises(ArgumentError, match="empty"):
        stream.finish()
    case = one.at(one.unit * rng.randint(1, max(1, 24 // one.unit)))
    arrays = case.arrays()
    try:
        graph = case.graph()
    except ShapeError:  # too short
        return
    results = at_once(stream, arrays, one.axis)
    epsilon = {"float32": 2.0**-22, "bfloat16": 2.0**-7}[precision]
    wanted = random_networks.expected(graph, arrays, epsilon)
    for result, (value, bound) in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, value, rtol=0, atol=4 * bound + 1e-5, err_msg=str(case))
    again = streamed(stream, arrays, one.axis, rng, moves=True)
    promised = arrays[0].ndim == 3 and AVERAGES.isdisjoint(name for name, *_ in case.calls)
    exact = promised and algorithm == "direct" and precision == "float32"
    for result, other, (_, bound) in zip(results, again, wanted, strict=True):
        if exact:
            assert result.tobytes() == other.tobytes(), case
        np.testing.assert_allclose(other, result, rtol=0, atol=4 * bound + 1e-5, err_msg=str(case))


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_random_networks_in_random_chunks(first: int) -> None:
    for seed in range(first, first + 8):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(24, 2024, 100))
def test_two_thousand_networks_in_random_chunks(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
