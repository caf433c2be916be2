"""The tables of Winograd's kernel, read as the driver reads them, beside the algebra of windows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.support import winograd_layers
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import Cpu, host
from upconv.engines.jit.winograd.primitive import Winograd
from upconv.engines.jit.winograd.schedule import schedules
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, Problem


def built(problem: Problem, cpu: Cpu | None = None, choice: int = 0) -> Winograd:
    correlation = Correlation.of(problem)
    plans = schedules(correlation, 2, cpu or host())
    return Winograd(correlation, plans[choice % len(plans)], _nothing, cpu or host())


def _nothing() -> Any:
    """Direct sums, which nothing asks for here."""


@dataclass(frozen=True, slots=True)
class Side:
    """A block along one axis, clipped as the driver clips it: operands, those inside x, the first
    one of all, and the same of results of all phases."""

    axis: Any
    fewer: bool
    operands: int
    inside: range
    x: int
    results: range
    y: int

    @classmethod
    def of(cls, axis: Any, block: int) -> Side:
        first = block * int(axis["box"])
        count = min(int(axis["box"]), int(axis["groups"]) - first)
        operands, results = axis["tail"] + count * axis["reads"], count * axis["writes"]
        x, y = axis["first"] + first * axis["reads"], axis["base"] + first * axis["writes"]
        ends = [
            range(begin := min(n, max(0, -start)), max(begin, min(n, size - start)))
            for n, start, size in (
                (int(operands), int(x), int(axis["size"])),
                (int(results), int(y), int(axis["out"])),
            )
        ]
        return cls(axis, count < axis["box"], int(operands), ends[0], int(x), ends[1], int(y))


def blocks(winograd: Winograd) -> Iterator[tuple[list[Side], Any, range]]:
    """Each block along each axis, its shape and its images."""
    tables, batch = winograd.tables, winograd.correlation.batch
    step = tables.memory.images
    for number in range(tables.blocks):
        sides, shape = list[Side](), 0
        for i in (2, 1, 0):
            number, block = divmod(number, int(tables["axes"][i]["blocks"]))
            sides.insert(0, Side.of(tables["axes"][i], block))
            shape += sides[0].fewer * (4 >> i)
        yield sides, tables["shapes"][shape], range(number * step, min(batch, (number + 1) * step))


def part(table: np.ndarray, shape: Any, name: str, count: str) -> np.ndarray:
    return table[shape[name] : shape[name] + shape[count]]


def packed(sides: list[Side]) -> dict[int, tuple[int, ...] | None]:
    """By bytes of the packed image, the operand of x, or None for zero."""
    operands = dict[int, tuple[int, ...] | None]()
    for operand in product(*(range(side.operands) for side in sides)):
        places = [*zip(sides, operand, strict=True)]
        inside = all(n in side.inside for side, n in places)
        at = sum(n * int(side.axis["packed"]) for side, n in places)
        operands[at] = tuple(side.x + n for side, n in places) if inside else None
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
    for sides, shape, images in blocks(winograd):
        operands = packed(sides)
        windows = part(tables["windows"], shape, "windows", "window_count")["packed"]
        tiles = part(tables["tiles"], shape, "tiles", "tile_count")
        for offsets in phases:
            # By bytes of the stage, the results of each axis.
            results, ranges = dict[int, tuple[int, ...]](), list[list[tuple[int, int]]]()
            for i, side in enumerate(sides):
                g, stride = (offsets[i], int(side.axis["stride"])) if i < 2 else (0, 1)
                ranges.append(
                    [
                        (n // stride * memory.axes[i].stage, side.y + n + g)
                        for n in range(0, side.results.stop, stride)
                        if n + g in side.results
                    ]
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
                result = results.get(int(to) + g[2] * memory.axes[2].stage)
                if result is None:
                    continue
                moves = [steps["x_step_0"], steps["x_step_1"]]
                moves.append(memory.axes[2].step * memory.axes[2].apart * memory.axes[2].packed)
                at = window + sum(map(_product, map(sum, zip(b, k, strict=True)), moves))
                at += sum(map(_product, h, [axis.packed for axis in memory.axes]))
                wanted, inside = list[int](), True
                for axis, o, gi, ki, hi in zip(memory.axes, result, g, k, h, strict=True):
                    q = (o - axis.base - gi) // axis.stride
                    wanted.append(axis.first + axis.step * (q + axis.apart * ki) + hi)
                    inside = inside and 0 <= wanted[-1] < axis.size
                assert operands[int(at)] == (tuple(wanted) if inside else None), (problem, shape)
    assert (written == 1).all(), "each result is written once"


def _product(a: int, b: int) -> int:
    return a * b


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("size", [33, 100_000])
def test_tables_do_not_grow_with_blocks(layout: DataLayout, size: int) -> None:
    axes = Axis(size, 4, 2, 1, 1, 1), Axis(size, 4, 2, 1, 1, 1)
    problem = Problem(Direction.FORWARD, axes, 7, 64, 64, layout=layout)
    tables = built(problem, replace(host(), l2=512 << 10)).tables  # a larger L2 makes few blocks
    assert tables.nbytes < 32 << 10
    assert tables.blocks > 10


def test_tables_of_many_kinds_are_bounded() -> None:
    """Three axes, with many phases and with windows that reach over several blocks."""
    volume = Problem(Direction.FORWARD, (Axis(60, 16, 8, 1, 4, 4),) * 3, 1, 64, 64)
    wide = Problem(Direction.INPUT_GRAD, (Axis(200, 7, 1, 8, 24, 24),) * 2, 1, 64, 64)
    for problem in (volume, wide):
        assert built(problem).tables.nbytes < 64 << 10
