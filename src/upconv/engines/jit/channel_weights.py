"""Packing weights for the channels kernel: [group][grid][block][tap][input channel][lane].

For dot products: [group][grid][block][tap][pair of input channels][lane][channel of the pair], with
zeros where the last pair has only one.

Every block reads its weights from the first to the last. Lanes that do not use a tap, and those
behind a block's last, have zeros.

Where lanes lie far apart in the weight, and all taps of all reduced channels side by side, as in
every input gradient of weights in the order IOX, gathering would read a line of the cache for each
number. There squares are turned in registers (`turned_packing_code`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np

from ..base import Array
from ..copies import contiguous
from . import pool
from .channel_lanes import Lanes
from .channel_schedule import Block, Bundle, Grid, taps_of
from .compile import Code
from .correlation import Correlation
from .cpu import Cpu
from .emit import Module
from .row_code import gather_code, turn_code
from .slots import Slots, jobs
from .values import BYTES, DOUBLE, FLOAT, I16, I64, LINE, PTR, STORED, Value, vector

_SLOTS = Slots(
    ("dst", "src", "pieces", "tables", "gather"),
    ("count", "channels", "part", "parts", "jobs", "element",
     "dst_group", "src_group", "src_channel", "src_lane", "stored", "columns", "taps"),
    ("next",),
)  # fmt: skip
_PIECE = 4  # numbers per piece: byte offsets in dst and src, first number in tables, lanes
_PART = 8  # input channels that are packed together: their source stays in the cache
_COLUMNS = 64  # taps and input channels that are turned at once, in scratch of at most 32 KiB
_TURNED_PART = 16 * _COLUMNS  # of a job

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Use:
    """One tap of one block: kernel indices and shifts of the outer axes, the last axis's shift."""

    grid: Grid
    block: Block
    indices: tuple[int, ...]
    shifts: tuple[int, ...]


def uses(grid: Grid, block: Block) -> Iterator[Use]:
    """The taps of a block in the order in which its sums are made."""
    outer = [phase.taps for phase in grid.outer]
    for taps, shift in product(product(*outer), block.shifts):
        indices = tuple(tap.index for tap in taps)
        yield Use(grid, block, indices, (*(tap.shift for tap in taps), shift))


def taps_of_phases(lanes: Lanes, use: Use) -> tuple[int, ...]:
    """For each phase of a bundle the index of the last axis's tap, or -1 where it uses none."""
    return tuple(taps.get(use.shifts[-1], -1) for taps in _taps_by_shift(lanes, use.grid.bundle))


def taps_of_lanes(lanes: Lanes, use: Use) -> Numbers:
    """The same for each lane of a block; those behind its last use none."""
    block, taps = use.block, taps_of_phases(lanes, use)
    numbers = np.arange(block.lane, block.lane + block.vectors * lanes.width)
    phases = np.minimum(numbers // lanes.channels, len(taps) - 1)
    found: Numbers = np.array(taps, np.int64)[phases]
    found[block.live :] = -1
    return found


@lru_cache(maxsize=64)
def _taps_by_shift(lanes: Lanes, bundle: Bundle) -> tuple[dict[int, int], ...]:
    """For each phase of a bundle its taps' indices by their shifts."""
    phases = (taps_of(lanes, bundle, phase) for phase in range(bundle.start, bundle.stop))
    return tuple({tap.shift: tap.index for tap in taps} for taps in phases)


class ChannelPacking:
    """Packs the weights of one correlation into elements of type `compute`."""

    def __init__(
        self,
        correlation: Correlation,
        lanes: Lanes,
        grids: tuple[Grid, ...],
        threads: int,
        cpu: Cpu,
    ) -> None:
        self._correlation, self._lanes, self._threads = correlation, lanes, threads
        self._groups = 1 if lanes.own else correlation.groups
        self._channels = 1 if lanes.own else correlation.reduced // correlation.groups
        double = correlation.dtype.itemsize == 8
        self._compute = np.dtype(np.uint16 if lanes.dots else np.float64 if double else np.float32)
        self.row_channels = self._channels + (self._channels % 2 if lanes.dots else 0)
        self._strides = correlation.weight_strides
        *self.places, self.group_bytes = self._places(grids)
        kept = I16 if lanes.dots else DOUBLE if double else FLOAT
        element = STORED[correlation.dtype]
        self._blocks = _block_table(correlation, lanes, grids, self.places)
        self._tables = np.zeros(1, np.int64)
        if self._blocks is None:
            self._pieces, self._tables = self._lay_out(grids)
            self._move, name = gather_code(element, kept, cpu), "gather"
            self._code = packing_code(cpu)
        else:
            self._pieces = self._blocks
            self._move, name = turn_code(element, kept, cpu), "turn"
            self._code = turned_packing_code(kept, cpu)
        self._move_address = self._move.addresses[name]

    @property
    def itemsize(self) -> int:
        """Bytes of one packed weight."""
        return self._compute.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of a packed weight."""
        return self._groups * self.group_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the tables."""
        return int(self._pieces.nbytes + self._tables.nbytes)

    def pack(self, weight: Array) -> Array:
        """A weight of the correlation's shape in the order of use."""
        weight = contiguous(weight)
        packed = aligned(self.nbytes // self._compute.itemsize + 64, self._compute)
        stored = self._correlation.dtype.itemsize
        by_group, by_reduced, by_made = (s * stored for s in self._strides[:3])
        taps = _turned_taps(self._correlation)
        turns = self._blocks is not None
        columns, part = (self._channels * taps, _TURNED_PART) if turns else (self._channels, _PART)
        parts = -(-columns // part)
        block = _SLOTS.block(
            dst=packed.ctypes.data, src=weight.ctypes.data, gather=self._move_address,
            pieces=self._pieces.ctypes.data, tables=self._tables.ctypes.data,
            count=len(self._pieces), channels=self._channels, part=part, parts=parts,
            jobs=parts * self._groups * (len(self._pieces) if turns else 1),
            element=self._compute.itemsize, columns=columns, taps=taps,
            dst_group=self.group_bytes, src_group=by_group, src_channel=by_reduced,
            src_lane=by_made, stored=stored,
        )  # fmt: skip
        threads = self._threads if packed.size > 1 << 16 else 1
        pool.run(self._code.addresses["pack"], block.address, threads)
        return packed

    def _places(self, grids: tuple[Grid, ...]) -> list[int]:
        """Where each block's weights begin, in bytes, and where the last's end."""
        row = self.row_channels * self._lanes.width * self._compute.itemsize
        sizes = [
            prod(len(phase.taps) for phase in grid.outer) * len(block.shifts) * block.vectors * row
            for grid in grids
            for block in grid.blocks
        ]
        return [0, *accumulate(sizes)]

    def _lay_out(self, grids: tuple[Grid, ...]) -> tuple[Numbers, Numbers]:
        """The pieces, and the numbers of the elements that they gather.

        Uses whose taps differ by as much in all phases share a table."""
        itemsize, (*outer, by_tap) = self._correlation.dtype.itemsize, self._strides[3:]
        begins: dict[tuple[Any, ...], int] = {}
        tables: list[Numbers] = []
        pieces, places, size = [], iter(self.places), 0
        for grid in grids:
            for block in grid.blocks:
                place, width = next(places), block.vectors * self._lanes.width
                for use in uses(grid, block):
                    taps = taps_of_phases(self._lanes, use)
                    first = min((tap for tap in taps if tap >= 0), default=0)
                    # Not by the block: that would be hashed with all its shifts.
                    which = grid.bundle, block.lane, block.vectors
                    key = (*which, tuple(max(-1, tap - first) for tap in taps))
                    if key not in begins:
                        begins[key] = size
                        tables.append(self._elements(use) - first * by_tap)
                        size += width
                    source = sum(i * s for i, s in zip(use.indices, outer, strict=True))
                    source += first * by_tap
                    pieces.append((place, source * itemsize, begins[key], width))
                    place += self.row_channels * width * self._compute.itemsize
        numbers = np.concatenate([*tables, np.zeros(1, np.int64)])
        return np.array(pieces, np.int64).reshape(-1, _PIECE), np.maximum(numbers, -1)

    def _elements(self, use: Use) -> Numbers:
        """For each lane the number of its element from a piece's first, or less than any."""
        taps = taps_of_lanes(self._lanes, use)
        by_group, _, by_made, *_, by_tap = self._strides
        numbers = np.arange(use.block.lane, use.block.lane + len(taps)) % self._lanes.channels
        if self._lanes.own:
            spread = self._correlation.made // self._correlation.groups
            base = numbers // spread * by_group + numbers % spread * by_made
        else:
            base = numbers * by_made
        found: Numbers = np.where(taps < 0, np.iinfo(np.int64).min // 2, base + taps * by_tap)
        return found


def aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised array that begins with a cache line.

    NumPy's begin anywhere, and then each load of a whole vector touches two lines: that took up to
    a tenth of a layer's time on a Xeon (2026-11-21)."""
    spare = LINE // dtype.itemsize
    array = np.empty(count + spare, dtype)
    first = -array.ctypes.data % LINE // dtype.itemsize
    return array[first : first + count]


def _block_table(
    correlation: Correlation, lanes: Lanes, grids: tuple[Grid, ...], places: list[int]
) -> Numbers | None:
    """For each block its place, the bytes to its first lane's weights, lanes, and width; None where
    weights are to be gathered."""
    by_reduced, by_made, *by_tap = correlation.weight_strides[1:]
    grid = grids[0]
    if len(grids) > 1 or grid.bundle != Bundle(0, 1, 1) or lanes.own or lanes.dots:
        return None
    last = [tap.index for tap in sorted(taps_of(lanes, grid.bundle, 0), key=lambda t: -t.shift)]
    axes = [*([tap.index for tap in phase.taps] for phase in grid.outer), last]
    steps = [prod(map(len, axes[i + 1 :])) for i in range(len(axes))]
    in_order = all(indices == list(range(len(indices))) for indices in axes)
    taps = _turned_taps(correlation)
    if correlation.reduced == correlation.groups:
        by_reduced = taps  # from one to the next where there is no other
    if not in_order or by_tap != steps or by_reduced != taps or by_made < max(by_reduced, 2):
        return None
    itemsize, width = correlation.dtype.itemsize, lanes.width
    rows = (
        (place, block.lane * by_made * itemsize, block.live, block.vectors * width)
        for place, block in zip(places, grid.blocks, strict=True)
    )
    return np.array(list(rows), np.int64)


def _turned_taps(correlation: Correlation) -> int:
    """How many taps a result has, of a correlation with one phase along each axis."""
    return prod(len(line.phases[0].taps) for line in correlation.lines if line.phases)


@lru_cache(maxsize=16)
def turned_packing_code(element: str, cpu: Cpu) -> Code:
    """`pack(args)`, which every thread runs, where lanes lie far apart: a job is some columns, taps
    and input channels as they lie, of all lanes of a block."""
    module = Module(cpu.attributes)
    lanes = cpu.lanes(BYTES[element])
    kind = vector(element, lanes)
    with module.function("pack", {"args": PTR}) as f:
        a = _SLOTS.reader(f)
        scratch = f.scratch(_COLUMNS * 8 * lanes * BYTES[element])
        with jobs(f, a.address("next"), a["jobs"]) as job:
            number, rest = f.rem(job, a["count"]), f.div(job, a["count"])
            part, group = f.rem(rest, a["parts"]), f.div(rest, a["parts"])
            piece = f.at(a["pieces"], f.mul(number, _PIECE), I64)
            to, start, live, width = (f.load(I64, f.at(piece, i, I64)) for i in range(_PIECE))
            dst = f.at(a["dst"], f.add(f.mul(group, a["dst_group"]), to))
            src = f.at(a["src"], f.add(f.mul(group, a["src_group"]), start))
            row = f.mul(width, a["element"])
            # What lies behind the last lane is zero.
            behind = f.select(f.compare("slt", live, width), f.mul(width, _COLUMNS), 0)
            with f.loop(0, behind, lanes) as lane:
                f.store(Value(kind, "zeroinitializer"), f.at(scratch, lane.index, element))
            first = f.mul(part, a["part"])
            stop = f.min(a["columns"], f.add(first, a["part"]))
            with f.loop(first, stop, _COLUMNS) as loop:
                count = f.min(f.sub(stop, loop.index), _COLUMNS)
                here = f.at(src, f.mul(loop.index, a["stored"]))
                f.call(a["gather"], scratch, here, live, count, a["src_lane"], row)
                with f.loop(0, count) as each:
                    column = f.add(loop.index, each.index)
                    channel, tap = f.div(column, a["taps"]), f.rem(column, a["taps"])
                    place = f.mul(f.add(f.mul(tap, a["channels"]), channel), row)
                    with f.loop(0, width, lanes) as lane:
                        offset = f.mul(lane.index, a["element"])
                        line = f.load(kind, f.at(scratch, f.add(f.mul(each.index, row), offset)))
                        f.store(line, f.at(dst, f.add(place, offset)))
    return Code(module, ("pack",), cpu, opt=1)


@lru_cache(maxsize=16)
def packing_code(cpu: Cpu) -> Code:
    """The function `pack(args)`, which every thread runs."""
    module = Module(cpu.attributes)
    with module.function("pack", {"args": PTR}) as f:
        a = _SLOTS.reader(f)
        with jobs(f, a.address("next"), a["jobs"]) as job:
            part, group = f.rem(job, a["parts"]), f.div(job, a["parts"])
            first = f.mul(part, a["part"])
            count = f.min(a["part"], f.sub(a["channels"], first))
            dst = f.at(a["dst"], f.mul(group, a["dst_group"]))
            src = f.add(f.mul(group, a["src_group"]), f.mul(first, a["src_channel"]))
            src = f.at(a["src"], src)
            with f.loop(0, a["count"]) as loop:
                piece = f.at(a["pieces"], f.mul(loop.index, _PIECE), I64)
                to, start, table, lanes = (f.load(I64, f.at(piece, i, I64)) for i in range(_PIECE))
                row = f.mul(lanes, a["element"])
                f.call(
                    a["gather"], f.at(dst, f.add(to, f.mul(first, row))), f.at(src, start),
                    f.at(a["tables"], table, I64), lanes, count, row, a["src_channel"],
                )  # fmt: skip
    return Code(module, ("pack",), cpu, opt=0)
