"""Batches of streams: a member has the values of a stream by itself, whoever joins and leaves."""

import random
from typing import Any

import numpy as np
import pytest

from tests.network.test_streams import vocoder
from tests.support.repeating import seeds
from upconv.errors import ArgumentError, DTypeError, EngineError, ShapeError
from upconv.network import Network
from upconv.network.streams import NetworkStream


def signal(seed: int, length: int = 60, batch: int = 1) -> np.ndarray:
    shape = batch, 16, length
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def alone(stream: NetworkStream, x: np.ndarray) -> np.ndarray:
    one = stream.copy()
    one.reset()
    return np.concatenate([one.push(x), one.finish()], -1)


class Members:
    """The signals of members, how far they are, and what they have returned."""

    def __init__(self, stream: NetworkStream) -> None:
        self.stream, self.batch = stream, stream.batch()
        self.signals: dict[int, np.ndarray] = {}
        self.taken: dict[int, int] = {}
        self.parts: dict[int, list[np.ndarray]] = {}

    def join(self, x: np.ndarray) -> None:
        number = self.batch.join()
        self.signals[number], self.taken[number], self.parts[number] = x, 0, []

    def push(self, lengths: dict[int, int]) -> None:
        chunks = {}
        for number, length in lengths.items():
            first = self.taken[number]
            chunks[number] = self.signals[number][..., first : first + length]
            self.taken[number] += chunks[number].shape[-1]
        for number, part in self.batch.push(chunks).items():
            self.parts[number].append(part)

    def leave(self, number: int) -> None:
        """Take a member out, push the rest of its signal, and compare with a stream by itself."""
        stream, x = self.batch.leave(number), self.signals[number]
        parts = [*self.parts[number], stream.push(x[..., self.taken[number] :]), stream.finish()]
        result = np.concatenate(parts, -1)
        np.testing.assert_allclose(result, alone(self.stream, x), rtol=0, atol=2e-6)


def test_members_that_join_and_leave() -> None:
    members = Members(vocoder().stream(chunk=2, threads=1))
    for number in range(3):
        members.join(signal(number))
        for _ in range(number):
            members.push(dict.fromkeys(members.batch.members, 2))
    for _ in range(8):
        members.push(dict.fromkeys(members.batch.members, 2))
    # All of them are under way: one program computes them, push after push.
    stream = members.batch._groups[0].stream
    members.push(dict.fromkeys(members.batch.members, 2))
    assert all(group.stream is stream for group in members.batch._groups.values())
    assert stream.batch_size == 3
    members.leave(1)
    members.push({2: 2})
    members.push({0: 1, 2: 1})
    members.join(signal(7, batch=2))
    for _ in range(9):
        members.push(dict.fromkeys(members.batch.members, 2))
    assert len({id(group) for group in members.batch._groups.values()}) == 1
    for number in members.batch.members:
        members.leave(number)
    assert members.batch.members == ()


def _random_batch(seed: int) -> None:
    rng = random.Random(seed)
    algorithm = rng.choice(("direct", "auto"))
    stream = vocoder(causal=rng.random() < 0.5).stream(chunk=2, threads=1, algorithm=algorithm)
    members = Members(stream)
    for _ in range(25):
        event, known = rng.random(), members.batch.members
        if event < 0.25 or not known:
            members.join(signal(rng.randrange(99), batch=rng.choice((1, 1, 2))))
        elif event < 0.35:
            members.leave(rng.choice(known))
        else:
            some = rng.sample(known, rng.randint(1, len(known)))
            members.push({n: rng.choice((0, 1, 2, 2, 2)) for n in some})
    for number in members.batch.members:
        members.leave(number)


def test_random_members() -> None:
    for seed in seeds(2):
        _random_batch(seed)


@pytest.mark.long
def test_many_random_members() -> None:
    for seed in seeds(100, 300):
        _random_batch(seed)


def test_a_stream_that_is_under_way_joins_as_a_copy() -> None:
    stream, x = vocoder().stream(chunk=2, threads=1), signal(3)
    expected = alone(stream, x)
    first = stream.push(x[..., :9])
    batch = stream.batch()
    number = batch.join(stream)
    second = batch.push({number: x[..., 9:20]})[number]
    for each, parts in ((batch.leave(number), [second]), (stream, [stream.push(x[..., 9:20])])):
        rest = [each.push(x[..., 20:]), each.finish()]
        result = np.concatenate([first, *parts, *rest], -1)
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6)


def test_several_inputs_and_outputs() -> None:
    network = Network({"x": (None, 2, None), "y": (None, 2, None)})
    x, y = network.inputs.values()
    network.output(network.conv(x, np.ones((2, 2, 3)), padding=1) + y, network.max_pool(y, 2))
    stream = network.stream(threads=1)
    batch, pairs = stream.batch(), []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        pairs.append(tuple(rng.standard_normal((2, 1, 2, 6)).astype(np.float32)))
        batch.join()
    results = batch.push(dict(enumerate(pairs)))
    for number, pair in enumerate(pairs):
        whole = network(*pair)
        for result, rest, expected in zip(
            results[number], batch.leave(number).finish(), whole, strict=True
        ):
            both = np.concatenate([result, rest], -1)
            np.testing.assert_allclose(both, expected, rtol=0, atol=1e-6)


def test_members_of_a_network_that_states_its_batch() -> None:
    network = Network({"x": (2, 1, None)})
    network.output(network.conv(network.inputs["x"], np.ones((1, 1, 3)), padding=1))
    batch, x = network.stream().batch(), np.ones((2, 1, 4), np.float32)
    results = batch.push({batch.join(): x, batch.join(): 2 * x})
    assert [result[0, 0].tolist() for result in results.values()] == [[2, 3, 3], [4, 6, 6]]


def test_a_push_that_fails_leaves_all_members_as_they_were(monkeypatch: Any) -> None:
    members = Members(vocoder().stream(chunk=2, threads=1))
    for number in range(2):
        members.join(signal(number))
    members.push({0: 2})  # they are in two groups then
    advanced, left = NetworkStream.advanced, [0]

    def failing(self: NetworkStream, chunks: Any) -> Any:
        result = advanced(self, chunks)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return result

    def fail_at(count: int, chunks: dict[int, np.ndarray]) -> None:
        """Push, and fail behind so many pushes of groups."""
        left[0] = count
        with monkeypatch.context() as patched:
            patched.setattr(NetworkStream, "advanced", failing)
            with pytest.raises(KeyboardInterrupt):
                members.batch.push(chunks)

    fail_at(2, {n: members.signals[n][..., 2:4] + 1 for n in (0, 1)})
    number = members.batch.join()
    fail_at(1, {number: signal(5, 2, batch=3)})  # the failed chunk does not say what the batch is
    assert members.batch.push({number: signal(5, 2)})[number].shape[0] == 1
    members.batch.leave(number)
    members.push({0: 2, 1: 2})
    for number in (0, 1):
        members.leave(number)


def test_errors() -> None:
    stream = vocoder().stream(chunk=2, threads=1)
    batch, x = stream.batch(), signal(1)
    with pytest.raises(ArgumentError, match="expected a member; the batch is empty"):
        batch.push({0: x})
    one, other = batch.join(), batch.join()
    under_way = stream.copy()
    under_way.push(x[..., :2])
    third = batch.join(under_way)
    batch.push({one: x[..., :2], other: x[..., :2]})
    for bad, kind, words in (
        ({one: x, other: x[:, :3]}, ShapeError, "chunk"),
        ({one: x, 7: x}, ArgumentError, "the number of a stream is 7; expected one of 0, 1, 2"),
        ({one: (x, x)}, ArgumentError, "the number of chunks"),
        ({one: np.repeat(x, 2, 0)}, ShapeError, "chunk"),
        ({other: x[..., :2], third: np.repeat(x[..., :2], 2, 0)}, ShapeError, "chunk"),
    ):
        with pytest.raises(kind, match=words):
            batch.push(bad)
    with pytest.raises(ArgumentError, match="from another call of stream"):
        batch.join(vocoder().stream(chunk=2, threads=1))
    with pytest.raises(DTypeError, match="a NetworkStream"):
        batch.join(x)  # type: ignore[arg-type]
    ended = stream.copy()
    ended.push(x)
    ended.finish()
    with pytest.raises(EngineError, match="finished"):
        batch.join(ended)
    expected = alone(stream, x)  # pushes that failed have left no trace
    for member in (batch.leave(one), batch.leave(other)):
        rest = np.concatenate([member.push(x[..., 2:]), member.finish()], -1)
        np.testing.assert_allclose(rest, expected[..., -rest.shape[-1] :], rtol=0, atol=2e-6)
    assert repr(batch) == f"<StreamBatch of 1 of {stream!r}>"
