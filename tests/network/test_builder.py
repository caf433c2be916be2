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


ACTIVATIONS = {
    "relu": lambda v: np.maximum(v, 0),
    "leaky_relu": lambda v: np.where(v < 0, 0.01 * v, v),
    ("leaky_relu", 0.25): lambda v: np.where(v < 0, 0.25 * v, v),
    "elu": lambda v: np.where(v < 0, np.exp(v) - 1, v),
    ("elu", 0.5): lambda v: np.where(v < 0, 0.5 * np.exp(v) - 0.5, v),
    "softplus": lambda v: np.log1p(np.exp(v)),
    "hard_swish": lambda v: v * np.clip(v / 6 + 0.5, 0, 1),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_by_name_and_number(name: object) -> None:
    net, x = network(1, 4, 30)
    weight = np.eye(4, dtype=np.float32)[..., None]
    array = 4 * values(1, 4, 30)
    outputs = result(net, net.activation(x, name), net.conv(x, weight, activation=name), x=array)
    for output in outputs:
        np.testing.assert_allclose(output, ACTIVATIONS[name](array), atol=1e-7)


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


def test_pools_of_windows_positions_and_channels() -> None:
    net, x = network(None, 4, None, None)
    outputs = (
        net.adaptive_pool(x), net.adaptive_pool(x, (2, 3), "max"), net.channel_pool(x, "max"),
        net.softmax(x), net.max_pool(x, 3, 2, ceil_mode=True), net.avg_pool(x, 2, dilation=2),
    )  # fmt: skip
    assert [value.shape[1:] for value in outputs[:3]] == [(4, 1, 1), (4, 2, 3), (1, None, None)]
    a = values(2, 4, 6, 9)
    powers, parts = np.exp(a), a.reshape(2, 4, 2, 3, 3, 3)
    expected = (
        a.mean((2, 3), keepdims=True), parts.max((3, 5)), a.max(1, keepdims=True),
        powers / powers.sum(1, keepdims=True),
    )  # fmt: skip
    results = result(net, *outputs, x=a)
    for got, right in zip(results, expected, strict=False):
        np.testing.assert_allclose(got, right, rtol=1e-12)
    assert [array.shape[2:] for array in results[4:]] == [(3, 4), (2, 4)]
    whole = a[:, :, :3, :3] + 0
    np.testing.assert_array_equal(results[4][:, :, 0, 0], whole.max((2, 3)))
    np.testing.assert_allclose(results[5][:, :, 0, 0], a[:, :, :3:2, :3:2].mean((2, 3)))


def test_channels_and_positions_change_places() -> None:
    net, x = network(None, 8, None, None)
    outputs = (
        net.permute(x, [7, 0, 0]), net.channel_shuffle(x, 2), net.pixel_shuffle(x, 2, "DCR"),
        net.pixel_unshuffle(x, (1, 3)), net.resize(x, (5, 2)), net.pad(x, ((1, 0), 0), value=-2),
    )  # fmt: skip
    a = values(2, 8, 4, 9)
    results = result(net, *outputs, x=a)
    np.testing.assert_array_equal(results[0], a[:, [7, 0, 0]])
    np.testing.assert_array_equal(results[1], a[:, [0, 4, 1, 5, 2, 6, 3, 7]])
    blocks = a.reshape(2, 2, 2, 2, 4, 9).transpose(0, 3, 4, 1, 5, 2)
    np.testing.assert_array_equal(results[2], blocks.reshape(2, 2, 8, 18))
    np.testing.assert_array_equal(results[3][:, 5], a[:, 1, :, 2::3])
    np.testing.assert_array_equal(results[4], a[:, :, [0, 0, 1, 2, 3]][..., [0, 4]])
    np.testing.assert_array_equal(results[5][:, :, 0], -2)


def test_values_are_broadcast_whichever_comes_first() -> None:
    shapes = {"x": (2, 4, 3, 5), "y": (2, 4, 1, 1), "z": (2, 1, 3, 5)}
    net = Network(shapes)
    x, y, z = net.inputs.values()
    outputs = x - y, y - x, z / x, (x * z) * y
    assert {value.shape for value in outputs} == {(2, 4, 3, 5)}
    a, b, c = (values(*shape) for shape in shapes.values())
    results = result(net, *outputs, x=a, y=b, z=c)
    for got, right in zip(results, (a - b, b - a, c / a, a * c * b), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-12)


def test_a_broadcast_along_some_axes_or_of_both_values_is_refused() -> None:
    for first, second in (
        ((1, 4, 3, 5), (1, 4, 3, 1)), ((1, 4, 1, 1), (1, 1, 3, 5)), ((2, 1, 3, 5), (1, 4, 3, 5)),
    ):  # fmt: skip
        net = Network({"x": first, "y": second})
        for x, y in itertools.permutations(net.inputs.values()):
            with pytest.raises(ShapeError, match=r"the shapes in mul .* Upsample it along"):
                net.mul(x, y)


def test_activations_with_one_number_per_channel() -> None:
    net, x = network(1, 4, 30)
    slopes, alphas = (values(4, seed=s).astype(np.float32) for s in (1, 2))
    array = values(1, 4, 30)
    single = net.activation(x, ("prelu", slopes[:1]))
    outputs = [net.activation(x, ("prelu", slopes)), net.activation(x, ["snake", alphas]), single]
    prelu, snake, shared = result(net, *outputs, x=array)
    np.testing.assert_allclose(prelu, np.where(array < 0, slopes[:, None] * array, array))
    a = alphas[:, None].astype(float)
    np.testing.assert_allclose(snake, array + np.sin(a * array) ** 2 / a)
    np.testing.assert_allclose(shared, np.where(array < 0, slopes[0] * array, array))


def test_norms() -> None:
    net, x = network(2, 4, 9)
    array = values(2, 4, 9) * 3 + 1
    scale, offset, mean = (values(4, seed=s).astype(np.float32) for s in (1, 2, 3))
    variance = np.square(values(4, seed=4)).astype(np.float32)
    norms = [
        net.batch_norm(x, scale, offset, mean, variance, 1e-3),
        net.instance_norm(x, scale, offset),
        net.group_norm(x, 2, scale, offset),
        net.layer_norm(x, None, offset),
    ]
    batch, instance, group, layer = result(net, *norms, x=array)
    s, o = scale[:, None].astype(float), offset[:, None].astype(float)

    def normal(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        variance = values.var(axes, keepdims=True)
        return (values - values.mean(axes, keepdims=True)) / np.sqrt(variance + 1e-5)

    expected = s * (array - mean[:, None]) / np.sqrt(variance[:, None].astype(float) + 1e-3) + o
    np.testing.assert_allclose(batch, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(instance, normal(array, (2,)) * s + o)
    by_group = normal(array.reshape(2, 2, 2, 9), (2, 3)).reshape(2, 4, 9)
    np.testing.assert_allclose(group, by_group * s + o)
    np.testing.assert_allclose(layer, normal(array, (1,)) + o)


def test_channels_positions_and_windows() -> None:
    net, x = network(1, 4, None, "W")
    array = values(1, 4, 6, 7)
    outputs = [
        net.concat(x, net.slice(x, 1, 3)), net.pad(x, (1, (0, 2)), "reflect"),
        net.crop(x, ((1, 0), 2)), net.upsample(x, (1, 2)), net.max_pool(x, 2, 1),
        net.avg_pool(x, (2, 3), padding=(0, 1), count_padding=False), net.pixel_shuffle(x, 2),
    ]  # fmt: skip
    shapes = [value.shape for value in outputs]
    assert shapes == [(1, c, None, None) for c in (6, 4, 4, 4, 4, 4, 1)]
    joined, padded, cropped, larger, highest, average, shuffled = result(net, *outputs, x=array)
    np.testing.assert_array_equal(joined, array[:, [0, 1, 2, 3, 1, 2]])
    expected = np.pad(array, ((0, 0), (0, 0), (1, 1), (0, 2)), "reflect")
    np.testing.assert_array_equal(padded, expected)
    np.testing.assert_array_equal(cropped, array[:, :, 1:, 2:-2])
    np.testing.assert_array_equal(larger, array.repeat(2, 3))
    pair = np.maximum(array[:, :, 1:], array[:, :, :-1])
    np.testing.assert_array_equal(highest, np.maximum(pair[..., 1:], pair[..., :-1]))
    first = array[:, :, :2, :2].mean((2, 3))
    np.testing.assert_allclose(average[:, :, 0, 0], first)
    np.testing.assert_array_equal(shuffled[0, 0, 1::2, 0::2], array[0, 2])


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
