"""The builder of networks: what each call adds, and what each refuses, in one clear sentence."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import upconv
from upconv.errors import ArgumentError, DTypeError, ShapeError
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


# Refusals at the call -----------------------------------------------------------------------------

W = np.ones((2, 4, 3), np.float32)
INFINITE = np.array([1, np.inf, 1, 1])

AT_THE_CALL: dict[str, tuple[Callable[[Network, Value], object], type[ArgumentError], str]] = {
    "channels": (
        lambda n, x: n.conv(x, W[:, :3]), ShapeError,
        r"weight.shape is \(2, 3, 3\), .*; expected 4 / 1 there, the channels of x \(1, 4, \?\)",
    ),
    "order": (
        lambda n, x: n.conv_transpose(x, W), ShapeError,
        r"weight.shape is \(2, 4, 3\), with 2 on axis I of IOX; .* swapped: transpose the weight.$",
    ),
    "groups": (
        lambda n, x: n.conv(x, W, groups=3), ShapeError, "weight.shape is .* over groups",
    ),
    "rank": (
        lambda n, x: n.conv(x, W[..., None]), ShapeError,
        r"weight.shape is \(2, 4, 3, 1\); expected 3 axes, as many as x \(1, 4, \?\) has",
    ),
    "bias": (
        lambda n, x: n.conv(x, W, np.ones(3)), ShapeError,
        r"bias.shape is \(3,\); expected \(2,\), one value per output channel",
    ),
    "stride": (
        lambda n, x: n.conv(x, W, stride=0), ArgumentError, "stride is 0; expected an integer >= 1",
    ),
    "padding": (lambda n, x: n.conv(x, W, padding="half"), ArgumentError, "padding is 'half'"),
    "integers": (
        lambda n, x: n.conv(x, W.astype(int)), DTypeError, "weight.dtype is int64; expected float",
    ),
    "lists": (lambda n, x: n.conv(x, [[[1.0]]]), DTypeError, "weight is .*; expected an array"),
    "not finite": (
        lambda n, x: n.conv(x, np.where(W, np.nan, W)), ArgumentError,
        r"weight is nan at \(0, 0, 0\); expected numbers that are finite in float32",
    ),
    "too large for float32": (
        lambda n, x: n.conv(x, W.astype(float) * 1e300), ArgumentError, r"weight is 1e\+300 at",
    ),
    "a scale that is not finite": (
        lambda n, x: n.instance_norm(x, INFINITE), ArgumentError, r"scale is inf at \(1,\)",
    ),
    "one number per channel": (
        lambda n, x: x + np.ones(3), ShapeError,
        r"y.shape is \(3,\); expected \(4,\), one number per channel",
    ),
    "a number that is not finite": (
        lambda n, x: x * float("nan"), ArgumentError, "y is nan; expected a finite number",
    ),
    "a bool": (lambda n, x: x + True, DTypeError, "y is True"),
    "text": (lambda n, x: x + "1", DTypeError, "y is '1'"),
    "no value": (
        lambda n, x: n.conv(np.ones((1, 4, 5)), W), DTypeError,
        r"x is array.*; expected a Value of this network. Begin with an input",
    ),
    "a value of another network": (
        lambda n, x: n.conv(network()[1], W), ArgumentError,
        "x is of another network; expected a value of this one. Build all parts with one Network.",
    ),
    "the sum with another network": (
        lambda n, x: x + network()[1], ArgumentError, "value 1 is of another network",
    ),
    "a quotient by zero": (
        lambda n, x: x / 0, ArgumentError, "y is 0; expected numbers other than 0",
    ),
    "a bound": (lambda n, x: n.clip(x, "low"), DTypeError, "low is 'low'"),
    "an order": (
        lambda n, x: n.permute(x, [0, 4]), ShapeError,
        "order is 4; expected channels of x, from 0 to 3",
    ),
    "groups of a shuffle": (
        lambda n, x: n.channel_shuffle(x, 3), ShapeError,
        "groups is 3; expected a divisor of the 4 channels of x",
    ),
    "an order of a shuffle": (
        lambda n, x: n.pixel_shuffle(x, 2, "RGB"), ArgumentError, "order is 'RGB'",
    ),
    "corners": (
        lambda n, x: n.resize(x, 3, align_corners=True), ArgumentError, "align_corners is True",
    ),
    "windows": (lambda n, x: n.adaptive_pool(x, 0), ArgumentError, r"windows\[0\] is 0"),
    "a kind of pool": (lambda n, x: n.channel_pool(x, "sum"), ArgumentError, "mode is 'sum'"),
    "activation": (lambda n, x: n.activation(x, "swish2"), ArgumentError, "activation is 'swish2'"),
    "an activation of conv": (
        lambda n, x: n.conv(x, W, activation=("prelu", np.ones(4))), ShapeError,
        r"the array of prelu.shape is \(4,\); expected \(2,\)",
    ),
    "prelu without slopes": (
        lambda n, x: n.activation(x, "prelu"), ArgumentError, "activation is 'prelu'",
    ),
    "snake of zero": (
        lambda n, x: n.activation(x, ("snake", np.zeros(4))), ArgumentError,
        "the array of snake is 0 at 0; expected numbers other than 0",
    ),
    "variance": (
        lambda n, x: n.batch_norm(x, None, None, np.zeros(4), -np.ones(4)), ArgumentError,
        "variance is -0.99999 in channel 0, epsilon added; expected more than 0",
    ),
    "epsilon": (lambda n, x: n.instance_norm(x, epsilon=-1), ArgumentError, "epsilon is -1"),
    "groups of a norm": (
        lambda n, x: n.group_norm(x, 3), ShapeError,
        "groups is 3; expected a divisor of the 4 channels of x",
    ),
    "slice": (
        lambda n, x: n.slice(x, 2, 5), ShapeError,
        "the slice of channels is 2 to 5; expected 0 <= start < stop <= 4",
    ),
    "an empty slice": (lambda n, x: n.slice(x, 2, 2), ShapeError, "is 2 to 2"),
    "no concat": (lambda n, x: n.concat(), ArgumentError, "the values of concat is none"),
    "mode": (
        lambda n, x: n.pad(x, 1, "circular"), ArgumentError,
        "mode is 'circular'; expected one of 'constant', 'reflect', 'replicate'",
    ),
    "amounts": (
        lambda n, x: n.pad(x, (1, 2)), ArgumentError,
        r"amounts is \(1, 2\); expected an int, or one int or \(begin, end\) per spatial axis",
    ),
    "crop": (lambda n, x: n.crop(x, -1), ArgumentError, r"amounts\[0\] is -1; expected an integer"),
    "factors": (lambda n, x: n.upsample(x, 0), ArgumentError, r"factors\[0\] is 0"),
    "fractions": (lambda n, x: n.upsample(x, 1.5), DTypeError, "factors is 1.5"),
    "padding of a pool": (
        lambda n, x: n.max_pool(x, 2, padding=2), ArgumentError,
        r"padding\[0\] is 2; expected less than the kernel, 2",
    ),
    "pixel shuffle": (
        lambda n, x: n.pixel_shuffle(x, 3), ShapeError,
        "the product of the factors is 3; expected a divisor of the 4 channels of x",
    ),
    "a sum of other channels": (
        lambda n, x: x + n.slice(x, 0, 2), ShapeError,
        r"the second value's shape in add is \(1, 2, \?\); expected \(1, 4, \?\)",
    ),
    "no output": (lambda n, x: n.output(), ArgumentError, "the number of outputs is 0; expect"),
    "a number as output": (lambda n, x: n.output(3), DTypeError, r"values\[0\] is 3 \(int\)"),
    "graph without output": (
        lambda n, x: n.graph(), ArgumentError, "the network is without an output",
    ),
    "calls after output": (
        lambda n, x: (n.output(x), n.conv(x, W)), ArgumentError, "the network is ended by output",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_THE_CALL)
def test_a_call_refuses(name: str) -> None:
    call, kind, message = AT_THE_CALL[name]
    net, x = network()
    with pytest.raises(kind, match=message) as raised:
        call(net, x)
    assert type(raised.value) is kind
    assert str(1 << 40) not in str(raised.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "inputs is {}; expected a dict of at least one shape by name"),
        ([("x", (1, 4, 5))], "inputs is "),
        ({"a b": (1, 4, 5)}, "the name of an input is 'a b'"),
        ({"x": (1, 4)}, r"inputs\['x'\] is \(1, 4\); expected \(N, C, \*size\)"),
        ({"x": (1, None, 4)}, r"inputs\['x'\]\[1\] is None; expected a number of channels"),
        ({"x": (1, 4, 0)}, r"inputs\['x'\]\[2\] is 0; expected an integer >= 1"),
        ({"x": (1, 4, 1.5)}, r"inputs\['x'\]\[2\] is 1.5"),
    ],
)
def test_inputs_are_refused(inputs: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Network(inputs)


# Refusals of known sizes, with the line -----------------------------------------------------------

AT_KNOWN_SIZES: dict[str, tuple[Callable[[Network, Value], Value], int, str]] = {
    "a kernel that is too large": (
        lambda n, x: n.conv(x, W), 2,
        "spatial axis 0: the padded input is 2 positions = .*; expected at least the dilated",
    ),
    "a sum of other sizes": (
        lambda n, x: x + n.crop(x, ((1, 0),)), 5,
        r"pointwise at .*: the second value's shape in add is \(1, 4, 4\); expected \(1, 4, 5\)",
    ),
    "concat": (
        lambda n, x: n.concat(x, n.upsample(x, 2)), 5,
        r"concat at .*: the second value's shape in concat \(channels aside\) is \(1, 4, 10\)",
    ),
    "a reflection of everything": (
        lambda n, x: n.pad(x, 5, "reflect"), 5,
        r"amounts is \(5, 5\); expected at most 4, as 5 positions are there to reflect",
    ),
    "nothing to replicate": (
        lambda n, x: n.pad(x, ((-5, 7),), "replicate"), 5, r"result's shape is \(1, 4, 0\)",
    ),
    "an empty result": (
        lambda n, x: n.crop(x, 3), 5, r"the result's shape is \(1, 4, -1\); expected at least 1",
    ),
    "an empty transposed result": (
        lambda n, x: n.conv_transpose(x, np.ones((4, 2, 3)), padding=4), 6,
        r"the result's shape is \(1, 2, 0\); expected at least 1 position",
    ),
    "a factor that does not divide": (
        lambda n, x: n.pixel_unshuffle(x, 3), 8,
        "spatial axis 0: factor is 3; expected a divisor of 8 positions. Pad x first.",
    ),
    "windows that do not divide": (
        lambda n, x: n.adaptive_pool(x, 3), 8,
        "spatial axis 0: windows is 3; expected a divisor of 8 positions",
    ),
    "a window that is too large": (
        lambda n, x: n.max_pool(x, 7), 5,
        "spatial axis 0: the padded input is 5 positions = .*; expected at least the window's",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_KNOWN_SIZES)
def test_known_sizes_refuse_with_the_line(name: str) -> None:
    call, size, message = AT_KNOWN_SIZES[name]
    net, x = network()
    net.output(call(net, x))
    with pytest.raises(ShapeError, match=message) as raised:
        net.graph(x=(1, 4, size))
    line = re.match(rf"[a-z ]+ at {re.escape(__file__)}:(\d+): ", str(raised.value))
    first = call.__code__.co_firstlineno
    assert line is not None
    assert first <= int(line[1]) <= first + 2


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"the shape of input 'x' is open, \(1, 4, \?\); expected known extents. .*graph\(x="),
        ({"y": (1, 4, 5)}, "the name of an input is 'y'; expected one of 'x'"),
        ({"x": (1, 4)}, r"is \(1, 4\); expected \(1, 4, \?\), 3 extents"),
        ({"x": (1, 3, 5)}, r"is \(1, 3, 5\); expected \(1, 4, \?\)"),
        ({"x": (1, 4, 0)}, r"is \(1, 4, 0\); expected \(1, 4, \?\). Open extents are at least 1"),
        ({"x": 5}, "x is 5; expected a tuple of ints"),
    ],
)
def test_shapes_are_refused(shapes: dict[str, object], message: str) -> None:
    net, x = network()
    net.output(net.activation(x, "relu"))
    with pytest.raises(ArgumentError, match=message):
        net.graph(**shapes)


@pytest.mark.parametrize("shapes", [(1, 4, 9), "x", 3, ["x"], {3: (1, 4, 9)}])
def test_shapes_without_names_are_refused(shapes: object) -> None:
    net, x = network()
    net.output(net.activation(x, "relu"))
    message = "shapes is .*; expected a dict of shapes by the names of inputs"
    calls: tuple[Any, ...] = (net.compile, net.program, net.boxes, lambda s: net.stream(shapes=s))
    for call in calls:
        with pytest.raises(ArgumentError, match=message):
            call(shapes)
