"""The jobs of a weight gradient, and their steps, as tables: what weight_grad_code.py walks.

A job is a set of slabs, and some units of work: a block of lanes of a group, some taps, all rows.
Its steps pack panels, unless the thread has them, compute blocks, and finish them where no other
set has sums for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from .correlation import weight_strides
from .weight_grad_plan import HEAD, Plan

Numbers = np.ndarray[Any, np.dtype[np.int64]]

PACK = ("to", "key", "width", "live", "rows", "count", "length", "of_g", "channel", "position")
BLOCK = (
    "to", "rows", "lanes", "entries", "entry_count", "tap", "count", "fresh",
    "live_rows", "live_lanes", "dst",
)  # fmt: skip
STEP = 1 + len(BLOCK)  # the function, its fields
JOB = ("first", "count", "after")  # its steps, and the jobs that must be over


def jobs(plan: Plan, pack: int, block: int, finish: int) -> tuple[Numbers, Numbers]:
    """All jobs, and their steps, from the addresses of the functions that do these."""
    template = _template(plan).reshape(plan.units, -1, STEP)
    steps: list[Numbers] = []
    jobs, over = [], 0
    for number, start in product(range(plan.sets), range(0, plan.units, plan.units_of_job)):
        own = [
            step
            for i in slabs_of(plan, number)
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


def slabs_of(plan: Plan, number: int) -> range:
    """The slabs of a set."""
    count = len(plan.slabs)
    return range(number * count // plan.sets, (number + 1) * count // plan.sets)


def _template(plan: Plan) -> Numbers:
    """A step for each block, of no slab yet, unit after unit."""
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
        rows = lanes if tile.own else group * sides.row_blocks + row
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
    """What a job does with a slab and a unit of work: packing, unless that is done, blocks."""
    field = {name: 1 + n for n, name in enumerate(BLOCK)}
    records, slabs = blocks.copy(), slabs_of(plan, number)
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
    records[:, field["fresh"]] = i == slabs.start
    if plan.single:
        records[:, field["to"]] = -1
    else:
        records[:, field["to"]] += number * plan.all_bytes
    if plan.sets > 1 or i != slabs.stop - 1:
        records[:, field["dst"]] = -1
    yield records


def _packs(plan: Plan, panels: Numbers, n: int, i: int, first: int, code: int) -> Numbers:
    """The steps that pack some panels of a slab."""
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
