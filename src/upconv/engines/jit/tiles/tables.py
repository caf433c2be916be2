"""Tables of the tile kernel for data of a size: what is packed where, tiles of positions, where
their results go, and the offsets of products.

NumPy writes them; unit tests replay them.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..channels.schedule import Cut
from ..correlation import Correlation
from ..kernel_arguments import Table, filled
from ..packing import Numbers
from .driver import CHUNK, CLEAR, COPY, PIECE, TILE
from .operations import ROW_BYTES, ROWS
from .schedule import Padding, inputs_of, is_flat, phases_of

CHUNK_POSITIONS = 256
"""Positions that are packed together, about."""


class Packed:
    """The packed operand: [group][block of 32 channels][planes of each axis][image][positions of
    each axis][32 channels]; `before` as in channels/blocks.py."""

    def __init__(self, correlation: Correlation, before: int) -> None:
        self.correlation = correlation
        lines = correlation.lines
        self.axes = [Padding.of(line, 0 if i else before) for i, line in enumerate(lines)]
        self.planes = tuple(len(axis.planes) for axis in self.axes)
        self.lengths = tuple(axis.length for axis in self.axes)
        image = prod(self.lengths)
        # Tiles that begin at the last positions read on behind these.
        self.plane = correlation.batch * image + ROWS
        self.image_bytes = image * ROW_BYTES
        self.block_bytes = prod(self.planes) * self.plane * ROW_BYTES
        self.blocks = inputs_of(correlation.weight)
        self.group_bytes = self.blocks * self.block_bytes
        self.nbytes = correlation.groups * self.group_bytes
        self._steps = np.array([prod(self.lengths[i + 1 :]) for i in range(len(lines))], np.int64)
        self._plane_steps = [prod(self.planes[i + 1 :]) for i in range(len(lines))]

    # What is packed -------------------------------------------------------------------------------

    def chunks(self) -> dict[str, Table]:
        """The chunks of one image, copies and clears."""
        size = self.correlation.operand_size
        *outer, last = size
        length = last if last <= 2 * CHUNK_POSITIONS else CHUNK_POSITIONS
        rows = max(1, CHUNK_POSITIONS // max(1, last)) if length == last else 1
        parts = max(1, -(-last // max(1, length)))
        copies, row, part = self._copies(length, parts)
        per_image = max(1, -(-prod(outer) // rows) * parts)  # with nothing to read, zeros
        chunk = (row // rows) * parts + part
        first = np.arange(per_image) // parts * rows * last + np.arange(per_image) % parts * length
        stop = np.minimum(
            np.where(parts > 1, (first // max(1, last) + 1) * last, prod(size)),
            first + rows * length,
        )
        order = np.argsort(chunk, kind="stable")
        copies, chunk = copies[order], chunk[order]
        copies["src"] -= first[chunk]
        ends = np.searchsorted(chunk, np.arange(per_image + 1))
        clears = self._clears()
        shares = len(clears) * np.arange(per_image + 1) // max(1, per_image)
        chunks = filled(
            CHUNK, per_image, position=first, count=stop - first,
            copies=ends[:-1], copies_end=ends[1:], clears=shares[:-1], clears_end=shares[1:],
        )  # fmt: skip
        return {"chunks": chunks, "copies": copies, "clears": clears}

    def _copies(self, length: int, parts: int) -> tuple[Table, Numbers, Numbers]:
        """Copies, and of each the row and the part of the image that it reads."""
        *outer, last = self.axes
        *sizes, columns = self.correlation.operand_size
        # Along outer axes: the offset of a row's positions, or -1 where none reads it.
        places = np.zeros(1, np.int64)
        for i, (axis, size) in enumerate(zip(outer, sizes, strict=True)):
            along = self._places(axis, size, i)
            both = np.where((places[:, None] < 0) | (along < 0), -1, places[:, None] + along)
            places = both.ravel()
        rows = np.flatnonzero(places >= 0)
        listed = []
        for number, plane in enumerate(last.planes):
            for part in range(parts):
                low, high = part * length, min(columns, (part + 1) * length)
                # Positions i with i + first = step * q + plane.
                q = max(0, -(-(low + last.first - plane) // last.step))
                stop = min(last.length, -(-(high + last.first - plane) // last.step))
                if q < stop:
                    src = last.step * q + plane - last.first
                    dst = (number * self._plane_steps[-1] * self.plane + q) * ROW_BYTES
                    listed.append((part, src, dst, stop - q))
        table = np.array(listed, np.int64).reshape(-1, 4)
        row, column = np.repeat(rows, len(table)), np.tile(table, (len(rows), 1))
        copies = filled(
            COPY, len(row), src=row * columns + column[:, 1], dst=places[row] + column[:, 2],
            count=column[:, 3], step=last.step,
        )  # fmt: skip
        return copies, row, column[:, 0]

    def _places(self, axis: Padding, size: int, number: int) -> Numbers:
        """Offsets of the operand's positions along an axis, -1 of those that no tap reads."""
        q, residue = np.divmod(np.arange(size) + axis.first, axis.step)
        plane = np.full(axis.step, -1, np.int64)
        plane[list(axis.planes)] = np.arange(len(axis.planes))
        offset = plane[residue] * self._plane_steps[number] * self.plane + q * self._steps[number]
        read = (plane[residue] >= 0) & (q >= 0) & (q < axis.length)
        return np.where(read, offset * ROW_BYTES, -1)

    def _clears(self) -> Table:
        """The positions of an image that no position of the operand is copied to."""
        offset, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
        for i, axis in enumerate(self.axes[:-1]):
            low, high = self._bounds(i)
            planes, q = np.indices((len(axis.planes), axis.length))
            along = planes * self._plane_steps[i] * self.plane + q * self._steps[i]
            there = (q >= low[:, None]) & (q < high[:, None])
            offset = (offset[:, None] + along.ravel()).ravel()
            inside = (inside[:, None] & there.ravel()).ravel()
        length, runs = self.axes[-1].length, []
        for plane, (low, high) in enumerate(zip(*self._bounds(-1), strict=True)):
            first = offset + plane * self._plane_steps[-1] * self.plane
            runs.append((first, np.where(inside, low, length)))
            runs.append((first[inside] + high, np.full(int(inside.sum()), length - high)))
        dst, count = (np.concatenate(each) for each in zip(*runs, strict=True))
        there = count > 0
        return filled(CLEAR, int(there.sum()), dst=dst[there] * ROW_BYTES, count=count[there])

    def _bounds(self, number: int) -> tuple[Numbers, Numbers]:
        """In each plane of an axis, the first position that is the operand's, and behind the last
        one."""
        axis, size = self.axes[number], self.correlation.operand_size[number]
        behind = np.array(axis.planes) - axis.first
        low = np.clip(-(behind // axis.step), 0, axis.length)
        return low, np.clip(-((behind - size) // axis.step), low, axis.length)

    # Products and results -------------------------------------------------------------------------

    def steps(self, cut: Cut) -> tuple[Table, list[tuple[int, int]]]:
        """Offsets of the inputs of all products; of each phase its first one, and their number."""
        offsets, ranges, begin = [], [], 0
        blocks = np.arange(self.blocks) * self.block_bytes
        for grid in cut.grids:
            taps = np.zeros(1, np.int64)
            for i, phase in enumerate(phases_of(grid)):
                high = self.correlation.lines[i].high
                reads = [self.axes[i].read(high, tap) for tap in phase.taps]
                step, plane = int(self._steps[i]), self._plane_steps[i] * self.plane
                along = np.array([p * plane + q * step for p, q in reads], np.int64)
                taps = (taps[:, None] + along * ROW_BYTES).ravel()
            products = (taps[:, None] + blocks).ravel()
            offsets.append(products)
            ranges.append((begin, len(products)))
            begin += len(products)
        return np.concatenate([*offsets, np.zeros(1, np.int64)]), ranges

    def results(self, counts: Numbers, y_steps: Numbers) -> dict[str, Table]:
        """Tiles and pieces for each row of `counts`, the positions of some phases along each axis;
        `y_steps` are the output's bytes from an image to the next, and from a position to the next
        along each axis."""
        *outer, last = self.axes
        flat = is_flat(self.correlation.batch, self.axes)
        shape = (self.correlation.batch, *(axis.count for axis in outer))
        index = np.indices(shape).reshape(len(shape), -1)
        strides = np.array([prod(self.lengths[i:]) for i in range(len(self.axes))], np.int64)
        position, y = strides @ index, y_steps[:-1] @ index
        starts = position if flat else np.arange(len(position)) * -(-last.count // ROWS) * ROWS
        most = _pieces(starts, np.full(len(starts), last.count))
        tiles, first = np.unique(most[0], return_index=True)
        row = most[1][first]
        x = tiles * ROWS if flat else position[row] + tiles * ROWS - starts[row]
        tables, pieces, begin = [], [], 0
        for count in counts:
            there = (count[:-1] > index[1:].T).all(1)
            tile, row, low, high = _pieces(starts, np.where(there, count[-1], 0))
            listed = filled(
                PIECE, len(tile), row=low - tile * ROWS, count=high - low,
                y=y[row] + (low - starts[row]) * y_steps[-1],
            )  # fmt: skip
            table = filled(
                TILE, len(tiles), x=x * ROW_BYTES,
                pieces=begin + np.searchsorted(tile, tiles),
                pieces_end=begin + np.searchsorted(tile, tiles, "right"),
            )  # fmt: skip
            tables.append(table)
            pieces.append(listed)
            begin += len(listed)
        return {"tiles": np.concatenate(tables), "pieces": np.concatenate(pieces)}


def _pieces(starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Rows [start, start + count) cut at multiples of 16: tile, row, and both ends of each part."""
    first = starts // ROWS
    parts = np.where(counts > 0, (starts + counts - 1) // ROWS - first + 1, 0)
    row = np.repeat(np.arange(len(starts)), parts)
    tile = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    low = np.maximum(starts[row], tile * ROWS)
    return tile, row, low, np.minimum(starts[row] + counts[row], (tile + 1) * ROWS)
