"""bfloat16 in pairs: widened two at a time, and dot products where the processor has them."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from math import inf

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

import llvmlite.binding as llvm

from tests.support.held_kernels import Held, specials_stay
from upconv import testing
from upconv.engines import load
from upconv.engines.jit.channels import code as channel_code
from upconv.engines.jit.channels import primitive as channels_module
from upconv.engines.jit.channels import products
from upconv.engines.jit.channels import schedule as channel_schedule
from upconv.engines.jit.channels import weights as channel_weights
from upconv.engines.jit.channels.primitive import Channels
from upconv.engines.jit.channels.tile import ChannelTile, emit_channel_tile
from upconv.engines.jit.channels.weights import ChannelPacking
from upconv.engines.jit.compile import assembly
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import VARIABLE, Cpu, host, target
from upconv.engines.jit.emit import Module
from upconv.engines.jit.processor_costs import Costs
from upconv.engines.nonfinite import NonFinite
from upconv.geometry import Axis, padded
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

HERE = bool(host().dots)
needs_dots = pytest.mark.skipif(not HERE, reason="this processor has no such instructions")
WAYS = [
    pytest.param("dots", marks=needs_dots),
    "widened",  # where inputs are read
    "cast",  # all inputs, before
]

FORWARD = [
    case.replace(dtype=DType.BFLOAT16)
    for case in testing.cases()
    if case.direction is Direction.FORWARD and 0 not in case.y_shape
    if case.dtype is DType.FLOAT32
]
# Each in one layout, in turn; geometries in both are those of test_jit_channels.py.
CASES = [case.replace(layout=tuple(DataLayout)[i % 2]) for i, case in enumerate(FORWARD)]


class Reading(Cpu):
    """This processor, which reads all channels-last inputs in place."""

    reads = inf

    @property
    def costs(self) -> Costs:
        costs = Cpu.costs.fget(self)
        return costs._replace(channels=costs.channels._replace(reads=self.reads))


class Casting(Reading):
    """This processor, which casts all 16-bit inputs first."""

    reads = 0


def engine(way: str, cache: int = 0) -> Held:
    """The channels kernel with one way of products."""
    sizes = {field.name: getattr(host(), field.name) for field in fields(Cpu)}
    cpu = (Casting if way == "cast" else Reading)(**sizes | {"l2": cache or host().l2})
    dots = way == "dots"
    return Held("channels", lambda problem, n: Channels(Correlation.of(problem), n, cpu, dots))


def layer(channels: tuple[int, int], size: int = 6, batch: int = 1, groups: int = 1) -> Problem:
    axes = (padded(size, 4, 2, 1, 1, 1, 0),) * 2
    i, o = channels
    return Problem(Direction.FORWARD, axes, batch, i, o, groups, DType.BFLOAT16, bias=True)


def checked(engine: Held, problem: Problem) -> np.ndarray:
    """The result, after a look at every number of it."""
    given = testing.operands(problem)
    wanted = testing.expected(problem, given)
    got = testing.compute(engine, problem, given)
    assert (np.abs(got.astype(np.float64) - wanted.value) <= wanted.allowed).all()
    return got


@needs_dots
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_every_case(problem: Problem) -> None:
    testing.check(engine("dots"), problem, threads=2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 17, 33])
def test_odd_channels_and_groups(channels: int, groups: int, way: str) -> None:
    for layout in DataLayout:
        for out in (1, 7, 40):
            problem = layer((channels * groups, out * groups), 5, 2, groups)
            checked(engine(way), problem.replace(layout=layout))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", DataLayout)
def test_passes_threads_and_blocks_change_no_bit(
    layout: DataLayout, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = layer((301, 80), 7, 2).replace(layout=layout)
    given = testing.operands(problem)
    wanted = checked(engine(way), problem)
    for cache in (1 << 22, 1 << 16, 1 << 14):  # its channels in passes of 301, 152 and less
        for threads in (1, 2, 3):
            got = testing.compute(engine(way, cache), problem, given, threads)
            assert got.tobytes() == wanted.tobytes()
    monkeypatch.setattr(channels_module, "transposed_bytes", lambda problem, threads: 1)
    assert testing.compute(engine(way), problem, given).tobytes() == wanted.tobytes()


def test_widening_pairs_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    for channels in (1, 2, 31, 64):
        problem = layer((channels, 40), 9, 2).replace(layout=DataLayout.NXC)
        given = testing.operands(problem)
        pairs = testing.compute(engine("widened"), problem, given)
        with monkeypatch.context() as patch:
            patch.setattr(products, "in_pairs", lambda tile: False)
            channel_code.tile_code.cache_clear()
            single = testing.compute(engine("widened"), problem, given)
        channel_code.tile_code.cache_clear()
        assert pairs.tobytes() == single.tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("channels", [4, 5])
def test_nan_and_infinity_stay_where_they_belong(
    channels: int, layout: DataLayout, way: str
) -> None:
    """Beside the last channel of a group lies another group's first, or another position's."""
    problem = layer((2 * channels, 6), 6, 2, 2).replace(layout=layout)
    for channel in (0, channels - 1, channels, 2 * channels - 1):
        given = testing.operands(problem)
        x = given.a if layout is DataLayout.NXC else given.a.transpose(0, 2, 3, 1)
        x[0, 2, 3, channel], x[1, 5, 0, channel] = np.nan, np.inf
        specials_stay(engine(way), problem, given)


def neighbour_taken_along(f, channels):
    return channels + channels % 2


def last_forgotten(f, channels):
    return channels - (channels % 2 + 1)


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("fault", [neighbour_taken_along, last_forgotten])
def test_a_planted_fault_is_caught(
    fault: Callable, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_tests() -> None:
        test_nan_and_infinity_stay_where_they_belong(5, DataLayout.NXC, way)
        test_odd_channels_and_groups(5, 1, way)

    monkeypatch.setattr(products, "paired", fault)
    channel_code.tile_code.cache_clear()
    try:
        with pytest.raises(AssertionError):
            all_tests()
    finally:
        channel_code.tile_code.cache_clear()


@needs_dots
def test_subnormal_numbers_are_zero_to_dot_products() -> None:
    """As docs/jit.md says; elsewhere they count."""
    problem = Problem(
        Direction.FORWARD, (Axis(3, 1),), 1, 2, 1, dtype=DType.BFLOAT16, layout=DataLayout.NXC
    )
    given = testing.operands(problem)
    given.a[...], given.b[...] = 2.0**-130, 2.0**127
    dots, floats = (
        testing.compute(engine(way), problem, given).astype(np.float64)
        for way in ("dots", "widened")
    )
    assert (floats == 2 * 2.0**-3).all()
    assert (dots == 0).all()
    given.a[...] = 2.0**-126  # the least normal number
    assert (testing.compute(engine("dots"), problem, given).astype(np.float64) == 4).all()
    given.b[...] = 2.0**-3  # a sum that is subnormal
    assert (testing.compute(engine("dots"), problem, given).astype(np.float64) == 0).all()


@needs_dots
def test_epilogues_and_sums_on_what_is_there() -> None:
    for layout in DataLayout:
        problem = layer((7, 20), 6, 2).replace(layout=layout, accumulate=True)
        checked(engine("dots"), problem.replace(epilogue=Epilogue(residual=True)))


def test_memory_stays_within_its_bound() -> None:
    for size in (4, 40):
        problem = layer((64, 96), size, 8)
        plain, dots = (Channels(Correlation.of(problem), 2, host(), way) for way in (False, True))
        assert dots.workspace_bytes <= plain.workspace_bytes + (1 << 20)
        assert dots.workspace_bytes <= 1.3 * np.prod(problem.x_shape) * 2 + 2 * (5 << 20)


def test_a_large_input_is_not_cast() -> None:
    for size, casts in ((1000, True), (6000, False)):
        axes = (Axis(size, 3, 1, 1, 1, 1),) * 2
        problem = Problem(
            Direction.INPUT_GRAD, axes, 1, 16, 16, dtype=DType.BFLOAT16, layout=DataLayout.NXC
        )
        kernel = Channels(Correlation.of(problem), 2, host(), False)
        assert (kernel.workspace_bytes > 4 * np.prod(problem.x_shape)) == casts


def test_a_pair_takes_one_instruction_for_each_sum() -> None:
    """And no register is written to memory, for a processor that need not be here."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = {"avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bf16"}
    cpu = target("x86_64-unknown-linux-gnu", "znver4", "", features)
    module = Module(cpu)
    tile = ChannelTile("bfloat", "float", 16, 6, 4, dots=True)
    emit_channel_tile(module, "tile", tile, products.tap_products)
    loops = re.split(r"^\.LBB.*$", assembly(module, cpu), flags=re.MULTILINE)
    inner = [loop for loop in loops if "vdpbf16ps" in loop]
    assert len(inner) == 2, "of pairs, and of a last channel alone"
    for loop in inner:
        assert loop.count("vdpbf16ps") == 24
        assert len(re.findall(r"v(?:broadcastss|pbroadcastd)\s", loop)) == 6
        assert len(re.findall(r"vmovup\w\s", loop)) == 4


class TestWhoTakesThem:
    """Processors with the instructions, by themselves only where they are the faster way."""

    @pytest.fixture(autouse=True)
    def _x86(self) -> None:
        if not host().triple.startswith("x86_64"):
            pytest.skip("x86 only")

    def described(self, name: str, problem: Problem, monkeypatch, variant: str = "") -> str:
        monkeypatch.setenv(VARIABLE, name)
        return load("jit").build(problem, 1, variant).description

    @pytest.mark.parametrize("name", ["skylake-avx512", "haswell", "x86-64", "cooperlake"])
    def test_not_by_themselves(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for layout in DataLayout:
            problem = layer((64, 32), 5).replace(layout=layout)
            assert "pairs" not in self.described(name, problem, monkeypatch)
            assert ("dots" in load("jit").variants(problem, 1)) == (name == "cooperlake")

    def test_by_themselves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for layout in DataLayout:
            problem = layer((64, 32), 5).replace(layout=layout)
            assert "channels in pairs" in self.described("znver4", problem, monkeypatch)
            assert "pairs" not in self.described("znver4", problem, monkeypatch, "channels")
            single = problem.replace(dtype=DType.FLOAT32)
            assert "pairs" not in self.described("znver4", single, monkeypatch)
            depthwise = layer((32, 32), 5, groups=32).replace(layout=layout)
            assert "pairs" not in self.described("znver4", depthwise, monkeypatch)
            assert "dots" not in load("jit").variants(depthwise, 1)

    @pytest.mark.parametrize("name", ["skylake-avx512", "cooperlake", "znver4"])
    def test_right_for_each(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        features = llvm.get_host_cpu_features()
        feature = "avx512vl" if name == "skylake-avx512" else "avx512bf16"
        if not features.get(feature):
            pytest.skip(f"this processor has no {feature}")
        monkeypatch.setenv(VARIABLE, name)
        for layout in DataLayout:
            for groups in (1, 3):
                problem = layer((9 * groups, 5 * groups), 6, 2, groups).replace(layout=layout)
                testing.check(load("jit"), problem, threads=2)


@pytest.mark.parametrize("channels", [(2, 40), (7, 16), (33, 21), (128, 64)])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 9])
def test_pairs_are_packed_alike_in_squares_and_one_by_one(
    channels: tuple[int, int], kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduced, made = channels
    axes = (Axis(6, kernel, 2), Axis(5, kernel, 1))
    problem = Problem(Direction.INPUT_GRAD, axes, 1, made, reduced, dtype=DType.BFLOAT16)
    correlation, cpu = Correlation.of(problem), replace(host(), dots=2.0)
    cut = channel_schedule.schedule(correlation, 1, cpu, True).cut
    weight = testing.operands(problem).b

    def packed() -> np.ndarray:
        packing = ChannelPacking(correlation.weight, cut, cpu)
        return packing.pack(weight, 2)[: packing.nbytes // 2]

    squares = packed()
    with monkeypatch.context() as patch:
        patch.setattr(channel_weights, "_transposes", lambda *_: False)
        assert packed().tobytes() == squares.tobytes()
        assert np.count_nonzero(squares) >= np.count_nonzero(weight)
    places = [0, -1, *np.random.default_rng(0).integers(weight.size, size=20)]
    for place, number in product(places, (np.nan, np.inf, -np.inf)):
        kept, weight.reshape(-1)[place] = weight.reshape(-1)[place], number
        with pytest.raises(NonFinite):
            packed()
        weight.reshape(-1)[place] = kept
    weight.reshape(-1)[-1] = 3.3e38
    packed()
