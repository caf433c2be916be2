"""The channels kernel: against the definition, with values that must not spread, by any
threads."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import upconv
from tests.support.held_kernels import Held, specials_stay
from upconv import testing
from upconv.activations import Activation
from upconv.engines.jit import packing
from upconv.engines.jit.activation import ActivationEpilogue
from upconv.engines.jit.channels import primitive as channels_module
from upconv.engines.jit.channels import schedule as channel_schedule
from upconv.engines.jit.channels import tables
from upconv.engines.jit.channels.blocks import spatial_blocks
from upconv.engines.jit.channels.code import tile_code
from upconv.engines.jit.channels.lanes import Lanes, lanes_of
from upconv.engines.jit.channels.primitive import Channels
from upconv.engines.jit.channels.schedule import Block
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import VARIABLE, host
from upconv.engines.jit.kernel_choice import direct_variant
from upconv.geometry import Axis, padded
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

needs_dots = pytest.mark.skipif(not host().dots, reason="this processor has no such instructions")
CASES = [
    case.replace(layout=layout)
    for case in testing.cases()
    if not case.rounded
    if case.direction is Direction.FORWARD and 0 not in case.y_shape
    for layout in DataLayout
    if case.dtype is not DType.FLOAT16 or host().half  # what the engine refuses elsewhere
]


ENGINE = Held("channels", lambda problem, n: Channels(Correlation.of(problem), n, host()))


def layer(channels: tuple[int, int], size: int, batch: int = 1) -> Problem:
    axes = (padded(size, 4, 2, 1, 1, 1, 0),) * 2
    return Problem(Direction.FORWARD, axes, batch, *channels, bias=True)


@pytest.mark.parametrize("problem", CASES, ids=str)
def test_every_case_of_both_layouts(problem: Problem) -> None:
    testing.check(ENGINE, problem, threads=2)


@pytest.fixture
def thin_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels-first data is transposed one position of the first axis at a time."""
    monkeypatch.setattr(channels_module, "transposed_bytes", lambda problem, threads: 1)


FIRST = [case for case in CASES if case.layout is DataLayout.NCX]


@pytest.mark.usefixtures("thin_blocks")
@pytest.mark.parametrize("problem", FIRST, ids=str)
def test_every_case_in_blocks_of_one_position(problem: Problem) -> None:
    testing.check(ENGINE, problem, threads=2)


@pytest.mark.parametrize("problem", [c for c in CASES if c.layout is DataLayout.NXC], ids=str)
def test_every_case_channels_last_in_blocks(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of where points lie are made for some of them."""
    monkeypatch.setattr(channels_module, "_MAX_POINTS", 4)
    testing.check(ENGINE, problem, threads=2)


def test_tables_of_a_large_image_are_small() -> None:
    axes = (Axis(2048, 3, 1, 1, 1, 1),) * 2
    problem = Problem(Direction.FORWARD, axes, 1, 64, 64, layout=DataLayout.NXC)
    assert Channels(Correlation.of(problem), 2, host()).resident_bytes < 2 << 20


@pytest.mark.parametrize("layout", DataLayout)
def test_tables_are_bounded(layout: DataLayout) -> None:
    """They grow with blocks and with the points of a spatial block, not with their product, nor
    with the size of the data."""

    def tables(size: int, channels: int) -> dict[str, int]:
        axes = (Axis(size, 4, 2, 1, 1, 1),) * 2
        problem = Problem(Direction.FORWARD, axes, 1, 64, channels, layout=layout)
        primitive = Channels(Correlation.of(problem), 2, host())
        return {n: t.nbytes for n, t in primitive._spatial.blocks[0].walk.tables.items()}

    small, large, wide = tables(128, 64), tables(1024, 64), tables(128, 1024)
    assert large["points"] <= 2 << 20
    assert large["passes"] == small["passes"]
    assert wide["points"] <= 2 * small["points"]
    assert wide["spans"] <= 1 << 10
    assert wide["passes"] <= 40 * small["passes"]


@pytest.mark.usefixtures("thin_blocks")
def test_spatial_blocks_are_what_they_should_be() -> None:
    problem = layer((6, 20), 9, 2)
    correlation = Correlation.of(problem)
    cut = channel_schedule.schedule(correlation, 2, host()).cut
    parts = spatial_blocks(correlation, cut, 1, 4)
    assert [part.output for part in parts[:3]] == [0, 2, 4]
    assert [part.kind.correlation.lines[0].out for part in parts[:3]] == [2, 2, 2]
    assert [part.input for part in parts[:3]] == [0, 0, 1]
    assert [part.kind.correlation.lines[0].size for part in parts[:3]] == [2, 3, 3]
    assert len(parts) == 2 * 9
    assert len({part.kind for part in parts}) == 3, "a first, a last, and those between"
    walks = {block.walk for block in Channels(correlation, 2, host())._spatial.blocks}
    assert len(walks) == 3


def test_spatial_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layer((70, 40), 17, 2)
    given = testing.operands(problem)
    whole = testing.compute(ENGINE, problem, given)
    for allowed in (1, 30_000, 100_000):
        monkeypatch.setattr(channels_module, "transposed_bytes", lambda *_, n=allowed: n)
        assert np.array_equal(testing.compute(ENGINE, problem, given), whole)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("channels", [20, 64])
def test_the_last_of_several_passes_applies_the_activation(
    channels: int, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of `finish`, which applies it to results in the stage."""
    cpu = replace(host(), l2=1 << 14)
    engine = Held("channels", lambda problem, n: Channels(Correlation.of(problem), n, cpu, False))
    after = Epilogue(Activation.LEAKY_RELU, slopes=True, residual=True)
    problem = layer((70, channels), 9, 2).replace(layout=DataLayout.NXC, epilogue=after)
    problem = problem.replace(dtype=dtype)
    given = testing.operands(problem)
    in_tiles = testing.compute(engine, problem, given)
    monkeypatch.setattr(ActivationEpilogue, "is_cheap", property(lambda epilogue: False))
    monkeypatch.setattr(tables, "shared", lambda make, *key: make(*key))  # passes are kept by class
    assert testing.compute(engine, problem, given).tobytes() == in_tiles.tobytes()


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("channels", [1, 3, 21])
def test_merged_taps_change_no_bit(
    channels: int, layout: DataLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = layer((24, channels), 19).replace(layout=layout, direction=Direction.INPUT_GRAD)
    problem, given = problem.replace(bias=False), testing.operands(problem.replace(bias=False))
    merged = testing.compute(ENGINE, problem, given)
    assert tables.merged_taps(*lanes_and_block(problem)) == 4
    monkeypatch.setattr(tables, "merged_taps", lambda *_: 1)
    assert np.array_equal(testing.compute(ENGINE, problem, given), merged)


def lanes_and_block(problem: Problem) -> tuple[Lanes, Block]:
    correlation = Correlation.of(problem)
    plan = channel_schedule.schedule(correlation, 1, host())
    return lanes_of(correlation, host()), plan.cut.blocks[0]


def test_taps_are_merged_where_they_read_one_run_of_memory() -> None:
    def taps(*, kernel: int = 5, dilation: int = 1, groups: int = 1) -> int:
        axes = (Axis(20, 3), Axis(20, kernel, 2, dilation, 2, 2))
        return tables.merged_taps(
            *lanes_and_block(
                Problem(Direction.INPUT_GRAD, axes, 1, 32, 32, groups, layout=DataLayout.NXC)
            )
        )

    assert [taps(), taps(kernel=1), taps(dilation=2), taps(groups=2)] == [5, 1, 1, 1]


@pytest.mark.parametrize("name", ["haswell", "x86-64"])
@pytest.mark.parametrize("channels", [1, 3, 5, 17, 33])
def test_odd_channels_on_older_processors(
    name: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, name)
    for layout in DataLayout:
        problem = layer((channels, channels + 2), 3, 2).replace(layout=layout)
        testing.check(ENGINE, problem)
        testing.check(ENGINE, problem.replace(dtype=DType.FLOAT64))


@pytest.mark.parametrize("name", ["", "haswell", "x86-64"])
@pytest.mark.parametrize("groups", [2, 3, 5, 32])
def test_narrow_groups_share_vectors(
    name: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of two or four channels, whose vectors may end within the last group's."""
    monkeypatch.setenv(VARIABLE, name)
    for channels, layout, dtype, direction in product(
        (2, 4),
        DataLayout,
        (DType.FLOAT32, DType.FLOAT64),
        (Direction.FORWARD, Direction.INPUT_GRAD),
    ):
        problem = layer((groups * channels,) * 2, 5, 2).replace(
            groups=groups, layout=layout, dtype=dtype, direction=direction,
            bias=direction is Direction.FORWARD,
        )  # fmt: skip
        testing.check(ENGINE, problem, threads=2)
    cpu, together = host(), channels * 4 <= 16 and channels < host().lanes(4)
    floats = problem.replace(dtype=DType.FLOAT32)
    assert lanes_of(Correlation.of(floats), cpu).depthwise == together


def test_nan_stays_in_its_narrow_group() -> None:
    problem = layer((24, 24), 6).replace(layout=DataLayout.NXC, groups=6)
    given = testing.operands(problem)
    given.a[0, 2, 3, 1], given.a[0, 5, 0, 14] = np.nan, np.inf
    specials_stay(ENGINE, problem, given)


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_nan_and_infinity_stay_where_they_belong(channels: int) -> None:
    problem = layer((5, channels), 6).replace(layout=DataLayout.NXC)
    given = testing.operands(problem)
    given.a[0, 2, 3, 1], given.a[0, 5, 0, 4] = np.nan, np.inf
    specials_stay(ENGINE, problem, given)


@pytest.mark.parametrize("layout", DataLayout)
def test_threads_change_no_bit(layout: DataLayout) -> None:
    # Weights of more than a cache, so that sums wait in the output between passes.
    problem = layer((700, 80), 7, 2).replace(layout=layout)
    given = testing.operands(problem)
    results = [testing.compute(ENGINE, problem, given, threads) for threads in (1, 2, 3)]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("layout", DataLayout)
def test_arrays_may_lie_apart(layout: DataLayout) -> None:
    problem = layer((6, 20), 5, 3).replace(layout=layout)
    given = testing.operands(problem)
    primitive = Channels(Correlation.of(problem), 2, host())
    wanted = testing.compute(ENGINE, problem, given)
    x = np.zeros((5, *problem.x_shape[1:-1], 2 * problem.x_shape[-1]), np.float32)
    y = np.full((6, *problem.y_shape[1:-1], 3 * problem.y_shape[-1]), 7, np.float32)
    for cut in (slice(None, problem.x_shape[-1]), slice(None, None, 2)):
        source = x[1:4, ..., cut]
        source[...] = given.a
        result = y[::2, ..., : problem.y_shape[-1]]
        primitive.run(result, source, primitive.pack(given.b), given.bias)
        assert np.array_equal(result, wanted)
    assert (y[1::2] == 7).all()
    assert (y[..., problem.y_shape[-1] :] == 7).all()


@pytest.mark.parametrize("dots", [False, pytest.param(True, marks=needs_dots)])
def test_a_new_image_size_of_a_layer_compiles_next_to_nothing(dots: bool) -> None:
    dtype = DType.BFLOAT16 if dots else DType.FLOAT32

    def build(size: int) -> None:
        problem = layer((48, 64), size).replace(layout=DataLayout.NXC, dtype=dtype)
        Channels(Correlation.of(problem), 2, host(), dots)

    for size in range(40, 48):
        build(size)
    before = tile_code.cache_info().misses
    for size in range(48, 120, 7):
        build(size)
    assert tile_code.cache_info().misses - before <= 2


@pytest.mark.parametrize("size", [1, 4, 16, 40])
def test_memory_stays_within_its_bound(size: int) -> None:
    for layout in DataLayout:
        problem = layer((64, 96), size, 8).replace(layout=layout)
        if direct_variant(problem, 2, host()) == "channels":
            primitive = Channels(Correlation.of(problem), 2, host())
            assert primitive.workspace_bytes <= 1.3 * np.prod(problem.x_shape) * 4 + 2 * (5 << 20)


def test_few_positions_are_preferred_and_many_are_not() -> None:
    for size in (1, 2, 3, 5, 7, 8):
        assert direct_variant(layer((512, 256), size), 1, host()) == "channels", size
    assert direct_variant(layer((64, 3), 64), 1, host()) == "positions"
    long = Problem(Direction.FORWARD, (Axis(6400, 4, 2, 1, 1, 1),), 1, 16, 8)
    assert direct_variant(long, 1, host()) == "positions"
    assert direct_variant(long.replace(layout=DataLayout.NXC), 1, host()) == "channels"


def test_weights_are_turned_also_where_crops_leave_a_result_no_tap(monkeypatch) -> None:
    """The table of blocks is no table of elements: gathering by it would read anywhere."""

    def gathers(*given) -> None:
        raise AssertionError("gathered by a table of blocks")

    monkeypatch.setattr(packing, "gather_code", gathers)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 2, 3, 4)), rng.standard_normal((2, 1, 2, 2, 2))
    given = {
        "stride": (4, 4, 1), "padding": (5, 2, 0), "output_padding": (3, 3, 2), "dilation": 3,
    }  # fmt: skip
    y = upconv.conv_transpose(x, w, **given, engine="reference")
    found = upconv.conv_transpose_backward(y, x, w, **given, needs=["x"], engine="jit").x
    wanted = upconv.conv_transpose_backward(y, x, w, **given, needs=["x"], engine="reference").x
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
