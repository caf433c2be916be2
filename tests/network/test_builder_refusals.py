"""The builder of networks: what each call refuses, in one clear sentence."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.network.test_builder import network
from upconv.errors import ArgumentError, DTypeError, ShapeError
from upconv.network import Network, Value

W = np.ones((2, 4, 3), np.float32)
INFINITE = np.array([1, np.inf, 1, 1])

AT_THE_CALL: dict[str, tuple[Callable[[Network, Value], object], type[ArgumentError], str]] = {
    "channels": (
        lambda n, x: n.conv(x, W[:, :3]), ShapeError,
        r"weight.shape is \(2, 3, 3\), .*; expected 4 there, the channels of x \(1, 4, \?\)",
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
        r"weight.shape is \(2, 4, 3, 1\); expected 3 axes, like x \(1, 4, \?\)",
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
        r"x is array.*; expected a Value of this network. Start with an input",
    ),
    "a value of another network": (
        lambda n, x: n.conv(network()[1], W), ArgumentError,
        "x is from another network; expected a value of this one. Build all parts with one",
    ),
    "the sum with another network": (
        lambda n, x: x + network()[1], ArgumentError, "value 1 is from another network",
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
        "variance is -0.99999 in channel 0, including epsilon; expected more than 0",
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
        lambda n, x: n.graph(), ArgumentError, "the number of outputs is 0",
    ),
    "calls after output": (
        lambda n, x: (n.output(x), n.conv(x, W)), ArgumentError, "the network is complete",
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
        r"concat at .*: the second value's shape in concat \(except channels\) is \(1, 4, 10\)",
    ),
    "a reflection of everything": (
        lambda n, x: n.pad(x, 5, "reflect"), 5,
        r"amounts is \(5, 5\); expected at most 4, as there are 5 positions to reflect",
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
        ({}, r"the shape of input 'x' is open, \(1, 4, \?\); expected known extents. .*such as"),
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
