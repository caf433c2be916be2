"""The positions primitive: vectors run along positions of one phase; see driver.py and tile.py."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from ....geometry import Phase
from ...addresses import address_of
from ...base import Array, Maybe
from ...workspace import Workspace
from ..compile import CODE_BYTES
from ..correlation import Correlation
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import Kernel
from ..packing import Numbers, Packing, shared
from ..rows import fill_code, finish_code
from .driver import driver_code, inner_code
from .results import ARGUMENTS
from .schedule import Schedule, most_tail_vectors, predicted_cycles, schedule
from .tile import tile_code
from .tiling import finish_of

_MOST_CHANNELS = 64  # of a tile, which reads the biases of all its channels


class Positions(Kernel):
    """A correlation without steps in its operand, compiled and laid out."""

    order: Packing

    def __init__(self, correlation: Correlation, threads: int, cpu: Cpu) -> None:
        self.correlation = correlation
        self.schedule = plan = schedule(correlation, threads, cpu)
        self.predicted_cycles = predicted_cycles(correlation, plan, cpu)
        self._type, kind = correlation.dtype.accumulator.numpy, finish_of(correlation)
        self._codes = [tile_code(tile, cpu) for tile in plan.tiles]
        self._driver = driver_code(cpu)
        fill = fill_code(kind.stored, kind.computed, cpu)
        self._called = fill, finish_code(kind, cpu), inner_code(cpu)
        self._tables: list[Numbers] = []
        axes = tuple(tuple(phase.taps for phase in line.phases) for line in correlation.lines)
        form = correlation.weight, plan.tiles, plan.blocks, axes
        self.order, self._pack_threads = shared(Packing, *form, cpu), threads
        # An odd number of lines: no two channels in one cache set.
        lines = -(-plan.buffer_positions // 16) | 1
        self._channel_bytes = lines * 16 * self._type.itemsize
        own = correlation.reduced // correlation.groups
        parts = correlation.groups if plan.shared else plan.threads
        self._part_bytes = own * self._channel_bytes
        self.workspace_bytes = 0 if plan.in_place else parts * self._part_bytes + 64
        self._no_bias = np.zeros(correlation.made + _MOST_CHANNELS, self._type)
        self._blocks = Blocks(ARGUMENTS.block(**self._arguments()))
        tables = sum(table.nbytes for table in self._tables) + self.order.resident_bytes
        self.resident_bytes = tables + CODE_BYTES * len(self._codes)

    @property
    def description(self) -> str:
        """The schedule in one line."""
        return str(self.schedule)

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
        pack_positions = plan.buffer_positions
        if pack_channels == 1:
            pack_positions = max(
                4096, -(-pack_positions * own * correlation.groups // (4 * plan.threads))
            )
        position_parts = 0 if plan.in_place else -(-plan.buffer_positions // pack_positions)
        return {
            **{name: address for code in self._called for name, address in code.addresses.items()},
            **self._input_rows(),
            "yrows": self._table(_output_rows(correlation, plan)),
            **self._tap_tables(),
            "blocks": self._table(self._block_rows()),
            "places": self._table(self.order.places),
            "images": correlation.batch, "rows": plan.padded.rows,
            "channels": own, "row_stride": plan.padded.row_stride,
            "limit": plan.padded.last.out, "stride": plan.padded.last.stride,
            "block_count": len(plan.blocks),
            "x_bytes": stored, "y_bytes": stored,
            "bias_group": correlation.made // correlation.groups,
            "w_group": self.order.group_bytes, "element": itemsize,
            "buffer_part": self._part_bytes, "buffer_channel": self._channel_bytes,
            "total": plan.padded.total,
            "halo_before": plan.halo_before, "halo_after": plan.halo_after,
            "shared": int(plan.shared or plan.in_place),
            "pack_channels": pack_channels, "pack_positions": pack_positions,
            "pack_jobs": correlation.groups * -(-own // pack_channels) * position_parts,
            "cache_block": plan.cache_block, "cache_blocks": plan.cache_blocks,
            "span": plan.padded.last.phases[0].length if plan.by_row else plan.cache_block,
            "span_step": plan.padded.row_stride if plan.by_row else plan.cache_block,
            "block_run": plan.block_run, "block_runs": plan.block_runs,
            "jobs": correlation.groups * plan.cache_blocks * plan.block_runs,
            "lanes": plan.tiles[0].lanes, "vectors": plan.tiles[0].vectors,
            "most_tail_vectors": most_tail_vectors(plan.tiles[0]),
            "direct": int(finish_of(correlation).is_plain),
        }  # fmt: skip

    def _input_rows(self) -> dict[str, int]:
        """Where input rows lie in an image, joined where there are no zeros between them."""
        padded, lines = self.schedule.padded.each, self.schedule.padded.lines
        outer, width = len(lines) - 1, lines[-1].size
        while outer and padded[outer] == lines[outer].size:
            outer -= 1
            width *= lines[outer].size
        row_stride = self.schedule.padded.row_stride * prod(padded[outer:-1])
        return {
            "xrows": self._table(_input_rows(self.correlation, padded[:outer])),
            "in_rows": prod(padded[:outer]), "in_width": width, "in_row_stride": row_stride,
            "lead": max(0, -(-self.schedule.halo_before // row_stride)),
        }  # fmt: skip

    def _tap_tables(self) -> dict[str, int]:
        """Where outer taps read, from a tile's place in the buffer, and whose taps they are."""
        plan, itemsize = self.schedule, self._type.itemsize
        offsets: list[int] = []
        ranges = []
        for phases in plan.padded.phase_tuples():
            start = len(offsets)
            for taps in product(*(phase.taps for phase in phases)):
                rows = sum(t.shift * s for t, s in zip(taps, plan.padded.steps, strict=True))
                offsets.append((plan.halo_before - rows * plan.padded.row_stride) * itemsize)
            ranges.append((start, len(offsets) - start))
        tables = {"taps": self._table(offsets or [0]), "phase_tuples": self._table(ranges)}
        return tables | {"phase_tuple_count": len(ranges)}

    def _block_rows(self) -> list[tuple[int, ...]]:
        rows: list[tuple[int, ...]] = []
        for block in self.schedule.blocks:
            found = self._codes[block.kind].addresses
            codes = found["wide"], found["narrow"] or found["wide"]
            phases = self.schedule.tiles[block.kind].phases
            rows.append((*codes, block.channel, block.active, block.phase, phases))
        return rows


def _input_rows(correlation: Correlation, padded: tuple[int, ...]) -> Any:
    """Byte offset of each row of the first axes, of so many padded positions; -1 where there is
    none."""
    there = [(Phase(0, line.size, ()), 1) for line in correlation.lines]
    return _rows(correlation.operand_size, correlation.dtype.itemsize, padded, there)


def _output_rows(correlation: Correlation, plan: Schedule) -> Any:
    """Byte offset of each row's output in an image per combination, -1 where there is none."""
    steps = [line.stride for line in correlation.lines]
    size, itemsize, padded = correlation.result_size, correlation.dtype.itemsize, plan.padded
    phase_tuples = (list(zip(phases, steps, strict=False)) for phases in padded.phase_tuples())
    tables = (_rows(size, itemsize, padded.each[:-1], phases) for phases in phase_tuples)
    return np.concatenate([table.ravel() for table in tables])


def _rows(
    size: tuple[int, ...], itemsize: int, padded: tuple[int, ...], phases: list[tuple[Phase, int]]
) -> Any:
    """Byte offset of each row, whose cell j of an axis is its position step * j + offset."""
    offsets, missing = np.zeros((), np.int64), np.zeros((), bool)
    for i, (count, (phase, step)) in enumerate(zip(padded, phases, strict=False)):
        numbers = np.arange(count)
        place = (numbers * step + phase.offset) * prod(size[i + 1 :]) * itemsize
        offsets = offsets[..., None] + place
        missing = missing[..., None] | (numbers >= phase.length)
    return np.where(missing, -1, offsets)
