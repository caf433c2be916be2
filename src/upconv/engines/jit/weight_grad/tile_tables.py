"""The tables for a weight gradient on tile registers, which tile_driver.py walks.

A *piece* is a run of an operand's numbers that are consecutive in a panel, with the zeros after
them; a piece of length 0 has only zeros. A panel's pieces are in ascending order, since a piece's
zeros may reach into the next one, which overwrites them.
"""

from __future__ import annotations

import numpy as np

from ....problem import Problem
from ..correlation import weight_strides
from ..packing import Numbers
from ..tiles.operations import PAIRS, ROW_BYTES, ROWS
from .tables import BLOCK
from .tile_geometry import Rows
from .tile_schedule import TilePlan

JOB = ("units", "count")
SET = ("works", "count", "sums")
UNIT = ("key", "x", "x_count", "g", "g_count", "sums", "blocks", "block_count")
"""The first channels of both operands and their counts, and the unit's blocks of dw."""
PIECE = ("image", "position", "length", "zeros", "at")
RANGE = ("first", "count")
"""A panel's pieces: of x for each spatial block, then of g for each class of phases."""
PHASE = ("ranges", "position", "taps", "count")
TAP = ("number", "offset")
"""A tap, and the bytes from the start of x's panel to the first pair that it meets."""
TABLES = {
    "jobs": JOB, "sets": SET, "units": UNIT, "blocks": BLOCK, "pieces": PIECE, "ranges": RANGE,
    "phases_of_g": PHASE, "taps": TAP,
}  # fmt: skip


def tables_of(plan: TilePlan, problem: Problem) -> dict[str, Numbers]:
    """Return the tables by name."""
    starts = np.arange(0, plan.units, -(-plan.units // plan.jobs))
    jobs = np.stack([starts, np.diff(starts, append=plan.units)], 1)
    numbers = np.arange(plan.sets)
    sums = numbers * plan.units * plan.unit_bytes
    sets = np.stack([numbers * plan.works, np.full_like(numbers, plan.works), sums], 1)
    tables = {"jobs": jobs, "sets": sets, **_units(plan, problem), **_positions(plan)}
    return {name: np.ascontiguousarray(table, np.int64) for name, table in tables.items()}


def _units(plan: TilePlan, problem: Problem) -> dict[str, Numbers]:
    """Return the units and their blocks; units that share channels of x are adjacent."""
    by_group, by_x, by_g, *_ = weight_strides(problem, forward=True)
    item, width = problem.dtype.itemsize, plan.part * ROWS
    units: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for group, part, pair in np.ndindex(plan.groups, plan.parts, -(-plan.g // (2 * ROWS))):
        x, g = part * width, pair * 2 * ROWS
        x_count, g_count = min(width, plan.x - x), min(2 * ROWS, plan.g - g)
        sums, first, across = len(units) * plan.unit_bytes, len(blocks), -(-x_count // ROWS)
        for i, j in np.ndindex(-(-g_count // ROWS), across):
            active = min(ROWS, g_count - i * ROWS), min(ROWS, x_count - j * ROWS)
            dw = group * by_group + (x + j * ROWS) * by_x + (g + i * ROWS) * by_g
            offset = sums + (i * across + j) * plan.block_bytes
            blocks.append((offset, 0, 0, plan.taps, 0, 0, *active, dw * item))
        x, g = group * plan.x + x, group * plan.g + g
        key = group * plan.parts + part
        units.append((key, x, x_count, g, g_count, sums, first, len(blocks) - first))
    return {"units": np.array(units), "blocks": np.array(blocks)}


def _positions(plan: TilePlan) -> dict[str, Numbers]:
    """Return all panels' pieces, and the phases of g."""
    flat, spatial = plan.flat, plan.sets * plan.works
    starts = np.arange(spatial) * plan.chunks * PAIRS
    listed = [_pieces(flat.rows_of_x(), starts - flat.high, plan.x_positions)]
    classes = {phase.counts: 0 for phase in flat.phases}
    for number, counts in enumerate(classes):
        classes[counts] = (1 + number) * spatial
        listed.append(_pieces(flat.rows_of_g(counts), starts, plan.chunks * PAIRS))
    phases: list[tuple[int, ...]] = []
    taps: list[tuple[int, int]] = []
    for phase in flat.phases:
        phases.append((classes[phase.counts], phase.position, len(taps), len(phase.taps)))
        for number, shift in phase.taps:
            pair, odd = divmod(flat.high - shift, 2)
            taps.append((number, odd * plan.parity_bytes + pair * ROW_BYTES))
    before = np.cumsum([0, *(len(pieces) for pieces, _ in listed)])
    ranges = [
        np.stack([firsts[:-1] + start, np.diff(firsts)], 1)
        for (_, firsts), start in zip(listed, before[:-1], strict=True)
    ]
    return {
        "pieces": np.concatenate([pieces for pieces, _ in listed]),
        "ranges": np.concatenate(ranges), "phases_of_g": np.array(phases), "taps": np.array(taps),
    }  # fmt: skip


def _pieces(rows: Rows, starts: Numbers, length: int) -> tuple[Numbers, Numbers]:
    """Return the pieces of rows in panels of `length` positions, and each panel's first piece."""
    ends = rows.flat + rows.lengths
    first, last = ends.searchsorted(starts, "right"), rows.flat.searchsorted(starts + length)
    counts = 1 + np.maximum(last - first, 0)  # one more for the zeros before the first row
    firsts = np.append(0, counts.cumsum())
    panel = np.repeat(np.arange(len(starts)), counts)
    inside = np.arange(firsts[-1]) - firsts[panel]
    exists = inside > 0
    row = np.where(exists, first[panel] + inside - 1, 0)
    table = np.zeros((firsts[-1], len(PIECE)), np.int64)
    if exists.any():
        begin = np.maximum(rows.flat[row], starts[panel])
        end = np.minimum(ends[row], starts[panel] + length)
        image, position = rows.image[row], rows.position[row]
        position = position + (begin - rows.flat[row]) * rows.step
        columns = image, position, end - begin, 0, begin - starts[panel]
        for number, column in enumerate(columns):
            table[:, number] = np.where(exists, column, 0)
    after = np.append(table[1:, 4], length)
    after[firsts[1:] - 1] = length
    table[:, 3] = after - table[:, 4] - table[:, 2]
    return table, firsts
