"""Tables of spatial blocks' points, and of each run's points.

A point is an output position, with the input position that it reads at shift 0. Spatial blocks of
one kind share points and spans, so only the table of runs grows with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..kernel_arguments import Table, filled
from ..packing import Numbers
from .blocks import Kind, SpatialBlock
from .driver import RUN, SPAN
from .form import ChannelsLast
from .reach import STEP
from .schedule import images_inside
from .tables import PAD, Passes
from .tile import CROSSING, OUTER

_X, _Y, _EDGES, _COORDINATES = range(4)  # rows of points' numbers: ARRAYS in tile.py


def runs_of(
    passes: Passes, data: ChannelsLast, blocks: Sequence[SpatialBlock], step: int
) -> dict[str, Table]:
    """Return the spatial blocks' runs, of at most `step` points, and their tables."""
    tables: dict[str, list[Table]] = {"runs": [], "spans": [], "points": [], "sizes": []}
    ends, by_kind = {"spans": 0, "points": 0}, {}
    for number, kind in enumerate(dict.fromkeys(block.kind for block in blocks)):
        spans, points = _points_of_kind(passes, kind, step)
        spans["points"] += ends["points"]
        starts = ends["spans"] + np.arange(len(spans)) * spans.strides[0]
        before, sizes = kind.before * data.x_steps[1], number * data.correlation.rank * 8
        by_kind[kind] = filled(RUN, len(spans), spans=starts, x=before, sizes=sizes)
        for name, parts in (("spans", [spans.ravel()]), ("points", points)):
            tables[name] += parts
            ends[name] += sum(part.nbytes for part in parts)
        tables["sizes"].append(np.array(kind.correlation.operand_size, np.int64))
    for block in blocks:
        runs = by_kind[block.kind].copy()
        runs["x"] += block.image * data.x_steps[0] + block.input * data.x_steps[1]
        runs["y"] += block.image * data.y_steps[0] + block.output * data.y_steps[1]
        tables["runs"].append(runs)
    return {name: np.concatenate(parts) for name, parts in tables.items()}


def _points_of_kind(passes: Passes, kind: Kind, step: int) -> tuple[Table, list[Numbers]]:
    """Return the spans of runs of at most `step` points, as (runs, grids), and the points."""
    data, images = ChannelsLast(kind.correlation, passes.form), kind.correlation.batch
    totals = data.counts.prod(1) * images
    runs = -(-int(totals.max(initial=0)) // step)
    spans, points, nbytes = np.zeros((runs, len(passes.points)), SPAN), [], 0
    for i, number in enumerate(passes.points):
        total = int(totals[number])
        length = max(1, -(-total // max(1, runs * STEP))) * STEP  # full tiles of any size
        table, clear = _points(data, number, kind.before, np.arange(total) // length)
        first, row = np.arange(runs) * length, table.shape[1] * 8
        spans[:, i] = filled(
            SPAN, runs, points=nbytes + first * 8, stride=row,
            count=np.clip(total - first, 0, length), clear=np.bincount(clear, minlength=runs),
        )  # fmt: skip
        points.append(table.ravel())
        nbytes += table.nbytes
    return spans, points


def _points(data: ChannelsLast, number: int, before: int, run: Numbers) -> tuple[Numbers, Numbers]:
    """Return a grid's points, run by run, and the run of each point that has all lanes.

    In a run these points come first. Among them, and among the others, points whose windows cross
    a row's end come last: their tiles merge no taps. `before` is as in blocks.py."""
    padded, keys = _in_order(data, number, before), [run]
    points = padded[:, : len(run)]
    column = points[-1]
    at_row_end, clear = column == column.max(initial=0), run
    if data.missing[number]:
        keys.insert(0, at_row_end)
        clear = run[~at_row_end]
    if data.form.merges[number]:
        keys.insert(0, np.where(points[_EDGES] >= CROSSING, column + 1, 0))
    if len(keys) > 1:
        points[:] = points[:, np.lexsort(keys)]
    padded[:, len(run) :] = points[:, -1:] if len(run) else 0
    return padded, clear


def _in_order(data: ChannelsLast, number: int, before: int) -> Numbers:
    """Return a grid's points, images outermost or innermost, with room for `PAD` more."""
    correlation, cut = data.correlation, data.form.cut
    limits = [*((line.low, line.high) for line in correlation.lines[:-1]), cut.limits]
    dims: list[dict[int, Numbers]] = []
    for i, (line, (low, high)) in enumerate(zip(correlation.lines, limits, strict=True)):
        innermost = i == correlation.rank - 1
        j = np.arange(data.counts[number, i]) * (cut.unroll if innermost else 1)
        inputs = line.step * j
        coordinate = inputs + (0 if i else before)
        outside = (coordinate < high) | (coordinate >= line.size + low)
        edges = outside * (CROSSING if innermost else OUTER)
        x, y = inputs * data.x_steps[i + 1], line.stride * j * data.y_steps[i + 1]
        dims.append({_X: x, _Y: y, _EDGES: edges, _COORDINATES + i: coordinate})
    images = np.arange(correlation.batch)
    of_images = {_X: images * data.x_steps[0], _Y: images * data.y_steps[0]}
    dims.insert(len(dims) if images_inside(correlation) else 0, of_images)
    shape = [len(dim[_X]) for dim in dims]
    points = np.zeros((_COORDINATES + correlation.rank, prod(shape) + PAD), np.int64)
    for i, dim in enumerate(dims):
        for row, numbers in dim.items():
            points[row, : prod(shape)].reshape(shape)[...] += numbers.reshape(
                -1, *[1] * (len(dims) - 1 - i)
            )
    return points
