"""The tables of Winograd's kernel, read as the driver reads them, beside the algebra of windows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

import winograd_layers
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import Cpu, host
from upconv.engines.jit.winograd.primitive import Winograd
from upconv.engines.jit.winograd.schedule import schedules
from upconv.engines.jit.winograd.tables import Tables
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, Problem


def built(problem: Problem, cpu: Cpu | None = None, choice: int = 0) -> Winograd:
    correlation = Correlation.of(problem)
    plans = schedules(correlation, 2, cpu or host())
    return Winograd(correlation, plans[choice % len(plans)], _nothing, cpu or host())


def _nothing() -> Any:
    """Direct sums, which nothing asks for here."""


def blocks(tables: Tables) -> Iterator[tuple[Any, int, int, int]]:
    """The shape of each block, its first image, and where it begins in x and y."""
    for number in range(tables.blocks):
        shape = x = y = block = 0
        for axis in tables.arrays["axes"]:
            number, block = divmod(number, int(axis["blocks"]))
            kind = min(block, axis["low"]) + max(block - axis["high"], 0)
            shape = shape * axis["kinds"] + kind
            x, y = x + block * axis["x_step"], y + block * axis["y_step"]
        yield tables.arrays["shapes"][shape], block * tables.memory.images, int(x), int(y)


def part(table: np.ndarray, shape: Any, name: str, count: str) -> np.ndarray:
    return table[shape[name] : shape[name] + shape[count]]


def packed(tables: Tables, shape: Any, x: int, step: int) -> np.ndarray:
    """For each position of an image that is packed, the number of the operand, or -1 for zero."""
    memory, arrays = tables.memory, tables.arrays
    numbers = np.full(memory.image // memory.wide, -2)
    for at, nbytes in part(arrays["zeros"], shape, "zeros", "zero_count").tolist():
        numbers[at // memory.wide : (at + nbytes) // memory.wide] = -1
    for at, source, count in part(arrays["rows"], shape, "rows", "row_count").tolist():
        first = at // memory.wide
        assert (source + x) % step == 0
        assert (numbers[first : first + count] == -2).all(), "no row is cleared and copied"
        numbers[first : first + count] = (source + x) // step + np.arange(count)
    return numbers


@pytest.mark.parametrize("seed", range(40))
def test_tiles_read_the_operands_of_their_results(seed: int) -> None:
    """Result stride * q + base + g reads operands step * (q + low + apart * k) + start + h."""
    rng = random.Random(seed)
    problem, _ = winograd_layers.layer(seed)
    winograd = built(problem, choice=seed)
    tables, plan, correlation = winograd.tables, winograd.schedule, winograd.correlation
    memory, arrays, lines = tables.memory, tables.arrays, correlation.lines
    last = problem.layout is DataLayout.NXC
    x_step, y_step = (
        memory.item * (n if last else 1) for n in (correlation.reduced, correlation.made)
    )
    x_size, y_size = (
        [1] * (3 - len(lines)) + n for n in ([a.size for a in lines], [a.out for a in lines])
    )
    steps, written = memory.window_steps(), np.zeros((correlation.batch, prod(y_size)), int)
    phases = [*product(*(range(axis.stride) for axis in memory.axes[:2]))]
    for shape, first_image, x, y in blocks(tables):
        operands = packed(tables, shape, x, x_step)
        windows = part(arrays["windows"], shape, "windows", "window_count")["packed"]
        tiles = part(arrays["tiles"], shape, "tiles", "tile_count")
        tiles = tiles[: len(tiles) // shape["images"]]  # of the first image
        window_of = windows[tiles["product"] // memory.z_row]
        for number, offsets in enumerate(phases):
            delivery = arrays["deliveries"][shape["deliveries"] + number]
            shift = sum(g * n for g, n in zip(offsets, tables._y, strict=False))
            results = dict[int, int]()
            for stage, to, count in part(arrays["results"], delivery, "first", "count").tolist():
                for i in range(count):
                    results[stage // memory.position + i] = (y + shift + to) // y_step + i
            images = first_image + np.arange(shape["images"])
            written[np.ix_(images, list(results.values()))] += 1
            for tile, window in rng.sample([*zip(tiles["stage"], window_of, strict=True)], 1):
                g = [*offsets, rng.randrange(memory.axes[2].stride)]
                # A random result of the tile along each axis, a random tap and phase of operands.
                forms = [*zip(plan.windows, plan.transforms, strict=True)]
                b, k, h = (
                    [0] * (3 - len(forms)) + [rng.randrange(n) for n in counts]
                    for counts in (
                        [t.m for _, t in forms], [w.r for w, _ in forms], [w.step for w, _ in forms]
                    )
                )  # fmt: skip
                to = tile + sum(n * steps[f"y_step_{i}"] for i, n in enumerate(b))
                result = results.get(to // memory.position + g[2])
                if result is None:
                    continue
                moves = [steps["x_step_0"], steps["x_step_1"]]
                moves.append(memory.axes[2].step * memory.axes[2].apart * memory.wide)
                at = window + sum(map(_product, map(sum, zip(b, k, strict=True)), moves))
                at += sum(map(_product, h, memory.packed_steps))
                wanted = []
                places = np.unravel_index(result, y_size)
                for axis, o, gi, ki, hi in zip(memory.axes, places, g, k, h, strict=True):
                    q = (o - axis.base - gi) // axis.stride
                    wanted.append(axis.first + axis.step * (q + axis.apart * ki) + hi)
                inside = all(0 <= n < size for n, size in zip(wanted, x_size, strict=True))
                number = np.ravel_multi_index(wanted, x_size) if inside else -1
                assert operands[at // memory.wide] == number, (problem, shape)
    assert (written == 1).all(), "each result is written once"


def _product(a: int, b: int) -> int:
    return a * b


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("size", [33, 100_000])
def test_tables_do_not_grow_with_blocks(layout: DataLayout, size: int) -> None:
    axes = Axis(size, 4, 2, 1, 1, 1), Axis(size, 4, 2, 1, 1, 1)
    tables = built(Problem(Direction.FORWARD, axes, 7, 64, 64, layout=layout)).tables
    assert tables.nbytes < 32 << 10
    assert tables.blocks > 10


def test_tables_of_many_kinds_are_bounded() -> None:
    """Three axes, with many phases and with windows that reach over several blocks."""
    volume = Problem(Direction.FORWARD, (Axis(60, 16, 8, 1, 4, 4),) * 3, 1, 64, 64)
    wide = Problem(Direction.INPUT_GRAD, (Axis(200, 7, 1, 8, 24, 24),) * 2, 1, 64, 64)
    for problem in (volume, wide):
        assert built(problem).tables.nbytes < 64 << 10
