"""The packed operand, and the tables that pack it, which NumPy writes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ....geometry import Tap
from ....problem import DataLayout
from ..correlation import Correlation
from ..kernel_arguments import Table, filled
from ..packing import Numbers
from .driver import CHUNK, CLEAR, COPY
from .merging import Merging
from .operations import PAIRS, ROW_BYTES, ROWS
from .placement import Operand
from .schedule import Padding, inputs_of, is_flat

CHUNK_POSITIONS = 256
"""Approximate number of positions in a chunk."""
_CHUNK_CHANNELS = 128  # with fewer, chunks are longer, so that jobs take some microseconds


class Packed(Operand):
    """The packed operand: [group][block of 32 channels][planes of each axis][image][positions of
    each axis][32 channels]; `before` is as in channels/blocks.py.

    With merged taps, [group][planes of outer axes][image][positions of each axis][`lanes`]: the
    last axis has no planes, so that neighbouring positions are adjacent."""

    def __init__(self, correlation: Correlation, before: int, merging: Merging | None) -> None:
        self.correlation, self.merging = correlation, merging
        self.lanes = merging.lanes if merging else PAIRS
        self.position = self.lanes * 2
        lines = correlation.lines
        axes = [Padding.of(line, 0 if i else before) for i, line in enumerate(lines)]
        self._is_flat = is_flat(correlation.batch, axes)
        self.counts = tuple(axis.count for axis in axes)
        step = 1
        if merging:
            step, last = axes[-1].step, axes[-1]
            axes[-1] = replace(last, step=1, planes=(0,), length=last.length * step)
        self.axes = axes
        self.planes = tuple(len(axis.planes) for axis in axes)
        self.lengths = tuple(axis.length for axis in axes)
        image = prod(self.lengths)
        # Tiles at the last positions read past the end.
        self.plane = correlation.batch * image + ROWS * step + -(-PAIRS // self.lanes)
        self.image_bytes = image * self.position
        block = prod(self.planes) * self.plane * self.position
        self.block_bytes = ROW_BYTES if merging else block
        self.blocks = inputs_of(correlation.weight)
        self.group_bytes = block if merging else self.blocks * block
        self.nbytes = correlation.groups * self.group_bytes
        inner = [prod(self.lengths[i:]) for i in range(len(lines) + 1)]
        self.steps = np.array(inner, np.int64) * self.position
        self.steps[-1] *= step
        self._steps = np.array(inner[1:], np.int64)
        self._plane_steps = [prod(self.planes[i + 1 :]) for i in range(len(lines))]

    def _offset(self, number: int, tap: Tap) -> int:
        high = self.correlation.lines[number].high
        if self.merging and number == len(self.axes) - 1:
            return (high * self.lanes - tap.shift) * 2
        plane, position = self.axes[number].read(high, tap)
        plane_step = self._plane_steps[number] * self.plane
        return (plane * plane_step + position * int(self._steps[number])) * self.position

    def _row_starts(self, rows: Numbers) -> Numbers:
        if not self._is_flat:
            return super()._row_starts(rows)
        starts: Numbers = (self.steps[:-1] // self.steps[-1]) @ rows
        return starts

    def chunks(self) -> dict[str, Table]:
        """Return an image's chunks, and their copies and clears."""
        size = self.correlation.operand_size
        *outer, last = size
        positions = self._chunk_positions()
        length = last if last <= 2 * positions else positions
        rows = max(1, positions // max(1, last)) if length == last else 1
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

    def _chunk_positions(self) -> int:
        """Return the number of positions in a chunk: more for few channels-last channels."""
        if self.correlation.layout is DataLayout.NCX:
            return CHUNK_POSITIONS
        channels = self.correlation.reduced // self.correlation.groups
        return CHUNK_POSITIONS * max(1, _CHUNK_CHANNELS // channels)

    def _copies(self, length: int, parts: int) -> tuple[Table, Numbers, Numbers]:
        """Return the copies, and the image row and the part of it that each copy reads."""
        *outer, last = self.axes
        *sizes, columns = self.correlation.operand_size
        # The packed offset of each row along outer axes, or -1 if no tap reads it.
        offsets = np.zeros(1, np.int64)
        for i, (axis, size) in enumerate(zip(outer, sizes, strict=True)):
            along = self._axis_offsets(axis, size, i)
            both = np.where((offsets[:, None] < 0) | (along < 0), -1, offsets[:, None] + along)
            offsets = both.ravel()
        rows = np.flatnonzero(offsets >= 0)
        listed = []
        for number, plane in enumerate(last.planes):
            for part in range(parts):
                low, high = part * length, min(columns, (part + 1) * length)
                # Positions i with i + first = step * q + plane.
                q = max(0, -(-(low + last.first - plane) // last.step))
                stop = min(last.length, -(-(high + last.first - plane) // last.step))
                if q < stop:
                    src = last.step * q + plane - last.first
                    dst = (number * self._plane_steps[-1] * self.plane + q) * self.position
                    listed.append((part, src, dst, stop - q))
        table = np.array(listed, np.int64).reshape(-1, 4)
        row, column = np.repeat(rows, len(table)), np.tile(table, (len(rows), 1))
        copies = filled(
            COPY, len(row), src=row * columns + column[:, 1], dst=offsets[row] + column[:, 2],
            count=column[:, 3], step=last.step,
        )  # fmt: skip
        return copies, row, column[:, 0]

    def _axis_offsets(self, axis: Padding, size: int, number: int) -> Numbers:
        """Return the packed offsets of positions along an axis, or -1 if no tap reads them."""
        q, residue = np.divmod(np.arange(size) + axis.first, axis.step)
        plane = np.full(axis.step, -1, np.int64)
        plane[list(axis.planes)] = np.arange(len(axis.planes))
        offset = plane[residue] * self._plane_steps[number] * self.plane + q * self._steps[number]
        read = (plane[residue] >= 0) & (q >= 0) & (q < axis.length)
        return np.where(read, offset * self.position, -1)

    def _clears(self) -> Table:
        """Return the ranges of an image's packed positions that no copy writes."""
        offset, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
        for i, axis in enumerate(self.axes[:-1]):
            low, high = self._bounds(i)
            planes, q = np.indices((len(axis.planes), axis.length))
            along = planes * self._plane_steps[i] * self.plane + q * self._steps[i]
            copied = (q >= low[:, None]) & (q < high[:, None])
            offset = (offset[:, None] + along.ravel()).ravel()
            inside = (inside[:, None] & copied.ravel()).ravel()
        length, runs = self.axes[-1].length, []
        for plane, (low, high) in enumerate(zip(*self._bounds(-1), strict=True)):
            first = offset + plane * self._plane_steps[-1] * self.plane
            runs.append((first, np.where(inside, low, length)))
            runs.append((first[inside] + high, np.full(int(inside.sum()), length - high)))
        dst, count = (np.concatenate(column) for column in zip(*runs, strict=True))
        used = count > 0
        return filled(CLEAR, int(used.sum()), dst=dst[used] * self.position, count=count[used])

    def _bounds(self, number: int) -> tuple[Numbers, Numbers]:
        """Return the operand's first position in each plane of an axis, and the position after its
        last one."""
        axis, size = self.axes[number], self.correlation.operand_size[number]
        start = np.array(axis.planes) - axis.first
        low = np.clip(-(start // axis.step), 0, axis.length)
        return low, np.clip(-((start - size) // axis.step), low, axis.length)
