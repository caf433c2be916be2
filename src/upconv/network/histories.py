"""Histories: the positions that a stream keeps between pushes, most of them in one memory block.

A value that later pushes need has a *buffer*: the kept positions, followed by those that a push
adds. If positions are the first axis in memory (one channels-last image), the buffer is in the
block: nodes write after the kept positions, and read the buffer in place. For all other values,
programs receive the kept positions as inputs, concatenate and crop, and return what is to be kept.

After a push, the positions to keep are copied to the start of the buffers in a second block, which
the next push uses. A push that fails therefore leaves the history unchanged.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from .. import memory
from ..engines.addresses import address_of
from ..engines.jit.cpu import host
from ..engines.jit.moves import COPY, COPY_BYTES, copies_code
from ..problem import DataLayout
from .graph import Array, Form, Graph, Shape, array_shape, with_extent
from .stream_schedule import Phase, State
from .tables import records

_ALIGNMENT = 128  # bytes, since processors fetch cache lines in pairs
_POINTER = ctypes.c_void_p
_COPIES = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _POINTER, ctypes.c_int64)


@dataclass(frozen=True, eq=False)
class Layout:
    """The layout of a block of `nbytes` bytes: for each value's buffer, the offset in bytes and the
    capacity in positions."""

    offsets: Mapping[int, int]
    extents: Mapping[int, int]
    nbytes: int

    def block(self) -> Array:
        """Allocate a block, aligned to a pair of cache lines."""
        memory.require(self.nbytes, "the history of the stream")
        room = np.zeros(self.nbytes + _ALIGNMENT, np.uint8)
        first = -room.ctypes.data % _ALIGNMENT
        return room[first : first + self.nbytes]


class Kept(NamedTuple):
    """The memory of one stream: the arrays outside the block, the block, and the spare block to
    which the next push copies."""

    outside: Sequence[Array]
    layout: Layout
    block: Array
    spare: Array


class Histories:
    """The network values whose buffers are in a block, and the layout of blocks.

    shapes: of all values, with any number of positions along the axis. forms: of all values; the
    attribute `forms` has only the values in the block.
    """

    def __init__(self, shapes: Mapping[int, Shape], forms: Mapping[int, Form], axis: int) -> None:
        self._shapes, self._axis = shapes, axis
        self.forms = {
            value: form
            for value, form in forms.items()
            if form.layout is DataLayout.NXC and axis == 2 and shapes[value][0] == 1
        }
        self.layout = Layout({}, {}, 0)

    def grown(self, extents: Mapping[int, int]) -> Layout:
        """Return the layout if each buffer has room for so many positions, else a larger one."""
        known = self.layout.extents
        extents = {value: count for value, count in extents.items() if value in self.forms}
        if all(count <= known.get(value, 0) for value, count in extents.items()):
            return self.layout
        larger, offsets, nbytes = dict(known), dict[int, int](), 0
        for value, count in extents.items():
            larger[value] = max(count, larger.get(value, 0))
        for value, count in larger.items():
            offsets[value] = nbytes
            nbytes += (-(-count * self._row_bytes(value) // _ALIGNMENT) + 1) * _ALIGNMENT
        return Layout(offsets, larger, nbytes)

    def placed(self, graph: Graph, phase: Phase, layout: Layout) -> Graph:
        """Place a phase's buffers in the block, so that they are no longer inputs and outputs."""
        held = {value: n for value, n in phase.buffers.items() if value in self.forms}
        before = {n: held[value] for value, n in phase.waiting.items() if value in held}
        kept = zip(graph.outputs[len(phase.results) :], phase.kept, strict=True)
        after = {number for number, value in kept if value in held}
        return replace(
            graph,
            nodes=tuple(node for node in graph.nodes if node.outputs[0] not in after),
            inputs={name: n for name, n in graph.inputs.items() if n not in before},
            outputs=tuple(n for n in graph.outputs if n not in after),
            views={part: (buffer, 0) for part, buffer in before.items() if part != buffer},
            held={n: layout.offsets[value] for value, n in held.items()},
        )

    def kept(self, layout: Layout, counts: Mapping[int, int], arrays: Sequence[Array]) -> Kept:
        """Allocate a new stream's memory and copy the kept positions, `counts` per value, to it."""
        pairs = list(zip(counts, arrays, strict=True))
        outside = [array for value, array in pairs if value not in self.forms]
        kept = Kept(outside, layout, layout.block(), layout.block())
        parts = self.arrays(kept, counts)
        for (value, array), part in zip(pairs, parts, strict=True):
            if value in self.forms:
                part[...] = array
        return kept

    def arrays(self, kept: Kept, counts: Mapping[int, int]) -> Iterator[Array]:
        """Yield the kept positions of each value; later pushes overwrite some of these arrays."""
        outside = iter(kept.outside)
        for value, count in counts.items():
            if value in self.forms:
                shape, form = with_extent(self._shapes[value], self._axis, count), self.forms[value]
                room, first = array_shape(shape, form.layout), kept.layout.offsets[value]
                yield np.ndarray(room, form.dtype.numpy, kept.block, first)
            else:
                yield next(outside)

    def copies(self, before: State, after: State, layout: Layout) -> Copies:
        """Return the copies between blocks that follow a push."""
        rows = []
        for value, count in after.kept.items():
            if value in self.forms:
                row, first = self._row_bytes(value), layout.offsets[value]
                cut = after.first[value] - before.first[value]
                rows.append((first, first + cut * row, -(-count * row // COPY_BYTES)))
        return Copies(rows)

    def _row_bytes(self, value: int) -> int:
        """Return the distance in bytes from one position to the next."""
        _, channels, _, *size = self._shapes[value]
        return channels * prod(size) * self.forms[value].dtype.itemsize


class Copies:
    """Copies between blocks, (target, source, lines), in native code, which is thread-safe."""

    def __init__(self, rows: Sequence[tuple[int, int, int]]) -> None:
        dst, src, lines = np.array(rows, np.int64).reshape(-1, 3).T
        self._table = records(COPY, len(rows), dst=dst, src=src, lines=lines)
        self._code = copies_code(host())
        self._run = _COPIES(self._code.addresses["copies"])

    def run(self, dst: Array, src: Array) -> None:
        """Copy from one block to another."""
        self._run(*map(address_of, (dst, src, self._table)), len(self._table))
