"""Weight gradients by tile registers: by AMX where it is there, and by the vector code for it."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tests.support.held_kernels import Held
from tests.support.repeating import seeds
from upconv import testing
from upconv.engines import load
from upconv.engines.base import Eligible, Primitive, ranked
from upconv.engines.interior import Interior
from upconv.engines.jit import libdnnl_times
from upconv.engines.jit.cpu import AMX, Cpu, host
from upconv.engines.jit.engine_limits import too_much
from upconv.engines.jit.kernel_choice import table
from upconv.engines.jit.weight_grad import tile_primitive, tile_schedule, tile_tables
from upconv.engines.jit.weight_grad.candidates import FLOATS, TILES, candidates, chosen
from upconv.engines.jit.weight_grad.limits import refusal
from upconv.engines.jit.weight_grad.primitive import WeightGrad
from upconv.engines.jit.weight_grad.tile_geometry import flat_of
from upconv.engines.jit.weight_grad.tile_primitive import TileWeightGrad
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem, WeightLayout

STAND_IN = replace(host(), tiles="")
CPUS = [
    pytest.param(STAND_IN, id="vector code"),
    pytest.param(
        host(),
        id="AMX",
        marks=pytest.mark.skipif(not host().tiles, reason="this processor has no tile registers"),
    ),
]


def engine(cpu: Cpu) -> Held:
    """The kernel on one processor."""

    def make(problem: Problem, threads: int) -> Primitive:
        direct = load("jit").build
        return TileWeightGrad(problem, threads, cpu, lambda: direct(problem, threads, FLOATS))

    return Held("tiles", make)


def layer(axes: tuple[Axis, ...], channels: tuple[int, int], groups: int = 1) -> Problem:
    return Problem(Direction.WEIGHT_GRAD, axes, 2, *channels, groups, dtype=DType.BFLOAT16)


def random_layer(seed: int) -> Problem:
    """A layer of any rank, stride, dilation, group and layout, with odd sizes."""
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3
    axes = []
    for _ in range(rank):
        kernel, stride, dilation = (int(rng.integers(1, most)) for most in (6, 5, 3))
        size = int(rng.integers(1, (200, 20, 8)[rank - 1]))
        crops = [int(n) for n in rng.integers(0, dilation * (kernel - 1) // 2 + 1, 2)]
        axes.append(Axis(size, kernel, stride, dilation, *crops))
    groups = 1 + seed % 5 // 3
    channels = (groups * int(n) for n in rng.integers(1, 60, 2))
    problem = Problem(
        Direction.WEIGHT_GRAD, tuple(axes), int(rng.integers(1, 4)), *channels, groups,
        layout=list(DataLayout)[seed // 3 % 2], weight_layout=list(WeightLayout)[seed % 6],
        accumulate=seed % 4 == 1,
    )  # fmt: skip
    return problem.replace(rounded=True) if seed % 4 > 1 else problem.replace(dtype=DType.BFLOAT16)


def interior(problem: Problem) -> Problem | None:
    inner = Interior.of(problem, margins=True, points=False).problem
    unfit = inner is None or too_much(inner) or refusal(inner)
    return None if unfit else inner


@pytest.mark.parametrize("cpu", CPUS)
def test_random_layers(cpu: Cpu) -> None:
    for seed in seeds(40):
        problem = interior(random_layer(seed))
        if problem is not None:
            testing.check(engine(cpu), problem, seed, threads=1 + seed % 3)


@pytest.mark.parametrize("cpu", CPUS)
def test_cases_of_every_kind(cpu: Cpu) -> None:
    cases = [case for case in testing.cases() if case.direction is Direction.WEIGHT_GRAD]
    for case in cases[:: 1 if cpu.tiles else 4]:
        problem = interior(case.replace(dtype=DType.BFLOAT16))
        if problem is not None:
            testing.check(engine(cpu), problem, threads=2)


@pytest.mark.skipif(not host().tiles, reason="this processor has no tile registers")
def test_vector_code_has_the_bits_of_the_instructions() -> None:
    for seed in seeds(20):
        problem = interior(random_layer(seed))
        if problem is not None:
            given = testing.operands(problem, seed)
            results = [testing.compute(engine(cpu), problem, given) for cpu in (STAND_IN, host())]
            assert results[0].tobytes() == results[1].tobytes(), problem


LARGE = [
    layer((Axis(3000, 4, 2, 1, 1, 1),), (40, 24)),
    layer((Axis(30, 3, 1, 1, 1, 1), Axis(41, 3, 1, 1, 1, 1)), (48, 33)),
    layer((Axis(20, 2, 2), Axis(21, 2, 2)), (64, 48), 2).replace(layout=DataLayout.NXC),
    layer((Axis(12, 4, 2, 1, 1, 1), Axis(13, 5, 3)), (300, 40)),
]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("problem", LARGE, ids=str)
def test_any_number_of_threads_gives_the_same_bits(problem: Problem, cpu: Cpu) -> None:
    given = testing.operands(problem)
    results = [testing.compute(engine(cpu), problem, given, threads) for threads in (1, 2, 3)]
    assert len({result.tobytes() for result in results}) == 1


@pytest.mark.parametrize("problem", LARGE, ids=str)
def test_every_schedule_is_right(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the one that the model takes: several sets, blocks of a set, and parts of x."""
    plans = {}
    for jobs, l2 in ((1, host().l2), (2, 1 << 16), (8, 1 << 20)):
        monkeypatch.setattr(tile_schedule, "_JOBS", jobs)
        for plan in tile_schedule._plans(problem, replace(host(), l2=l2)):
            plans[plan.sets > 1, plan.works > 1, plan.parts > 1, plan.single] = plan
    assert len(plans) > 1
    cpu = host() if host().tiles else STAND_IN
    for plan in plans.values():
        monkeypatch.setattr(tile_primitive, "tile_plan", lambda *_, plan=plan: plan)
        testing.check(engine(cpu), problem, threads=3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("layout", DataLayout)
def test_what_is_not_finite_stays_where_it_belongs(
    layout: DataLayout, accumulate: bool, value: float
) -> None:
    """Zeros between rows meet every number: such a number would spread to taps that it has not."""
    axes = (Axis(4, 3, 1, 1, 1, 1), Axis(5, 3, 2, 1, 1, 1))
    problem = layer(axes, (20, 24)).replace(layout=layout, accumulate=accumulate)
    for operand, position in (("a", (1, 3, 0, 0)), ("a", (1, 3, -1, -1)), ("b", (0, 2, 0, -1))):
        given = testing.operands(problem)
        array = getattr(given, operand)
        (array if layout is DataLayout.NCX else np.moveaxis(array, -1, 1))[position] = value
        result = testing.compute(engine(STAND_IN), problem, given).astype(np.float32)
        wanted = given.before.copy()
        WeightGrad(problem, 1, STAND_IN, FLOATS).run(wanted, given.a, given.b)
        assert np.array_equal(np.isfinite(result), np.isfinite(wanted.astype(np.float32)))
        assert 0 < np.isfinite(result).sum() < result.size


def test_pieces_cover_every_position_once() -> None:
    """Of x and of each phase of g: numbers, and zeros between them, from first to last."""
    for seed in range(60):
        problem = interior(random_layer(seed))
        if problem is None:
            continue
        plan = tile_schedule.tile_plan(problem, host())
        tables, flat = tile_tables.tables_of(plan, problem), flat_of(problem)
        spatial, numbers = plan.sets * plan.works, problem.batch
        totals = []
        for panel, (first, count) in enumerate(tables["ranges"]):
            pieces = tables["pieces"][first : first + count]
            length = plan.x_positions if panel < spatial else plan.chunks * 32
            ends = pieces[:, 4] + pieces[:, 2] + pieces[:, 3]
            assert pieces[0, 4] == 0
            assert np.array_equal(ends, np.append(pieces[1:, 4], length))
            assert (pieces[:, 2:4] >= 0).all()
            totals.append(pieces[:, 2].sum())
        classes = dict.fromkeys(phase.counts for phase in flat.phases)
        for number, counts in enumerate(classes):
            start = (1 + number) * spatial
            assert sum(totals[start : start + spatial]) == numbers * np.prod(counts)


def test_tables_stay_small() -> None:
    for axes in ((Axis(200_000, 512, 256),), (Axis(300, 4, 2), Axis(300, 4, 2)), (Axis(3, 900),)):
        problem = layer(axes, (16, 16))
        if refusal(problem) is None:
            plan = tile_schedule.tile_plan(problem, host())
            tables = tile_tables.tables_of(plan, problem)
            assert sum(table.nbytes for table in tables.values()) <= 1 << 20


def test_scratch_memory_is_bounded() -> None:
    """Panels of half the second-level cache, sums of some sets of at most 8 MiB, or of one."""
    for seed in range(60):
        inner = interior(testing.layer(seed, Direction.WEIGHT_GRAD).replace(dtype=DType.BFLOAT16))
        if inner is not None and chosen(inner, "", replace(host(), tiles=AMX)) == TILES:
            made = TileWeightGrad(inner, 2, STAND_IN, lambda: None)
            padded = 4 * np.prod(inner.weight_shape) * 4
            assert made.workspace_bytes <= padded + 8 * (1 << 20) + 2 * (4 << 20), inner


def test_the_model_takes_tiles_where_the_processor_has_them() -> None:
    problem = layer((Axis(32, 4, 2, 1, 1, 1),) * 2, (64, 64))
    for given in (problem, problem.replace(dtype=DType.FLOAT32).replace(rounded=True)):
        assert ranked(candidates(given, 1, replace(host(), tiles=AMX)))[0].variant == TILES
        [tiles] = [each for each in candidates(given, 1, STAND_IN) if each.variant == TILES]
        assert tiles.eligible is Eligible.NEVER
        assert "no tile registers" in tiles.reason
        assert chosen(given, TILES, STAND_IN) == TILES
    few = layer((Axis(32, 4, 2, 1, 1, 1),) * 2, (64, 3))
    assert ranked(candidates(few, 1, replace(host(), tiles=AMX)))[0].variant != TILES
    assert all(
        each.variant != TILES
        for each in candidates(problem.replace(dtype=DType.FLOAT32), 1, host())
    )


def test_libdnnl_is_not_thought_faster_than_tiles() -> None:
    """It uses tiles as well, and took longer on all but one of the classes that were measured."""
    cpu = replace(host(), tiles=AMX)
    for kernel, groups in ((1, 1), (2, 1), (3, 4)):
        problem = layer((Axis(32, kernel, kernel),) * 2, (64, 64), groups)
        first = ranked(table(problem, 1, cpu, every=True))[0]
        assert (first.engine, first.variant) == ("jit", TILES)
        assert libdnnl_times.of_weight_grad(problem, first, cpu).margin == first.margin


def test_zeros_that_would_be_most_of_the_input_are_refused() -> None:
    problem = layer((Axis(1, 900), Axis(1, 1)), (16, 16))
    assert "many times as long" in str(refusal(problem))
    assert "taps" in str(refusal(layer((Axis(9, 40), Axis(9, 40)), (16, 16))))
    assert chosen(problem, TILES, replace(host(), tiles=AMX)) != TILES


@pytest.mark.parametrize("fault", ["shift", "head", "finite"])
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tap one pair too far, a row of x one position late, and sums at which nobody looks."""
    problem = layer((Axis(9, 3, 1, 1, 1, 1), Axis(11, 3, 1, 1, 1, 1)), (20, 20))
    if fault == "finite":
        monkeypatch.setattr(tile_primitive.Blocks, "run", _heedless(tile_primitive.Blocks.run))
        with pytest.raises(AssertionError):
            test_what_is_not_finite_stays_where_it_belongs(DataLayout.NCX, False, np.nan)
        return
    real = tile_primitive.tables_of

    def wrong(*given):
        tables = real(*given)
        if fault == "shift":
            tables["taps"][0, 1] += 64
        else:
            tables["pieces"][1, 4] += 1
        return tables

    monkeypatch.setattr(tile_primitive, "tables_of", wrong)
    with pytest.raises(AssertionError):
        testing.check(engine(STAND_IN), problem)


def _heedless(run):
    def heedless(*given, **values):
        run(*given, **values)
        return 0

    return heedless
