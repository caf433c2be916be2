"""What the methods of `Network` compute, by definition, agrees with PyTorch in float64.

Shape rules agree with both, of open and of known sizes.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from upconv.network import Network, Value
from upconv.network.definitions import FUNCTIONS, define, evaluate
from upconv.network.graph import EXCHANGED, Graph, Input, Node, Op, Pointwise
from upconv.network.kinds import KINDS, output_shapes

torch = pytest.importorskip("torch", reason="PyTorch is what the definitions are compared with")
F = torch.nn.functional

SIZES = {1: (7,), 2: (5, 8), 3: (3, 4, 6)}


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def weights(*shape: int, seed: int = 0) -> Any:
    """Numbers that are exact in float32, as a tensor of float64."""
    return torch.tensor(values(*shape, seed=seed).astype(np.float32).astype(float))


KNOWN = ("resize", "adaptive_pool")
"""Methods whose results have the same sizes for inputs of all sizes."""


def compare(expected: Any, x: Any, method: Any, *arguments: Any, **words: Any) -> None:
    """Assert that a method computes what is expected, with known sizes, open ones, and in float32.

    x: an array, or a tuple of several. method: a name, or a function of a network and its inputs.
    """
    arrays = x if isinstance(x, tuple) else (x,)
    known = {f"x{i}": array.shape for i, array in enumerate(arrays)}
    opened = {name: (None, c, *[None] * len(size)) for name, (_, c, *size) in known.items()}
    _, channels, *sizes = expected.shape
    sizes = sizes if method in KNOWN else [None] * len(sizes)
    for shapes, shape in ((known, tuple(expected.shape)), (opened, (None, channels, *sizes))):
        network = Network(shapes)
        function = partial(getattr(Network, method) if isinstance(method, str) else method, network)
        value = function(*network.inputs.values(), *arguments, **words)
        assert value.shape == shape
        network.output(value)
        graph = network.graph(**known)
        (result,) = evaluate(graph, arrays)
        rtol = 1e-5 if method == "batch_norm" else 1e-12  # its factors are rounded to float32
        np.testing.assert_allclose(result, expected.numpy(), rtol=rtol, atol=1e-12)
    assert evaluate(graph, [array.astype(np.float32) for array in arrays])[0].dtype == np.float32


def of_rank(name: str, rank: int) -> Any:
    return getattr(F, name.replace("Nd", f"{rank}d"))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(rank: int, groups: int, transposed: bool) -> None:
    x, kernel, channels = values(2, 4, *SIZES[rank]), (3, 2, 3)[:rank], 6 // groups
    weight = weights(*((4, channels) if transposed else (6, 4 // groups)), *kernel)
    bias = weights(6)
    words = {"stride": (2, 1, 2)[:rank], "padding": (1, 0, 1)[:rank], "groups": groups}
    if transposed:
        words["output_padding"] = (1, 0, 1)[:rank]
    name = "conv_transpose" if transposed else "conv"
    plain = of_rank(f"{name}Nd", rank)(torch.tensor(x), weight, bias, **words)
    compare(F.relu(plain), x, name, weight.numpy(), bias.numpy(), activation="relu", **words)


SLOPES, ALPHAS = weights(3), (weights(3) + 2).float().double()
ACTIVATIONS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    name: (name, function)
    for name, function in {
        "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "tanh": torch.tanh,
        "sigmoid": torch.sigmoid, "hard_sigmoid": F.hardsigmoid, "log_sigmoid": F.logsigmoid,
        "silu": F.silu, "hard_swish": F.hardswish, "gelu": F.gelu, "mish": F.mish, "selu": F.selu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"), "elu": F.elu,
        "softplus": partial(F.softplus, threshold=40),
        **{name: getattr(torch, name) for name in ("abs", "exp", "sin", "cos", "square", "sqrt")},
    }.items()
} | {
    "leaky_relu of 0.25": (("leaky_relu", 0.25), lambda x: F.leaky_relu(x, 0.25)),
    "elu of 0.5": (("elu", 0.5), lambda x: F.elu(x, 0.5)),
    "prelu": (("prelu", SLOPES.numpy()), lambda x: F.prelu(x, SLOPES)),
    "prelu of one slope": (("prelu", SLOPES[:1].numpy()), lambda x: F.prelu(x, SLOPES[:1])),
    "snake": (
        ["snake", ALPHAS.numpy()],
        lambda x: x + torch.sin(x * ALPHAS[:, None]) ** 2 / ALPHAS[:, None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    activation, function = ACTIVATIONS[name]
    x, one = 5 * values(2, 3, 40), np.eye(3)[..., None]
    x = np.abs(x) if name == "sqrt" else x
    expected = function(torch.tensor(x))
    compare(expected, x, "activation", activation)
    compare(expected, x, "conv", one, activation=activation)


def test_every_operation_and_function_is_compared() -> None:
    chains = {"hard_sigmoid", "log_sigmoid", "selu"}
    names = {name.partition(" ")[0] for name in ACTIVATIONS}
    assert names - chains | EXCHANGED.keys() == FUNCTIONS.keys()
    kinds = {kind.name for kind in KINDS.values()}
    assert len(kinds) == len(KINDS) == 14  # LSTMs are compared in test_recurrent.py


def test_a_chain_stores_values_and_reads_inputs_in_order() -> None:
    x, y = values(2, 3, 5), values(2, 3, 5, seed=1)
    chain = (Op("add", Input(1)), Op("store"), Op("relu"), Op("store"), Op("mul", 2.0))
    first, second, last = define(Pointwise(chain), (x, y))
    np.testing.assert_array_equal(first, x + y)
    np.testing.assert_array_equal(second, np.maximum(x + y, 0))
    np.testing.assert_array_equal(last, 2 * np.maximum(x + y, 0))
    assert output_shapes(Pointwise(chain), (x.shape, y.shape)) == (x.shape,) * 3


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_values_are_broadcast(name: str, rank: int) -> None:
    """Whichever of the two comes first."""
    size, method = SIZES[rank], getattr(torch, name)
    x = values(2, 3, *size)
    for shape in ((2, 3), (2, 1), (1, 3), (1, 1), (2, 1, *size), (1, 3, *size), (2, 3, *size)):
        y = 2 + values(*shape, *[1] * (rank + 2 - len(shape)), seed=1)
        pair = torch.tensor(x), torch.tensor(y)
        for order in ((0, 1), (1, 0)):
            operands = [pair[i] for i in order]
            network = Network({"x": x.shape, "y": y.shape})
            inputs = list(network.inputs.values())
            network.output(getattr(network, name)(*(inputs[i] for i in order)))
            (result,) = evaluate(network.graph(), [x, y])
            np.testing.assert_allclose(result, method(*operands).numpy(), rtol=1e-12)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pad(mode: str, rank: int) -> None:
    x, amounts = values(2, 3, *SIZES[rank]), ((2, 1), (0, 3), (1, 2))[:rank]
    flat = list(itertools.chain(*reversed(amounts)))
    compare(F.pad(torch.tensor(x), flat, mode), x, "pad", amounts, mode)


def test_pad_by_a_value_or_by_negative_amounts() -> None:
    x = values(2, 3, 5, 9)
    t = torch.tensor(x)
    compare(F.pad(t, (0, 1, 2, 0), value=1.5), x, "pad", ((2, 0), (0, 1)), value=1.5)
    compare(F.pad(t, (0, -3, -1, 2)), x, "pad", ((-1, 2), (0, -3)))
    compare(t[:, :, [2, 3, 4, 3, 2]], x, "pad", ((-2, 2), 0), "reflect")
    compare(t[:, :, 1:, 2:-2], x, "crop", ((1, 0), 2))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_norms_over_positions(rank: int) -> None:
    x, scale, offset = values(2, 6, *SIZES[rank]), weights(6), weights(6, seed=1)
    arrays, t = (scale.numpy(), offset.numpy()), torch.tensor(x)
    for groups in (1, 3, 6):
        expected = F.group_norm(t, groups, scale, offset, 1e-3)
        compare(expected, x, "group_norm", groups, *arrays, 1e-3)
    compare(F.instance_norm(t, None, None, scale, offset), x, "instance_norm", *arrays)


def test_norms_per_position_and_by_fixed_statistics() -> None:
    x, scale, offset, mean = values(2, 6, 5, 4), weights(6), weights(6, seed=1), weights(6, seed=2)
    t, variance = torch.tensor(x), weights(6, seed=3).square().float().double()
    expected = F.layer_norm(t.movedim(1, -1), (6,), None, offset).movedim(-1, 1)
    compare(expected, x, "layer_norm", None, offset.numpy())
    expected = F.batch_norm(t, mean, variance, scale, offset, eps=1e-3)
    arrays = [array.numpy() for array in (scale, offset, mean, variance)]
    compare(expected, x, "batch_norm", *arrays, 1e-3)


@pytest.mark.parametrize(
    ("mode", "aligned"), [("nearest", None), ("linear", False), ("linear", True)]
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_resampling(mode: str, aligned: bool | None, rank: int) -> None:
    x, factors = values(2, 3, *SIZES[rank]), (3, 2, 4)[:rank]
    name = mode if aligned is None else ("linear", "bilinear", "trilinear")[rank - 1]
    t, words = torch.tensor(x), {"mode": name, "align_corners": aligned}
    ends = {"align_corners": bool(aligned)}
    expected = F.interpolate(t, scale_factor=tuple(map(float, factors)), **words)
    compare(expected, x, "upsample", factors, mode, **ends)
    for sizes in ((7, 3, 11), (1, 16, 2), (14, 1, 12)):
        expected = F.interpolate(t, sizes[:rank], **words)
        compare(expected, x, "resize", sizes[:rank], mode, **ends)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools(rank: int) -> None:
    x = values(2, 3, *SIZES[rank])
    windows, t = ((3, 2, 3)[:rank], (2, 1, 2)[:rank], (1, 0, 1)[:rank]), torch.tensor(x)
    for given in (windows, (2,)):  # the stride is that of the windows
        compare(of_rank("max_poolNd", rank)(t, *given), x, "max_pool", *given)
    for counted in (True, False):
        expected = of_rank("avg_poolNd", rank)(t, *windows, count_include_pad=counted)
        compare(expected, x, "avg_pool", *windows, counted)


@pytest.mark.parametrize("size", [11, 12, 13, 14])
@pytest.mark.parametrize("padding", [0, 1])
def test_pools_of_dilated_windows_and_of_windows_beyond_the_end(size: int, padding: int) -> None:
    x = values(1, 2, size, size + 1)
    for stride in (2, 3, 5):
        windows, t = ((3, 2), (stride, 2), padding), torch.tensor(x)
        for dilation in ((1, 1), (2, 1)):
            words = {"dilation": dilation, "ceil_mode": True}
            compare(F.max_pool2d(t, *windows, **words), x, "max_pool", *windows, **words)
        for counted in (True, False):
            expected = F.avg_pool2d(t, *windows, True, counted)
            compare(expected, x, "avg_pool", *windows, counted, ceil_mode=True)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools_of_a_number_of_windows(rank: int) -> None:
    x = values(2, 3, *(6, 4, 9)[:rank])
    for mode, name in (("max", "max"), ("average", "avg")):
        for counts in ((2, 1, 3)[:rank], (1,) * rank):
            expected = of_rank(f"adaptive_{name}_poolNd", rank)(torch.tensor(x), counts)
            compare(expected, x, "adaptive_pool", counts, mode)


def test_pools_that_pytorch_has_not() -> None:
    x = values(1, 2, 7)
    t = torch.tensor(x)
    expected = F.max_pool1d(F.pad(t, (2, 0), value=-np.inf), 3, 2)
    compare(expected, x, "max_pool", 3, 2, ((2, 0),))
    compare((t[..., 0:5:2] + t[..., 2:7:2]) / 2, x, "avg_pool", 2, dilation=2)


def test_channels_become_positions_and_return() -> None:
    x = values(2, 12, 5, 4)
    t = torch.tensor(x)
    wide = F.pixel_shuffle(t, 2)
    compare(wide, x, "pixel_shuffle", 2)
    compare(t, wide.numpy(), "pixel_unshuffle", 2)
    other = t.reshape(2, 4, 3, 5, 4).transpose(1, 2).reshape(t.shape)  # as ONNX orders channels
    compare(F.pixel_shuffle(other, 2), x, "pixel_shuffle", 2, "DCR")
    row = t[..., 0].reshape(2, 4, 3, 5).transpose(2, 3).reshape(2, 4, 15)
    compare(row, x[..., 0], "pixel_shuffle", 3)
    for factors in ((3,), (2, 3), (3, 1, 2)):
        x = values(2, 3, *(f * n for f, n in zip(factors, (4, 5, 2), strict=False)))
        compare(torch.tensor(x), x, _there_and_back, factors)


def _there_and_back(network: Network, x: Value, factors: tuple[int, ...]) -> Value:
    return network.pixel_shuffle(network.pixel_unshuffle(x, factors), factors)


def test_channels() -> None:
    x, y = values(2, 3, 5), values(2, 4, 5)
    s, t = torch.tensor(x), torch.tensor(y)
    compare(torch.cat([s, t], 1), (x, y), "concat")
    compare(t[:, 1:3], y, "slice", 1, 3)
    compare(t[:, [3, 0, 2, 0]], y, "permute", [3, 0, 2, 0])
    compare(t[:, [0, 2, 1, 3]], y, "channel_shuffle", 2)
    compare(t.amax(1, keepdim=True), y, "channel_pool", "max")
    compare(t.mean(1, keepdim=True), y, "channel_pool")
    compare(t.softmax(1), y, "softmax")
    compare(t, y, lambda _, value: value)


def test_views_are_parts_of_the_value_that_holds_them() -> None:
    """Values 2 and 3 lie in value 4, so no node joins them; value 5 is a part of value 4."""
    double, negate = (Pointwise((Op("mul", number),)) for number in (2.0, -1.0))
    nodes = (
        Node(double, (0,), (2,)),
        Node(negate, (1,), (3,)),
        Node(double, (4,), (6,)),
        Node(negate, (5,), (7,)),
    )
    shapes = {n: (1, c, 3) for n, c in {0: 2, 1: 3, 2: 2, 3: 3, 4: 5, 5: 2, 6: 5, 7: 2}.items()}
    views = {2: (4, 0), 3: (4, 2), 5: (4, 1)}
    graph = Graph(nodes, {"x": 0, "y": 1}, (6, 7), shapes, views=views)
    x, y = values(1, 2, 3), values(1, 3, 3)
    whole, part = evaluate(graph, (x, y))
    joined = np.concatenate((2 * x, -y), 1)
    np.testing.assert_array_equal(whole, 2 * joined)
    np.testing.assert_array_equal(part, -joined[:, 1:3])
