"""Streams of random networks in random chunks: bounds on values, bits, states."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support import random_networks
from upconv.network.streams import NetworkStream

AVERAGES = {"avg_pool", "layer_norm", "upsample", "softmax", "channel_pool"}
"""Calls whose last bits depend on how many positions are computed at once."""


def opened(case: random_networks.Case, axis: int, **options: Any) -> NetworkStream:
    """Open a stream of a network with any batch."""
    shapes = {n: (None, *s[1:axis], None, *s[axis + 1 :]) for n, s in case.inputs.items()}
    return case.network(opened=True).stream(axis, shapes=shapes, threads=2, **options)


def axis_of(case: random_networks.Case) -> int | None:
    """Return an axis to stream along; None if the inputs differ in length or batch."""
    shapes = list(case.inputs.values())
    axis = 2 + random.Random(case.seed).randrange(len(shapes[0]) - 2)
    return axis if len({(shape[0], shape[axis]) for shape in shapes}) == 1 else None


def cuts(rng: random.Random, length: int) -> list[int]:
    """Divide a length into chunks: empty ones, single positions, and longer ones."""
    chunks: list[int] = []
    longest = rng.choice((1, 2, 3, 5, 8, length))
    while sum(chunks) < length:
        rest = length - sum(chunks)
        chunks.append(min(rest, rng.choice((0, 1, longest, longest))))
    return chunks


def streamed(
    stream: NetworkStream, arrays: Sequence[np.ndarray], axis: int, chunks: Sequence[int],
    moves: random.Random | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Return all results of a stream, and reset it. With `moves`, a copied or restored stream
    sometimes continues."""
    parts, start = [], 0
    for count in chunks:
        cut = (*[slice(None)] * axis, slice(start, start + count))
        parts.append(stream.push(*(array[cut] for array in arrays)))
        start += count
        if moves and moves.random() < 0.3:
            stream = moves.choice((stream.copy(), stream.from_bytes(stream.to_bytes())))
    parts.append(stream.finish())
    stream.reset()
    each = (part if isinstance(part, tuple) else (part,) for part in parts)
    return [np.concatenate(one, axis) for one in zip(*each, strict=True)]


def check(
    case: random_networks.Case, axis: int, stream: NetworkStream, rng: random.Random,
    precision: str, algorithm: str,
) -> None:  # fmt: skip
    """Assert that a stream has its network's values, and that random chunks agree with one chunk,
    bit for bit where that is promised."""
    arrays = case.arrays()
    length = arrays[0].shape[axis]
    epsilon = {"float32": 2.0**-22, "bfloat16": 2.0**-7}[precision]
    promised = arrays[0].ndim == 3 and AVERAGES.isdisjoint(name for name, *_ in case.calls)
    exact = promised and algorithm == "direct" and precision == "float32"
    results = streamed(stream, arrays, axis, [length])
    again = streamed(stream, arrays, axis, cuts(rng, length), rng)
    wanted = random_networks.expected(case.graph(), arrays, epsilon)
    for result, other, (value, bound) in zip(results, again, wanted, strict=True):
        close: dict[str, Any] = {"rtol": 0, "atol": 4 * bound + 1e-5, "err_msg": str(case)}
        np.testing.assert_allclose(result, value, **close)
        np.testing.assert_allclose(other, result, **close)
        assert not exact or result.tobytes() == other.tobytes(), case
