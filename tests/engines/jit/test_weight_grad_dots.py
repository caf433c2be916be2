"""Weight gradients by dot products of pairs of bfloat16 along positions."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

import llvmlite.binding as llvm

from tests.support.held_kernels import Held
from upconv import testing
from upconv.engines.base import ranked
from upconv.engines.interior import Interior
from upconv.engines.jit import transpose
from upconv.engines.jit.compile import assembly
from upconv.engines.jit.cpu import _KNOWN, Cpu, host, target
from upconv.engines.jit.emit import Module
from upconv.engines.jit.engine_limits import too_much
from upconv.engines.jit.values import BFLOAT, FLOAT
from upconv.engines.jit.weight_grad import driver
from upconv.engines.jit.weight_grad import tile as weight_grad_tile
from upconv.engines.jit.weight_grad.candidates import DOTS, FLOATS, candidates
from upconv.engines.jit.weight_grad.primitive import WeightGrad
from upconv.engines.jit.weight_grad.tile import Tile
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem

needs_dots = pytest.mark.skipif(not host().dots, reason="this processor has no such instructions")
BFLOAT16 = DType.BFLOAT16.numpy
COPY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)


def engine(variant: str) -> Held:
    """The kernel with its products chosen."""
    return Held(variant, lambda problem, threads: WeightGrad(problem, threads, host(), variant))


def interior(problem: Problem) -> Problem | None:
    inner = Interior.of(problem, margins=True, points=False).problem
    return None if inner is None or too_much(inner) else inner


def layer(axes: tuple[Axis, ...], channels: tuple[int, int], groups: int = 1) -> Problem:
    return Problem(Direction.WEIGHT_GRAD, axes, 2, *channels, groups, dtype=DType.BFLOAT16)


@needs_dots
@pytest.mark.parametrize("variant", [DOTS, FLOATS])
def test_cases_of_every_kind(variant: str) -> None:
    cases = [case for case in testing.cases() if case.direction is Direction.WEIGHT_GRAD]
    for case in cases[variant == FLOATS :: 5]:
        problem = interior(case.replace(dtype=DType.BFLOAT16))
        if problem is not None:
            testing.check(engine(variant), problem, threads=2)


@needs_dots
@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_odd_positions_of_every_stride(stride: int, layout: DataLayout) -> None:
    """Runs of each parity begin at positions of each parity; one channel to many, and depthwise."""
    for size in (1, 6, 17):
        for channels, groups in (((3, 17), 1), ((40, 5), 1), ((6, 6), 6)):
            axes = (Axis(3, 2, 1), Axis(size, 5, stride, 1, 1, 1))
            problem = interior(layer(axes, channels, groups).replace(layout=layout))
            assert problem is not None
            testing.check(engine(DOTS), problem, threads=2)


@needs_dots
def test_what_lies_behind_an_odd_position_does_not_count() -> None:
    """Not even NaN: the pair of a row's last position is that position and the next row's first."""
    problem = layer((Axis(4, 1), Axis(5, 3, 2, 1, 1, 1)), (20, 20))
    for layout in DataLayout:
        laid = problem.replace(layout=layout)
        given = testing.operands(laid)
        x = given.b if layout is DataLayout.NCX else np.moveaxis(given.b, -1, 1)
        g = given.a if layout is DataLayout.NCX else np.moveaxis(given.a, -1, 1)
        g[0, :, 1, 0], x[0, :, 1, 0] = 0, np.nan  # met by the tap that reads g's first position
        result = testing.compute(engine(DOTS), laid, given).astype(np.float32)
        wanted = testing.expected(laid, given).value
        assert np.array_equal(np.isnan(result), np.isnan(wanted))
        x[0, :, 1, 0] = 0
        g[0, :, 2, -1] = np.nan
        result = testing.compute(engine(DOTS), laid, given).astype(np.float32)
        assert np.isnan(result).any(axis=(0, 1)).ravel().sum() == 1, "of the one tap that meets it"


@needs_dots
@pytest.mark.parametrize("bits", [0, 0xFFFF0000, 0xFFFFFFFF])
def test_a_wrong_mask_is_caught(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = weight_grad_tile.Value
    monkeypatch.setattr(
        weight_grad_tile,
        "Value",
        lambda kind, name, *more: original(kind, str(bits) if name == "65535" else name, *more),
    )
    weight_grad_tile.tile_code.cache_clear()
    try:
        with pytest.raises(AssertionError):
            test_odd_positions_of_every_stride(2, DataLayout.NCX)
    finally:
        weight_grad_tile.tile_code.cache_clear()


@pytest.mark.parametrize("stored", [BFLOAT, FLOAT])
@pytest.mark.parametrize("beside", [1, 2, 5, 40])
def test_pairs_of_both_layouts(stored: str, beside: int) -> None:
    """On this machine's vectors, whatever they are; random bits would hide nothing."""
    rng = np.random.default_rng(3)
    for rows, columns in ((1, 1), (3, 37), (16, 16), (17, 33), (40, 90)):
        numbers = rng.standard_normal((rows, columns)).astype(np.float32)
        source = numbers if stored == FLOAT else numbers.astype(BFLOAT16)
        rounded = source.astype(BFLOAT16).view(np.uint16).astype(np.uint32)
        pairs = np.zeros((columns, rows), np.uint32)
        code = transpose.transpose_pairs_code(stored, beside, host()).addresses["transpose"]
        item = source.itemsize
        COPY(code)(pairs.ctypes.data, source.ctypes.data, rows, columns, columns * item, rows * 4)
        known = max(0, columns - beside)
        assert np.array_equal(pairs & 0xFFFF, rounded.T)
        assert np.array_equal(pairs[:known] >> 16, rounded.T[beside:])
        lines, width = np.ascontiguousarray(source.T), -(-rows // 64) * 64
        pairs = np.ones((columns + 1, width), np.uint32)
        code = driver.copy_code(stored, "i32", beside, host()).addresses["copy"]
        COPY(code)(pairs.ctypes.data, lines.ctypes.data, rows, columns, rows * item, width * 4)
        assert np.array_equal(pairs[:columns, :rows] & 0xFFFF, rounded.T)
        assert np.array_equal(pairs[:known, :rows] >> 16, rounded.T[beside:])
        assert not pairs[:columns, rows:].any()


@pytest.mark.parametrize("name", ["x86-64", "haswell", "skylake-avx512", "znver4"])
@pytest.mark.parametrize("stored", [BFLOAT, FLOAT])
def test_pairs_call_no_library(name: str, stored: str) -> None:
    """For processors that need not be here: its address would be 0."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    cpu = target("x86_64-unknown-linux-gnu", name, "", _KNOWN[name])
    for emit, types in (
        (transpose.transpose_pairs_code, (stored, 1)),
        (driver.copy_code, (stored, "i32", 1)),
    ):
        module = Module(cpu)
        emit.__wrapped__.__wrapped__(module, *types, cpu)
        assert "call" not in assembly(module, cpu)


def znver4() -> Cpu:
    features = {"avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bf16"}
    return target("x86_64-unknown-linux-gnu", "znver4", "", features)


def test_two_positions_take_one_instruction_for_each_sum() -> None:
    """For a processor that need not be here, and nothing goes to the stack."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = Module(znver4())
    tile = Tile("float", 16, 1, 6, 4, dots=2.0)
    with module.function("tile", weight_grad_tile.TILE) as f:
        weight_grad_tile._emit_tile(f, tile)
    text = assembly(module, znver4())
    blocks = [block for block in text.split(".LBB") if "vdpbf16ps" in block]
    assert len(blocks) == 2, "of pairs, and of a last position alone"
    for block in blocks:
        assert block.count("vdpbf16ps") == 24
        assert "Spill" not in block
        assert "Reload" not in block


@pytest.mark.parametrize(("dots", "first"), [(2.0, DOTS), (0.5, FLOATS)])
def test_the_faster_products_are_first(dots: float, first: str) -> None:
    problem = layer((Axis(32, 4, 2, 1, 1, 1),) * 2, (64, 64))
    cpu = replace(znver4(), dots=dots)
    listed = ranked(candidates(problem, 1, cpu))
    assert listed[0].variant == first
    assert {each.variant for each in listed} == {DOTS, FLOATS}
    single = candidates(problem.replace(dtype=DType.FLOAT32), 1, cpu)
    assert [each.variant for each in single] == [""]
