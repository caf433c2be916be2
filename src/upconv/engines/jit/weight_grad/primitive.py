"""The weight gradient's primitive, its jobs and their steps; see schedule.py.

A job is a set of spatial blocks, and some units of work: a block of lanes of a group, some taps,
all rows. Its steps pack panels, unless the thread has them, compute blocks, and finish them where
no other set has sums for them. As tables they are what driver.py walks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from ....activations import Activation
from ....problem import Problem
from ...addresses import address_of
from ...base import Array, Maybe
from ...copies import laid_out
from ...workspace import Workspace
from ..compile import CODE_BYTES
from ..correlation import weight_strides
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import lying_well, strides
from ..packing import Numbers
from ..rows import Finish, fill_code, finish_code
from ..transpose import transpose_code
from ..values import STORED
from .driver import ARGUMENTS, BLOCK, STEP, driver_code, tile_code
from .schedule import HEAD, Plan


class WeightGrad:
    """A weight gradient, compiled and laid out."""

    def __init__(self, problem: Problem, threads: int, cpu: Cpu) -> None:
        self.problem, plan = problem, Plan(problem, cpu)
        self._lanes_of_g, self._in_place = plan.sides.lanes_of_g, plan.in_place
        self._threads = max(1, min(threads, problem.multiply_adds // 200_000))
        stored, computed = STORED[problem.dtype], plan.sides.tile.element
        driver = driver_code(problem.layout, cpu)
        codes = {
            "tile": tile_code(plan.sides.tile, cpu),
            "single": tile_code(plan.sides.tile.single, cpu),
            "transpose": transpose_code(stored, computed, cpu),
            "fill": fill_code(stored, computed, cpu),
            "transpose_back": transpose_code(computed, computed, cpu),
            "deliver": finish_code(_finish(computed, stored, problem.accumulate), cpu),
            "add": finish_code(_finish(computed, computed, accumulate=True), cpu),
        }
        names = {
            "single": "tile",
            "transpose_back": "transpose",
            "deliver": "finish",
            "add": "finish",
        }
        self._codes = (driver, *codes.values())
        numbers, steps = jobs(
            plan, *(driver.addresses[name] for name in ("pack", "block", "finish"))
        )
        zeros = np.zeros(plan.sides.tile.width, np.float64)
        self._tables = {
            "job": numbers, "steps": steps, "places": plan.places, "entries": plan.entries,
            "segments": plan.segments, "zeros": zeros,
        }  # fmt: skip
        self._run = driver.addresses["run"]
        # Sums of a thread's block, the same transposed, and panels.
        own = -(-plan.part * plan.block_bytes // 64) * 64
        part = 2 * own + plan.held_bytes
        self._stages = self._threads * part
        self.workspace_bytes = self._stages + (0 if plan.single else plan.sets * plan.all_bytes)
        self.resident_bytes = CODE_BYTES + sum(table.nbytes for table in self._tables.values())
        self.predicted_cycles = plan.sides.cycles / self._threads
        item, sides = problem.dtype.itemsize, plan.sides
        template = ARGUMENTS.block(
            **{name: code.addresses[names.get(name, name)] for name, code in codes.items()},
            **{name: table.ctypes.data for name, table in self._tables.items()},
            **_held(plan), jobs=len(numbers), element=plan.element, part=part, spare=own,
            held=2 * own, sets=plan.sets, set_bytes=plan.all_bytes,
            tile_rows=sides.tile.rows, tile_width=sides.tile.width,
            taps_inside=int(sides.taps_inside), transposed=int(sides.transposed),
            by_row=sides.by_row * item, by_lane=sides.by_lane * item, by_tap=sides.by_tap * item,
        )  # fmt: skip
        self._blocks = Blocks(template)
        self.description = str(plan)

    def pack(self, weight: Array) -> Array:
        """Nothing of a weight gradient is packed beforehand."""
        return weight

    def run(self, out: Array, a: Array, b: Any, bias: Maybe = None, residual: Maybe = None) -> None:
        """Compute into `out`."""
        dw = laid_out("the result", out, filled=self.problem.accumulate)
        x, g, layout = self._operand("x", b, 0), self._operand("grad", a, 1), self.problem.layout
        with Workspace(self.workspace_bytes) as buffer:
            rows, lanes = (x, g) if self._lanes_of_g else (g, x)
            self._blocks.run(
                self._run, self._threads,
                buffer=buffer, stages=buffer + self._stages, dw=address_of(dw),
                rows=address_of(rows), lanes=address_of(lanes),
                **strides("x", x, layout), **strides("g", g, layout),
            )  # fmt: skip
        if dw is not out:
            out[...] = dw

    def close(self) -> None:
        """Nothing is held that goes before the primitive does."""

    def _operand(self, what: str, array: Array, of_g: int) -> Array:
        """An operand that kernels can read: the array itself, or a copy."""
        if self._in_place[of_g]:
            return laid_out(what, array)
        return lying_well(what, array, self.problem.layout)


def _held(plan: Plan) -> dict[str, int]:
    """Arguments about panels, and about sides that have none."""
    strides = (1, plan.problem.axes[-1].stride)  # positions of x, and of g, to the next
    x, g = (n * stride for n, stride in zip(strides, plan.position_strides, strict=True))
    places, first = plan.sided(0, 1), 0
    found: dict[str, int] = {}
    for name, n, step in zip(("row", "lane"), places, plan.sided(x, g), strict=True):
        side = "xg"[n]
        found |= {
            f"{name}_step": step, f"{name}s_in_place": int(plan.in_place[n]),
            f"{side}_held": plan.held[n], f"{side}_panels": first,
            f"{side}_size": plan.panel_bytes[n],
        }  # fmt: skip
        first += plan.held[n] * plan.panel_bytes[n]
    return found


def _finish(computed: str, stored: str, accumulate: bool) -> Finish:
    return Finish(computed, stored, Activation.NONE, 0.0, residual=False, accumulate=accumulate)


# Jobs ---------------------------------------------------------------------------------------------


def jobs(plan: Plan, pack: int, block: int, finish: int) -> tuple[Numbers, Numbers]:
    """All jobs, and their steps, from the addresses of the functions that do these."""
    template = _template(plan).reshape(plan.units, -1, STEP)
    steps: list[Numbers] = []
    jobs, over = [], 0
    for number, start in product(range(plan.sets), range(0, plan.units, plan.units_of_job)):
        own = [
            step
            for i in spatial_blocks_of(plan, number)
            for unit in range(start, min(plan.units, start + plan.units_of_job))
            for step in _steps(plan, template[unit], i, number, pack, block)
        ]
        jobs.append((over, sum(map(len, own)), 0))
        steps, over = steps + own, over + sum(map(len, own))
    for unit in template if plan.sets > 1 else ():
        unit[:, 0] = finish
        steps.append(unit)
        jobs.append((over, len(unit), plan.sets * ceil(plan.units / plan.units_of_job)))
        over += len(unit)
    return np.array(jobs, np.int64), np.concatenate(steps)


def spatial_blocks_of(plan: Plan, number: int) -> range:
    """The spatial blocks of a set."""
    count = len(plan.spatial_blocks)
    return range(number * count // plan.sets, (number + 1) * count // plan.sets)


def _template(plan: Plan) -> Numbers:
    """A step for each block, of no spatial block yet, unit after unit."""
    sides, item = plan.sides, plan.problem.dtype.itemsize
    by_group, tile = weight_strides(plan.problem, forward=True)[0], sides.tile
    per = 1 if tile.taps == 1 else 2 * tile.taps + 1  # entries of a run of taps
    records = []
    for group, lane, tap, row in product(
        range(sides.groups), range(sides.lane_blocks), range(0, plan.taps, plan.part),
        range(sides.row_blocks),
    ):  # fmt: skip
        r, v = row * tile.rows, lane * tile.width
        dst = group * by_group + r * sides.by_row + v * sides.by_lane + tap * sides.by_tap
        number = (group * sides.lane_blocks + lane) * sides.row_blocks + row
        count = min(plan.part, plan.taps - tap)
        lanes = group * sides.lane_blocks + lane
        rows = lanes if tile.depthwise else group * sides.row_blocks + row
        records.append(
            (
                0, (number * plan.taps + tap) * plan.block_bytes, rows, lanes,
                tap // tile.taps * per, count // tile.taps * per, tap, count, 0,
                min(tile.rows, sides.rows - r), min(tile.width, sides.lanes - v), dst * item,
            )
        )  # fmt: skip
    return np.array(records, np.int64)


def _steps(
    plan: Plan, blocks: Numbers, i: int, number: int, pack: int, block: int
) -> Iterator[Numbers]:
    """What a job does with a spatial block and a unit of work: packing, unless that is done,
    blocks."""
    field = {name: 1 + n for n, name in enumerate(BLOCK)}
    records, spatial_blocks = blocks.copy(), spatial_blocks_of(plan, number)
    first = 0
    for name, n in zip(("rows", "lanes"), plan.sided(0, 1), strict=True):
        column = records[:, field[name]]
        panels = np.unique(column)
        if plan.in_place[n]:
            column *= plan.widths[n] * plan.element
            continue
        size = plan.panel_bytes[n]
        yield _packs(plan, panels, n, i, first, pack)
        column[:] = first + HEAD + (column - panels[0]) * size
        first += plan.held[n] * size
    records[:, 0] = block
    records[:, field["entries"]] += plan.work[i].entries
    records[:, field["fresh"]] = i == spatial_blocks.start
    if plan.single:
        records[:, field["to"]] = -1
    else:
        records[:, field["to"]] += number * plan.all_bytes
    if plan.sets > 1 or i != spatial_blocks.stop - 1:
        records[:, field["dst"]] = -1
    yield records


def _packs(plan: Plan, panels: Numbers, n: int, i: int, first: int, code: int) -> Numbers:
    """The steps that pack some panels of a spatial block."""
    work, width, blocks = plan.work[i], plan.widths[n], plan.blocks[n]
    own, size = plan.channels[n] // plan.sides.groups, plan.panel_bytes[n]
    place = work.places + n * work.rows[0]
    records = []
    for number, panel in enumerate(panels.tolist()):
        group, block = divmod(panel, blocks)
        records.append(
            (
                code, first + HEAD + number * size, i * plan.sides.groups * blocks + panel,
                width, min(width, own - block * width), place, work.rows[n],
                len(work.spans[n]), n, group * own + block * width, work.spans[n].start, 0,
            )
        )  # fmt: skip
    return np.array(records, np.int64)
