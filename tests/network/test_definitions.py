"""The definitions of network operations agree with PyTorch in float64, shape rules with both."""

import itertools

import numpy as np
import pytest

from upconv.keywords import Keywords
from upconv.network.definitions import FUNCTIONS, define, evaluate
from upconv.network.graph import (
    EXCHANGED,
    ChannelPool,
    Concat,
    Convert,
    Convolution,
    Graph,
    Input,
    Node,
    Norm,
    Op,
    Pad,
    Permute,
    PixelShuffle,
    PixelUnshuffle,
    Pointwise,
    Pool,
    Resample,
    Slice,
)
from upconv.network.kinds import KINDS, output_shapes

torch = pytest.importorskip("torch", reason="PyTorch is what the definitions are compared with")
F = torch.nn.functional

SIZES = {1: (7,), 2: (5, 8), 3: (3, 4, 6)}


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def defined(operation, expected, *inputs: np.ndarray) -> np.ndarray:
    """The definition, and the shape rule, against PyTorch's result."""
    (result,) = define(operation, inputs)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-12, atol=1e-12)
    assert output_shapes(operation, tuple(x.shape for x in inputs)) == (result.shape,)
    return result


def compare(operation, expected, *inputs: np.ndarray) -> None:
    """As `defined`; the shape rule with open sizes too, and what is computed in float32."""
    result, shapes = defined(operation, expected, *inputs), tuple(x.shape for x in inputs)
    (opened,) = output_shapes(operation, tuple((None, s[1], *[None] * len(s[2:])) for s in shapes))
    assert opened == (None, result.shape[1], *[None] * len(shapes[0][2:]))
    assert define(operation, tuple(x.astype(np.float32) for x in inputs))[0].dtype == np.float32


def of_rank(name: str, rank: int):
    return getattr(F, name.replace("Nd", f"{rank}d"))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(rank: int, groups: int, transposed: bool) -> None:
    x = values(2, 4, *SIZES[rank])
    kernel = (3, 2, 3)[:rank]
    stride, padding = (2, 1, 2)[:rank], (1, 0, 1)[:rank]
    weight = values(*((4, 6 // groups) if transposed else (6, 4 // groups)), *kernel)
    weight, bias = weight.astype(np.float32), values(6).astype(np.float32)
    keywords = Keywords.of(
        stride, padding, 0, 1, groups, None, "NCX", "IOX" if transposed else "OIX"
    )
    end = (Op("add", Input(1)), Op("relu"))
    function = of_rank("conv_transposeNd" if transposed else "convNd", rank)
    arrays = (torch.tensor(array.astype(np.float64)) for array in (x, weight, bias))
    plain = function(*arrays, stride=stride, padding=padding, groups=groups)
    residual = values(*plain.shape, seed=1)
    operation = Convolution(weight, bias, keywords, transposed, end)
    defined(operation, torch.relu(plain + torch.tensor(residual)), x, residual)


ACTIVATIONS = {
    "relu": (None, lambda x, _: F.relu(x)),
    "leaky_relu": (0.3, F.leaky_relu),
    "tanh": (None, lambda x, _: torch.tanh(x)),
    "sigmoid": (None, lambda x, _: torch.sigmoid(x)),
    "silu": (None, lambda x, _: F.silu(x)),
    "gelu": (None, lambda x, _: F.gelu(x)),
    "relu6": (None, lambda x, _: F.relu6(x)),
    "elu": (0.7, F.elu),
    "hard_swish": (None, lambda x, _: F.hardswish(x)),
    "softplus": (None, lambda x, _: F.softplus(x, threshold=40)),
    "prelu": (values(3), lambda x, slope: F.prelu(x, torch.tensor(slope))),
    "snake": (
        values(3) + 2,
        lambda x, a: x + torch.sin(x * torch.tensor(a)[:, None]) ** 2 / torch.tensor(a)[:, None],
    ),
    "gelu_tanh": (None, lambda x, _: F.gelu(x, approximate="tanh")),
    "mish": (None, lambda x, _: F.mish(x)),
    **{
        name: (None, lambda x, _, name=name: getattr(torch, name)(x))
        for name in ("abs", "exp", "sin", "cos", "square", "sqrt")
    },
    "add": (values(3), lambda x, other: x + torch.tensor(other)[:, None]),
    "sub": (values(3), lambda x, other: x - torch.tensor(other)[:, None]),
    "rsub": (2.5, lambda x, other: other - x),
    "mul": (-1.5, lambda x, other: x * other),
    "div": (-1.5, lambda x, other: x / other),
    "rdiv": (-1.5, lambda x, other: other / x),
    "maximum": (values(3), lambda x, other: torch.maximum(x, torch.tensor(other)[:, None])),
    "minimum": (0.5, lambda x, other: x.clamp(max=other)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_chains(name: str) -> None:
    operand, function = ACTIVATIONS[name]
    x = 5 * values(2, 3, 40)
    x = np.abs(x) if name == "sqrt" else x
    compare(Pointwise((Op(name, operand),)), function(torch.tensor(x), operand), x)


def test_every_operation_and_function_is_compared() -> None:
    assert ACTIVATIONS.keys() == FUNCTIONS.keys()
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


@pytest.mark.parametrize("name", EXCHANGED)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_values_are_broadcast(name: str, rank: int) -> None:
    x = values(2, 3, *SIZES[rank])
    for shape in ((2, 3), (2, 1), (1, 3), (1, 1), (2, 1, *SIZES[rank]), (1, 3, *SIZES[rank])):
        y = 2 + values(*shape, *[1] * (rank + 2 - len(shape)), seed=1)
        first, second = torch.tensor(x), torch.tensor(y)
        operands = (second, first) if name.startswith("r") else (first, second)
        expected = getattr(torch, name.removeprefix("r"))(*operands)
        defined(Pointwise((Op(name, Input(1, broadcast=True)),)), expected, x, y)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pad(mode: str, rank: int) -> None:
    x = values(2, 3, *SIZES[rank])
    amounts = ((2, 1), (0, 3), (1, 2))[:rank]
    flat = list(itertools.chain(*reversed(amounts)))
    compare(Pad(amounts, mode), F.pad(torch.tensor(x), flat, mode), x)


def test_pad_with_a_value() -> None:
    x = values(2, 3, 5, 9)
    expected = F.pad(torch.tensor(x), (0, 1, 2, 0), value=1.5)
    compare(Pad(((2, 0), (0, 1)), "constant", 1.5), expected, x)


def test_pad_of_negative_amounts_cuts() -> None:
    x = values(2, 3, 5, 9)
    compare(Pad(((-1, 2), (0, -3))), F.pad(torch.tensor(x), (0, -3, -1, 2)), x)
    (result,) = define(Pad(((-2, 2), (0, 0)), "reflect"), (x,))
    np.testing.assert_array_equal(result, x[:, :, [2, 3, 4, 3, 2]])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_norms_over_positions(rank: int, groups: int) -> None:
    x, scale, offset = values(2, 6, *SIZES[rank]), values(6), values(6, seed=1)
    operation = Norm(groups, 1e-3, epilogue=(Op("mul", scale), Op("add", offset)))
    parameters = (torch.tensor(scale), torch.tensor(offset))
    compare(operation, F.group_norm(torch.tensor(x), groups, *parameters, 1e-3), x)


def test_norms_per_position() -> None:
    x = values(2, 6, 5, 4)
    expected = F.layer_norm(torch.tensor(x).movedim(1, -1), (6,), eps=1e-5).movedim(-1, 1)
    compare(Norm(1, 1e-5, per_position=True), expected, x)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_resample(mode: str, rank: int) -> None:
    x, factors = values(2, 3, *SIZES[rank]), (3, 2, 4)[:rank]
    name = "nearest" if mode == "nearest" else ("linear", "bilinear", "trilinear")[rank - 1]
    align = None if mode == "nearest" else False
    scale = tuple(map(float, factors))
    expected = F.interpolate(torch.tensor(x), scale_factor=scale, mode=name, align_corners=align)
    compare(Resample(factors, mode), expected, x)


@pytest.mark.parametrize("sizes", [(7, 3, 11), (1, 16, 2), (14, 1, 12)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_resampling_to_sizes(rank: int, sizes: tuple[int, ...]) -> None:
    x, sizes = values(2, 3, *SIZES[rank]), sizes[:rank]
    for mode, aligned in (("nearest", None), ("linear", False), ("linear", True)):
        name = "nearest" if mode == "nearest" else ("linear", "bilinear", "trilinear")[rank - 1]
        expected = F.interpolate(torch.tensor(x), sizes, mode=name, align_corners=aligned)
        operation = Resample((), mode, sizes, bool(aligned))
        defined(operation, expected, x)
        assert output_shapes(operation, ((None, 3, *[None] * rank),)) == ((None, 3, *sizes),)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools(rank: int) -> None:
    x = values(2, 3, *SIZES[rank])
    kernel, stride, padding = (3, 2, 3)[:rank], (2, 1, 2)[:rank], (1, 0, 1)[:rank]
    pairs = tuple((p, p) for p in padding)
    given = (torch.tensor(x), kernel, stride, padding)
    compare(Pool("max", kernel, stride, pairs), of_rank("max_poolNd", rank)(*given), x)
    for counted in (True, False):
        expected = of_rank("avg_poolNd", rank)(*given, count_include_pad=counted)
        compare(Pool("average", kernel, stride, pairs, counted), expected, x)


@pytest.mark.parametrize("size", [11, 12, 13, 14])
@pytest.mark.parametrize("padding", [0, 1])
def test_pools_of_dilated_windows_and_of_windows_beyond_the_end(size: int, padding: int) -> None:
    x = values(1, 2, size, size + 1)
    pairs = ((padding, padding),) * 2
    for stride in (2, 3, 5):
        for dilation in (1, 2):
            operation = Pool("max", (3, 2), (stride, 2), pairs, True, (dilation, 1), True)
            expected = F.max_pool2d(
                torch.tensor(x), (3, 2), (stride, 2), padding, (dilation, 1), ceil_mode=True
            )
            compare(operation, expected, x)
        for counted in (True, False):
            operation = Pool("average", (3, 2), (stride, 2), pairs, counted, ceil=True)
            expected = F.avg_pool2d(torch.tensor(x), (3, 2), (stride, 2), padding, True, counted)
            compare(operation, expected, x)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools_of_a_number_of_windows(rank: int) -> None:
    x, windows = values(2, 3, *(6, 4, 9)[:rank]), (2, 1, 3)[:rank]
    for mode, name in (("max", "max"), ("average", "avg")):
        for counts in (windows, (1,) * rank):
            function = of_rank(f"adaptive_{name}_poolNd", rank)
            operation = Pool(mode, (), (), (), windows=counts)
            result = defined(operation, function(torch.tensor(x), counts), x)
            opened = ((None, 3, *[None] * rank),)
            assert output_shapes(operation, opened) == ((None, *result.shape[1:]),)


def test_pools_of_channels() -> None:
    x = values(2, 6, 5, 4)
    compare(ChannelPool("max"), torch.tensor(x).amax(1, keepdim=True), x)
    compare(ChannelPool("average"), torch.tensor(x).mean(1, keepdim=True), x)


def test_a_pool_of_uneven_padding() -> None:
    x = values(1, 2, 6)
    (result,) = define(Pool("max", (3,), (2,), ((2, 0),)), (x,))
    np.testing.assert_array_equal(result[0, :, 0], x[0, :, 0])
    np.testing.assert_array_equal(result[0, :, 2], x[0, :, 2:5].max(1))


def test_pixel_shuffle() -> None:
    x = values(2, 12, 5, 4)
    compare(PixelShuffle((2, 2)), F.pixel_shuffle(torch.tensor(x), 2), x)
    x = values(1, 6, 4)  # PyTorch has no other ranks: channel 3*c + i is position 3*p + i
    (result,) = define(PixelShuffle((3,)), (x,))
    expected = x.reshape(1, 2, 3, 4).transpose(0, 1, 3, 2).reshape(1, 2, 12)
    np.testing.assert_array_equal(result, expected)
    assert output_shapes(PixelShuffle((3,)), ((1, 6, 4),)) == ((1, 2, 12),)


def test_pixel_unshuffle() -> None:
    x = values(2, 3, 6, 4)
    compare(PixelUnshuffle((2, 2)), F.pixel_unshuffle(torch.tensor(x), 2), x)
    for factors in ((3,), (2, 3), (3, 1, 2)):
        x = values(2, 3, *(f * n for f, n in zip(factors, (4, 5, 2), strict=False)))
        (result,) = define(PixelUnshuffle(factors), (x,))
        np.testing.assert_array_equal(define(PixelShuffle(factors), (result,))[0], x)


def test_channels() -> None:
    x, y = values(2, 3, 5), values(2, 4, 5)
    compare(Concat(), torch.cat([torch.tensor(x), torch.tensor(y)], 1), x, y)
    compare(Slice(1, 3), torch.tensor(y[:, 1:3]), y)
    compare(Permute((3, 0, 2, 0)), torch.tensor(y[:, [3, 0, 2, 0]]), y)
    compare(Convert(), torch.tensor(x), x)


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
