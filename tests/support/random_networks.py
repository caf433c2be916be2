"""Random networks, by a seed or by hypothesis: branches, sums, concatenations, every operation.

A case is a list of calls of the builder. Its string is one line of Python that rebuilds it:
`random_networks.Case({"x": (1, 3, 9)}, [("conv", [0], [A(4, 3, 3)], {"padding": 1})], [1])`.
Values are numbered as the network numbers them: inputs first, then one value per call.

    @given(random_networks.networks())              shrinks to a few simple calls
    for seed in seeds(40): case = random_networks.case(seed)

`expected` is the result by definition in float64, with a bound on errors. The bound comes from
small changes of every intermediate value, which imitate rounding. It therefore allows for networks
that amplify errors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from upconv.errors import ShapeError
from upconv.network import Network, Value
from upconv.network.definitions import define
from upconv.network.graph import Graph

Call = tuple[str, list[int], list[Any], dict[str, Any]]
"""A method of `Network`, the values it reads, and its further arguments."""


class A(tuple):
    """The shape of an array of normal numbers, scaled so that sums over all but axis 0 are 1."""

    def __new__(cls, *shape: int) -> A:
        return super().__new__(cls, shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self))})"

    def array(self, seed: int) -> np.ndarray:
        normal = np.random.default_rng([seed, *self]).standard_normal(self)
        return (normal / prod(self[1:]) ** 0.5).astype(np.float32)


class P(A):
    """The shape of an array of numbers from 1/2 to 3/2."""

    def array(self, seed: int) -> np.ndarray:
        return (np.random.default_rng([seed, *self]).random(self) + 0.5).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A network as calls; see the module's docstring."""

    inputs: dict[str, tuple[int, ...]]
    calls: list[Call]
    outputs: list[int]
    seed: int | None = field(default=None, compare=False)

    def network(self, *, opened: bool = False) -> Network:
        """Build the network; `opened` leaves the batch and the sizes of its inputs open."""
        inputs: dict[str, Any] = dict(self.inputs)
        if opened:
            inputs = {
                name: (None, c, *[None] * len(size)) for name, (_, c, *size) in inputs.items()
            }
        network = Network(inputs)
        values = _values(network, self.calls)
        network.output(*(values[number] for number in self.outputs))
        return network

    def graph(self) -> Graph:
        """Return the graph for the case's sizes."""
        return self.network().graph()

    def arrays(self, dtype: Any = np.float32) -> list[np.ndarray]:
        """Return arrays for the inputs, with the same numbers in every dtype."""
        rng = np.random.default_rng(len(self.calls))
        shapes = self.inputs.values()
        return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}: "
        return f"{seed}random_networks.Case({self.inputs!r}, {self.calls!r}, {self.outputs!r})"

    __repr__ = __str__


def made(network: Network, values: list[Value], call: Call, seed: int) -> Value:
    """Make one call and return its value; `seed` determines its arrays."""
    method, numbers, arguments, keywords = call

    def real(argument: Any) -> Any:
        if isinstance(argument, A):
            return argument.array(seed)
        is_pair = isinstance(argument, tuple) and argument and isinstance(argument[0], str)
        return (argument[0], real(argument[1])) if is_pair else argument

    operands = [*(values[number] for number in numbers), *map(real, arguments)]
    words = {name: real(value) for name, value in keywords.items()}
    result: Value = getattr(network, method)(*operands, **words)
    return result


# Values and tolerances ----------------------------------------------------------------------------


def expected(
    graph: Graph, arrays: list[np.ndarray], epsilon: float
) -> list[tuple[np.ndarray, float]]:
    """Return each output in float64, and an error bound for values rounded to `epsilon`.

    graph: a graph without views, as the builder makes it.
    """
    wide = [array.astype(np.float64) for array in arrays]
    exact = _outputs(graph, wide, lambda value: value)
    largest = [0.0] * len(exact)
    for seed in range(4):
        rng = np.random.default_rng(seed)

        def rounded(value: np.ndarray, rng: np.random.Generator = rng) -> np.ndarray:
            size = np.abs(value).max(initial=0) * epsilon
            # NaN, for example the root of a number rounded below 0: there is no bound.
            return value + (rng.uniform(-size, size, value.shape) if np.isfinite(size) else size)

        for i, output in enumerate(_outputs(graph, wide, rounded)):
            error = float(np.abs(output - exact[i]).max(initial=0))
            largest[i] = max(largest[i], error if np.isfinite(error) else np.inf)
    return [(output, 8 * bound) for output, bound in zip(exact, largest, strict=True)]


def _outputs(
    graph: Graph, arrays: list[np.ndarray], rounded: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    values = dict(zip(graph.inputs.values(), arrays, strict=True))
    for node in graph.nodes:
        results = define(node.operation, tuple(values[number] for number in node.inputs))
        values.update(zip(node.outputs, map(rounded, results), strict=True))
    return [values[number] for number in graph.outputs]


# Making cases -------------------------------------------------------------------------------------

MAX_ELEMENTS = 12_000


def case(seed: int, *, nodes: int = 30) -> Case:
    """Return the case of a seed, with 2 to `nodes` calls."""
    return replace(_case(random.Random(seed), nodes), seed=seed)


def networks(*, nodes: int = 30) -> st.SearchStrategy[Case]:
    """Return a strategy of cases with 2 to `nodes` calls."""
    return st.randoms(use_true_random=False).map(lambda rng: _case(rng, nodes))


def _case(rng: random.Random, nodes: int) -> Case:
    rank = rng.choice((1, 2, 3))
    inputs = {"x": _shape(rng, rank)}
    if rng.random() < 0.25:
        inputs["y"] = inputs["x"] if rng.random() < 0.5 else _shape(rng, rank)
    calls: list[Call] = []
    network, values = _built(inputs, calls)
    count = rng.randint(2, nodes - 1)  # one step may add two calls
    for _ in range(4 * count):  # some calls do not fit
        make = _CALLS[rng.choice(tuple(_CALLS))]
        for call in make(rng, values, _pick(rng, values)):
            try:
                value = made(network, values, call, len(calls))
            except ShapeError:
                break
            if prod(value.shape) > MAX_ELEMENTS:
                network, values = _built(inputs, calls)  # without this value
                break
            values.append(value)
            calls.append(call)
        if len(calls) >= count:
            break
    while len(calls) < 2:
        calls.append(("activation", [len(inputs) + len(calls) - 1], ["relu"], {}))
    return _ended(rng, inputs, calls)


def _built(inputs: dict[str, tuple[int, ...]], calls: list[Call]) -> tuple[Network, list[Value]]:
    network = Network(inputs)
    return network, _values(network, calls)


def _values(network: Network, calls: list[Call]) -> list[Value]:
    values = list(network.inputs.values())
    for number, call in enumerate(calls):
        values.append(made(network, values, call, number))
    return values


def _ended(rng: random.Random, inputs: dict[str, tuple[int, ...]], calls: list[Call]) -> Case:
    total = len(inputs) + len(calls)
    read = {number for _, numbers, _, _ in calls for number in numbers}
    unread = [number for number in range(len(inputs), total - 1) if number not in read]
    others = rng.sample(unread, rng.randint(0, min(3, len(unread))))
    if rng.random() < 0.2:
        others.append(rng.randrange(total))
    return Case(inputs, calls, [total - 1, *others])


def _shape(rng: random.Random, rank: int) -> tuple[int, ...]:
    most = {1: 70, 2: 17, 3: 7}[rank]
    channels = rng.choice((1, 2, 3, 4, 6, 8, rng.randint(9, 20)))
    return (rng.choice((1, 1, 2, 3)), channels, *(rng.randint(1, most) for _ in range(rank)))


Generator = Callable[[random.Random, list[Value], int], Iterator[Call]]
"""A function that yields calls on a value, by its number."""


def _pick(rng: random.Random, values: list[Value]) -> int:
    """Pick the number of a value, most often the last one."""
    return len(values) - 1 if rng.random() < 0.6 else rng.randrange(len(values))


def _each(rng: random.Random, shape: Any, low: int, high: int) -> tuple[int, ...]:
    return tuple(rng.randint(low, high) for _ in shape[2:])


def _conv(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    shape = values[x].shape
    channels = shape[1] or 1
    groups = rng.choice((1, 1, 1, channels, *(g for g in (2, 3) if channels % g == 0)))
    out = groups * rng.randint(1, max(1, 16 // groups))
    dilation = rng.choice((1, 1, 1, 2, 3))
    stride: Any = rng.choice((1, 1, 2, _each(rng, shape, 1, 3)))
    kernel = _each(rng, shape, 1, 5)
    padding: Any = rng.choice((0, 1, "same_upper", tuple((k // 2, k // 3) for k in kernel)))
    if rng.random() < 0.5:  # keep x's shape, for sums
        out, stride, padding = channels, 1, "same_upper"
    words = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    yield ("conv", [x], [A(out, channels // groups, *kernel)], words | _end(rng, out))


def _conv_transpose(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    shape = values[x].shape
    channels = shape[1] or 1
    groups = rng.choice((1, 1, 1, channels, *(g for g in (2, 3) if channels % g == 0)))
    out = rng.randint(1, max(1, 12 // groups))
    stride, kernel = _each(rng, shape, 1, 3), _each(rng, shape, 1, 5)
    if rng.random() < 0.4:
        kernel = tuple(2 * s for s in stride)
    padding = tuple((rng.randint(-1, k // 2), rng.randint(0, k // 2)) for k in kernel)
    words = {"stride": stride, "padding": padding, "groups": groups}
    words |= {"output_padding": rng.choice((0, 0, 1)), "dilation": rng.choice((1, 1, 2))}
    weight = A(channels, out, *kernel)
    yield ("conv_transpose", [x], [weight], words | _end(rng, out * groups))


def _end(rng: random.Random, channels: int) -> dict[str, Any]:
    """Return a bias and an activation, or none."""
    words: dict[str, Any] = {"bias": A(channels)} if rng.random() < 0.6 else {}
    return words | ({"activation": _function(rng, channels)} if rng.random() < 0.4 else {})


PLAIN = (
    "relu", "relu6", "leaky_relu", "tanh", "sigmoid", "hard_sigmoid", "log_sigmoid", "silu", "gelu",
    "gelu_tanh", "hard_swish", "softplus", "mish", "elu", "selu", "abs", "sin", "cos",
)  # fmt: skip


def _function(rng: random.Random, channels: int) -> Any:
    name = rng.choice((*PLAIN, "prelu", "snake", "leaky_relu=0.2", "elu=0.5"))
    if "=" in name:
        return (name.partition("=")[0], float(name.partition("=")[2]))
    return (name, P(channels)) if name in ("prelu", "snake") else name


def _activation(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    yield ("activation", [x], [_function(rng, values[x].channels)], {})


def _number(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    method = rng.choice(("add", "sub", "mul", "div", "maximum", "clip"))
    if method == "clip":
        yield (method, [x], [rng.choice((-0.5, None)), rng.choice((None, 0.75))], {})
    else:
        operands = (0.5, P(values[x].channels), -1.5, A(values[x].channels))
        yield (method, [x], [rng.choice(operands[: 2 if method == "div" else 4])], {})


def _sum(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    shape = values[x].shape
    y = rng.choice([i for i, v in enumerate(values) if v.shape == shape])
    yield (rng.choice(("add", "add", "sub", "maximum", "minimum")), [x, y], [], {})


def _bounded(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    """Yield functions of limited domain, on arguments within it."""
    name = rng.choice(("exp", "square", "sqrt", "div"))
    yield ("activation", [x], ["sigmoid" if name in ("sqrt", "div") else "tanh"], {})
    x = len(values) - 1
    if name == "div":
        yield ("add", [x], [0.5], {})
        shape = values[x].shape
        y = rng.choice([i for i, v in enumerate(values) if v.shape == shape])
        yield ("div", [y, len(values) - 1], [], {})
    else:
        yield ("activation", [x], [name], {})


def _spread(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    """Yield a value of one channel, broadcast along the channels of another."""
    _, channels, *size = values[x].shape
    yield ("conv", [x], [A(1, channels, *[1] * len(size))], {"activation": "tanh"})
    pair = [x, len(values) - 1]
    yield (rng.choice(("add", "sub", "mul", "maximum")), rng.choice((pair, pair[::-1])), [], {})


def _product(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    """Yield a product with a value of at most 1, so that numbers stay bounded."""
    shape = values[x].shape
    y = rng.choice([i for i, v in enumerate(values) if v.shape == shape])
    yield ("activation", [y], [rng.choice(("sigmoid", "tanh"))], {})
    yield ("mul", rng.choice(([x, len(values) - 1], [len(values) - 1, x])), [], {})


def _concat(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    batch, _, *size = values[x].shape
    shapes = (value.shape for value in values)
    fitting = [i for i, shape in enumerate(shapes) if [shape[0], *shape[2:]] == [batch, *size]]
    yield ("concat", [rng.choice(fitting) for _ in range(rng.randint(1, 3))], [], {})


def _slice(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    start = rng.randrange(values[x].channels)
    yield ("slice", [x], [start, rng.randint(start + 1, values[x].channels)], {})


def _pad(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    mode = rng.choice(("constant", "reflect", "replicate"))
    ends = tuple((rng.randint(-1, 3), rng.randint(-1, 3)) for _ in values[x].shape[2:])
    yield ("pad", [x], [ends, mode], {"value": rng.choice((0.0, 0.0, 1.5))})


def _crop(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    ends = tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in values[x].shape[2:])
    yield ("crop", [x], [ends], {})


def _norm(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    method = rng.choice(("batch_norm", "instance_norm", "layer_norm", "group_norm"))
    c = values[x].channels
    affine = [A(c), A(c)] if rng.random() < 0.6 else [None, None]
    if method == "batch_norm":
        yield ("batch_norm", [x], [*affine, A(c), P(c)], {})
    elif method == "group_norm":
        groups = rng.choice([g for g in range(1, c + 1) if c % g == 0])
        yield ("group_norm", [x], [groups, *affine], {"epsilon": 0.01})
    else:
        yield (method, [x], affine, {"epsilon": 0.01})


def _lstm(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    _, channels, *size = values[x].shape
    width = rng.randint(1, 9)
    weights = [A(4 * width, channels), A(4 * width, width), A(4 * width)]
    yield ("lstm", [x], weights, {}) if len(size) == 1 else ("activation", [x], ["tanh"], {})


def _upsample(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    factors = _each(rng, values[x].shape, 1, 3)
    yield ("upsample", [x], [factors, rng.choice(("nearest", "linear"))], {})


def _resize(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    mode = rng.choice(("nearest", "linear"))
    size = tuple(max(1, rng.choice((n // 2, 2 * n, n + 3))) for n in values[x].shape[2:])
    aligned = mode == "linear" and rng.random() < 0.5
    yield ("resize", [x], [size, mode], {"align_corners": aligned})


def _permute(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    channels = range(values[x].channels)
    yield ("permute", [x], [rng.choices(channels, k=rng.randint(1, len(channels)))], {})


def _pixel_unshuffle(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    yield ("pixel_unshuffle", [x], [_each(rng, values[x].shape, 1, 3)], {})


def _pool(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    kernel = _each(rng, values[x].shape, 1, 4)
    words: dict[str, Any] = {"stride": rng.choice((None, _each(rng, values[x].shape, 1, 3)))}
    words["padding"] = tuple((rng.randint(0, k - 1), rng.randint(0, k - 1)) for k in kernel)
    method = rng.choice(("max_pool", "avg_pool"))
    if method == "avg_pool":
        words["count_padding"] = rng.random() < 0.5
    words["ceil_mode"] = rng.random() < 0.3
    if rng.random() < 0.3:
        words["dilation"] = _each(rng, values[x].shape, 1, 2)
    yield (method, [x], [kernel], words)


def _whole_pool(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    """Yield a value of one position or channel, broadcast along the others."""
    mode = rng.choice(("max", "average"))
    if rng.random() < 0.3:
        yield ("softmax", [x], [], {})
    elif rng.random() < 0.5:
        yield ("adaptive_pool", [x], [1, mode], {})
    else:
        yield ("channel_pool", [x], [mode], {})
    yield ("activation", [len(values) - 1], [_function(rng, values[-1].channels)], {})
    pair = [x, len(values) - 1]
    yield (rng.choice(("add", "sub", "mul", "maximum")), rng.choice((pair, pair[::-1])), [], {})


def _pixel_shuffle(rng: random.Random, values: list[Value], x: int) -> Iterator[Call]:
    factors = _each(rng, values[x].shape, 1, 2)
    channels = values[x].channels
    if channels % prod(factors):
        weight = A(prod(factors) * rng.randint(1, 3), channels, *[1] * len(factors))
        yield ("conv", [x], [weight], {})
        x = len(values) - 1
    yield ("pixel_shuffle", [x], [factors, rng.choice(("CRD", "DCR"))], {})


_CALLS: dict[str, Generator] = {
    "conv": _conv, "conv again": _conv, "conv once more": _conv,
    "conv_transpose": _conv_transpose, "conv_transpose again": _conv_transpose,
    "activation": _activation, "number": _number, "sum": _sum, "sum again": _sum,
    "bounded": _bounded, "spread": _spread,
    "product": _product, "concat": _concat, "slice": _slice, "pad": _pad, "crop": _crop,
    "norm": _norm, "upsample": _upsample, "pool": _pool, "whole": _whole_pool,
    "pixel_shuffle": _pixel_shuffle, "resize": _resize, "permute": _permute,
    "pixel_unshuffle": _pixel_unshuffle, "lstm": _lstm,
}  # fmt: skip
