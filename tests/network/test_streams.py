"""Streams of networks: values and bits of programs, states, refusals."""

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.support.network_streams import streamed
from tests.support.tracing import traced
from upconv.errors import ArgumentError, DTypeError, EngineError, EngineRefusal, ShapeError
from upconv.network import Network
from upconv.network.histories import Copies
from upconv.network.program import Program


def vocoder(channels: int = 16, *, causal: bool = False) -> Network:
    """A small HiFi-GAN: 8 samples for each frame, two branches of residual blocks each time."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5

    network = Network({"mel": (None, channels, None)})

    def conv(x: Any, taps: int, dilation: int = 1, out: int = channels) -> Any:
        both = dilation * (taps - 1)
        padding = ((both, 0),) if causal else both // 2
        return network.conv(
            x, weight(out, channels, taps), weight(out, 1)[:, 0], dilation=dilation, padding=padding
        )

    x = conv(network.inputs["mel"], 7)
    for stride in (4, 2):
        x = network.activation(x, ("leaky_relu", 0.1))
        padding = ((0, stride),) if causal else stride // 2
        up = weight(channels, channels, 2 * stride)
        x = network.conv_transpose(x, up, stride=stride, padding=padding)
        branches = []
        for taps in (3, 7):
            y = x
            for dilation in (1, 3):
                z = conv(network.activation(y, ("leaky_relu", 0.1)), taps, dilation)
                y = y + conv(network.activation(z, ("leaky_relu", 0.1)), taps)
            branches.append(y)
        x = (branches[0] + branches[1]) * 0.5
    network.output(network.activation(conv(x, 7, out=1), "tanh"))
    return network


@pytest.mark.parametrize(("batch", "causal"), [(1, False), (3, True)])
def test_a_vocoder_in_chunks_is_the_whole(batch: int, causal: bool) -> None:
    network = vocoder(causal=causal)
    x = np.random.default_rng(1).standard_normal((batch, 16, 40)).astype(np.float32)
    stream = network.stream(threads=1)
    for chunks in ([40], [4] * 10, [1] * 40, [7, 0, 33]):
        (result,) = streamed(stream, [x], 2, chunks)
        np.testing.assert_allclose(result, network(x), rtol=0, atol=2e-6)


def test_equal_chunks_repeat_one_program() -> None:
    stream = vocoder().stream(threads=1)
    chunk = np.zeros((1, 16, 4), np.float32)
    for _ in range(30):
        stream.push(chunk)
    streamed = stream.moment.streamed
    assert streamed is not None
    first = len(streamed._steps)
    for _ in range(100):
        stream.push(chunk)
    assert len(streamed._steps) == first < 16


def test_what_is_kept_lies_in_place() -> None:
    """A push of one image copies its chunk and results, and sums that begin in another place."""
    stream = vocoder().stream(threads=1)
    for _ in range(30):
        stream.push(np.zeros((1, 16, 4), np.float32))
    streamed = stream.moment.streamed
    assert streamed is not None
    step = streamed.step(stream.moment.key, stream.moment.counts, 4, ended=False)
    assert isinstance(step.program, Program)
    kinds = [type(node.operation).__name__ for node in step.program._open().graph.nodes]
    copies = [kind for kind in kinds if kind != "Convolution"]
    assert sorted(copies) == ["Concat", *["Convert"] * 4, "Pad"]


def test_a_push_that_fails_late_leaves_the_stream_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = vocoder().stream(chunk=4, algorithm="direct")
    x = np.random.default_rng(2).standard_normal((1, 16, 24)).astype(np.float32)
    (whole,) = streamed(stream, [x], 2, [4] * 6)
    parts, copy = [], Copies.run
    for start in range(0, 24, 4):

        def interrupted(self: Copies, dst: np.ndarray, src: np.ndarray) -> None:
            copy(self, dst, src)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Copies, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                # A first chunk that fails does not determine the batch either.
                stream.push(np.repeat(x[..., start : start + 4] + 1, 2 - bool(start), 0))
        parts.append(stream.push(x[..., start : start + 4]))
    assert np.concatenate([*parts, stream.finish()], -1).tobytes() == whole.tobytes()


@pytest.mark.parametrize("causal", [False, True])
def test_prepared_streams_compile_nothing(causal: bool) -> None:
    stream = vocoder(causal=causal).stream(chunk=4, threads=1)
    stream.prepare()
    kept = stream.source.streamed(1, 4)
    steps = list(kept._steps.values())
    for _ in range(2):
        streamed(stream, [np.zeros((1, 16, 80), np.float32)], 2, [4] * 20)
    assert list(kept._steps.values()) == steps
    two = stream.copy()
    two.prepare(2, batch=3)
    assert stream.source.streamed(3, 4)._steps
    with pytest.raises(ArgumentError, match="created without one"):
        vocoder().stream().prepare()
    with pytest.raises(ArgumentError, match="chunk"):
        stream.prepare(0)


def _check_memory(pushes: int) -> None:
    """Check Python's memory, NumPy's arrays included, after so many pushes more."""
    stream = vocoder().stream(threads=1)
    chunk = np.zeros((1, 16, 4), np.float32)

    def memory_after(pushes: int) -> int:
        for _ in range(pushes):
            stream.push(chunk)
        gc.collect()  # Python keeps thousands of free tuples until then
        return tracemalloc.get_traced_memory()[0]

    with traced():
        before = memory_after(1000)  # caches are full by then
        assert memory_after(pushes) - before < 8 * pushes


def test_memory_is_flat() -> None:
    _check_memory(1000)


@pytest.mark.long
def test_memory_is_flat_for_ten_thousand_pushes() -> None:
    _check_memory(10_000)


def test_latency_and_lookahead() -> None:
    causal = vocoder(causal=True).stream()
    assert causal.latency == causal.lookahead == 0
    stream = vocoder().stream(chunk=4)
    pushed = [stream.push(np.zeros((1, 16, 1), np.float32)).shape[-1] for _ in range(40)]
    behind = [8 * (i + 1) - sum(pushed[: i + 1]) for i in range(40)]
    assert max(behind) == behind[-1] == stream.latency
    # All results of input 20 are there after so many more inputs, and not before.
    assert sum(pushed[: 21 + stream.lookahead]) >= 8 * 21 > sum(pushed[: 20 + stream.lookahead])
    assert repr(stream) == (
        f"<NetworkStream along axis -1: 8 output samples per input sample, latency"
        f" {stream.latency} output samples>"
    )


@pytest.mark.parametrize("batch", [1, 2])
def test_states(batch: int) -> None:
    """Copies and bytes go on where they were taken; `reset` begins anew."""
    stream = vocoder().stream(chunk=4, algorithm="direct")
    x = np.random.default_rng(2).standard_normal((batch, 16, 30)).astype(np.float32)
    (whole,) = streamed(stream, [x], 2, [30])
    first = stream.push(x[..., :11])
    others = [stream.copy(), stream.from_bytes(stream.to_bytes())]
    for other in (stream, *others):
        rest = [other.push(x[..., 11:12]), other.push(x[..., 12:]), other.finish()]
        assert np.concatenate([first, *rest], -1).tobytes() == whole.tobytes()
    with pytest.raises(ArgumentError, match="of a stream with other weights"):
        vocoder(8).stream(chunk=4).from_bytes(stream.to_bytes())
    with pytest.raises(ArgumentError, match="damaged"):
        stream.from_bytes(stream.to_bytes()[:-3])


def test_errors_leave_the_stream_as_it_was() -> None:
    stream = vocoder().stream(chunk=4, algorithm="direct")
    x = np.random.default_rng(2).standard_normal((1, 16, 30)).astype(np.float32)
    (whole,) = streamed(stream, [x], 2, [30])
    first = stream.push(x[..., :11])
    for bad, error in [
        ((x[:, :3],), ShapeError),
        ((x.astype(np.float64),), DTypeError),
        ((np.repeat(x, 2, 0),), ShapeError),
        ((x[0],), ShapeError),
        ((x, x), ArgumentError),
        (("x",), ArgumentError),
    ]:
        with pytest.raises(error):
            stream.push(*bad)
    rest = [stream.push(x[..., 11:]), stream.finish()]
    assert np.concatenate([first, *rest], -1).tobytes() == whole.tobytes()
    with pytest.raises(EngineError, match="finished"):
        stream.push(x)


def test_a_stream_without_a_chunk_or_with_too_few_positions() -> None:
    network = Network({"x": (1, 1, None)})
    network.output(network.conv(network.inputs["x"], np.ones((1, 1, 5))))
    stream = network.stream()
    with pytest.raises(ArgumentError, match="empty"):
        stream.finish()
    assert stream.push(np.zeros((1, 1, 3), np.float32)).shape == (1, 1, 0)
    with pytest.raises(ShapeError):
        stream.finish()
    assert stream.push(np.zeros((1, 1, 2), np.float32)).shape == (1, 1, 1)


def test_what_reads_all_positions_is_refused_by_its_line() -> None:
    network = Network({"x": (1, 4, None)})
    network.output(network.instance_norm(network.inputs["x"]))
    with pytest.raises(EngineRefusal, match=r"norm at .*test_streams.py:\d+: its mean and"):
        network.stream()
    network = Network({"x": (1, 4, 8, None)})
    x = network.inputs["x"]
    network.output(network.conv(x, np.ones((4, 4, 3, 3)), padding="same_upper", stride=2))
    with pytest.raises(EngineRefusal, match="its padding depends on the size"):
        network.stream()


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((1, 4, 8), {}, r"input 'x' is \(1, 4, 8\); expected open along axis -1. Declare it as"),
        ((1, 4, None), {"axis": 1}, "axis is 1; expected a spatial axis"),
        ((1, 4, None), {"axis": 3}, "axis"),
        ((1, 4, None), {"chunk": 0}, "chunk"),
        ((1, 4, None, None), {}, r"expected known except for the batch and axis -1. Pass shapes="),
        ((1, 4, None), {"precision": "float16"}, "precision"),
        ((1, 4, None), {"shapes": {"y": (1, 4, None)}}, "the name of an input is 'y'; expected"),
        ((1, 4, None), {"shapes": {"x": 5}}, r"inputs\['x'\] is 5; expected \(N, C, \*size\)"),
        ((1, 4, None), {"shapes": {"x": (1, 7, None)}}, r"shapes\['x'\] is \(1, 7, \?\)"),
        ((1, 4, None), {"shapes": {"x": (1, 4, 8, None)}}, r"as declared"),
    ],
)
def test_bad_arguments(shape: Any, options: dict[str, Any], words: str) -> None:
    network = Network({"x": shape})
    network.output(network.activation(network.inputs["x"], "relu"))
    with pytest.raises(ArgumentError, match=words):
        network.stream(**options)


def test_several_inputs_and_outputs() -> None:
    network = Network({"x": (1, 2, None), "y": (1, 2, None)})
    x, y = network.inputs.values()
    smooth = network.conv(x, np.ones((2, 2, 3)), padding=1)
    network.output(smooth + y, network.max_pool(y, 2))
    arrays = [
        np.random.default_rng(i).standard_normal((1, 2, 12)).astype(np.float32) for i in (0, 1)
    ]
    results = streamed(network.stream(), arrays, 2, [5, 1, 6])
    for result, expected in zip(results, network(*arrays), strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("branch", [False, True])
def test_a_trimmed_end_delays_no_result(branch: bool) -> None:
    rng = np.random.default_rng(0)
    network = Network({"x": (1, 3, None)})
    up = network.conv_transpose(
        network.inputs["x"], rng.standard_normal((3, 4, 8)), rng.standard_normal(4), stride=4
    )
    y = network.activation(network.crop(up, ((1, 3),)), "tanh")
    network.output(*([y, up] if branch else [y]))
    x = rng.standard_normal((1, 3, 12)).astype(np.float32)
    stream = network.stream()
    # Where nothing else reads the layer, the crop is its padding: no result waits for it.
    assert stream.latency == (4 if branch else 1)
    results = streamed(stream, [x], 2, [3, 1, 8])
    wanted = network(x) if branch else [network(x)]
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
