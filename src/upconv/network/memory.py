"""The offsets of a graph's values in one arena, computed before anything runs.

A value is live from the first node that writes it to the last one that reads it or a view of it.
Two values share bytes only if one of them is dead before the other is written. A pointwise node
overwrites its first input if no other node reads that input later. Inputs and outputs are in the
caller's arrays, not in the arena.
"""

from __future__ import annotations

from bisect import insort
from math import prod
from typing import NamedTuple

from .graph import Convolution, Graph, Pointwise
from .place import root

ALIGNMENT = 64
"""Bytes of a cache line; each value begins at a multiple of this."""


class Arena(NamedTuple):
    """Byte offsets of all values that are not views, and the total number of bytes."""

    offsets: dict[int, int]
    nbytes: int


class _Life(NamedTuple):
    """The live range of a value: its first writer to its last reader, inclusive."""

    begin: int
    end: int
    nbytes: int


def arena(graph: Graph) -> Arena:
    """Place values from large to small, each at the lowest offset that is free while it is live."""
    homes, lives = _lives(graph)
    callers = outside(graph).keys() | graph.held
    lives = {value: life for value, life in lives.items() if value not in callers}
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # first and last byte, first and last node
    for value in sorted(lives, key=lambda value: (-lives[value].nbytes, value)):
        begin, end, nbytes = lives[value]
        overlapping = (row for row in placed if row[2] <= end and begin <= row[3])
        offset = 0
        for start, stop, *_ in overlapping:
            if offset + nbytes <= start:
                break
            offset = max(offset, stop)
        offsets[value] = offset
        insort(placed, (offset, offset + nbytes, begin, end))
    nbytes = max((stop for _, stop, *_ in placed), default=0)
    inside = {value: home for value, home in homes.items() if home in offsets}
    return Arena({value: offsets[home] for value, home in inside.items()}, nbytes)


def outside(graph: Graph) -> dict[int, None]:
    """Return the values that are in the caller's arrays: inputs, then outputs, in order.

    An output that a convolution writes together with another value stays in the arena, since
    kernels require a fixed distance between the two.
    """
    paired = {
        root(graph, value)[0]
        for node in graph.nodes
        if isinstance(node.operation, Convolution) and len(node.outputs) > 1
        for value in node.outputs
    }
    return dict.fromkeys([*graph.inputs.values(), *(v for v in graph.outputs if v not in paired)])


def _lives(graph: Graph) -> tuple[dict[int, int], dict[int, _Life]]:
    """Return which value's memory each value uses, except views; and the live ranges."""
    times: dict[int, list[int]] = {}  # when each value that is not a view is written or read
    uses = enumerate((*node.inputs, *node.outputs) for node in graph.nodes)
    for time, values in ((-1, graph.inputs.values()), *uses, (len(graph.nodes), graph.outputs)):
        for value in values:
            times.setdefault(root(graph, value)[0], []).append(time)
    homes = {value: value for value in times}
    lives = {value: _Life(min(t), max(t), nbytes_of(graph, value)) for value, t in times.items()}
    callers = outside(graph).keys() | graph.held
    viewed = callers | {root(graph, value)[0] for value in graph.views}
    for number, node in enumerate(graph.nodes):
        before, after = node.inputs[0], node.outputs[-1]
        in_place = (
            isinstance(node.operation, Pointwise)
            and not {before, after} & (viewed | graph.views.keys())
            and node.inputs.count(before) == 1 and max(times[before]) == number
            and graph.form(before) == graph.form(after)
        )  # fmt: skip
        if in_place:
            homes[after] = home = homes[before]
            lives[home] = lives[home]._replace(end=lives.pop(after).end)
    return homes, lives


def nbytes_of(graph: Graph, value: int) -> int:
    """Return the size of a value in bytes, rounded up to whole cache lines."""
    nbytes = prod(graph.shapes[value]) * graph.form(value).dtype.itemsize
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
