"""The tile kernel against the definition, by AMX and by the vector code that stands in for it.

10,000 random layers, for minutes:

    python -m pytest tests/engines/jit/test_tiles.py -m long
"""

import random
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tests.support.held_kernels import specials_stay
from tests.support.processes import require_feature
from tests.support.repeating import seeds
from tests.support.tile_engines import L1, L2_SMALL, LOWERINGS, TileEngine, random_layers
from upconv import testing
from upconv.activations import Activation
from upconv.engines import load
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import VARIABLE
from upconv.engines.jit.tiles import merging, placement
from upconv.engines.jit.tiles import tile as register_tile
from upconv.engines.jit.tiles.placement import InPlace
from upconv.engines.jit.tiles.schedule import Padding
from upconv.engines.jit.tiles.tile import tile_code
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

FORWARD, INPUT_GRAD = Direction.FORWARD, Direction.INPUT_GRAD
NCX, NXC = DataLayout.NCX, DataLayout.NXC
LEAKY = Activation.LEAKY_RELU
Layer = tuple[int, Problem, int]


def layer(*axes: Axis, channels: tuple[int, int] = (40, 24), **more: Any) -> Problem:
    return Problem(FORWARD, axes, 2, *channels, **({"dtype": DType.BFLOAT16} | more))


SQUARE = (Axis(6, 4, 2, 1, 1, 1), Axis(9, 4, 2, 1, 1, 1))
LAYERS = {
    "three channels": layer(Axis(6, 3, 2, 1, 1, 2), Axis(21, 3, 2, 1, 1, 1), channels=(40, 3)),
    "a channel of a group": layer(
        Axis(7, 3, 1, 1, 1, 1), Axis(9, 3, 1, 1, 1, 1), channels=(4 * 64, 4), groups=4
    ),
    "few channels as they lie": layer(Axis(33, 1), channels=(16, 12), layout=NXC),
    "four channels merged": layer(Axis(33, 15, 1, 1, 3, 1), channels=(4, 24)),
    "inputs in two products": layer(*SQUARE, channels=(21, 17)),
    "merged in groups": layer(*SQUARE, channels=(3 * 48, 3 * 16), groups=3),
    "merged with dilation beside": layer(
        Axis(6, 3, 1, 2, 1, 1), Axis(19, 5, 3, 1, 1, 2), channels=(24, 12)
    ),
    "squares": layer(*SQUARE),
    "one channel": layer(*SQUARE, channels=(1, 1)),
    "a channel too many": layer(*SQUARE, channels=(33, 17)),
    "groups": layer(*SQUARE, channels=(3 * 33, 3 * 17), groups=3),
    "asymmetric crops": layer(Axis(7, 5, 3, 1, 3, -2), Axis(9, 4, 2, 1, -3, 2)),
    "strides larger than kernels": layer(Axis(5, 2, 3, 1, 0, -2), Axis(7, 1, 4)),
    "a dilated volume": layer(Axis(3, 3, 1, 2, 2, 2), Axis(4, 2, 2), Axis(5, 3, 2, 1, 1, 1)),
    "a long row": layer(Axis(301, 16, 8, 1, 4, 4), channels=(48, 32)),
    "rows of no multiple of 16": layer(Axis(5, 3, 1, 1, 1, 1), Axis(19, 3, 1, 1, 1, 1)),
}
ENDS = {
    "residual": Epilogue(Activation.RELU, residual=True),
    "slopes": Epilogue(LEAKY, slopes=True),
    "second": Epilogue(LEAKY, slopes=True, residual=True, second=Activation.TANH),
    "gelu": Epilogue(Activation.GELU, second=LEAKY, second_slope=0.1),
}


def variations(problem: Problem) -> Iterator[Problem]:
    """Both directions, layouts and kinds of operands."""
    for direction in (FORWARD, INPUT_GRAD):
        for layout in DataLayout:
            turned = problem.replace(direction=direction, layout=layout)
            yield turned
            yield turned.replace(dtype=DType.FLOAT32, rounded=True)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_every_kind(name: str, lowering: str) -> None:
    for number, problem in enumerate(variations(LAYERS[name])):
        testing.check(TileEngine.numbered(lowering, number // 2), problem, threads=2)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("end", ENDS)
def test_ends(end: str, lowering: str) -> None:
    for number, problem in enumerate(variations(LAYERS["groups"])):
        ended = problem.replace(bias=True, epilogue=ENDS[end], accumulate=number % 4 > 1)
        testing.check(TileEngine(lowering, L1, L2_SMALL), ended, threads=2)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_random_layers(lowering: str) -> None:
    check(random_layers(seeds(60 if lowering else 15)), lowering)


@pytest.mark.long
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("part", range(10))
def test_many_random_layers(part: int, lowering: str) -> None:
    first = 1000 * (1 + part)
    check(random_layers(seeds(first, first + (1000 if lowering else 200))), lowering)


def check(layers: Iterator[Layer], lowering: str) -> None:
    for seed, problem, threads in layers:
        if load("jit").refuses(problem) is None:
            testing.check(TileEngine.numbered(lowering, seed), problem, seed, threads)


def layers_without_zeros(numbers: Iterator[int]) -> Iterator[Layer]:
    """Channels-last layers of whole blocks of channels that mostly read nothing but their input."""
    for seed in numbers:
        rng = random.Random(seed)
        rank, groups = rng.choice((1, 1, 2, 2, 3)), rng.choice((1, 1, 2))
        axes = []
        for _ in range(rank):
            kernel = rng.choice((1, 1, 2, 3, 4))
            stride = rng.choice((1, kernel, kernel, kernel + 1, 2))
            size, end = rng.randint(1, (70, 20, 9)[rank - 1]), rng.choice((0, 0, 0, -1, 1 - stride))
            axes.append(Axis(size, kernel, stride, rng.choice((1, 1, 2)), 0, end))
        read, made = 32 * groups * rng.choice((1, 2, 3)), groups * rng.choice((5, 16, 33, 48, 64))
        direction = rng.choice((FORWARD, INPUT_GRAD, INPUT_GRAD))
        problem = Problem(
            direction, tuple(axes), rng.choice((1, 1, 2, 5)),
            *((read, made) if direction is FORWARD else (made, read)), groups,
            dtype=DType.BFLOAT16, layout=NXC, accumulate=rng.random() < 0.3,
        )  # fmt: skip
        yield seed, problem, 1 + seed % 2


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_random_layers_without_zeros(lowering: str) -> None:
    check(layers_without_zeros(seeds(40 if lowering else 8)), lowering)


@pytest.mark.long
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_many_random_layers_without_zeros(lowering: str) -> None:
    check(layers_without_zeros(seeds(1000, 3000 if lowering else 1500)), lowering)


def pointwise(positions: int, batch: int = 1) -> Problem:
    return layer(Axis(positions, 2, 2), channels=(64, 40), layout=NXC).replace(batch=batch)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("positions", [1, 2, 15, 16, 17, 31, 32, 33, 100])
def test_reading_in_place_around_a_tile_of_positions(positions: int, lowering: str) -> None:
    """Of fewer than 16 positions there is no tile that reads nothing outside."""
    engine = TileEngine(lowering)
    for batch in (1, 3):
        problem = pointwise(positions, batch)
        for direction in (FORWARD, INPUT_GRAD):
            turned = problem.replace(direction=direction, in_channels=64, out_channels=64)
            testing.check(engine, turned)
            testing.check(engine, turned.replace(accumulate=True))
        assert in_place(engine, problem) == (positions * batch >= 16)


def in_place(engine: TileEngine, problem: Problem) -> bool:
    (walk, *_), *_ = engine.kernel(problem)._spatial[-1].blocks  # for aligned operands
    return isinstance(walk.operand, InPlace)


MERGED_IN_PLACE = layer(Axis(9, 4, 2), Axis(20, 4, 2), channels=(32, 21), layout=NXC).replace(
    direction=INPUT_GRAD
)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("problem", [pointwise(40, 2), MERGED_IN_PLACE], ids=["tap", "taps"])
def test_bits_do_not_depend_on_where_an_operand_begins(problem: Problem, lowering: str) -> None:
    given = testing.operands(problem)
    engines = [TileEngine(lowering, offset=offset) for offset in (0, 2, 16, 32, 62)]
    assert in_place(engines[0], problem)
    testing.check(engines[0], problem)
    first, *others = (testing.compute(engine, problem, given) for engine in engines)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_a_tile_that_begins_earlier_begins_inside() -> None:
    """Rows of a tile are two positions apart; one of 3 positions begins at an odd one."""
    possible = []
    for rows in range(5, 40):
        problem = layer(Axis(rows, 1), Axis(1, 3, 2), channels=(32, 32), layout=NXC)
        correlation = Correlation.of(problem.replace(direction=INPUT_GRAD))
        operand = InPlace(correlation, 0, False)
        steps = np.ones(3, np.int64)
        starts = operand.results(np.array([operand.counts]), steps)["tiles"]["x"]
        assert starts.min() >= 0 or not operand.is_possible
        possible.append(operand.is_possible)
    assert set(possible) == {False, True}


def test_what_is_read_in_place() -> None:
    engine, problem = TileEngine(), pointwise(40)
    assert in_place(engine, problem)
    assert "read in place" in engine.kernel(problem).description
    assert in_place(engine, MERGED_IN_PLACE)
    overlapping = problem.replace(axes=(Axis(40, 3, 2, 1, 1),))
    for other in (
        problem.replace(layout=NCX),
        problem.replace(dtype=DType.FLOAT32, rounded=True),
        problem.replace(in_channels=40),
        problem.replace(in_channels=96, out_channels=80, groups=2),
        overlapping,
    ):
        assert not in_place(engine, other), other


@pytest.mark.parametrize("layout", DataLayout)
def test_memory_is_bounded(layout: DataLayout) -> None:
    """Tables by a spatial block, scratch memory by 1.3 times the input and 5 MiB per thread."""
    for channels, *size in ((64, 2048, 2048), (33, 256, 256), (512, 16, 16), (64, 1_000_000)):
        axes = tuple(Axis(n, 4, 2, 1, 1, 1) for n in size)
        for direction in (Direction.FORWARD, Direction.INPUT_GRAD):
            problem = Problem(
                direction, axes, 1, channels, channels, dtype=DType.BFLOAT16, layout=layout
            )
            kernel = TileEngine().kernel(problem, 2)
            walks = {block.walk for spatial in kernel._spatial for block in spatial.blocks}
            assert sum(walk.resident_bytes for walk in walks) <= 1 << 20
            x_bytes = 2 * prod(problem.operand_shapes[0])
            assert kernel.workspace_bytes <= 1.3 * x_bytes + 2 * (5 << 20)


def test_another_size_compiles_nothing() -> None:
    problem = layer(Axis(300, 16, 8, 1, 4, 4))
    TileEngine().kernel(problem)
    before = tile_code.cache_info().misses
    for size in range(301, 1000, 77):
        TileEngine().kernel(problem.replace(axes=(Axis(size, 16, 8, 1, 4, 4),)))
    assert tile_code.cache_info().misses == before


def test_nothing_to_compute() -> None:
    for layout in DataLayout:
        problem = LAYERS["squares"].replace(layout=layout)
        for empty in (problem.replace(batch=0), problem.replace(axes=(Axis(3, 2, 4, 1, 2, 2),))):
            testing.check(TileEngine(), empty)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("layout", DataLayout)
def test_nan_and_infinity_stay_where_they_belong(layout: DataLayout, lowering: str) -> None:
    """Zeros beside the input and behind its last channel meet weights; no other number does."""
    for name in ("squares", "strides larger than kernels", "groups"):
        problem = LAYERS[name].replace(layout=layout)
        given = testing.operands(problem)
        x = given.a if layout is NXC else np.moveaxis(given.a, 1, -1)
        x[0, 2, 3, -1], x[1, 0, -1, 0], x[1, -1, 0, 13] = np.nan, np.inf, -np.inf
        specials_stay(TileEngine(lowering), problem, given)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", DataLayout)
def test_zeros_lie_between_positions_that_are_spread(layout: DataLayout, channels: int) -> None:
    axes = Axis(6, 3, 1, 1, 1, 1), Axis(40, 3, 1, 1, 1, 1)
    problem = layer(*axes, channels=(20, channels), layout=layout)
    problem = problem.replace(direction=Direction.INPUT_GRAD)
    given = testing.operands(problem)
    x = given.a if layout is NXC else np.moveaxis(given.a, 1, -1)
    x[0, 2, 3, 0], x[1, 3, 17, 0], x[1, 5, 20, -1] = np.nan, np.inf, -np.inf
    merging = TileEngine().kernel(problem).schedule.merging
    assert merging.spread == (channels, channels + 1)
    specials_stay(TileEngine(), problem, given)


def test_halves_of_the_least_weights_are_not_lost() -> None:
    problem = layer(Axis(20, 3, 1, 1, 1, 1), channels=(16, 16), layout=NXC)
    given = testing.operands(problem)
    given.a[...], given.b[...] = 2.0**100, 2.0**-126
    assert "neighbouring taps" in TileEngine().kernel(problem).description
    result = testing.compute(TileEngine(), problem, given)
    assert (result[:, 1:-1] == np.float32(3 * 16 * 2.0**-26).astype(result.dtype)).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_the_reference_engines(number: float) -> None:
    for problem in variations(LAYERS["rows of no multiple of 16"].replace(bias=True)):
        given = testing.operands(problem)
        given.b.reshape(-1)[77] = number
        primitive = load("jit").build(problem, 1, "tiles")
        result = given.before.copy()
        primitive.run(result, given.a, primitive.pack(given.b), given.bias)
        wanted = testing.compute(load("reference"), problem, given)
        assert not np.isfinite(wanted.astype(np.float32)).all()
        np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))


def test_views_with_strides() -> None:
    """Of channels-first data images and channels may lie apart; all else is copied."""
    problem = LAYERS["squares"].replace(bias=True, epilogue=Epilogue(residual=True))
    given, engine = testing.operands(problem), TileEngine()
    primitive = engine.kernel(problem, 2)
    packed, wanted = primitive.pack(given.b), testing.compute(engine, problem, given)
    n, c, *size = problem.x_shape
    x = np.full((2 * n, c + 5, *size), np.nan, given.a.dtype)[::2, 3 : 3 + c]
    spread = np.full((n, c, size[0], 2 * size[1]), np.nan, given.a.dtype)[..., ::2]
    n, f, *size = problem.y_shape
    holders = [np.full((n, 2 * f, *size), -77, given.a.dtype) for _ in range(2)]
    y, residual = (holder[:, 1::2] for holder in holders)
    residual[...] = given.residual
    for source in (x, spread):
        source[...] = given.a
        y[...] = 0
        primitive.run(y, source, packed, given.bias, residual)
        assert np.array_equal(y, wanted)
        assert (holders[0][:, ::2] == -77).all()


@pytest.mark.parametrize(("name", "feature"), [("haswell", "avx2"), ("x86-64", "sse2")])
def test_vector_code_of_older_processors(
    name: str, feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of this one's."""
    require_feature(feature)
    problems = [*variations(LAYERS["groups"])][:4] + [*variations(LAYERS["a dilated volume"])][4:]
    given = [testing.operands(problem) for problem in problems]
    pairs = list(zip(problems, given, strict=True))
    wanted = [testing.compute(TileEngine(), *pair) for pair in pairs]
    monkeypatch.setenv(VARIABLE, name)
    for pair, right in zip(pairs, wanted, strict=True):
        assert testing.compute(TileEngine(), *pair).tobytes() == right.tobytes(), pair[0]


# The tests are tested -----------------------------------------------------------------------------


def one_position_late(patch: pytest.MonkeyPatch) -> None:
    read = Padding.read
    patch.setattr(Padding, "read", lambda *given: (read(*given)[0], max(0, read(*given)[1] - 1)))


def tiles_begin_earlier_and_results_do_not(patch: pytest.MonkeyPatch) -> None:
    filled = placement.filled

    def from_the_first(kind, shape, **columns):
        if kind is placement.PIECE:
            columns["row"] = 0 * columns["row"]
        return filled(kind, shape, **columns)

    patch.setattr(placement, "filled", from_the_first)


def last_tile_twice(patch: pytest.MonkeyPatch) -> None:
    """Results are added to what is there once more."""
    finish = register_tile._finish_rows

    def twice(*given):
        finish(*given)
        finish(*given)

    patch.setattr(register_tile, "_finish_rows", twice)
    register_tile.tile_code.cache_clear()


def test_zeros_in_place_of_halves_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_halves", lambda weights: (weights, 0 * weights))
    with pytest.raises(AssertionError):
        test_nan_and_infinity_stay_where_they_belong(NXC, "")


@pytest.mark.parametrize(
    "fault", [one_position_late, tiles_begin_earlier_and_results_do_not, last_tile_twice]
)
def test_a_planted_fault_is_caught(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_some() -> None:
        for problem in (LAYERS["squares"], pointwise(33).replace(accumulate=True)):
            testing.check(TileEngine(), problem)

    fault(monkeypatch)
    try:
        with pytest.raises(AssertionError, match="are wrong"):
            check_some()
    finally:
        register_tile.tile_code.cache_clear()
