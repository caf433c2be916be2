"""The points of spatial blocks, and which of them each run has.

A point is a position of the input and one of the output. Spatial blocks of one kind share points
and spans, so tables do not grow with the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np

from ..packing import Numbers
from .blocks import Kind
from .driver import SPAN, Records
from .reach import STEP
from .schedule import images_inside
from .tables import PAD, ChannelsLast, PointSet
from .tile import CROSSING, OUTER

ARRAYS = ("x", "y", "edges")
"""Numbers of a point, before a coordinate per axis: byte offsets of its input and output, and
where taps of the grid may read outside (tile.py)."""


def points_of_kind(
    data: ChannelsLast, kind: Kind, sets: Sequence[PointSet], step: int
) -> tuple[Records, list[Numbers]]:
    """The spans of each run, of at most `step` points, as (runs, sets); and the points."""
    part = ChannelsLast(kind.correlation, data.form)
    grids = dict.fromkeys(s.grid for s in sets)
    most = part.counts.prod(1).max(initial=0) * kind.correlation.batch
    runs = -(-int(most) // step)
    points = {number: _points(part, number, kind.before, runs) for number in grids}
    offsets = accumulate((array.nbytes for array, _ in points.values()), initial=0)
    starts = dict(zip(points, offsets, strict=False))
    spans = np.zeros((runs, len(sets)), SPAN)
    for i, s in enumerate(sets):
        spans[:, i] = _spans(s, *points[s.grid])
        spans[:, i]["points"] += starts[s.grid]
    return spans, [array.ravel() for array, _ in points.values()]


def _spans(points: PointSet, array: Numbers, clear: Numbers) -> Records:
    """The points of each run; only in the last one a tile may have fewer than the others."""
    runs, total = len(clear), array.shape[1] - PAD
    step = _step(total, runs)
    spans = np.zeros(runs, SPAN)
    spans["points"], spans["stride"] = np.arange(runs) * step * 8, array.shape[1] * 8
    spans["count"] = count = np.clip(total - np.arange(runs) * step, 0, step)
    spans["clear"] = clear
    if points.directly:
        mixed = (clear < count) & points.clipped
        spans["direct"] = direct = np.where(mixed, clear // points.most * points.most, count)
        spans["tiles"], spans["rest"] = direct // points.most, direct % points.most
    return spans


def _step(total: int, runs: int) -> int:
    """Points of a run, a multiple of every tile's."""
    return max(1, -(-total // max(1, runs * STEP))) * STEP


def _points(data: ChannelsLast, number: int, before: int, runs: int) -> tuple[Numbers, Numbers]:
    """The points of a grid, run by run, and how many of each run have all lanes: these come first.
    Those whose windows cross the end of a row come after others, as merged taps are slow there.

    The points are rows of `ARRAYS` and of a coordinate per axis; `before` is as in blocks.py.
    """
    padded, clipped = _in_order(data, number, before), None
    array = padded[:, : padded.shape[1] - PAD]
    total, last = array.shape[1], array[-1]
    run = np.arange(total) // _step(total, runs)
    keys = [run]
    if data.missing[number]:
        keys.insert(0, clipped := last == last.max(initial=0))
    if data.form.merges[number]:
        keys.insert(0, np.where(array[ARRAYS.index("edges")] >= CROSSING, last + 1, 0))
    if len(keys) > 1:
        array[:] = array[:, np.lexsort(keys)]
    padded[:, total:] = array[:, -1:] if total else 0
    counts = np.bincount(run, None if clipped is None else ~clipped, runs)
    return padded, counts.astype(np.int64)


def _in_order(data: ChannelsLast, number: int, before: int) -> Numbers:
    """The points of a grid in the order of memory, and room for `PAD` more."""
    correlation, cut = data.correlation, data.form.cut
    dims: list[dict[str | int, Numbers]] = []
    limits = [*((line.low, line.high) for line in correlation.lines[:-1]), cut.limits]
    for i, (line, (least, most)) in enumerate(zip(correlation.lines, limits, strict=True)):
        unroll = cut.unroll if i == correlation.rank - 1 else 1
        j = np.arange(data.counts[number, i]) * unroll
        inputs, outputs = line.step * j, line.stride * j
        coordinate = inputs + (0 if i else before)
        low, high = most, line.size + least
        outside = (coordinate < low) | (coordinate >= high)
        edge = CROSSING if i == correlation.rank - 1 else OUTER
        x, y = inputs * data.x_steps[i + 1], outputs * data.y_steps[i + 1]
        dims.append({"x": x, "y": y, "edges": outside * edge, i: coordinate})
    images = np.arange(correlation.batch)
    innermost = len(dims) if images_inside(correlation) else 0
    dims.insert(innermost, {"x": images * data.x_steps[0], "y": images * data.y_steps[0]})
    shape = [len(dim["x"]) for dim in dims]
    points = np.zeros((len(ARRAYS) + correlation.rank, prod(shape) + PAD), np.int64)
    for row, name in zip(points, (*ARRAYS, *range(correlation.rank)), strict=True):
        grown = row[: prod(shape)].reshape(shape)
        for i, dim in enumerate(dims):
            if name in dim:
                grown += dim[name].reshape(-1, *[1] * (len(dims) - 1 - i))
    return points
