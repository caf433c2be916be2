"""Tables of offsets: for tiles of positions, for their results, and for products' inputs.

NumPy writes them for data of one size. An operand is read in place (`InPlace`), or packed first
(tables.py).
"""

from __future__ import annotations

import numpy as np

from ....geometry import Tap
from ..channels.form import steps_of
from ..channels.schedule import Cut
from ..correlation import Correlation
from ..kernel_arguments import Table, filled
from ..packing import Numbers
from .driver import PIECE, TILE
from .operations import ROW_BYTES, ROWS
from .schedule import phases_of


class Operand:
    """An operand with `counts` positions j along each axis.

    Bytes from one to the next: `steps` for images and for positions along each axis; `block_bytes`
    for blocks of 32 channels, `group_bytes` for groups. `nbytes` is the size of the packed data.
    """

    correlation: Correlation
    counts: tuple[int, ...]
    steps: Numbers
    block_bytes: int
    group_bytes: int
    nbytes = 0

    def _offset(self, number: int, tap: Tap) -> int:
        """Return the bytes from a position to the input that an axis's tap reads for it."""
        del number, tap
        return 0

    def _row_starts(self, rows: Numbers) -> Numbers:
        """Return the flat number of each row's first position, if each row begins a tile of 16
        positions. `rows` are the image and the positions along outer axes."""
        return np.arange(rows.shape[1]) * (-(-self.counts[-1] // ROWS) * ROWS)

    def _rows_earlier(self, x: Numbers) -> Numbers:
        """Return how many rows earlier tiles at these offsets must begin to stay inside."""
        return np.zeros_like(x)

    @property
    def row_bytes(self) -> int:
        """Bytes from one row of a tile to the next."""
        return int(self.steps[-1])

    def products(self, cut: Cut, inputs: int) -> tuple[Table, list[tuple[int, int]]]:
        """Return the offsets of all products' inputs, with `inputs` blocks, and each phase's first
        product and number of products."""
        offsets, ranges, begin = [], [], 0
        blocks = np.arange(inputs) * self.block_bytes
        for grid in cut.grids:
            taps = np.zeros(1, np.int64)
            for i, phase in enumerate(phases_of(grid)):
                along = np.array([self._offset(i, tap) for tap in phase.taps], np.int64)
                taps = (taps[:, None] + along).ravel()
            products = (taps[:, None] + blocks).ravel()
            offsets.append(products)
            ranges.append((begin, len(products)))
            begin += len(products)
        return np.concatenate([*offsets, np.zeros(1, np.int64)]), ranges

    def results(self, counts: Numbers, y_steps: Numbers) -> dict[str, Table]:
        """Return tiles and pieces for each row of `counts`, some phases' positions along each axis.
        `y_steps` are the bytes in the output from one image to the next, and from one position to
        the next along each axis."""
        shape = (self.correlation.batch, *self.counts[:-1])
        rows = np.indices(shape).reshape(len(shape), -1)
        starts, x, y = self._row_starts(rows), self.steps[:-1] @ rows, y_steps[:-1] @ rows
        every = _pieces(starts, np.full(len(starts), self.counts[-1]))
        tile, row, *_ = every
        first = np.flatnonzero(np.diff(tile, prepend=-1))  # rows, and so tiles, are in order
        tiles, row = tile[first], row[first]
        offsets = x[row] + (tiles * ROWS - starts[row]) * self.row_bytes
        earlier = self._rows_earlier(offsets)
        tables, pieces, begin = [], [], 0
        for count in counts:
            tile, row, low, high = every
            if (count != self.counts).any():
                exists = (count[:-1] > rows[1:].T).all(1)
                tile, row, low, high = _pieces(starts, np.where(exists, count[-1], 0))
            table = filled(
                PIECE, len(tile), count=high - low,
                row=low - tile * ROWS + earlier[np.searchsorted(tiles, tile)],
                y=y[row] + (low - starts[row]) * y_steps[-1],
            )  # fmt: skip
            tile_table = filled(
                TILE, len(tiles), x=offsets - earlier * self.row_bytes,
                pieces=begin + np.searchsorted(tile, tiles),
                pieces_end=begin + np.searchsorted(tile, tiles, "right"),
            )  # fmt: skip
            tables.append(tile_table)
            pieces.append(table)
            begin += len(table)
        return {"tiles": np.concatenate(tables), "pieces": np.concatenate(pieces)}


class InPlace(Operand):
    """Channels-last data that is read in place, because no tap reads outside it. `before` is as in
    channels/blocks.py."""

    def __init__(self, correlation: Correlation, before: int, merges: bool) -> None:
        self.correlation, lines, self._merges = correlation, correlation.lines, merges
        position = correlation.reduced * correlation.dtype.itemsize
        inner: list[int] = steps_of(correlation.operand_size, position).tolist()
        self.counts = tuple(
            max((-(-(line.out - p.offset) // line.stride) for p in line.phases), default=0)
            for line in lines
        )
        self.steps = np.array(inner, np.int64) * np.array([1, *(line.step for line in lines)])
        self._strides = inner[1:]
        self._before = (before, *[0] * (len(lines) - 1))
        self.block_bytes = ROW_BYTES
        self.group_bytes = position // correlation.groups
        furthest = sum(
            (b - line.low) * s
            for b, line, s in zip(self._before, lines, self._strides, strict=True)
        )
        nbytes = correlation.batch * inner[0]
        self._last = nbytes - position - furthest - (ROWS - 1) * self.row_bytes
        self._is_dense = all(
            count == line.size and line.step == 1
            for count, line in zip(self.counts, lines, strict=True)
        )

    @property
    def is_possible(self) -> bool:
        """Whether the data is at least one full tile long, so that a tile that would extend beyond
        the end can begin earlier."""
        return self._last >= self.row_bytes - self._strides[-1]

    def _offset(self, number: int, tap: Tap) -> int:
        shift = tap.shift
        if self._merges and number == len(self.counts) - 1:
            return self._before[number] * self._strides[number] - shift * 2
        return (self._before[number] - shift) * self._strides[number]

    def _row_starts(self, rows: Numbers) -> Numbers:
        if not self._is_dense:
            return super()._row_starts(rows)
        return np.arange(rows.shape[1]) * self.counts[-1]

    def _rows_earlier(self, x: Numbers) -> Numbers:
        return np.maximum(0, -((self._last - x) // self.row_bytes))


def _pieces(starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Cut rows [start, start + count) at multiples of 16; return each part's tile, row and ends."""
    first = starts // ROWS
    parts = np.where(counts > 0, (starts + counts - 1) // ROWS - first + 1, 0)
    row = np.repeat(np.arange(len(starts)), parts)
    tile = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    low = np.maximum(starts[row], tile * ROWS)
    return tile, row, low, np.minimum(starts[row] + counts[row], (tile + 1) * ROWS)
