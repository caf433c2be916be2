"""LSTMs of networks: the definition against PyTorch, native code against it, and streams."""

import random

import numpy as np
import pytest

from tests.support.native_steps import Case, checked
from tests.support.network_streams import streamed
from tests.support.repeating import seeds
from upconv.errors import ArgumentError, EngineRefusal, ShapeError
from upconv.network import Network
from upconv.network.definitions import define
from upconv.network.graph import Lstm
from upconv.network.recurrent import steps
from upconv.problem import DataLayout, DType


def drawn(seed: int) -> Case:
    """A random LSTM on random arrays, with a state or without."""
    rng = np.random.default_rng(seed)
    channels = int(rng.choice([1, 2, 5, 8, 15, 16, 17, 33, 64]))
    batch, count = int(rng.integers(1, 4)), int(rng.integers(1, 12))
    weight = rng.standard_normal((4 * channels, channels)).astype(np.float32) / channels**0.5
    shapes = [(batch, 4 * channels, count)]
    if rng.integers(2):
        shapes.append((batch, 2 * channels, int(rng.integers(1, 4))))
    dtype = (DType.FLOAT32, DType.BFLOAT16)[rng.integers(2)]
    return Case(
        Lstm(weight), tuple(shapes), DataLayout.NXC, dtype, int(rng.integers(1, 4)),
        slack=64 if dtype is DType.FLOAT32 else 1 << 19, seed=seed, spread=1.0,
        view=bool(rng.integers(2)), out_view=bool(rng.integers(2)),
    )  # fmt: skip


def test_random_layers() -> None:
    for seed in seeds(60):
        checked(drawn(seed), steps)


@pytest.mark.parametrize("biased", [False, True])
def test_the_definition_and_programs_are_those_of_pytorch(biased: bool) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(3, 5, bias=biased), torch.randn(7, 2, 3)
    with torch.no_grad():
        expected = layer(x)[0].permute(1, 2, 0).numpy()
    weight, hidden, *biases = (each.detach().numpy() for each in layer.parameters())
    network = Network({"x": (None, 3, None)})
    y = network.lstm(network.inputs["x"], weight, hidden, sum(biases) if biased else None)
    network.output(y)
    inputs = x.permute(1, 2, 0).numpy()
    np.testing.assert_allclose(network(inputs), expected, rtol=0, atol=1e-6)
    gates = np.einsum("fc,nct->nft", weight, inputs) + (sum(biases)[:, None] if biased else 0)
    (both,) = define(Lstm(hidden), (gates.astype(np.float64),))
    np.testing.assert_allclose(both[:, :5], expected, rtol=0, atol=1e-6)


def decoder(channels: int) -> Network:
    """Layers before, beside and behind two LSTMs, as EnCodec's decoder has them."""
    rng = np.random.default_rng(0)
    network = Network({"x": (None, 4, None)})

    def weights(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5

    x = network.conv(network.inputs["x"], weights(channels, 4, 5), padding=((4, 0),))
    y = x
    for _ in range(2):
        arrays = weights(4 * channels, channels), weights(4 * channels, channels)
        y = network.lstm(y, *arrays, weights(4 * channels, 1)[:, 0])
    y = network.conv(x + y, weights(channels, channels, 3), padding=1)
    network.output(network.conv_transpose(y, weights(channels, 2, 4), stride=2, padding=1))
    return network


@pytest.mark.parametrize(("channels", "batch"), [(6, 1), (16, 1), (24, 3)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_chunks_are_the_whole(channels: int, batch: int, precision: str) -> None:
    if precision == "bfloat16":
        pytest.importorskip("ml_dtypes")
    network = decoder(channels)
    x = np.random.default_rng(1).standard_normal((batch, 4, 30)).astype(np.float32)
    stream = network.stream(chunk=4, precision=precision, algorithm="direct")
    whole, results = network(x, precision=precision), set()
    for chunks in ([30], [1] * 30, [4, 0, 7, 4, 15]):
        (result,) = streamed(stream.copy(), [x], 2, chunks, random.Random(len(chunks)))
        atol = 2e-6 if precision == "float32" else 0.05
        np.testing.assert_allclose(result, whole, rtol=0, atol=atol)
        results.add(result.tobytes())
    assert len(results) == 1
    assert stream.latency == 3  # that of the layers behind it


def test_values_by_definition_alone() -> None:
    """Phases hand on the state, too, where NumPy evaluates them."""
    network = decoder(6)
    x = np.random.default_rng(1).standard_normal((1, 4, 12)).astype(np.float32)
    stream = network.stream(chunk=4)
    streamed = stream.source.streamed(1, 4)
    streamed._by_definition = True
    parts = [stream.push(x[..., i : i + 4]) for i in range(0, 12, 4)]
    result = np.concatenate([*parts, stream.finish()], -1)
    np.testing.assert_allclose(result, network(x), rtol=0, atol=2e-6)


def test_bad_arguments() -> None:
    network = Network({"x": (1, 3, None), "image": (1, 3, None, None)})
    x, ones = network.inputs["x"], np.ones
    for arguments, words in (
        ((x, ones((8, 3)), ones((8, 3))), r"hidden_weight.shape is \(8, 3\); expected \(4 H, H\)"),
        ((x, ones((8, 3, 1)), ones((8, 2))), r"expected \(8, C\), with as many rows"),
        ((x, ones((12, 3)), ones((8, 2))), r"weight.shape is \(12, 3\); expected \(8, C\)"),
        ((x, ones((8, 4)), ones((8, 2))), "channels"),
        ((x, ones((8, 3)), ones((8, 2)), ones(7)), "bias"),
        ((network.inputs["image"], ones((8, 3)), ones((8, 2))), "weight.shape|one spatial axis"),
    ):
        with pytest.raises(ArgumentError, match=words):
            network.lstm(*arguments)
    with pytest.raises(ShapeError, match="four gates of 2"):
        network._nodes.insert(Lstm(ones((8, 2), np.float32)), x)


def test_no_chunk_of_it_is_computed_alone() -> None:
    network = decoder(6)
    boxes = network.boxes({"x": (1, 4, 30)}).boxes
    output = boxes.graph.outputs[0]
    with pytest.raises(EngineRefusal, match="one position after another"):
        boxes.part(output, ((10, 20),), 1)
    assert boxes.part(output, ((0, 60),), 1).graph.nodes
