"""What a convolution ends in, inside the kernels: slopes by channel, second results, sums before
the activation.

Bit for bit what separate passes make of the bare result, in every kernel, whatever the threads.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tests.engines.jit.test_new_activation import LAYERS, every_kernel
from upconv import testing
from upconv.activations import Activation
from upconv.engine_choice import Algorithm, variants
from upconv.engines import load
from upconv.engines.base import Array
from upconv.engines.jit.activation import ActivationEpilogue
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import target
from upconv.engines.jit.emit import Module
from upconv.engines.jit.positions.schedule import schedule
from upconv.engines.jit.positions.tile import emit_tile
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

JIT = load("jit")
LEAKY = Activation.LEAKY_RELU
ENDS = {
    "prelu": Epilogue(LEAKY, slopes=True),
    "prelu of a sum": Epilogue(LEAKY, slopes=True, residual=True),
    "second": Epilogue(second=LEAKY, second_slope=0.1),
    "second of a sum": Epilogue(residual=True, second=LEAKY, second_slope=0.1),
    "prelu and second": Epilogue(LEAKY, slopes=True, second=Activation.RELU),
    "relu and second": Epilogue(Activation.RELU, second=LEAKY, second_slope=-0.5),
}
MORE = {
    "a row that ends in a tile": Problem(
        Direction.FORWARD, (Axis(133, 4, 2, 1, 1, 1),), 2, 9, 13, bias=True
    ),
    "pointwise": Problem(Direction.INPUT_GRAD, (Axis(7, 1), Axis(31, 1)), 2, 12, 56, bias=True),
    "groups": Problem(
        Direction.FORWARD, (Axis(9, 3, 1, 1, 1, 1),) * 2, 1, 6, 14, 2, layout=DataLayout.NXC
    ),
    "small image": Problem(Direction.FORWARD, (Axis(3, 4, 2, 1, 1, 1),) * 2, 2, 40, 33),
    "volume": Problem(Direction.FORWARD, (Axis(4, 3, 1, 1, 1, 1),) * 3, 1, 8, 21, bias=True),
}
PROBLEMS = LAYERS | MORE


def kernels(problem: Problem) -> Iterator[str]:
    yield from variants(JIT, problem, 2, Algorithm.AUTO)


def results(problem: Problem, variant: str, threads: int, given: testing.Operands) -> list[Array]:
    """The results, which are written over NaN unless the problem accumulates."""
    primitive = JIT.build(problem, threads, variant)
    arrays = [np.full_like(given.before, np.nan) for _ in range(1 + problem.epilogue.has_second)]
    if problem.accumulate:
        arrays[0][...] = given.before
    ends = testing.ends_of(problem, given, *arrays[1:])
    primitive.run(arrays[0], given.a, primitive.pack(given.b), *ends)
    return arrays


def leaky(values: Array, slope: Array | float) -> Array:
    """By definition, in the type of the values."""
    return np.where(values < 0, values * np.asarray(slope, values.dtype), values)


def by_passes(problem: Problem, bare: Array, slopes: Array | None) -> list[Array]:
    """What separate passes over the bare result make of it."""
    epilogue, result = problem.epilogue, bare
    if epilogue.slopes:
        result = leaky(bare, slopes.reshape(problem.layout.by_channel(problem.rank)))
    elif epilogue.activation is Activation.RELU:
        result = np.where(bare > 0, bare, 0).astype(bare.dtype)
    second = np.where(result > 0, result, 0).astype(bare.dtype)
    if epilogue.second is LEAKY:
        second = leaky(result, epilogue.second_slope)
    return [result, second][: 1 + epilogue.has_second]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_an_end_has_the_bits_of_separate_passes(name: str, end: str) -> None:
    problem = PROBLEMS[name].replace(epilogue=ENDS[end])
    if problem.dtype is DType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    given = testing.operands(problem)
    for variant in kernels(problem):
        bare = problem.replace(epilogue=Epilogue(residual=ENDS[end].residual))
        (sums,) = results(bare, variant, 1, given)
        for threads in (1, 2, 3):
            got = results(problem, variant, threads, given)
            if problem.dtype is DType.BFLOAT16:
                wanted = testing.expected(problem, given)
                assert (np.abs(got[0] - wanted.value) <= wanted.allowed).all(), variant
                continue
            for mine, right in zip(got, by_passes(problem, sums, given.slopes), strict=True):
                np.testing.assert_array_equal(mine, right, err_msg=f"{variant}, {threads} threads")


def test_the_problems_reach_every_kernel() -> None:
    names = {each.split()[0] for p in PROBLEMS.values() for each in kernels(p) if each}
    assert names == every_kernel()


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("dtype", DType)
def test_a_sum_of_layers_and_what_follows_it(dtype: DType, layout: DataLayout) -> None:
    """Three convolutions into one result: the last one adds its residual and activates the sum."""
    if dtype is DType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    plain = Problem(Direction.INPUT_GRAD, (Axis(40, 3, 1, 1, 1, 1),), 2, 20, 20, layout=layout)
    plain = plain.replace(dtype=dtype, bias=True)
    end = Epilogue(LEAKY, residual=True, slopes=True, second=Activation.TANH)
    last = plain.replace(epilogue=end, accumulate=True)
    given = testing.operands(last)
    wanted = testing.expected(last, given)
    for variant in kernels(last):
        got = results(last, variant, 2, given)
        assert (np.abs(got[0] - wanted.value) <= wanted.allowed).all(), variant
        assert (np.abs(got[1] - wanted.second.value) <= wanted.second.allowed).all(), variant


@pytest.mark.parametrize("layout", DataLayout)
def test_the_second_result_may_lie_differently(layout: DataLayout) -> None:
    problem = PROBLEMS["plain"].replace(layout=layout, epilogue=ENDS["prelu and second"])
    given = testing.operands(problem)
    for variant in kernels(problem):
        primitive = JIT.build(problem, 2, variant)
        weight, wanted = primitive.pack(given.b), results(problem, variant, 2, given)
        for gaps in ((0,), (1,), (0, 1)):
            arrays = [np.full(problem.result_shape, np.nan, np.float32) for _ in range(2)]
            for number in gaps:
                arrays[number] = np.full((*problem.result_shape[:-1], 400), np.nan, np.float32)
                arrays[number] = arrays[number][..., : problem.result_shape[-1]]
            primitive.run(arrays[0], given.a, weight, given.bias, None, given.slopes, arrays[1])
            for mine, right in zip(arrays, wanted, strict=True):
                np.testing.assert_array_equal(mine, right, err_msg=f"{variant}, gaps in {gaps}")


@pytest.mark.parametrize("where", ["weight", "operand"])
def test_numbers_that_are_not_finite(where: str) -> None:
    """The reference engine takes over for weights, direct sums do for Winograd's."""
    problem = PROBLEMS["plain"].replace(epilogue=ENDS["prelu and second"])
    given = testing.operands(problem)
    (given.b if where == "weight" else given.a).flat[77] = np.inf
    wanted = testing.compute_all(load("reference"), problem, given)
    assert not np.isfinite(wanted[0]).all()
    for variant in kernels(problem):
        for mine, right in zip(results(problem, variant, 2, given), wanted, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-4, err_msg=variant)


@pytest.mark.parametrize("value", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("layout", DataLayout)
def test_winograd_adds_to_what_a_result_holds(layout: DataLayout, value: float) -> None:
    """Where sums are not finite the direct kernel adds to what there was before."""
    problem = LAYERS["plain"].replace(layout=layout, accumulate=True)
    problem = problem.replace(epilogue=Epilogue(LEAKY, slopes=True, second=Activation.RELU))
    given = testing.operands(problem)
    given.a.flat[5] = value
    names = [name for name in kernels(problem) if name.startswith("winograd")]
    assert names
    wanted = results(problem, "channels", 1, given)
    for variant in names:
        for mine, right in zip(results(problem, variant, 2, given), wanted, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-4, err_msg=variant)


AVX2 = target("x86_64", "haswell", "", {"avx", "avx2", "fma", "f16c"})


def test_tiles_of_positions_do_cheap_ends_in_registers() -> None:
    """One load of a slope for each channel, no stage; an end that is not cheap is left."""
    problem = MORE["a row that ends in a tile"]

    def tile(**epilogue):
        correlation = Correlation.of(problem.replace(epilogue=Epilogue(**epilogue)))
        return schedule(correlation, 1, AVX2).tiles[0]

    bare, ended = tile(), tile(activation=LEAKY, slopes=True, second=Activation.RELU)
    assert ended == replace(bare, epilogue=ActivationEpilogue(LEAKY, 0.0, True, Activation.RELU))
    loads = []
    for one in (bare, ended):
        module = Module(AVX2)
        emit_tile(module, "tile", one)
        loads.append(module.text().count("= load float"))
    assert loads[1] - loads[0] == ended.channels
    assert tile(activation=LEAKY, slopes=True, residual=True) == bare
    assert tile(second=Activation.TANH) == bare
