"""Nearest upsampling as part of the convolutions that read it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.network.test_passes import same
from upconv.network import Network, upsampled
from upconv.network.definitions import evaluate
from upconv.network.fuse import fuse
from upconv.network.graph import Convolution, Graph, Resample

FACTORS = {1: [(2,), (3,)], 2: [(2, 2), (1, 3)], 3: [(2, 1, 2)]}
PADDINGS: list[Any] = [0, 1, 2, -1, "same_upper", "same_lower"]


def kinds(graph: Graph) -> list[str]:
    """The operations of a graph's nodes, with those of their epilogues."""
    names = []
    for node in graph.nodes:
        operation: Any = node.operation
        name = "transposed" if getattr(operation, "transposed", False) else type(operation).__name__
        chain = getattr(operation, "epilogue", getattr(operation, "chain", ()))
        names.append(" ".join([name, *(op.name for op in chain)]))
    return names


def merged(network: Network) -> Graph:
    """The network's graph after the pass, which computes the same."""
    graph = network.graph()
    after = upsampled.upsampled(graph)
    same(graph, after)
    return after


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("factors", [f for each in FACTORS.values() for f in each])
def test_a_convolution_becomes_transposed(
    factors: tuple[int, ...], taps: int, padding: Any
) -> None:
    rank = len(factors)
    network = Network({"x": (2, 3, *range(6, 6 + rank))})
    big = network.upsample(network.inputs["x"], factors)
    network.output(network.conv(big, values(4, 3, *[taps] * rank), values(4), padding=padding))
    graph = merged(network)
    assert kinds(graph) == ["transposed"]
    assert graph.nodes[0].operation.keywords.stride == factors  # type: ignore[attr-defined]


@pytest.mark.parametrize("kernel", [(2, 4), (4, 1), (1, 3)])
def test_axes_with_different_taps_factors_and_ends(kernel: tuple[int, int]) -> None:
    network = Network({"x": (2, 3, 5, 6)})
    big = network.upsample(network.inputs["x"], (2, 3))
    padding = (2, 0), (0, 3)
    network.output(network.conv(big, values(4, 3, *kernel), values(4), padding=padding))
    assert kinds(merged(network)) == ["transposed"]


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("end", ["residual", "two residuals", "store", "prelu", "broadcast"])
def test_what_a_fused_convolution_ends_in_stays(end: str, taps: int) -> None:
    network = Network(
        {"x": (1, 3, 4, 5), "y": (1, 2, 8, 10), "z": (1, 4, 8, 10), "b": (1, 4, 1, 1)}
    )
    x, y, z, b = network.inputs.values()
    joined = network.concat(network.upsample(x, 2), y)
    result = network.conv(joined, values(4, 5, taps, taps), values(4), padding=taps // 2)
    if end == "store":
        network.output(result, network.activation(result, "relu"))
    elif end == "prelu":
        network.output(network.activation(result + z, ("prelu", values(4))))
    else:
        sums = {"residual": result + z, "two residuals": result + z + z, "broadcast": result * b}
        network.output(network.activation(sums[end], "tanh"))
    graph = fuse(network.graph())
    assert len(graph.nodes) == 3
    after = upsampled.upsampled(graph)
    same(graph, after)
    divided = taps == 3 or end != "store"
    assert (kinds(after) != kinds(graph)) == divided


def test_a_summation_order_that_is_required_stays() -> None:
    network = Network({"x": (1, 3, 4)})
    network.output(network.conv(network.upsample(network.inputs["x"], 2), values(4, 3, 3)))
    graph = network.graph()
    up, conv = graph.nodes
    fixed = replace(conv, operation=replace(conv.operation, sums="some order"))  # type: ignore[type-var]
    assert kinds(upsampled.upsampled(graph.with_nodes([up, fixed]))) == kinds(graph)


def test_upsampling_moves_on_to_the_next_convolution() -> None:
    network = Network({"x": (1, 3, 4, 5)})
    x = network.upsample(network.inputs["x"], 2)
    x = network.conv(x, values(6, 3, 1, 1), values(6))
    network.output(network.conv(x, values(2, 6, 3, 3), padding=1))
    assert kinds(merged(network)) == ["Convolution", "transposed"]


def test_the_weight_holds_sums_of_taps() -> None:
    weight = values(1, 1, 3)
    a, b, c = weight.ravel()
    expected = [c, b + c, a + b, a]  # a factor of 2: the first element meets the last tap once
    np.testing.assert_allclose(upsampled._summed(weight, (2,)).ravel(), expected)
    ones = np.ones((2, 3, 3, 3), np.float32)
    counts = np.outer([1, 2, 2, 1], [1, 2, 3, 2, 1])
    assert (upsampled._summed(ones, (2, 3)) == counts).all()


def test_a_pointwise_convolution_runs_before_the_upsampling() -> None:
    """With the operations that need no other value."""
    network = Network({"x": (1, 3, 4, 5), "y": (1, 6, 8, 10)})
    x = network.upsample(network.inputs["x"], 2)
    x = network.conv(x, values(6, 3, 1, 1), values(6), activation="relu")
    network.output(network.activation(x + network.inputs["y"], "tanh"))
    graph = merged(network)
    assert kinds(graph) == ["Convolution relu", "Resample", "Pointwise add", "Pointwise tanh"]
    graph = upsampled.upsampled(fuse(network.graph()))
    assert kinds(graph) == ["Convolution relu", "Resample", "Pointwise add tanh"]


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("order", [("small", "large"), ("large", "small"), ("small", "small")])
def test_a_convolution_of_a_concatenation_is_divided(taps: int, order: tuple[str, ...]) -> None:
    network = Network({"x": (1, 3, 4, 5), "y": (1, 2, 8, 10), "z": (1, 5, 8, 10)})
    small = network.upsample(network.inputs["x"], 2)
    large = iter([network.inputs["y"], network.inputs["y"]])
    parts = [small if word == "small" else next(large) for word in order]
    joined = network.concat(*parts, network.inputs["z"])
    weight = values(4, joined.channels, taps, taps)
    network.output(network.conv(joined, weight, values(4), padding=taps // 2, activation="relu"))
    graph = merged(network)
    upsamplings = sum(isinstance(node.operation, Resample) for node in graph.nodes)
    assert upsamplings == (order.count("small") if taps == 1 else 0)
    convolved = [node for node in graph.nodes if isinstance(node.operation, Convolution)]
    assert len(convolved) == order.count("small") + 1
    assert sum(node.operation.bias is not None for node in convolved) == 1  # type: ignore[attr-defined]


def test_all_of_a_concatenation_may_be_upsampled() -> None:
    network = Network({"x": (1, 3, 4), "y": (1, 2, 3)})
    parts = network.upsample(network.inputs["x"], 3), network.upsample(network.inputs["y"], 4)
    network.output(network.conv(network.concat(*parts), values(4, 5, 3), padding=1))
    assert kinds(merged(network)) == ["transposed", "transposed add"]


def test_an_upsampled_value_that_others_read_stays() -> None:
    network = Network({"x": (1, 3, 4)})
    big = network.upsample(network.inputs["x"], 2)
    network.output(network.conv(big, values(3, 3, 3), padding=1) + big)
    assert kinds(merged(network)) == ["Resample", "transposed", "Pointwise add"]


STAYS: dict[str, dict[str, Any]] = {
    "stride": {"stride": 2}, "dilation": {"dilation": 2}, "groups": {"groups": 3},
    "linear": {"mode": "linear"}, "a weight that would be too large": {"factors": 8},
    "padding of a pointwise convolution": {"taps": 1, "padding": 1}, "sizes": {"factors": None},
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_cannot_be_merged_stays(name: str) -> None:
    keywords = {"factors": 2, "mode": "nearest", "taps": 3} | STAYS[name]
    factors, mode, taps = (keywords.pop(word) for word in ("factors", "mode", "taps"))
    network = Network({"x": (1, 3, 4, 4)})
    x = network.inputs["x"]
    big = network.upsample(x, factors, mode) if factors else network.resize(x, (8, 8))
    weight = values(6, 3 // keywords.get("groups", 1), taps, taps)
    network.output(network.conv(big, weight, **keywords))
    assert kinds(merged(network)) == ["Resample", "Convolution"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_decoder_at_another_size(precision: str) -> None:
    """Open sizes, and streams: the program's results are those of the definition."""
    network = Network({"x": (1, 4, None)})
    x = network.conv(network.inputs["x"], values(8, 4, 3), padding=1, activation="relu")
    x = network.conv(network.upsample(x, 4), values(4, 8, 3) / 4, padding=1, activation="tanh")
    network.output(x)
    stream = network.stream(precision=precision)
    for length in (5, 17):
        chunk = values(1, 4, length).astype(np.float32)
        program = network.compile({"x": (1, 4, length)}, precision=precision)
        assert "conv_transpose" in program.explain(measure=False)
        allowed = 1e-5 if precision == "float32" else 0.05
        (expected,) = evaluate(network.graph(x=chunk.shape), [chunk.astype(np.float64)])
        np.testing.assert_allclose(program.run(chunk), expected, atol=allowed)
        pieces = [stream.push(chunk[..., :3]), stream.push(chunk[..., 3:]), stream.finish()]
        np.testing.assert_allclose(np.concatenate(pieces, -1), expected, atol=allowed)
        stream.reset()


def test_a_stream_of_a_divided_convolution_with_much_padding() -> None:
    """Results of one position then have other strides than their residuals, without effect."""
    network = Network({"x": (1, 40, None), "y": (1, 2, None)})
    x, y = network.inputs.values()
    x = network.upsample(network.conv(x, values(40, 40, 3), padding=1), 2)
    joined = network.concat(network.upsample(y, 2), x, x)
    network.output(network.conv(joined, values(4, 82, 2), padding=4))
    xs = values(1, 40, 13).astype(np.float32), values(1, 2, 13).astype(np.float32)
    shapes = {"x": xs[0].shape, "y": xs[1].shape}
    (expected,) = evaluate(network.graph(**shapes), [each.astype(np.float64) for each in xs])
    for first in range(1, 13):
        stream = network.stream(threads=1)
        pieces = [stream.push(*(each[..., :first] for each in xs)),
                  stream.push(*(each[..., first:] for each in xs)), stream.finish()]  # fmt: skip
        np.testing.assert_allclose(np.concatenate(pieces, -1), expected, atol=1e-4)
