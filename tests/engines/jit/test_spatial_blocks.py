"""Spatial blocks: where their operands begin, and that it changes no bit who computes them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.tile_engines import L2_SMALL, TileEngine
from upconv import testing
from upconv.activations import Activation
from upconv.engines.jit import spatial_blocks
from upconv.engines.jit.channels import blocks
from upconv.engines.jit.channels import primitive as channels_module
from upconv.engines.jit.channels.blocks import Kind, SpatialBlock, halo_bytes
from upconv.engines.jit.channels.driver import ARGUMENTS
from upconv.engines.jit.channels.primitive import Channels
from upconv.engines.jit.compile import Code
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import host
from upconv.engines.jit.emit import Module
from upconv.engines.jit.tiles import primitive as tiles_module
from upconv.engines.jit.values import I64, PTR
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

NCX, NXC = DataLayout.NCX, DataLayout.NXC
ENDED = Epilogue(Activation.LEAKY_RELU, slopes=True, residual=True, second=Activation.TANH)
IMAGES = Problem(Direction.FORWARD, (Axis(9, 3, 2, 1, 1, 0), Axis(8, 3, 2, 1, 1, 0)), 5, 32, 24)
ROWS = Problem(Direction.FORWARD, (Axis(70, 4, 2, 1, 1, 1), Axis(12, 3, 1, 1, 1, 1)), 1, 16, 32)
LAYERS = {
    "images": IMAGES,
    "rows": ROWS,
    "groups, and all that may follow": ROWS.replace(groups=2, bias=True, epilogue=ENDED),
    "added to what is there": IMAGES.replace(accumulate=True),
    "input gradient": ROWS.replace(direction=Direction.INPUT_GRAD),
}


class ChannelsEngine(TileEngine):
    """The channels kernel with small caches."""

    def kernel(self, problem: Problem, threads: int = 1) -> Channels:  # type: ignore[override]
        """The kernel of a problem, all of whose outputs are its own."""
        return Channels(Correlation.of(problem), threads, self.cpu)


def engines(problem: Problem, layout: DataLayout) -> tuple[TileEngine, Problem]:
    """The tile kernel for bfloat16 data, and the channels kernel for float32."""
    kind = TileEngine if problem.dtype is DType.BFLOAT16 else ChannelsEngine
    return kind(l2=L2_SMALL), problem.replace(layout=layout)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers are cut: no block needs many positions, and halos may be large."""
    for module in (channels_module, tiles_module):
        monkeypatch.setattr(module, "_POINTS", 1)
    monkeypatch.setattr(blocks, "_HALOS", 0)
    monkeypatch.setattr("upconv.threads.WORTH_A_THREAD", 1)


CASES = [
    pytest.param(problem.replace(dtype=dtype), layout, id=f"{name}, {dtype.value} {layout.value}")
    for name, problem in LAYERS.items()
    for dtype, layout in ((DType.BFLOAT16, NCX), (DType.BFLOAT16, NXC), (DType.FLOAT32, NCX))
]


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize(("problem", "layout"), CASES)
def test_it_changes_no_bit_who_computes_a_block(
    problem: Problem, layout: DataLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, laid = engines(problem, layout)
    given = testing.operands(laid)
    results = set()
    for busy, by_thread in ((0.0, True), (2.0, False)):
        monkeypatch.setattr(blocks, "_MIN_BUSY", busy)
        kernel: Any = engine.kernel(laid, 2)
        listed = kernel._spatial if isinstance(kernel._spatial, list) else [kernel._spatial]
        assert all(len(each.blocks) > 1 for each in listed)
        assert all(each.by_thread is by_thread for each in listed)
        testing.check(engine, laid, threads=2)
        results.add(testing.compute(engine, laid, given, 2).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize(
    ("images", "rows", "threads", "count"),
    [
        (2, 9, 2, 2), (3, 9, 2, 0), (5, 9, 2, 2), (1, 9, 2, 2), (1, 33, 2, 2), (1, 33, 3, 3),
        (3, 9, 5, 0), (1, 33, 16, 0), (1, 64, 16, 16), (16, 9, 16, 16),
    ],
)  # fmt: skip
def test_blocks_are_shared_where_threads_would_be_idle(
    images: int, rows: int, threads: int, count: int
) -> None:
    """One block for each of them, or `count` is 0 and all compute all blocks."""
    axes = Axis(rows, 1), Axis(8, 3, 1, 1, 1, 1)
    correlation = Correlation.of(Problem(Direction.FORWARD, axes, images, 32, 24))
    cut = Channels(correlation, 1, host()).schedule.cut
    data = blocks.image_bytes(correlation, 4) * images
    parts, by_thread = blocks.blocks_for_threads(correlation, cut, 4, threads, data, 1, 2 * data)
    assert len(parts) == count if by_thread else count == 0


@pytest.mark.parametrize("size", [(2, 64, 64), (1, 4096), (70, 5), (33, 33)])
@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_scratch_memory_is_bounded(size: tuple[int, ...], threads: int, dtype: DType) -> None:
    """Blocks of all threads take no more than transposed data may, beside stages of tiles."""
    axes = tuple(Axis(n, 4, 2, 1, 1, 1) for n in size)
    problem = Problem(Direction.FORWARD, axes, 16, 32, 32, dtype=dtype)
    correlation = Correlation.of(problem)
    engine = TileEngine() if dtype is DType.BFLOAT16 else ChannelsEngine()
    most = blocks.transposed_bytes(correlation, threads) + threads * (1 << 20)
    assert engine.kernel(problem, threads).workspace_bytes <= 1.1 * most


def test_what_neighbours_both_read() -> None:
    def rows(kernel: int, stride: int, dilation: int = 1) -> int:
        axes = Axis(40, kernel, stride, dilation), Axis(5, 1)
        problem = Problem(Direction.INPUT_GRAD, axes, 1, 8, 8)
        return halo_bytes(Correlation.of(problem), 4) // (8 * 4 * 5)

    assert [rows(2, 2), rows(1, 2), rows(3, 2), rows(3, 1), rows(3, 1, 2)] == [0, 0, 1, 2, 4]


FIELDS = ("x", "y", "first_x", "first_y", "residual", "second", "in_channel", "w", "axes")


def test_code_places_blocks_as_its_definition() -> None:
    """A walk that writes down what it is told, behind the address of the weight."""
    module = Module(host())
    with module.function("walk", {"args": PTR}) as f:
        a = ARGUMENTS.reader(f)
        count = f.load(I64, a["w"]) + 1
        f.store(count, a["w"])
        for i, name in enumerate(FIELDS):
            number = f.load(I64, a.address(name))
            f.store(number, f.at(a["w"], count * len(FIELDS) + i, I64))
    code = Code(module, ("walk",), host())
    correlation = Correlation.of(IMAGES)
    kinds = [Kind(correlation), Kind(correlation)]
    walks: dict[Kind, Any] = {
        kind: SimpleNamespace(
            launch=SimpleNamespace(work=code.addresses["walk"]),
            template=ARGUMENTS.block(axes=axes),
            nbytes=256, resident_bytes=0, scratch_x=scratch_x, scratch_y=scratch_y,
        )
        for kind, axes, scratch_x, scratch_y in zip(kinds, (7, 8), (-1, 64), (128, -1), strict=True)
    }  # fmt: skip
    listed = [SpatialBlock(kinds[i % 2], i, 3 * i, 2 * i) for i in range(4)]
    x = np.zeros((5, 32, 9, 8), np.float32)
    y = np.zeros((5, 24, 18, 16), np.float32)
    operands: Any = SimpleNamespace(x=x, y=y, residual=y, second=4321)
    noted, scratch = np.zeros(200, np.int64), np.zeros(8192, np.int64)
    wanted = []
    for by_thread in (False, True):
        some = spatial_blocks.Spatial(correlation, listed, walks, 1, host(), by_thread=by_thread)
        address = scratch.ctypes.data
        values = {"w": noted.ctypes.data}
        for launch, bound in some.launches(operands, address, values, x.ctypes.data):
            if by_thread:
                assert some.nbytes <= scratch.nbytes
                launch.blocks.run(launch.work, 1, **bound)
            else:
                wanted.append([bound.get(name, 0) for name in FIELDS])
    got = noted[len(FIELDS) : (1 + len(listed)) * len(FIELDS)].reshape(-1, len(FIELDS))
    behind = 64 + ARGUMENTS.block().nbytes  # of the thread's memory: then comes the walk's
    for i, (numbers, expected) in enumerate(zip(got.tolist(), wanted, strict=True)):
        values = dict(zip(FIELDS, expected, strict=True)) | {"axes": 7 + i % 2}
        values["x" if i % 2 else "y"] += behind
        assert dict(zip(FIELDS, numbers, strict=True)) == values
