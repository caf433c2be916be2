"""The tile kernel's bits: one order of sums in both lowerings, for any threads and any size."""

import ctypes
from functools import lru_cache

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tests.engines.jit.test_tiles import LAYERS, layers_without_zeros, variations
from tests.support.repeating import seeds
from tests.support.tile_engines import LOWERINGS, TileEngine, needs_amx, random_layers
from upconv import testing
from upconv.engines import load
from upconv.engines.jit.compile import Code
from upconv.engines.jit.cpu import AMX, host
from upconv.engines.jit.emit import Module
from upconv.engines.jit.tiles import operations
from upconv.engines.jit.tiles.operations import (
    REGISTERS,
    TILE_BYTES,
    TileRegisters,
    configuration,
    emit_product,
)
from upconv.engines.jit.tiles.tile import tile_code
from upconv.engines.jit.values import FLOAT, I32
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem

Numbers = np.ndarray
BFLOAT16 = DType.BFLOAT16.numpy
TINY = np.finfo(np.float32).tiny
NXC = DataLayout.NXC
CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)


def flushed(x: Numbers) -> Numbers:
    """Zeros in the place of subnormal numbers."""
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x).astype(np.float32)


def product(d: Numbers, a: Numbers, b: Numbers) -> Numbers:
    """d + a b in the order of the instruction, with a as (16, 32) and b as (32, 16).

    Products of bfloat16 are exact in float64, so adding one rounds once.
    """
    sums = [np.zeros(d.shape, np.float32) for _ in range(2)]
    with np.errstate(invalid="ignore", over="ignore"):
        for i in range(a.shape[1]):
            exact = flushed(a[:, i, None]).astype("f8") * flushed(b[None, i]).astype("f8")
            sums[i % 2] = flushed((exact + sums[i % 2]).astype(np.float32))
        return flushed(flushed(d) + flushed(sums[0] + sums[1]))


@lru_cache
def product_code(tiles: str) -> Code:
    """Code that loads d, a and b, multiplies, and stores d, in the registers numbered last."""
    module = Module(TileEngine(tiles).cpu)
    emit_product(module)
    names = "d", "a", "b", "block", "configuration"
    with module.function("once", operations.signature(" ".join(f"{n}*" for n in names))) as f:
        registers = TileRegisters(f, module, f["block"])
        registers.configure(f["configuration"])
        registers.zero(7)
        for number, name in ((7, "d"), (5, "a"), (6, "b")):
            registers.load(number, f[name], 64)
        registers.multiply_add(7, 5, 6)
        registers.store(7, f["d"], 64)
        registers.release()
    return Code(module, ("once",), TileEngine(tiles).cpu)


def multiplied(tiles: str, d: Numbers, a: Numbers, b: Numbers) -> Numbers:
    """d + a b by the code."""
    d, a, pairs = d.copy(), a.astype(BFLOAT16), b.astype(BFLOAT16).reshape(16, 2, 16)
    pairs = np.ascontiguousarray(pairs.transpose(0, 2, 1))
    block, table = np.zeros(REGISTERS * TILE_BYTES, np.uint8), configuration()
    call = CALL(product_code(tiles).addresses["once"])
    call(*(array.ctypes.data for array in (d, a, pairs, block, table)))
    return d


def random_tiles(seed: int) -> tuple[Numbers, Numbers, Numbers]:
    """Tiles with numbers of many sizes; of some of them products and sums are subnormal."""
    rng = np.random.default_rng(seed)
    scale = np.float32((1, 1e-19, 3e-20, 1e15, 1e-38, 1e3)[seed % 6])
    a, b = (rng.standard_normal(shape, np.float32) * scale for shape in ((16, 32), (32, 16)))
    d = rng.standard_normal((16, 16), np.float32) * scale * scale
    if seed % 6 == 4:
        a, b = a * np.float32(0.5), b / scale * np.float32(2.0**60)
    if seed % 6 == 5:
        places = rng.integers(0, 512, 6)
        a.flat[places[:3]], b.flat[places[3:]] = (np.nan, np.inf, -np.inf), (np.inf, 0.0, -0.0)
        d[3, 4], d[5, 6] = -np.inf, np.nan
    return d, a.astype(BFLOAT16).astype(np.float32), b.astype(BFLOAT16).astype(np.float32)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_order_of_sums_of_one_product(lowering: str) -> None:
    for seed in seeds(60):
        if not host().fused and seed % 6 in (1, 2, 4):
            continue  # products are subnormal, and rounded before they are added
        d, a, b = random_tiles(seed)
        got, wanted = multiplied(lowering, d, a, b), product(d, a, b)
        np.testing.assert_array_equal(got, wanted, err_msg=f"seed {seed}")


def test_other_orders_of_sums_have_other_bits() -> None:
    d, a, b = random_tiles(0)
    got = multiplied("", d, a, b)
    assert not np.array_equal(got, product(d, a[:, ::-1], b[::-1]))
    assert not np.array_equal(got, (d + a @ b).astype(np.float32))
    even, odd = (a[:, i::2] @ b[i::2] for i in (0, 1))
    assert not np.array_equal(got, (d + even) + odd)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_order_of_sums_of_a_layer(lowering: str) -> None:
    """The bias first, then taps, and of each tap blocks of 32 channels."""
    x, w, bias, result = a_layer(lowering, channels=64)
    sums = np.tile(bias, (16, 1))
    for tap in range(3):
        for block in range(0, 64, 32):
            lines = x[tap:][:16, block : block + 32]
            sums = product(sums, lines, w[tap, block : block + 32])
    np.testing.assert_array_equal(result, sums)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_order_of_sums_of_merged_taps(lowering: str) -> None:
    """28 inputs of all taps at a time; the last product ends with them. The weights of inputs that
    it has in common with the one before are halves in both."""
    x, w, bias, result = a_layer(lowering, channels=36)
    inputs, weights = np.concatenate([x[tap:][:16] for tap in range(3)], 1), w.reshape(108, 16)
    starts, twice = [0, 28, 56, 80], slice(80, 84)
    weights[twice] /= 2
    sums = np.tile(bias, (16, 1))
    for start in starts:
        sums = product(sums, inputs[:, start : start + 28], weights[start : start + 28])
    np.testing.assert_array_equal(result, sums)


def a_layer(lowering: str, channels: int) -> tuple[np.ndarray, ...]:
    """Positions by channels, with zeros around; weights as taps by channels by results, taps in the
    order of positions; the bias, and the result."""
    problem = Problem(
        Direction.INPUT_GRAD, (Axis(16, 3, 1, 1, 1, 1),), 1, 16, channels, dtype=DType.FLOAT32,
        rounded=True, layout=NXC, bias=True,
    )  # fmt: skip
    given = testing.operands(problem)
    x, w = (array.astype(BFLOAT16).astype(np.float32) for array in (given.a, given.b))
    correlation = TileEngine(lowering).kernel(problem).correlation
    (phase,) = correlation.lines[0].phases
    taps = sorted(phase.taps, key=lambda tap: -tap.shift)
    by_tap = np.stack([w[:, :, tap.index].T for tap in taps])
    (result,) = testing.compute(TileEngine(lowering), problem, given)
    return np.pad(x[0], ((1, 1), (0, 0))), by_tap, given.bias, result


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_subnormal_numbers_are_zero(lowering: str) -> None:
    """As docs/jit.md says: operands, sums and the bias."""
    problem = Problem(
        Direction.FORWARD, (Axis(3, 1),), 1, 2, 1, dtype=DType.FLOAT32, rounded=True, bias=True,
        layout=NXC,
    )  # fmt: skip
    given = testing.operands(problem)

    def result(x: float, w: float, bias: float) -> float:
        given.a[...], given.b[...], given.bias[...] = x, w, bias
        numbers = testing.compute(TileEngine(lowering), problem, given)
        assert (numbers == numbers.flat[0]).all()
        return float(numbers.flat[0])

    assert result(2.0**-126, 2.0**127, 1.0) == 5, "the least normal number"
    assert result(2.0**-127, 2.0**127, 1.0) == 1, "an operand"
    assert result(2.0**-100, 2.0**-28, 0.0) == 0, "a sum"
    assert result(0.0, 1.0, 2.0**-127) == 0, "a bias"


@needs_amx
def test_both_lowerings_have_the_same_bits() -> None:
    named = [(0, each, 1) for name in LAYERS for each in variations(LAYERS[name])][::5]
    drawn = [*random_layers(seeds(200, 215)), *layers_without_zeros(seeds(200, 215))]
    for seed, problem, threads in named + drawn:
        if load("jit").refuses(problem) is None:
            given = testing.operands(problem, seed)
            native, vector = (
                testing.compute(TileEngine.numbered(way, seed), problem, given, threads)
                for way in (AMX, "")
            )
            assert native.tobytes() == vector.tobytes(), problem


LARGE = Problem(
    Direction.FORWARD, (Axis(12, 4, 2, 1, 1, 1), Axis(19, 4, 2, 1, 1, 1)), 2, 64, 40,
    dtype=DType.BFLOAT16, bias=True,
)  # fmt: skip


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("layout", DataLayout)
def test_threads_and_caches_change_no_bit(layout: DataLayout, lowering: str) -> None:
    for problem in (LARGE, LARGE.replace(direction=Direction.INPUT_GRAD, bias=False)):
        laid = problem.replace(layout=layout)
        given = testing.operands(laid)
        assert TileEngine(lowering).kernel(laid, 3).schedule.threads == 3
        results = {
            testing.compute(TileEngine.numbered(lowering, number), laid, given, threads).tobytes()
            for number in range(4)
            for threads in (1, 2, 3)
        }
        assert len(results) == 1


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("layout", DataLayout)
def test_no_size_changes_a_bit(layout: DataLayout, lowering: str) -> None:
    """Outputs of a part have the bits of the whole where they read the same inputs."""
    engine, axis = TileEngine(lowering), layout.to_ncx(1)[2]
    for kernel, stride in ((4, 2), (3, 3), (5, 1)):
        whole = Problem(
            Direction.FORWARD, (Axis(75, kernel, stride),), 1, 40, 24, dtype=DType.BFLOAT16,
            layout=layout,
        )  # fmt: skip
        given = testing.operands(whole)
        result = np.moveaxis(testing.compute(engine, whole, given), axis, 0)
        for first, count in ((0, 37), (37, 38), (5, 1), (20, 16), (70, 5)):
            part = whole.replace(axes=(Axis(count, kernel, stride),))
            inputs = np.take(given.a, range(first, first + count), axis)
            before = np.zeros(part.y_shape, BFLOAT16)
            own = testing.Operands(np.ascontiguousarray(inputs), given.b, None, None, before)
            mine = np.moveaxis(testing.compute(engine, part, own), axis, 0)
            halo = max(0, kernel - stride)
            inside = slice(halo if first else 0, len(mine) - (halo if first + count < 75 else 0))
            right = result[first * stride :][: len(mine)]
            assert mine[inside].tobytes() == right[inside].tobytes(), (first, count)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("layout", DataLayout)
def test_no_size_of_a_convolution_changes_a_bit(layout: DataLayout, lowering: str) -> None:
    """In each form of products."""
    engine, axis = TileEngine(lowering), layout.to_ncx(1)[2]
    for channels, kernel, merges in ((1, 3, True), (12, 5, True), (3, 41, True), (64, 3, False)):
        whole = Problem(
            Direction.INPUT_GRAD, (Axis(75, kernel),), 1, 24, channels, dtype=DType.BFLOAT16,
            layout=layout,
        )  # fmt: skip
        assert ("neighbouring taps" in engine.kernel(whole).description) == merges
        given = testing.operands(whole)
        result = np.moveaxis(testing.compute(engine, whole, given), axis, 0)
        for first, count in ((0, 37), (5, 1), (20, 16), (70, 5)):
            part = whole.replace(axes=(Axis(count, kernel),))
            read = range(first, first + count + kernel - 1)
            inputs = np.ascontiguousarray(np.take(given.a, read, axis))
            own = testing.Operands(inputs, given.b, None, None, np.zeros(part.x_shape, BFLOAT16))
            mine = np.moveaxis(testing.compute(engine, part, own), axis, 0)
            assert mine.tobytes() == result[first : first + count].tobytes(), (first, count)


# The tests are tested -----------------------------------------------------------------------------


def subnormal_numbers_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operations, "_flushed", lambda f, value: value)


def second_of_a_pair_with_bits_of_the_first(patch: pytest.MonkeyPatch) -> None:
    def halves(f, pairs):
        kind = pairs.type.replace(I32, FLOAT)
        return f.convert("bitcast", pairs << 16, kind), f.convert("bitcast", pairs, kind)

    patch.setattr(operations, "_halves", halves)


@pytest.mark.parametrize(
    "fault", [subnormal_numbers_count, second_of_a_pair_with_bits_of_the_first]
)
def test_a_planted_fault_is_caught(fault, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_tests() -> None:
        test_the_order_of_sums_of_one_product("")
        test_subnormal_numbers_are_zero("")

    caches = product_code, tile_code
    fault(monkeypatch)
    for cache in caches:
        cache.cache_clear()
    try:
        with pytest.raises(AssertionError):
            all_tests()
    finally:
        for cache in caches:
            cache.cache_clear()
