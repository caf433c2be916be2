"""A new size of a known layer: what is made of the class is not made again.

Code, packed weights, tiles and transforms belong to a class of layers. Work is counted; the one
bound of time is of a thread's processor time, some ten times what was measured, the best of several
sizes.
"""

import gc
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from types import FrameType
from typing import Any

import numpy as np
import pytest

import upconv
from tests.engines.jit.test_classes import CPU
from tests.support import winograd_layers
from upconv import testing
from upconv.engine_choice import Algorithm
from upconv.engines import jit, load
from upconv.engines.jit import compile as compiling
from upconv.engines.jit import kernel_choice, packing
from upconv.engines.jit.channels import schedule as channel_schedule
from upconv.engines.jit.positions import schedule
from upconv.engines.jit.winograd import schedule as winograd_plan
from upconv.execution import Packings, prepared_problem
from upconv.geometry import Axis, convolved
from upconv.primitives import shared_cache
from upconv.problem import DataLayout, Direction, Problem

NCX, NXC = DataLayout.NCX, DataLayout.NXC


def convolution(size: int, channels: int, kernel: int, dilation: int = 1, **more) -> Problem:
    axis = convolved(size, kernel, 1, dilation, *[dilation * (kernel - 1) // 2] * 2)
    return Problem(Direction.INPUT_GRAD, (axis,), 1, channels, channels, bias=True, **more)


def transposed(size: int, channels: int, rank: int, **more) -> Problem:
    axes = tuple(Axis(size + 3 * i, 4, 2, 1, 1, 1) for i in range(rank))
    return Problem(Direction.FORWARD, axes, 1, 2 * channels, channels, bias=True, **more)


LAYERS = {
    "convolution": lambda size: convolution(size, 64, 7),
    "dilated convolution": lambda size: convolution(size, 64, 3, 5),
    "few channels": lambda size: convolution(size, 4, 7),
    "channels last": lambda size: convolution(size, 24, 5, layout=NXC),
    "depthwise": lambda size: convolution(size, 24, 5, groups=24),
    "transposed": lambda size: transposed(size, 48, 1),
    "image": lambda size: transposed(size // 25, 32, 2),
    "image, channels last": lambda size: transposed(size // 25, 32, 2, layout=NXC),
}
KNOWN, NEW = 1400, (1500, 1625, 1775)  # enough for the choices to be those of all larger sizes
layers = pytest.mark.parametrize("layer", LAYERS)


@pytest.fixture
def one_processor(monkeypatch: pytest.MonkeyPatch, fresh_cache: None) -> Iterator[None]:
    """Models choose for AVX-512 and 1 MiB of L2. What is built for it is not run."""
    monkeypatch.setattr(jit, "host", lambda: CPU)
    yield
    upconv.cache_clear()


def entry(problem: Problem):
    return prepared_problem(problem, "jit", 1, Algorithm.AUTO).entry()


@layers
def test_nothing_is_compiled_and_no_fraction_met(layer, one_processor, monkeypatch) -> None:
    make, calls = LAYERS[layer], list[str]()
    first = entry(make(KNOWN))
    monkeypatch.setattr(compiling, "Code", lambda *_: pytest.fail("a module is compiled"))
    fractions = Fraction.__init_subclass__.__module__, sys.modules[Fraction.__module__].__file__

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in fractions:
            calls.append(frame.f_code.co_name)

    sys.setprofile(look)
    try:
        for size in NEW:
            again = entry(make(size))
            assert again.primitive.order is first.primitive.order, "weights are packed once"
    finally:
        sys.setprofile(None)
    assert not calls


def test_a_model_of_many_layers_meets_a_class_of_sizes_again() -> None:
    """One pass over its layers does not push out of the cache what the next pass asks for."""
    engine, channels = load("jit"), range(1, 81)
    for _ in range(2):
        before = kernel_choice.table.cache_info().misses
        for size in (1500, 1625, 1775):
            for count in channels:
                engine.candidates(convolution(size, count, 3), 1)
        last = kernel_choice.table.cache_info().misses - before
    assert last == 0


def looked_at(problem: Problem) -> list[int]:
    """How often the schedules of three kernels, the interior and the table are made anew."""
    looks = (
        schedule.schedule,
        channel_schedule._cuts,
        winograd_plan.schedules,
        kernel_choice.interior_of,
        kernel_choice.table,
    )
    before = [look.cache_info().misses for look in looks]
    entry(problem)
    return [look.cache_info().misses - n for look, n in zip(looks, before, strict=True)]


@layers
def test_each_kernel_is_looked_at_once(layer, one_processor) -> None:
    make = LAYERS[layer]
    entry(make(KNOWN))
    kernel_choice.table.cache_clear()
    *kernels, interiors, tables = looked_at(make(NEW[0]))
    assert tables == 1, "one table of candidates is made, and all that choose read it"
    assert max(kernels) <= 2, "for the class of sizes, and for the size itself"
    assert interiors <= 4, "of both, with the outputs that nothing reaches and without"


@layers
def test_sizes_of_a_class_share_its_table(layer, one_processor) -> None:
    make = LAYERS[layer]
    first, *others = sizes = (1826, 1876, 1901)  # of images 73, 75, 76, and three more
    assert len({kernel_choice.size_class(make(size)) for size in sizes}) == 1
    entry(make(first))
    for size in others:
        *kernels, interiors, tables = looked_at(make(size))
        assert tables == 0
        assert sorted(kernels)[1:] <= [0, 1], "the kernel that is taken, and no other"
        assert interiors <= 2


@pytest.mark.parametrize(
    ("size", "rounded"),
    [(1, 1), (63, 63), (64, 64), (65, 72), (72, 72), (127, 128), (129, 144), (1000, 1024)],
)
def test_sizes_are_rounded_up_to_eighths_of_a_power_of_two(size: int, rounded: int) -> None:
    assert kernel_choice.size_class(transposed(size, 16, 1)).axes[0].size == rounded


def test_every_variant_of_a_table_can_be_built() -> None:
    """A crop reaches all inputs but one of 143, and more of the rounded size."""
    g, w = np.ones((2, 1, 31, 1), np.float32), np.ones((3, 1, 3, 7), np.float32)
    arguments = {"stride": (4, 7), "dilation": 3, "padding": ((0, 0), (696, 316))}
    y = upconv.conv(g, w, algorithm="winograd", **arguments)
    np.testing.assert_allclose(y, upconv.conv(g, w, engine="reference", **arguments))


@layers
def test_processor_time(layer, one_processor) -> None:
    make, times = LAYERS[layer], []
    entry(make(KNOWN))
    for size in range(NEW[0], NEW[0] + 200, 25):
        problem, start = make(size), time.thread_time()
        entry(problem)
        times.append(time.thread_time() - start)
    assert min(times) < 0.01


@layers
def test_values_with_a_weight_packed_for_another_size(layer) -> None:
    """By every variant on this processor, bit for bit those with a weight packed for this size."""
    engine, make = load("jit"), LAYERS[layer]
    sizes = [make(size) for size in (200, 325, 500)]
    given = [testing.operands(problem, seed) for seed, problem in enumerate(sizes)]
    weight, packings, read, held = given[0].b, dict[str, Packings](), 0, []
    for problem, operands in zip(sizes, given, strict=True):
        names = engine.variants(problem, 1) + winograd_layers.variants(problem, 1)[:2]
        for name in names:
            primitive = engine.build(problem, 1, name)
            shared = packings.setdefault(name, Packings())
            packs = shared.made
            results = []
            held.append(shared.of(primitive, weight))  # as calls hold it
            for packed in (held[-1], primitive.pack(weight)):
                results.append(np.zeros_like(operands.before))
                primitive.run(results[-1], operands.a, packed, operands.bias)
            assert results[0].tobytes() == results[1].tobytes(), (problem, name)
            read += shared.made == packs
    assert read, "some weight is read that another size has packed"


def test_a_weight_packed_in_another_order_is_not_read() -> None:
    engine, packings = load("jit"), Packings()
    problem = LAYERS["image"](500)
    weight = testing.operands(problem).b
    names = "positions", "channels", *winograd_layers.variants(problem, 1)[:2]
    held = [packings.of(engine.build(problem, 1, name), weight) for name in names * 2]
    assert packings.made == len({id(packed) for packed in held}) == len(names)


def test_weights_that_are_not_finite_are_packed_for_each_size(fresh_cache) -> None:
    packings = Packings()
    for size in (50, 60):
        problem = LAYERS["convolution"](size)
        operands = testing.operands(problem)
        weight = operands.b.copy()
        weight.flat[5] = np.inf
        call = prepared_problem(problem, "jit", 1).pack(weight, packings)
        out = np.zeros_like(operands.before)
        call.run(out, operands.a, operands.bias)
        expected = np.zeros_like(out)
        prepared_problem(problem, "reference", 1).run(expected, operands.a, weight, operands.bias)
        np.testing.assert_array_equal(out, expected)
    assert packings.made == 2


def test_a_thousand_sizes_take_the_memory_of_some(fresh_cache, monkeypatch) -> None:
    monkeypatch.setattr(shared_cache(), "_max_entries", 50)
    # So many channels that there are few ways to vectorise them: planning takes little time.
    weight = np.ones((130, 130, 1), np.float32)
    plan = first = upconv.plan((1, 130, 1), weight)
    before = sum(each.cache_info().currsize for each in engine_caches())
    for size in range(2, 1002):
        plan = first.resized((1, 130, size))
    assert (plan(np.ones(plan.input_shape, np.float32)) == 130).all()
    gc.collect()
    assert first._packings.made <= 8, "weights are packed for few orders"
    assert upconv.cache_info().entries <= 50
    assert len(packing._shared) <= 50
    caches = engine_caches()
    assert all(each.cache_info().maxsize for each in caches if each.cache_info().currsize > 100)
    assert sum(each.cache_info().currsize for each in caches) - before < 10_000


def engine_caches() -> list[Any]:
    """The functions of the engines that remember results."""
    return [
        each
        for name, module in sys.modules.items()
        if name.startswith("upconv.engines")
        for each in vars(module).values()
        if hasattr(each, "cache_info")
    ]
