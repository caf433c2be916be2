"""Weight gradients in the JIT: memory, tables, and what is compiled. Values are in conformance."""

import dataclasses
import time
from math import ceil, prod

import numpy as np
import pytest

from upconv import testing
from upconv.engines import load
from upconv.engines.interior import Interior
from upconv.engines.jit.cpu import host
from upconv.engines.jit.engine_limits import too_much
from upconv.engines.jit.weight_grad import tile as weight_grad_tile
from upconv.engines.jit.weight_grad.primitive import WeightGrad
from upconv.engines.jit.weight_grad.schedule import Plan
from upconv.engines.jit.weight_grad.sides import footprint
from upconv.engines.jit.weight_grad.tables import Tables
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, Problem

MIB = 1 << 20


def layers(count: int) -> list[Problem]:
    """What the engine is given of some layers of real sizes."""
    inner = (
        Interior.of(testing.layer(seed, Direction.WEIGHT_GRAD), margins=True, points=False).problem
        for seed in range(count)
    )
    return [problem for problem in inner if problem and not too_much(problem)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_scratch_memory_is_bounded(threads: int) -> None:
    """Panels of 2 MiB, or of some rows of the kernel's extent; sums of some sets."""
    for problem in layers(60):
        made = WeightGrad(problem, threads, host())
        itemsize = max(4, problem.dtype.itemsize)
        sums = 1.3 * prod(problem.weight_shape) * itemsize + 16 * MIB
        data = 1.3 * itemsize * (prod(problem.x_shape) + prod(problem.y_shape))
        least = threads * (4 * MIB + data / max(1, Plan(problem, host()).spatial_blocks))
        assert made.workspace_bytes <= sums + least, problem
        assert made.resident_bytes <= 16 * MIB + data, problem


def test_tables_stay_small() -> None:
    """However many taps and positions there are."""
    for axis, channels in ((Axis(200_000, 512, 256), 2), (Axis(3000, 4096, 1), 3)):
        problem = Problem(Direction.WEIGHT_GRAD, (axis,), 1, channels, channels)
        tables = Tables.of(Plan(problem, host()))
        assert tables.nbytes <= 2 << 20
    plane = Axis(300, 200, 200)
    problem = Problem(Direction.WEIGHT_GRAD, (plane, plane), 2, 1, 1)
    assert "taps" in str(load("jit").refuses(problem.replace(axes=(Axis(9, 300), Axis(9, 300)))))
    segments = Tables.of(Plan(problem, host())).arrays["segments"]
    assert len(segments) <= 2 * 300 * 200 + 1


def test_every_position_is_counted_once() -> None:
    """Positions of all runs, times the segments of all outer taps, are the products of the
    definition."""
    for problem in layers(40):
        plan = Plan(problem, host())
        tables = Tables.of(plan).arrays
        count, positions = tables["outer"][:, 1], tables["runs"][:, 2]
        taps = np.where(tables["runs"][:, 4] == 1, 1, plan.sides.tile.taps)
        outer_taps = prod(axis.kernel for axis in problem.axes[:-1])
        total = 0
        for first, run, runs in tables["works"][:, 1:4]:
            there = (positions * taps)[run : run + runs].sum()
            total += count[first : first + outer_taps].sum() * there
        products = prod((problem.in_channels, problem.out_channels)) // problem.groups
        assert total * products == products_of(problem)


def test_all_blocks_of_all_jobs_are_the_weight() -> None:
    for problem in layers(40):
        plan = Plan(problem, host())
        tables = Tables.of(plan).arrays
        blocks = tables["blocks"]
        sizes = blocks[:, 3] * blocks[:, 6] * blocks[:, 7]
        assert sizes.sum() == prod(problem.weight_shape)
        units = [row for first, count in tables["jobs"] for row in range(first, first + count)]
        assert units == list(range(plan.units))
        listed = [
            block for first, count, *_ in tables["units"] for block in range(first, first + count)
        ]
        assert listed == list(range(len(blocks)))
        works = [work for first, count, _ in tables["sets"] for work in range(first, first + count)]
        assert works == list(range(plan.spatial_blocks))


CACHES = [(32 << 10, 512 << 10), (32 << 10, 1 << 20), (48 << 10, 2 << 20)]


@pytest.mark.parametrize(("l1", "l2"), CACHES)
def test_what_is_read_often_is_packed(l1: int, l2: int) -> None:
    """On every processor: reading it in place took a Xeon of 2 MiB of L2 twice the time."""
    cpu = dataclasses.replace(host(), vector_bytes=64, registers=32, l1=l1, l2=l2)
    axis = Axis(64, 2, 2)
    problem = Problem(Direction.WEIGHT_GRAD, (axis, axis), 1, 256, 128, layout=DataLayout.NXC)
    assert Plan(problem, cpu).in_place == (False, False)
    # Four tiles of taps read x, and g has one block of channels.
    axis = Axis(64, 4, 2, 1, 1, 1)
    few = Problem(Direction.WEIGHT_GRAD, (axis, axis), 1, 128, 3, layout=DataLayout.NXC)
    plan = Plan(few, cpu)
    assert plan.in_place == (True, True)
    # A pixel of x has 512 bytes: they alias as if all were read, so that many stay in the cache.
    assert all(plan.rows_together * len(each) * 512 <= l2 // 2 for each in plan.columns)


def test_lines_a_power_of_two_apart_take_few_sets() -> None:
    for width, pixel, expected in (
        (128, 512, 512),
        (128, 544, 128),
        (52, 1024, 1024),
        (64, 64, 64),
    ):
        assert footprint(width, pixel) == expected


def products_of(problem: Problem) -> int:
    """Multiply-adds that meet an input and an output."""
    total = problem.batch * problem.in_channels * problem.out_channels // problem.groups
    for axis in problem.axes:
        taps = (
            range(
                max(0, ceil((axis.crop_begin - axis.dilation * t) / axis.stride)),
                min(
                    axis.size,
                    (axis.out - 1 + axis.crop_begin - axis.dilation * t) // axis.stride + 1,
                ),
            )
            for t in range(axis.kernel)
        )
        total *= sum(map(len, taps))
    return total


@pytest.mark.parametrize("layout", DataLayout)
def test_another_length_compiles_nothing(layout: DataLayout) -> None:
    made = []
    for size in (40_000, 30_011, 50_123):
        axis = Axis(size, 16, 8, 1, 4, 4)
        problem = Problem(Direction.WEIGHT_GRAD, (axis,), 1, 64, 32, layout=layout)
        load("jit").build(problem, 2)
        made.append(weight_grad_tile.tile_code.cache_info().misses)
    assert made[0] == made[1] == made[2]


def test_an_operand_of_any_strides() -> None:
    problem = Problem(
        Direction.WEIGHT_GRAD, (Axis(20, 4, 2), Axis(30, 3)), 3, 32, 32, layout=DataLayout.NXC
    )
    given = testing.operands(problem)
    wanted = testing.expected(problem, given)
    primitive = load("jit").build(problem, 2)
    for step in (slice(None, None, 2), slice(None, None, -1)):
        x, g = (np.repeat(array, 2, axis=2)[:, :, step] for array in (given.b, given.a))
        x, g = (a[:, :, : b.shape[2]] for a, b in ((x, given.b), (g, given.a)))
        x[...], g[...] = given.b, given.a
        out = np.empty(problem.result_shape, np.float32)
        primitive.run(out, g, x)
        assert (np.abs(out - wanted.value) <= wanted.allowed).all()


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    ("axes", "channels"),
    [((Axis(4096, 3, 1, 1, 1, 1),) * 2, (3, 64)), ((Axis(1000, 60_000),), (1, 1))],
    ids=["a large image", "many taps"],
)
def test_preparing_is_quick_at_any_size(
    axes: tuple[Axis, ...], channels: tuple[int, int], direction: Direction
) -> None:
    """A tenth of a second; a minute when tables were looked through for each of their parts."""
    problem = Problem(direction, axes, 1, *channels)
    if load("jit").refuses(problem) is None:
        start = time.process_time()
        load("jit").build(problem, 2)
        assert time.process_time() - start < 5
