"""The tables of the positions kernel, gone through by NumPy: every input position that
taps read is packed, and every output position is written, from its own position."""

import time
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from tests.support.random_problems import case
from upconv.engines import load
from upconv.engines.jit import cpu as cpus
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import Cpu
from upconv.engines.jit.engine_limits import too_much
from upconv.engines.jit.positions import schedule as schedules
from upconv.engines.jit.positions.limits import refusal
from upconv.engines.jit.positions.placement import Placement
from upconv.engines.jit.positions.schedule import (
    Schedule,
    predicted_cycles,
    schedule,
)
from upconv.engines.jit.positions.tables import (
    InputRows,
    block_table,
    job_table,
    packing_tables,
    tap_table,
)
from upconv.engines.jit.positions.tiling import stores
from upconv.engines.jit.values import BYTES
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem

AVX512 = Cpu("x86_64-unknown-linux-gnu", "skylake-avx512", "", 64, 32, True, True)
SSE2 = Cpu("x86_64-unknown-linux-gnu", "x86-64", "", 16, 16, False, False)
CPUS = AVX512, replace(AVX512, l2=4096), SSE2, replace(SSE2, l2=2048)


def layer(seed: int) -> tuple[Correlation, Schedule] | None:
    """A random layer and a schedule, in which tiles start anew after 0, 1 or 3 rows."""
    drawn = case(seed)
    problem = drawn.problem.replace(layout=DataLayout.NCX)
    if prod(problem.y_shape) == 0 or problem.direction is Direction.WEIGHT_GRAD:
        return None
    correlation = Correlation.of(problem)
    if too_much(problem) or refusal(correlation):
        return None
    plan = schedules.schedule(correlation, drawn.threads, CPUS[seed % len(CPUS)])
    if plan.span_rows and not seed % 3:
        plan = replace(plan, span_rows=3)
    return correlation, plan


def long_row(seed: int) -> tuple[Correlation, Schedule]:
    """A layer of long rows, most of which are read in place."""
    rng = np.random.default_rng(seed)
    kernel, stride, dilation, batch = (int(rng.integers(1, n)) for n in (8, 4, 3, 4))
    crops, channels = rng.integers(0, 3, 2).tolist(), int(rng.integers(1, 9))
    direction = Direction.INPUT_GRAD if seed % 2 else Direction.FORWARD
    stride = 1 if seed % 2 else stride
    axis = Axis(int(rng.integers(1000, 1500)), kernel, stride, dilation, *crops)
    dtype = DType.FLOAT64 if seed % 5 == 0 else DType.FLOAT32
    problem = Problem(direction, (axis,), batch, channels, 1 + seed % 2 * channels, dtype=dtype)
    if seed % 3 == 0:  # then results pass through the stage
        problem = problem.replace(accumulate=True)
    correlation = Correlation.of(problem)
    cpu = replace(CPUS[seed % len(CPUS)], l2=1 << 19)
    return correlation, schedules.schedule(correlation, 1 + seed % 5, cpu)


LAYERS = {seed: found for seed in range(300) if (found := layer(seed))}
LONG_ROWS = {seed: long_row(seed) for seed in range(1000, 1060)}
LAYERS |= LONG_ROWS


def coordinates(counts: tuple[int, ...]) -> list[np.ndarray]:
    return [index.ravel() for index in np.indices(counts)]


# Packing ------------------------------------------------------------------------------------------


def test_long_rows_are_read_in_place() -> None:
    """All but the blocks at the rows' ends, in most layers: few results, which read rows once."""
    shares = [len(plan.in_place) / plan.cache_blocks for _, plan in LONG_ROWS.values()]
    assert sum(share >= 3 / 4 for share in shares) >= len(shares) // 3


@pytest.mark.parametrize("seed", LONG_ROWS)
def test_tiles_of_blocks_in_place_read_one_row(seed: int) -> None:
    correlation, plan = LONG_ROWS[seed]
    placement, padded = Placement(correlation, plan), plan.padded
    element, itemsize = correlation.dtype.accumulator.numpy.itemsize, correlation.dtype.itemsize
    blocks = packing_tables(correlation, plan, element)["cache_blocks"]
    spans, tiles = placement.tables["spans"], placement.tables["tiles"]
    for number in plan.in_place:
        start = number * plan.cache_block
        row = start // padded.row_stride * padded.row_stride
        assert blocks["image"][number] == start // padded.row_stride
        assert blocks["x"][number] == (start - plan.halo_before - row) * itemsize
        for first, count in placement.ranges[number].reshape(-1, 2):
            for span in spans[first : first + count]:
                for run in tiles[span["tiles"] :][: span["tile_count"]]:
                    tile = plan.tiles[0].narrowed(1) if run["tail"] else plan.tiles[0]
                    begin = start + (span["x"] + run["x"]) // element
                    stop = begin + run["count"] * tile.width + tile.cuts * tile.lanes
                    assert begin - padded.high >= row
                    assert stop - padded.low <= row + padded.last.size


@pytest.mark.parametrize("seed", list(LAYERS)[::2])
def test_segments_are_the_padded_positions(seed: int) -> None:
    """Each part of the buffer holds, position by position, the input or zero."""
    correlation, plan = LAYERS[seed]
    element, itemsize = correlation.dtype.accumulator.numpy.itemsize, correlation.dtype.itemsize
    tables, rows = packing_tables(correlation, plan, element), InputRows.of(correlation, plan)
    before, image_bytes = plan.halo_before, prod(correlation.operand_size) * itemsize
    # Of each padded position of all images the byte of the batch, -1 where there is none.
    padded = np.full((correlation.batch, *plan.padded.sizes), -1)
    numbers = np.arange(correlation.batch * prod(correlation.operand_size)) * itemsize
    inside = tuple(slice(size) for size in correlation.operand_size)
    padded[:, *inside] = numbers.reshape(correlation.batch, *correlation.operand_size)
    reach = plan.buffer_positions + plan.padded.total + abs(before)
    expected = np.full(2 * reach + padded.size, -1)
    expected[reach : reach + padded.size] = padded.ravel()
    for number, part in enumerate(tables.get("parts", tables["cache_blocks"])):
        if part["in_place"]:
            assert part["segments"] == 0
            continue
        packed: dict[int, int] = {}
        for segment in tables["segments"][part["segment"] :][: part["segments"]]:
            for row in range(segment["rows"]):
                to = int(segment["to"]) // element + row * rows.stride
                image = segment["image"] + row * rows.image_row
                src = int(image * image_bytes + segment["x"] + row * rows.x_row)
                for i in range(segment["count"] + segment["zeros"]):
                    assert to + i not in packed
                    packed[to + i] = src + i * itemsize if i < segment["count"] else -1
        first = part["x"] // element if plan.shared else number * plan.cache_block
        stop = min(first + plan.cache_block, plan.padded.total)
        count = stop - first + before + plan.halo_after
        if plan.shared:
            size = np.diff(np.append(tables["parts"]["x"] // element, plan.buffer_positions))
            count = size[number]
        assert sorted(packed) == list(range(count))
        first += reach - before
        assert [packed[i] for i in range(count)] == expected[first : first + count].tolist()


@pytest.mark.parametrize("seed", list(LAYERS)[::8])
def test_taps_read_what_is_packed(seed: int) -> None:
    """No tile reads before the halo before its cache block, nor behind the halo after it."""
    correlation, plan = LAYERS[seed]
    element = correlation.dtype.accumulator.numpy.itemsize
    taps = tap_table(plan, element) // element
    shifts = [step.shift for tile in plan.tiles for step in tile.steps]
    if not len(taps) or not shifts:
        return
    assert taps.min() - max(shifts) >= 0
    # The last tile begins before the last position.
    assert taps.max() - min(shifts) + plan.tiles[0].width <= plan.halo_before + plan.halo_after


# Tiles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", LAYERS)
def test_every_output_once_from_its_position(seed: int) -> None:
    """Each tile writes which position, phase and phase tuple it has; the others write nothing.

    Twice only where the last tiles of a row compute neighbours' results again, and none are added.
    """
    correlation, plan = LAYERS[seed]
    itemsize = correlation.dtype.itemsize
    placement = Placement(correlation, plan)
    blocks = block_table(plan, placement.classes, itemsize)
    size = correlation.batch * prod(correlation.result_size)
    written = np.zeros(size, int)
    values = np.full((2, size), -1)
    channel = blocks[blocks["channel"] == 0]
    kinds = [plan.tiles[b.kind] for b in plan.blocks if b.channel == 0]
    for (t, phases), (block, tile) in (
        (p, b) for p in enumerate(placement.phase_tuples) for b in zip(channel, kinds, strict=True)
    ):
        first_phase = int(block["y"]) // itemsize
        for to, position, phase in replayed(correlation, plan, placement, phases, block, tile):
            at = to // itemsize
            assert not (to % itemsize).any()
            assert at.size == np.unique(at).size
            written[at] += 1
            values[:, at] = position, t * plan.padded.last.stride + first_phase + phase
    assert written.min() >= 1
    assert written.max() <= (2 if stores(correlation) else 1)
    np.testing.assert_array_equal(values, expected_values(correlation, plan))


def expected_values(correlation: Correlation, plan: Schedule) -> np.ndarray:
    """The padded position and the phases of all axes that each output is of."""
    image, *outputs = coordinates((correlation.batch, *correlation.result_size))
    position, phase = image, np.zeros_like(image)
    for line, count, output in zip(correlation.lines, plan.padded.sizes, outputs, strict=True):
        position = position * count + output // line.stride
        phase = phase * len(line.phases) + output % line.stride
    last = correlation.lines[-1]
    phase = phase - outputs[-1] % last.stride
    phase = phase // len(last.phases) * last.stride + outputs[-1] % last.stride
    return np.stack([position, phase])


def replayed(correlation, plan, placement, phases, block, tile):
    """What each tile writes: bytes in y of a channel, padded positions, phases of the tile."""
    element, itemsize = correlation.dtype.accumulator.numpy.itemsize, correlation.dtype.itemsize
    tables, stride = placement.tables, plan.padded.last.stride
    image_bytes = prod(correlation.result_size) * itemsize
    number = int(phases["rows"] + block["phases"])
    for i, ranges in enumerate(placement.ranges.reshape(plan.cache_blocks, -1, 2)):
        first, count = ranges[number]
        for span in tables["spans"][first : first + count]:
            for n in range(span["count"]):
                x = span["x"] // element + n * plan.span_rows * plan.padded.row_stride
                image = int(span["image"]) + n * placement.span_image
                base = int(phases["y"] + block["y"] + span["y"]) + n * placement.span_y
                for tiles in tables["tiles"][span["tiles"] :][: span["tile_count"]]:
                    width = tile.lanes if tiles["tail"] else tile.width
                    start = i * plan.cache_block + x + tiles["x"] // element
                    stop = min((i + 1) * plan.cache_block, plan.padded.total)
                    for k in range(tiles["count"]):
                        q = start + k * width
                        assert q < stop, "the halo after a cache block is what a tile may read"
                        along = k * width * stride * itemsize
                        pieces = tables["pieces"][tiles["pieces"] :][: tiles["piece_count"]]
                        if not len(pieces):
                            lane, phase = coordinates((width, tile.phases))
                            to = base + tiles["y"] + (image + tiles["image"]) * image_bytes + along
                            yield to + (lane * stride + phase) * itemsize, q + lane, phase
                        for piece in pieces:
                            run, e = coordinates((piece["runs"], piece["length"]))
                            staged = piece["stage"] // BYTES[tile.stored] + run * tile.phases + e
                            assert staged.max() < width * tile.phases
                            to = base + piece["y"] + (image + piece["image"]) * image_bytes + along
                            lane, phase = np.divmod(staged, tile.phases)
                            yield to + (run * stride + e) * itemsize, q + lane, phase


# Bounds -------------------------------------------------------------------------------------------


def placement_bytes(correlation: Correlation, plan: Schedule) -> int:
    """Bytes of all tables but those of blocks, taps and jobs."""
    placement = Placement(correlation, plan)
    element = correlation.dtype.accumulator.numpy.itemsize
    packing = packing_tables(correlation, plan, element).values()
    tables = [*placement.tables.values(), placement.ranges, *packing]
    return sum(table.nbytes for table in tables)


def allowed(correlation: Correlation) -> int:
    """128 KiB, or a 64th of the operands."""
    shapes = correlation.operand_shape, correlation.result_shape
    return max(1 << 17, sum(map(prod, shapes)) * correlation.dtype.itemsize // 64)


@pytest.mark.parametrize("seed", LAYERS)
def test_tables_of_random_layers_are_small(seed: int) -> None:
    assert placement_bytes(*LAYERS[seed]) <= allowed(LAYERS[seed][0])


HUGE = {
    "an image": ((2, 2), (3000, 2000), 3, 1),
    "narrow images": ((2, 2), (3000, 17), 1, 16),
    "a narrow batch": ((2,), (5,), 1, 50_000),
    "many channels": ((2, 2), (64, 64), 2048, 1),
    "a sound": ((4,), (3_000_000,), 1, 1),
    "many sounds": ((2,), (40_000,), 256, 4),
    "a volume": ((2, 2, 2), (120, 120, 120), 2, 1),
    "small volumes": ((2, 2, 2), (7, 7, 7), 32, 64),
    "four axes": ((2, 1, 2, 1), (20, 20, 20, 20), 4, 1),
    "cropped": ((4, 4), (700, 9), 4, 4),
}


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("shape", HUGE)
def test_tables_of_huge_layers_are_small(shape: str, threads: int) -> None:
    strides, sizes, channels, batch = HUGE[shape]
    axes = tuple(
        Axis(size, stride + 2, stride, 1, 1, 1) for size, stride in zip(sizes, strides, strict=True)
    )
    problem = Problem(Direction.FORWARD, axes, batch, channels, channels)
    correlation = Correlation.of(problem)
    for cpu in (AVX512, replace(SSE2, l2=256 << 10)):
        plan = schedules.schedule(correlation, threads, cpu)
        assert placement_bytes(correlation, plan) <= allowed(correlation), plan


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("stride", [1, 4])
def test_a_long_row_has_few_records(stride: int, threads: int) -> None:
    """Full tiles side by side are one record, and a few end the row."""
    for size in (1 << 14, 1 << 27):
        axis = Axis(size, stride + 2, stride, 1, 1, 1)
        correlation = Correlation.of(Problem(Direction.FORWARD, (axis,), 1, 64, 64))
        plan = schedules.schedule(correlation, threads, AVX512)
        tiles = Placement(correlation, plan).tables["tiles"]
        assert len(tiles) <= plan.cache_blocks + 3
        assert tiles["count"].sum() * plan.tiles[0].width >= size


def test_a_stride_of_a_million_is_refused_at_once() -> None:
    """Planning a million phases took half a minute; libdnnl or NumPy compute such a layer."""
    problem = Problem(Direction.FORWARD, (Axis(3, 3, 1 << 20),), 1, 2, 2)
    start = time.process_time()
    assert "phases along the last axis" in str(load("jit").refuses(problem))
    assert time.process_time() - start < 1


def test_tables_of_tiles_do_not_grow_with_channels() -> None:
    """Rows and blocks are in tables of their own."""
    sizes = []
    for channels in (256, 1024):
        problem = Problem(Direction.FORWARD, (Axis(30, 4, 2), Axis(31, 4, 2)), 1, 8, channels)
        correlation = Correlation.of(problem)
        plan = schedules.schedule(correlation, 1, AVX512)
        jobs = job_table(correlation, plan, 0)
        assert len(jobs) <= len(plan.blocks)
        sizes.append(placement_bytes(correlation, plan))
    assert sizes[0] == sizes[1]


def test_threads_divide_a_single_row_unless_the_weight_is_larger() -> None:
    """A row of a pointwise layer; of 2 threads, each reads a part of the input."""
    known = cpus.target("x86_64-unknown-linux-gnu", "haswell", "", cpus._KNOWN["haswell"])
    cpu = replace(known, l2=2 << 20)
    for size, channels, divided in ((3136, 64, True), (49, 512, False)):
        axes = (Axis(size, 1),)
        problem = Problem(Direction.FORWARD, axes, 1, channels, channels)
        correlation = Correlation.of(problem)
        assert correlation.has_larger_weight != divided
        one, two = (schedule(correlation, threads, cpu) for threads in (1, 2))
        assert one.cache_blocks == 1
        assert (two.cache_blocks > 1) == divided
        costs = [predicted_cycles(correlation, plan, cpu) for plan in (one, two)]
        assert costs[1] == costs[0] / 2
