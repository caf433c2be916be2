"""The tables of the channels kernel: read, replayed in NumPy, and bounded."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from upconv import testing
from upconv.engines.jit.channels import primitive as channels_module
from upconv.engines.jit.channels import walks
from upconv.engines.jit.channels.driver import PASS, SPAN
from upconv.engines.jit.channels.form import ChannelsLast
from upconv.engines.jit.channels.primitive import Channels
from upconv.engines.jit.channels.walks import Walk
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import VARIABLE, host
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

CASES = list(
    dict.fromkeys(
        case.replace(layout=DataLayout.NXC, dtype=DType.FLOAT32, epilogue=Epilogue())
        for case in testing.cases()
        if case.direction is Direction.FORWARD and 0 not in case.y_shape and not case.accumulate
    )
)


@dataclass(frozen=True, slots=True)
class Tile:
    """What a row of each table says about some points: all that a tile is given."""

    run: Any
    row: Any
    step: Any
    points: Any  # (arrays, points)
    lanes: Any  # to be stored, of each point


def tiles(walk: Walk) -> list[Tile]:
    """Every pass of every run, with its points, as the native steps take them."""
    tables, found = walk.tables, []
    (phase,) = [phase for phase in walk.phases if phase.code == walk.passes.codes.steps["passes"]]
    for row in phase.outer:
        for run in tables["runs"]:
            for step in tables["passes"][
                row["start"] // PASS.itemsize : row["stop"] // PASS.itemsize
            ]:
                span = tables["spans"][(run["spans"] + step["span"]) // SPAN.itemsize]
                stride, first = span["stride"] // 8, span["points"] // 8
                rank = len(tables["sizes"]) // len(set(tables["runs"]["sizes"].tolist()))
                index = first + stride * np.arange(3 + rank)[:, None] + np.arange(span["count"])
                clear = np.arange(span["count"]) < span["clear"]
                lanes = np.where(clear, step["active"], step["clip"])
                found.append(Tile(run, row, step, tables["points"][index], lanes))
    return found


def walk_of(problem: Problem) -> Walk:
    """The only walk of channels-last data."""
    ((walk, *offsets),) = Channels(Correlation.of(problem), 2, host())._spatial.blocks
    assert not any(offsets)
    return walk


@pytest.fixture(params=["whole", "in spatial blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "whole":
        monkeypatch.setattr(channels_module, "_MOST_POINTS", 4)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("cpu", ["skylake-avx512", "x86-64"])
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_every_output_is_written_once(
    problem: Problem, cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, cpu)
    written = np.zeros(np.prod(problem.y_shape), np.int64)
    for tile in tiles(walk_of(problem)):
        if tile.step["last"]:
            first = (tile.run["y"] + tile.row["y"] + tile.step["y"] + tile.points[1]) // 4
            for start, lanes in zip(first, tile.lanes, strict=True):
                written[start : start + lanes] += 1
    assert (written == 1).all()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_replayed_in_numpy_it_is_the_definition(problem: Problem) -> None:
    primitive = Channels(Correlation.of(problem), 2, host())
    walk, data = walk_of(problem), primitive._spatial.blocks[0].walk.data
    given = testing.operands(problem)
    packed = primitive.pack(given.b)[: primitive.order.nbytes // 4]
    x, w = given.a.ravel().astype("f8"), packed.astype("f8")
    y = np.full(np.prod(problem.y_shape), np.nan)
    bias = primitive._by_channel(given.bias, None)
    tables, stage = walk.tables, dict[tuple[int, ...], Any]()
    for tile in tiles(walk):
        step, width = tile.step, tile.step["w_tap"] // 4 // (problem.in_channels // problem.groups)
        first = (tile.run["y"] + tile.row["y"] + step["y"] + tile.points[1]) // 4
        key = (
            int(tile.run["y"]),
            int(tile.run["spans"]),
            int(step["span"]),
            int(tile.row["y"] + step["y"]),
        )
        start = (tile.row["bias"] + step["bias"]) // 4
        sums = np.tile(bias[start : start + width].astype("f8"), (len(first), 1))
        sums = stage[key] if step["resumed"] else sums
        sizes = tables["sizes"][tile.run["sizes"] // 8 :]
        for tap in range(step["ntaps"]):
            record = tables["taps"][step["taps"] // 8 + tap * (step["record"] // 8) :]
            masks = step["record"] // 8 - 1 - problem.rank
            shifts = record[1 + masks : 1 + masks + problem.rank]
            coordinates = tile.points[3:] - shifts[:, None]
            inside = ((coordinates >= 0) & (coordinates < sizes[: problem.rank, None])).all(0)
            offsets = (tile.run["x"] + tile.row["x"] + step["x"] + tile.points[0] + record[0]) // 4
            for channel in range(step["channels"]):
                at = (tile.row["w"] + step["w"] + tap * step["w_tap"]) // 4 + channel * width
                weights = w[at : at + width]
                for point in np.flatnonzero(inside):
                    sums[point] += weights * _inputs(x, offsets[point] + channel, data, width)
        stage[key] = sums
        if step["last"]:
            for start, lanes, total in zip(first, tile.lanes, sums, strict=True):
                y[start : start + lanes] = total[:lanes]
    wanted = testing.expected(problem, given)
    assert (abs(y.reshape(problem.y_shape) - wanted.value) <= wanted.allowed).all()


def _inputs(x: Any, first: int, data: Any, width: int) -> Any:
    """What meets the lanes: one input, or where channels have weights of their own the inputs
    from one on."""
    if not data.form.cut.lanes.depthwise:
        return x[first]
    multiplier = data.form.cut.lanes.multiplier
    inputs = x[first : first + width // multiplier]
    return np.repeat(np.pad(inputs, (0, width // multiplier - len(inputs))), multiplier)


def test_every_position_is_transposed_once() -> None:
    problem = Problem(Direction.FORWARD, (Axis(40, 4, 2), Axis(33, 4, 2)), 2, 70, 21)
    primitive = Channels(Correlation.of(problem), 2, host())
    data = ChannelsLast(primitive.correlation, primitive._spatial.blocks[0].walk.data.form)
    for plain in (True, False):
        shapes = (problem.x_shape, data.form.x_bytes), (problem.y_shape, data.form.y_bytes)
        tables = walks.transposing(data, 2, plain=plain)
        for (shape, item), (stretches, parts) in zip(shapes, tables, strict=True):
            count = np.zeros(shape, np.int64).reshape(*shape[:2], -1)
            last = np.zeros(count.size, np.int64)
            for part in parts:
                for stretch in stretches:
                    start = stretch["first"] // 4
                    positions = slice(start, start + stretch["positions"])
                    channels = slice(part["channel"], part["channel"] + part["channels"])
                    count[part["image"], channels, positions] += 1
                    for position in range(stretch["positions"]):
                        at = (part["last"] + stretch["last"]) // item + position * shape[1]
                        last[at : at + part["channels"]] += 1
            assert (count == 1).all()
            assert (last == 1).all()


@pytest.mark.parametrize("layout", DataLayout)
def test_tables_are_bounded(layout: DataLayout) -> None:
    """They grow with blocks and with the points of a spatial block, not with their product, nor
    with the size of the data."""

    def tables(size: int, channels: int) -> dict[str, int]:
        axes = (Axis(size, 4, 2, 1, 1, 1),) * 2
        problem = Problem(Direction.FORWARD, axes, 1, 64, channels, layout=layout)
        primitive = Channels(Correlation.of(problem), 2, host())
        return {n: t.nbytes for n, t in primitive._spatial.blocks[0].walk.tables.items()}

    small, large, wide = tables(128, 64), tables(1024, 64), tables(128, 1024)
    assert large["points"] <= 2 << 20
    assert large["passes"] == small["passes"]
    assert wide["points"] <= 2 * small["points"]
    assert wide["spans"] <= 1 << 10
    assert wide["passes"] <= 40 * small["passes"]
