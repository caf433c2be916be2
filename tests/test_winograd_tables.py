"""The tables of Winograd's kernel, read as the driver reads them, beside the algebra of windows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
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


def blocks(winograd: Winograd) -> Iterator[tuple[list[Any], Any, range, list[int]]]:
    """The kind of each block along each axis, its shape, its images and its number."""
    tables, batch = winograd.tables, winograd.correlation.batch
    step = tables.memory.images
    for number in range(tables.blocks):
        kinds, places, shape = list[Any](), list[int](), 0
        for i in (2, 1, 0):
            axis = tables["axes"][i]
            number, block = divmod(number, int(axis["blocks"]))
            kind = min(block, axis["low"]) + max(block - axis["high"], 0)
            kinds.insert(0, tables["kinds"][axis["kinds"] + kind])
            places.insert(0, block)
            shape += kinds[0]["fewer"] * (4 >> i)
        images = range(number * step, min(batch, (number + 1) * step))
        yield kinds, tables["shapes"][shape], images, places


def part(table: np.ndarray, shape: Any, name: str, count: str) -> np.ndarray:
    return table[shape[name] : shape[name] + shape[count]]


def packed(
    tables: Tables, kinds: list[Any], places: list[int]
) -> dict[int, tuple[int, ...] | None]:
    """By bytes of the packed image, the bytes of x along each axis, or None for zero."""
    operands = dict[int, tuple[int, ...] | None]()
    for operand in product(*(range(int(kind["operands"])) for kind in kinds)):
        inside = all(k["begin"] <= n < k["end"] for k, n in zip(kinds, operand, strict=True))
        at = sum(n * int(axis["packed"]) for n, axis in zip(operand, tables["axes"], strict=True))
        x = tuple(
            axis["x_block"] * block + axis["x"] * n
            for axis, block, n in zip(tables["axes"], places, operand, strict=True)
        )
        operands[at] = x if inside else None
    return operands


@pytest.mark.parametrize("seed", range(40))
def test_tiles_read_the_operands_of_their_results(seed: int) -> None:
    """Result stride * q + base + g reads operands step * (q + low + apart * k) + start + h."""
    rng = random.Random(seed)
    problem, _ = winograd_layers.layer(seed)
    winograd = built(problem, choice=seed)
    tables, form, correlation = winograd.tables, winograd.schedule.form, winograd.correlation
    memory, steps = tables.memory, tables.memory.arguments
    y_size = [axis.out for axis in memory.axes]
    written = np.zeros((correlation.batch, *y_size), int)
    phases = [*product(*(range(axis.stride) for axis in memory.axes[:2]))]
    padded = [*zip(form.windows, form.transforms, strict=True)]
    for kinds, shape, images, places in blocks(winograd):
        operands = packed(tables, kinds, places)
        windows = part(tables["windows"], shape, "windows", "window_count")["packed"]
        tiles = part(tables["tiles"], shape, "tiles", "tile_count")
        for offsets in phases:
            # By bytes of the stage, the results of each axis.
            results, ranges = dict[int, tuple[int, ...]](), list[list[tuple[int, int]]]()
            for i, (axis, kind, block) in enumerate(zip(memory.axes, kinds, places, strict=True)):
                g, stride = (offsets[i], axis.stride) if i < 2 else (0, 1)
                first, stop = (-(-(int(kind[end]) - g) // stride) for end in ("first", "stop"))
                start = axis.base + block * axis.writes + g
                ranges.append(
                    [(n * memory.stage[i], start + stride * n) for n in range(first, stop)]
                )
            for result in product(*ranges):
                at, numbers = zip(*result, strict=True)
                results[sum(at)] = numbers
                written[images.start : images.stop, *numbers] += 1
            for tile in rng.sample([*tiles], 1):
                window = windows[tile["product"] // memory.z_row]
                g = [*offsets, rng.randrange(memory.axes[2].stride)]
                # A random result of the tile along each axis, a random tap and phase of operands.
                b, k, h = (
                    [0] * (3 - len(padded)) + [rng.randrange(n) for n in counts]
                    for counts in (
                        [t.m for _, t in padded], [w.r for w, _ in padded],
                        [w.step for w, _ in padded],
                    )
                )  # fmt: skip
                to = tile["stage"] + sum(n * steps[f"y_step_{i}"] for i, n in enumerate(b))
                result = results.get(int(to) + g[2] * memory.stage[2])
                if result is None:
                    continue
                moves = [steps["x_step_0"], steps["x_step_1"]]
                moves.append(memory.axes[2].step * memory.axes[2].apart * memory.packed[2])
                at = window + sum(map(_product, map(sum, zip(b, k, strict=True)), moves))
                at += sum(map(_product, h, memory.packed))
                wanted, inside = [], True
                sides = zip(memory.axes, tables["axes"], result, g, k, h, strict=True)
                for axis, record, o, gi, ki, hi in sides:
                    q = (o - axis.base - gi) // axis.stride
                    n = axis.first + axis.step * (q + axis.apart * ki) + hi
                    wanted.append((n - axis.first) * record["x"])
                    inside = inside and 0 <= n < axis.size
                assert operands[int(at)] == (tuple(wanted) if inside else None), (problem, shape)
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
