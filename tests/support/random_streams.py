"""Random networks that can be streamed, by a seed: values have rate * T positions along an axis.

Values of different reach can therefore be added and concatenated at every length T that `unit`
divides. The string of a case rebuilds it, as in `random_networks`.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple

from tests.support.random_networks import PLAIN, A, Call, Case, P

Span = tuple[int, int]


class Streamable(NamedTuple):
    """A case, the axis of its stream, and the divisor of valid lengths."""

    case: Case
    axis: int
    unit: int

    def at(self, length: int) -> Case:
        """Return the case at a length."""
        inputs = {
            name: (*shape[: self.axis], length, *shape[self.axis + 1 :])
            for name, shape in self.case.inputs.items()
        }
        return replace(self.case, inputs=inputs, seed=self.case.seed)


class _Value(NamedTuple):
    channels: int
    rate: Fraction


class _Growing:
    """The calls so far, and each value's channels and rate."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.rank = rng, rng.choice((1, 1, 1, 2, 3))
        self.axis = rng.randrange(self.rank)
        self.sizes = tuple(rng.randint(2, 5) for _ in range(self.rank))
        self.values = [_Value(rng.choice((1, 2, 3, 5, 8)), Fraction(1))]
        if rng.random() < 0.15:
            self.values.append(_Value(rng.choice((1, 2, 4)), Fraction(1)))
        self.inputs = len(self.values)
        self.calls: list[Call] = []

    def pick(self, accepted: Callable[[_Value], bool] = lambda _: True) -> int:
        """Pick the number of a value, most often a late one."""
        values = enumerate(self.values)  # padded values have a rate of -1
        numbers = [i for i, value in values if value.rate > 0 and accepted(value)]
        return numbers[-1] if self.rng.random() < 0.5 else self.rng.choice(numbers)

    def add(self, call: Call, channels: int, rate: Fraction) -> int:
        self.calls.append(call)
        self.values.append(_Value(channels, rate))
        return len(self.values) - 1

    def along(self, one: Any, others: Any) -> tuple[Any, ...]:
        """Return `one` for the stream's axis, and `others` for each other axis."""
        return tuple(one if i == self.axis else others for i in range(self.rank))

    def ends(self, total: int) -> Span:
        """Divide a total between both ends: centred, all past, all future, or any."""
        begin = self.rng.choice((total // 2, total, 0, self.rng.randint(-1, max(total, 0) + 1)))
        return begin, total - begin


def streamable(seed: int, *, nodes: int = 8) -> Streamable:
    """Return the case of a seed, with 2 to about `nodes` calls."""
    rng = random.Random(seed)
    growing = _Growing(rng)
    for _ in range(rng.randint(2, nodes)):
        rng.choice(_STEPS)(growing)
    values, calls = growing.values, growing.calls
    unit = lcm(*(value.rate.denominator for value in values))
    names = ("x", "y")[: growing.inputs]
    batch = rng.choice((1, 1, 2, 3))
    inputs = {name: (batch, values[i].channels, *growing.sizes) for i, name in enumerate(names)}
    last = len(values) - 1
    read = {number for _, numbers, _, _ in calls for number in numbers}
    others = [i for i in range(growing.inputs, last) if i not in read]
    case = Case(inputs, calls, [last, *others[:2]], seed)
    return Streamable(case, growing.axis + 2, unit)


# Steps --------------------------------------------------------------------------------------------


def _conv(g: _Growing) -> None:
    rng, x = g.rng, g.pick()
    channels, rate = g.values[x]
    kernel, dilation = rng.randint(1, 5), rng.choice((1, 1, 2, 3))
    stride = rng.choice((1, 1, 1, 2, 3)) if rate >= Fraction(1, 2) else 1
    out = rng.choice((channels, rng.randint(1, 9)))
    extent = dilation * (kernel - 1) + 1
    words: dict[str, Any] = {
        "stride": g.along(stride, 1),
        "dilation": g.along(dilation, 1),
        "padding": g.along(g.ends(extent - stride), (1, 1)),
    }
    weight = A(out, channels, *g.along(kernel, 3))
    g.add(("conv", [x], [weight], words | _end(rng, out)), out, rate / stride)


def _conv_transpose(g: _Growing) -> None:
    rng, x = g.rng, g.pick(lambda value: value.rate <= 2)
    channels, rate = g.values[x]
    stride, kernel = rng.randint(1, 3), rng.randint(1, 6)
    dilation, out = rng.choice((1, 1, 2)), rng.randint(1, 6)
    total = dilation * (kernel - 1) + 1 - stride
    words: dict[str, Any] = {
        "stride": g.along(stride, 1),
        "dilation": g.along(dilation, 1),
        "padding": g.along(g.ends(total), (1, 1)),
    }
    weight = A(channels, out, *g.along(kernel, 3))
    g.add(("conv_transpose", [x], [weight], words | _end(rng, out)), out, rate * stride)


def _end(rng: random.Random, channels: int) -> dict[str, Any]:
    words: dict[str, Any] = {"bias": A(channels)} if rng.random() < 0.5 else {}
    return words | ({"activation": rng.choice(PLAIN)} if rng.random() < 0.4 else {})


def _pool(g: _Growing) -> None:
    rng, x = g.rng, g.pick(lambda value: value.rate >= 1)
    channels, rate = g.values[x]
    stride = rng.randint(1, 3)
    kernel = stride + rng.randint(0, 2)
    begin = rng.randint(0, kernel - stride)
    ends = begin, kernel - stride - begin
    words: dict[str, Any] = {"stride": g.along(stride, 1), "padding": g.along(ends, (0, 0))}
    method = rng.choice(("max_pool", "avg_pool"))
    if method == "avg_pool":
        words["count_padding"] = rng.random() < 0.5
    g.add((method, [x], [g.along(kernel, 1)], words), channels, rate / stride)


def _upsample(g: _Growing) -> None:
    x = g.pick(lambda value: value.rate <= 2)
    channels, rate = g.values[x]
    factor = g.rng.randint(2, 3)
    arguments = [g.along(factor, 1), g.rng.choice(("nearest", "linear"))]
    g.add(("upsample", [x], arguments, {}), channels, rate * factor)


def _shuffle(g: _Growing) -> None:
    if g.rng.random() < 0.5:
        x = g.pick(lambda value: value.rate >= 1)
        channels, rate = g.values[x]
        g.add(("pixel_unshuffle", [x], [g.along(2, 1)], {}), 2 * channels, rate / 2)
        return
    x = g.pick(lambda value: value.rate <= 2)
    channels, rate = g.values[x]
    wide = g.add(("conv", [x], [A(6, channels, *[1] * g.rank)], {}), 6, rate)
    g.add(("pixel_shuffle", [wide], [g.along(2, 1)], {}), 3, rate * 2)


def _pad(g: _Growing) -> None:
    """Add positions that a convolution or a crop removes."""
    rng, x = g.rng, g.pick()
    channels, rate = g.values[x]
    begin, end = rng.randint(0, 2), rng.randint(0, 2)
    mode = rng.choice(("constant", "reflect", "replicate"))
    arguments = [g.along((begin, end), (0, 0)), mode]
    padded = g.add(("pad", [x], arguments, {}), channels, Fraction(-1))  # read only below
    if rng.random() < 0.5:
        weight = A(channels, channels, *g.along(begin + end + 1, 1))
        g.add(("conv", [padded], [weight], _end(rng, channels)), channels, rate)
    else:
        taken = rng.randint(0, begin + end)
        cut = g.along((taken, begin + end - taken), (0, 0))
        g.add(("crop", [padded], [cut], {}), channels, rate)
    g.values[padded] = _Value(channels, Fraction(-1))


def _same(g: _Growing) -> None:
    """Add a value that depends on another, position by position."""
    rng, x = g.rng, g.pick()
    channels, rate = g.values[x]
    start = rng.randrange(channels)
    order = rng.choices(range(channels), k=rng.randint(1, channels))
    calls: list[tuple[Call, int]] = [
        (("activation", [x], [rng.choice(PLAIN)], {}), channels),
        (("activation", [x], [("prelu", P(channels))], {}), channels),
        (("add", [x], [A(channels)], {}), channels),
        (("mul", [x], [P(channels)], {}), channels),
        (("batch_norm", [x], [A(channels), A(channels), A(channels), P(channels)], {}), channels),
        (("layer_norm", [x], [], {"epsilon": 0.01}), channels),
        (("slice", [x], [start, rng.randint(start + 1, channels)], {}), 0),
        (("permute", [x], [order], {}), len(order)),
        (("channel_pool", [x], [rng.choice(("max", "average"))], {}), 1),
        (("softmax", [x], [], {}), channels),
    ]
    if g.rank == 1:
        width = rng.randint(1, 9)
        weights = [A(4 * width, channels), A(4 * width, width), A(4 * width)]
        calls.append((("lstm", [x], weights, {}), width))
    call, out = rng.choice(calls)
    g.add(call, out or call[2][1] - call[2][0], rate)


def _joined(g: _Growing) -> None:
    """Add or concatenate values of the same rate but different reach."""
    rng, x = g.rng, g.pick()
    channels, rate = g.values[x]
    if rng.random() < 0.4:
        fitting = [i for i, value in enumerate(g.values) if value.rate == rate]
        numbers = [x, *rng.choices(fitting, k=rng.randint(1, 2))]
        g.add(("concat", numbers, [], {}), sum(g.values[i].channels for i in numbers), rate)
        return
    fitting = [i for i, value in enumerate(g.values) if value == g.values[x]]
    if len(fitting) < 2 or rng.random() < 0.3:  # a residual sum
        weight = A(channels, channels, *g.along(3, 1))
        words = {"padding": g.along(g.ends(4), (0, 0)), "dilation": g.along(2, 1)}
        fitting = [g.add(("conv", [x], [weight], words), channels, rate)]
    method = rng.choice(("add", "add", "sub", "maximum", "minimum"))
    g.add((method, rng.sample([x, rng.choice(fitting)], 2), [], {}), channels, rate)


def _gated(g: _Growing) -> None:
    """Add a product with one broadcast channel of values up to 1."""
    x = g.pick()
    channels, rate = g.values[x]
    weight = A(1, channels, *[1] * g.rank)
    gate = g.add(("conv", [x], [weight], {"activation": "sigmoid"}), 1, rate)
    g.add(("mul", [x, gate], [], {}), channels, rate)


_STEPS = (
    _conv, _conv, _conv, _conv_transpose, _conv_transpose, _pool, _upsample, _shuffle, _pad,
    _same, _same, _joined, _joined, _joined, _gated,
)  # fmt: skip
