"""The positions primitive: vectors run along positions of one phase; see driver.py and tile.py."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...geometry import Phase
from ..addresses import address_of
from ..base import Array, Maybe
from ..workspace import Workspace
from .compile import CODE_BYTES
from .correlation import Correlation
from .cpu import Cpu
from .driver import driver_code, inner_code
from .kernel_arguments import Blocks
from .operands import Kernel
from .packing import Numbers, Packing
from .result_stores import SLOTS
from .rows import fill_code, finish_code
from .schedule import Schedule, most_narrow, predicted_cycles, schedule
from .tile import tile_code
from .tiling import finish_of

_MOST_CHANNELS = 64  # of a tile, which reads the biases of all its channels


class Positions(Kernel):
    """A correlation without steps in its operand, compiled and laid out."""

    _packer: Packing

    def __init__(self, correlation: Correlation, threads: int, cpu: Cpu) -> None:
        self.correlation = correlation
        self.schedule = plan = schedule(correlation, threads, cpu)
        self.description, self.predicted_cycles = str(plan), predicted_cycles(correlation, plan)
        self._type, kind = correlation.dtype.accumulator.numpy, finish_of(correlation)
        self._codes = [tile_code(tile, cpu) for tile in plan.tiles]
        self._driver = driver_code(cpu)
        fill = fill_code(kind.stored, kind.computed, cpu)
        self._called = fill, finish_code(kind, cpu), inner_code(cpu)
        self._tables: list[Numbers] = []
        self._packer = Packing(correlation, plan, self._type, threads, cpu)
        # An odd number of lines: no two channels in one cache set.
        lines = -(-plan.buffer_lanes // 16) | 1
        self._channel_bytes = lines * 16 * self._type.itemsize
        own = correlation.reduced // correlation.groups
        parts = correlation.groups if plan.shared else plan.threads
        self._part_bytes = own * self._channel_bytes
        self.workspace_bytes = 0 if plan.in_place else parts * self._part_bytes + 64
        self._no_bias = np.zeros(correlation.made + _MOST_CHANNELS, self._type)
        self._blocks = Blocks(SLOTS.block(**self._arguments()))
        tables = sum(table.nbytes for table in self._tables) + self._packer.resident_bytes
        self.resident_bytes = tables + CODE_BYTES * len(self._codes)

    def run(self, out: Array, a: Array, b: Any, bias: Maybe = None, residual: Maybe = None) -> None:
        """Compute into `out`."""
        given, biases = self._given(out, a, bias, residual)
        x, y, more = given.x, given.y, given.residual
        groups = self.correlation.groups
        x_group = x.strides[1] * (self.correlation.reduced // groups)
        with Workspace(self.workspace_bytes) as buffer:
            packed = {"buffer": buffer}
            if self.schedule.in_place:
                packed = {"buffer": address_of(x), "buffer_channel": x.strides[1]}
                packed["buffer_part"] = x_group
            self._blocks.run(
                self._driver.addresses["positions"], self.schedule.threads,
                **packed, x=address_of(x), y=address_of(y), w=address_of(b),
                bias=address_of(biases), residual=0 if more is None else address_of(more),
                x_image=x.strides[0], x_channel=x.strides[1], x_group=x_group,
                y_image=y.strides[0], y_channel=y.strides[1],
                y_group=y.strides[1] * (self.correlation.made // groups),
            )  # fmt: skip
        given.deliver()

    # Tables ---------------------------------------------------------------------------------------

    def _table(self, numbers: Any) -> int:
        table = np.ascontiguousarray(numbers, np.int64)
        self._tables.append(table)
        return table.ctypes.data

    def _arguments(self) -> dict[str, int]:
        correlation, plan = self.correlation, self.schedule
        itemsize, stored = self._type.itemsize, correlation.dtype.itemsize
        own = correlation.reduced // correlation.groups
        pack_channels = max(1, min(own, -(-own * correlation.groups // (4 * plan.threads))))
        pack_lanes = plan.buffer_lanes
        if pack_channels == 1:
            pack_lanes = max(4096, -(-pack_lanes * own * correlation.groups // (4 * plan.threads)))
        lane_parts = 0 if plan.in_place else -(-plan.buffer_lanes // pack_lanes)
        return {
            **{name: address for code in self._called for name, address in code.addresses.items()},
            **self._input_rows(),
            "yrows": self._table(_output_rows(correlation, plan)),
            **self._tap_tables(),
            "blocks": self._table(self._block_rows()),
            "places": self._table(self._packer.places),
            "images": correlation.batch, "rows": plan.cells.rows,
            "channels": own, "pitch": plan.cells.pitch,
            "limit": plan.cells.last.out, "stride": plan.cells.last.stride,
            "block_count": len(plan.blocks),
            "x_bytes": stored, "y_bytes": stored,
            "bias_group": correlation.made // correlation.groups,
            "w_group": self._packer.group_bytes, "element": itemsize,
            "buffer_part": self._part_bytes, "buffer_channel": self._channel_bytes,
            "total": plan.cells.total, "front": plan.front, "back": plan.back,
            "shared": int(plan.shared or plan.in_place),
            "pack_channels": pack_channels, "pack_lanes": pack_lanes,
            "pack_jobs": correlation.groups * -(-own // pack_channels) * lane_parts,
            "window": plan.window, "windows": plan.windows,
            "span": plan.cells.last.phases[0].length if plan.by_row else plan.window,
            "span_step": plan.cells.pitch if plan.by_row else plan.window,
            "block_run": plan.block_run, "block_runs": plan.block_runs,
            "jobs": correlation.groups * plan.windows * plan.block_runs,
            "lanes": plan.tiles[0].lanes, "vectors": plan.tiles[0].vectors,
            "most_narrow": most_narrow(plan.tiles[0]),
            "direct": int(finish_of(correlation).is_plain),
        }  # fmt: skip

    def _input_rows(self) -> dict[str, int]:
        """Where input rows lie in an image, joined where there are no zeros between them."""
        cells, lines = self.schedule.cells.each, self.schedule.cells.lines
        outer, width = len(lines) - 1, lines[-1].size
        while outer and cells[outer] == lines[outer].size:
            outer -= 1
            width *= lines[outer].size
        pitch = self.schedule.cells.pitch * prod(cells[outer:-1])
        return {
            "xrows": self._table(_input_rows(self.correlation, cells[:outer])),
            "in_rows": prod(cells[:outer]), "in_width": width, "in_pitch": pitch,
            "lead": max(0, -(-self.schedule.front // pitch)),
        }  # fmt: skip

    def _tap_tables(self) -> dict[str, int]:
        """Where outer taps read, from a tile's place in the buffer, and whose taps they are."""
        plan, itemsize = self.schedule, self._type.itemsize
        offsets: list[int] = []
        ranges = []
        for phases in plan.cells.combos():
            start = len(offsets)
            for taps in product(*(phase.taps for phase in phases)):
                rows = sum(t.shift * s for t, s in zip(taps, plan.cells.steps, strict=True))
                offsets.append((plan.front - rows * plan.cells.pitch) * itemsize)
            ranges.append((start, len(offsets) - start))
        tables = {"taps": self._table(offsets or [0]), "combos": self._table(ranges)}
        return tables | {"combo_count": len(ranges)}

    def _block_rows(self) -> list[tuple[int, ...]]:
        rows: list[tuple[int, ...]] = []
        for block in self.schedule.blocks:
            found = self._codes[block.kind].addresses
            codes = found["wide"], found["narrow"] or found["wide"]
            phases = self.schedule.tiles[block.kind].phases
            rows.append((*codes, block.channel, block.live, block.phase, phases))
        return rows


def _input_rows(correlation: Correlation, cells: tuple[int, ...]) -> Any:
    """Byte offset of each row of the first axes, of so many cells; -1 where there is none."""
    there = [(Phase(0, line.size, ()), 1) for line in correlation.lines]
    return _rows(correlation.operand_size, correlation.dtype.itemsize, cells, there)


def _output_rows(correlation: Correlation, plan: Schedule) -> Any:
    """Byte offset of each row's output in an image per combination, -1 where there is none."""
    steps = [line.stride for line in correlation.lines]
    size, itemsize, cells = correlation.result_size, correlation.dtype.itemsize, plan.cells
    combos = (list(zip(phases, steps, strict=False)) for phases in cells.combos())
    tables = (_rows(size, itemsize, cells.each[:-1], phases) for phases in combos)
    return np.concatenate([table.ravel() for table in tables])


def _rows(
    size: tuple[int, ...], itemsize: int, cells: tuple[int, ...], phases: list[tuple[Phase, int]]
) -> Any:
    """Byte offset of each row, whose cell j of an axis is its position step * j + offset."""
    offsets, missing = np.zeros((), np.int64), np.zeros((), bool)
    for i, (count, (phase, step)) in enumerate(zip(cells, phases, strict=False)):
        numbers = np.arange(count)
        place = (numbers * step + phase.offset) * prod(size[i + 1 :]) * itemsize
        offsets = offsets[..., None] + place
        missing = missing[..., None] | (numbers >= phase.length)
    return np.where(missing, -1, offsets)
