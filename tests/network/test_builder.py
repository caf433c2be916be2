"""The builder of networks: what each call adds."""

import itertools
import pickle

import numpy as np
import pytest

import upconv
from upconv.errors import ShapeError
from upconv.network import Network, Value
from upconv.network.definitions import evaluate


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def network(*shape: int | str | None) -> tuple[Network, Value]:
    result = Network({"x": shape or (1, 4, None)})
    return result, result.inputs["x"]


def result(built: Network, *outputs: Value, **arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """What a network computes on arrays of its inputs, by definition."""
    built.output(*outputs)
    graph = built.graph(**{name: array.shape for name, array in arrays.items()})
    return evaluate(graph, list(arrays.values()))


def test_layers_are_those_of_upconv() -> None:
    x, weight, bias = values(2, 4, 9), values(6, 2, 3), values(6)
    net, value = network(None, 4, None)
    y = net.conv(value, weight, bias, stride=2, padding=((1, 0),), groups=2, activation="relu")
    z = net.conv_transpose(y, values(6, 2, 4), stride=2, padding=1, output_padding=1)
    assert (y.shape, z.shape) == ((None, 6, None), (None, 2, None))
    first, second = result(net, y, z, x=x)
    float32 = (weight.astype(np.float32).astype(float), bias.astype(np.float32).astype(float))
    keywords = {"stride": 2, "padding": ((1, 0),), "groups": 2, "activation": "relu"}
    np.testing.assert_allclose(first, upconv.conv(x, *float32, **keywords), atol=1e-12)
    weight = values(6, 2, 4).astype(np.float32).astype(float)
    expected = upconv.conv_transpose(first, weight, stride=2, padding=1, output_padding=1)
    np.testing.assert_allclose(second, expected, atol=1e-12)


def test_sums_and_products_of_values_numbers_and_arrays() -> None:
    net, x = network(2, 4, 5)
    per_channel = values(4).astype(np.float32)
    assert sum([x]) is x
    outputs = x + x, 3 + x * 2, per_channel + x * per_channel, net.mul(x, net.add(x, 1.5))
    array = values(2, 4, 5)
    results = result(net, *outputs, x=array)
    c = per_channel[:, None]
    for got, expected in zip(
        results, (2 * array, 3 + array * 2, c + array * c, array * (array + 1.5)), strict=True
    ):
        np.testing.assert_allclose(got, expected, atol=1e-12)


def test_differences_quotients_and_bounds() -> None:
    net, x = network(2, 4, 5)
    c = values(4).astype(np.float32)
    outputs = (
        x - 1, 2 - x, x - c, c - x, -x, x / 4, 2 / x, x / c, c / x, net.sub(x, x * 2),
        net.div(x * x, x), net.maximum(x, 0.25), net.minimum(x, -x), net.clip(x, -0.5, 0.5),
        net.clip(x, high=0.25),
    )  # fmt: skip
    a, c = values(2, 4, 5), c[:, None].astype(float)
    expected = (
        a - 1, 2 - a, a - c, c - a, -a, a / 4, 2 / a, a / c, c / a, -a,
        a, np.maximum(a, 0.25), -np.abs(a), np.clip(a, -0.5, 0.5), np.minimum(a, 0.25),
    )  # fmt: skip
    for got, right in zip(result(net, *outputs, x=a), expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-6)  # factors are rounded to float32


def test_a_broadcast_along_some_axes_or_of_both_values_is_refused() -> None:
    for first, second in (
        ((1, 4, 3, 5), (1, 4, 3, 1)), ((1, 4, 1, 1), (1, 1, 3, 5)), ((2, 1, 3, 5), (1, 4, 3, 5)),
    ):  # fmt: skip
        net = Network({"x": first, "y": second})
        for x, y in itertools.permutations(net.inputs.values()):
            with pytest.raises(ShapeError, match=r"the shapes in mul .* Upsample it along"):
                net.mul(x, y)


def test_weights_are_copied_at_the_call_and_converted_to_float32() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs it")
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        net, x = network(1, 4, 6)
        weight, bias = values(2, 4, 3).astype(dtype), values(2).astype(dtype)
        before = weight.astype(np.float32), bias.astype(np.float32)
        net.output(net.conv(x, weight, bias))
        weight[...] = bias[...] = 0
        operation = net.graph().nodes[0].operation
        for copy, original in zip((operation.weight, operation.bias), before, strict=True):
            assert copy.dtype == np.float32
            np.testing.assert_array_equal(copy, original)
            with pytest.raises(ValueError, match="read-only"):
                copy[...] = 0


def test_named_extents_are_one_extent() -> None:
    net = Network({"x": (1, 2, "T"), "y": ("N", 2, "T"), "z": (1, 2, None)})
    net.output(net.add(net.inputs["x"], net.inputs["y"]))
    graph = net.graph(y=(1, 2, 9), z=(1, 2, 3))
    assert list(graph.shapes.values()) == [(1, 2, 9), (1, 2, 9), (1, 2, 3), (1, 2, 9)]
    with pytest.raises(ShapeError, match=r"'y' is \(1, 2, 8\); .* \(N, 2, T\), where T is 9"):
        net.graph(x=(1, 2, 9), y=(1, 2, 8), z=(1, 2, 3))
    with pytest.raises(ShapeError, match=r"'z' is open, \(1, 2, \?\)"):
        net.graph(x=(1, 2, 9), y=(1, 2, 9))


def test_each_output_has_an_array_of_its_own_and_nothing_useless_is_computed() -> None:
    net, x = network(1, 4, 5)
    net.conv(x, values(4, 4, 1))
    y = net.activation(x, "tanh")
    net.output(y, x, y)
    graph = net.graph()
    assert len(graph.nodes) == 3
    assert len({*graph.outputs, *graph.inputs.values()}) == 4
    array = values(1, 4, 5)
    outputs = evaluate(graph, [array])
    for output, expected in zip(outputs, (np.tanh(array), array, np.tanh(array)), strict=True):
        np.testing.assert_array_equal(output, expected)


def test_a_network_is_pickled_and_printed() -> None:
    net, x = network(1, 4, None)
    y = net.activation(x, "relu")
    assert repr(y) == "<Value 1 (1, 4, ?)>"
    assert repr(net) == "<Network of 1 node, inputs x (1, 4, ?)>"
    net.output(y)
    other = pickle.loads(pickle.dumps(net))
    assert other.graph(x=(1, 4, 3)).shapes == net.graph(x=(1, 4, 3)).shapes
