"""The tables of the tile kernel, replayed in NumPy: what is packed, which products, which results.

Memory is floats with NaN wherever nothing was written, so that a read from there is seen.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tests.engines.jit.test_tiles import LAYERS, layer, layers_without_zeros, pointwise, variations
from tests.support.repeating import seeds
from tests.support.tile_engines import TileEngine, random_layers
from upconv import testing
from upconv.engines import load
from upconv.engines.jit.kernel_choice import interior_of
from upconv.engines.jit.tiles.driver import CHUNK, TILE
from upconv.engines.jit.tiles.placement import InPlace
from upconv.engines.jit.tiles.primitive import Tiles
from upconv.engines.jit.tiles.tables import Packed
from upconv.engines.jit.tiles.tile import tile_code
from upconv.engines.jit.tiles.walks import Walk
from upconv.geometry import Axis
from upconv.problem import NO_EPILOGUE, DataLayout, Direction, DType, Problem

Numbers = np.ndarray[Any, Any]
NXC = DataLayout.NXC
BFLOAT16 = DType.BFLOAT16.numpy
LINE = 32  # numbers of bfloat16 in a row of a tile


def replayed(
    problem: Problem, engine: TileEngine, given: testing.Operands, *, aligned: bool
) -> Numbers:
    """The result in float64, every element of which one tile writes."""
    kernel = engine.kernel(problem, 2)
    weights = kernel.pack(given.b)[: kernel.order.nbytes // 2].view(BFLOAT16).astype("f8")
    bias = kernel._by_channel(given.bias, None)
    first = problem.layout is not NXC
    x = given.a.astype(BFLOAT16).astype("f8")  # as packing rounds
    x = np.moveaxis(x, 1, -1) if first else x
    correlation = kernel.correlation
    result = np.full((problem.batch, *correlation.result_size, correlation.made), np.nan)
    for walk, image, start, to in _blocks(kernel, aligned):
        correlation = walk.operand.correlation
        images = slice(image, image + correlation.batch)
        source = x[images, start : start + correlation.lines[0].size]
        operand = _operand(walk, source)
        part = np.full((*source.shape[:1], *correlation.result_size, correlation.made), np.nan)
        multiply(walk, operand.reshape(-1), weights, bias, part.reshape(-1))
        assert np.isfinite(part).all(), "an element that nothing writes, or that reads NaN"
        result[images, to : to + correlation.lines[0].out] = part
    return np.moveaxis(result, -1, 1) if first else result


def _blocks(kernel: Tiles, aligned: bool) -> Iterator[tuple[Walk, int, int, int]]:
    """Walks, first images, and first inputs and outputs along the first axis."""
    c = kernel.correlation
    last = c.layout is NXC
    x_row, y_row = (
        prod(size[1:]) * c.dtype.itemsize * (channels if last else 1)
        for size, channels in ((c.operand_size, c.reduced), (c.result_size, c.made))
    )
    for walk, image, x, y in kernel._spatial[-1 if aligned else 0].blocks:
        yield walk, image, x // x_row, y // y_row


def _operand(walk: Walk, source: Numbers) -> Numbers:
    """What products read: the operand as it lies, or packed."""
    if isinstance(walk.operand, InPlace):
        return source
    return packed(walk, source)


def packed(walk: Walk, source: Numbers) -> Numbers:
    """The packed operand of channels-last data; what is written twice is an error."""
    operand, tables = walk.operand, walk.tables
    assert isinstance(operand, Packed)
    memory = np.full(operand.nbytes // 2, np.nan)
    (phase,) = (phase for phase in walk._listed if phase.inner.dtype == CHUNK)
    flat = source.reshape(len(source), -1, source.shape[-1])
    for block in phase.outer:
        for chunk in phase.inner:
            stop = chunk["position"] + chunk["count"]
            lines = flat[block["image"], chunk["position"] : stop]
            for number in range(block["blocks"]):
                channel, place = block["channel"] + LINE * number, number * operand.block_bytes
                there, room = int(block["channels"]), int(block["room"])
                line = np.zeros((len(lines), room))
                line[:, :there] = lines[:, channel : channel + there]
                for copy in tables["copies"][chunk["copies"] : chunk["copies_end"]]:
                    rows = copy["src"] + copy["step"] * np.arange(copy["count"])
                    to = block["dst"] + place + copy["dst"]
                    _write(memory, to, operand.position, line[rows])
            for number in range(block["zeros"]):
                place = number * operand.block_bytes
                for clear in tables["clears"][chunk["clears"] : chunk["clears_end"]]:
                    zeros = np.zeros((clear["count"], operand.position // 2))
                    to = block["dst"] + place + clear["dst"]
                    _write(memory, to, operand.position, zeros)
    return memory


def _write(memory: Numbers, offset: int, apart: int, lines: Numbers) -> None:
    for number, line in enumerate(lines):
        first = (offset + number * apart) // 2
        place = memory[first : first + len(line)]
        assert place.shape == line.shape
        assert np.isnan(place).all(), "packed twice"
        place[...] = line


def multiply(walk: Walk, x: Numbers, weights: Numbers, bias: Numbers, y: Numbers) -> None:
    """All products of a walk, in the tiles' order; rows that no piece takes may read anything."""
    tables = walk.tables
    phase = walk._listed[not isinstance(walk.operand, InPlace)]  # behind the packing
    assert sorted(n for run in phase.inner for n in range(run["first"], run["last"])) == [
        *range(phase.inner["last"].max(initial=0))
    ]
    for part in phase.outer:
        for row in tables["rows"][part["first"] : part["last"]]:
            first = row["tiles"] // TILE.itemsize
            for run in phase.inner:
                for tile in tables["tiles"][first + run["first"] : first + run["last"]]:
                    _multiply(walk, row, tile, (x, weights, bias, y))


def _multiply(walk: Walk, row: Any, tile: Any, arrays: tuple[Numbers, ...]) -> None:
    """One tile of positions, for all blocks of outputs of a row."""
    x, weights, bias, y = arrays
    tables, active = walk.tables, int(row["active"])
    columns = -(-active // 16)
    start = row["bias"] // 4
    sums = np.tile(bias[start : start + 16 * columns].astype("f8"), (16, 1))
    width = walk._codes.schedule.width
    lines = np.arange(16)[:, None] * (walk.operand.row_bytes // 2) + np.arange(width)
    offsets = tables["steps"][row["steps"] // 8 :][: row["count"]]
    for step, offset in enumerate(offsets):
        places = (row["x"] + tile["x"] + offset) // 2 + lines
        assert places.min() >= 0
        assert places.max() < len(x), "a read outside the operand"
        for column in range(columns):
            slab = row["w"] // 2 + (column * row["count"] + step) * 16 * LINE
            w = weights[slab : slab + 16 * LINE].reshape(16, 16, 2)
            by_input = w.transpose(0, 2, 1).reshape(LINE, 16)
            sums[:, 16 * column : 16 * column + 16] += x[places] @ by_input[:width]
    y_position = walk.operand.correlation.made
    for piece in tables["pieces"][tile["pieces"] : tile["pieces_end"]]:
        for line in range(piece["count"]):
            to = (row["y"] + piece["y"]) // walk.operand.correlation.dtype.itemsize
            jump = line * y_position * walk.operand.correlation.lines[-1].stride
            place = y[to + jump : to + jump + active]
            assert len(place) == active
            assert np.isnan(place).all(), "written twice"
            place[...] = sums[piece["row"] + line, :active]


def check(problem: Problem, number: int) -> bool:
    """Whether there was something to replay."""
    bare = problem.replace(epilogue=NO_EPILOGUE, accumulate=False)
    inner = interior_of(bare, margins=True).problem
    if load("jit").refuses(bare) or inner is None:
        return False
    given = testing.operands(inner)
    wanted = testing.expected(inner, given)
    for aligned in (True, False):
        result = replayed(inner, TileEngine.numbered("", number), given, aligned=aligned)
        assert (np.abs(result - wanted.value) <= wanted.allowed).all(), inner
    return True


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_every_kind(name: str) -> None:
    for number, problem in enumerate(variations(LAYERS[name].replace(bias=True))):
        check(problem, number)


@pytest.mark.parametrize("positions", [16, 17, 33, 47])
def test_operands_in_place(positions: int) -> None:
    for batch in (1, 2):
        check(pointwise(positions, batch), 0)


def test_random_layers() -> None:
    layers = [*random_layers(seeds(30)), *layers_without_zeros(seeds(100, 110))]
    small = [(seed, p) for seed, p, _ in layers if p.multiply_adds < 300_000]
    assert sum(check(problem, seed) for seed, problem in small) > 12


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


def test_a_table_that_is_wrong_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = LAYERS["four channels merged"]
    assert "neighbouring taps" in TileEngine().kernel(merged).description
    for problem in (LAYERS["rows of no multiple of 16"], merged):
        for name in ["chunks", "copies", "clears", "tiles", "pieces", "steps", "rows"]:
            with monkeypatch.context() as patch:
                _plant(name, patch)
                with pytest.raises((AssertionError, IndexError, ValueError)):
                    check(problem, 0)
        check(problem, 0)


def _plant(name: str, patch: pytest.MonkeyPatch) -> None:
    """The second record of a table is as the first one."""
    kernel = TileEngine.kernel

    def planted(*given: Any) -> Tiles:
        made = kernel(*given)
        for walk, *_ in (block for spatial in made._spatial for block in spatial.blocks):
            walk.tables[name][1] = walk.tables[name][0]
        return made

    patch.setattr(TileEngine, "kernel", planted)
