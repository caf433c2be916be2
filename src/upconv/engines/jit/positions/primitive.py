"""The positions primitive; see tables.py and tile.py."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...addresses import address_of
from ...base import Array
from .. import walk
from ..compile import CODE_BYTES
from ..correlation import Correlation
from ..cpu import Cpu
from ..kernel_arguments import Blocks, Table
from ..operands import Kernel, Operands
from ..packing import shared
from ..rows import fill_code, finish_code
from ..steps import Launch
from ..values import STORED
from .driver import ARGUMENTS, driver_code
from .placement import Placement
from .schedule import predicted_cycles, schedule
from .tables import InputRows, block_table, job_table, packing_tables, tap_table
from .tile import tile_code
from .tiling import finish_of
from .weights import Packing

_MAX_CHANNELS = 64  # maximum channels of a tile, which reads all their biases


class Positions(Kernel):
    """A correlation with operand step 1, compiled and scheduled."""

    order: Packing

    def __init__(self, correlation: Correlation, threads: int, cpu: Cpu) -> None:
        self.correlation = correlation
        self.schedule = plan = schedule(correlation, threads, cpu)
        self.predicted_cycles = predicted_cycles(correlation, plan, cpu)
        self._type, kind = correlation.dtype.accumulator.numpy, finish_of(correlation)
        self._codes = [tile_code(tile, cpu) for tile in plan.tiles]
        self._walk, self._driver = walk.walk_code(cpu), driver_code(cpu)
        types = STORED[correlation.dtype], correlation.element
        self._called = fill_code(*types, cpu), finish_code(kind, cpu)
        axes = tuple(tuple(phase.taps for phase in line.phases) for line in correlation.lines)
        form = correlation.weight, plan.tiles, plan.blocks, axes
        self.order, self._pack_threads = shared(Packing, *form, cpu), threads
        # An odd number of cache lines, so that no two channels begin in the same cache set.
        self._channel_bytes = (-(-plan.buffer_positions // 16) | 1) * 16 * self._type.itemsize
        channels = correlation.reduced // correlation.groups
        alone = not plan.shared and len(plan.in_place) < plan.cache_blocks
        self._part_bytes = channels * self._channel_bytes if alone else 0
        shared_bytes = correlation.reduced * self._channel_bytes if plan.shared else 0
        nbytes = shared_bytes + plan.threads * self._part_bytes + 64
        self.workspace_bytes = nbytes if alone or plan.shared else 0
        self._no_bias = np.zeros(correlation.made + _MAX_CHANNELS, self._type)
        self._tables: dict[str, Table] = {}
        blocks = Blocks(ARGUMENTS.block(**self._arguments()))
        self._launch = Launch.of_walk(
            blocks, self._walk.addresses["walk"], plan.threads, self._tables["phases"]
        )
        nbytes = sum(table.nbytes for table in self._tables.values()) + self.order.resident_bytes
        self.resident_bytes = nbytes + CODE_BYTES * len(self._codes)

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterable[tuple[Launch, dict[str, int]]]:
        x, y, more = operands.x, operands.y, operands.residual
        values = {
            "buffer": scratch, "scratch": scratch, "x": address_of(x), "y": address_of(y),
            "w": address_of(w), "bias": address_of(biases),
            "residual": 0 if more is None else address_of(more),
            "x_image": x.strides[0], "x_channel": x.strides[1],
            "y_image": y.strides[0], "y_channel": y.strides[1], "second": operands.second,
        }  # fmt: skip
        return ((self._launch, values),)

    # Tables ---------------------------------------------------------------------------------------

    def _arguments(self) -> dict[str, int]:
        correlation, plan = self.correlation, self.schedule
        element, itemsize = self._type.itemsize, correlation.dtype.itemsize
        placement, rows = Placement(correlation, plan), InputRows.of(correlation, plan)
        blocks = block_table(plan, placement.classes, itemsize)
        codes = [self._codes[block.kind].addresses for block in plan.blocks]
        blocks["main"] = [code["wide"] for code in codes]
        blocks["tail"] = [code["narrow"] or code["wide"] for code in codes]
        blocks["w"], blocks["w_tap"] = self.order.starts, self.order.tap_bytes
        packing = packing_tables(correlation, plan, element)
        cache_blocks = packing["cache_blocks"]
        cache_blocks["spans"] = np.arange(len(cache_blocks)) * (placement.ranges[0].size // 2)
        jobs = job_table(correlation, plan, self.order.group_bytes)
        by_outer = correlation.has_larger_weight
        job = self._driver.addresses["job"]
        phases = [walk.Phase(job, cache_blocks, jobs, by_outer=by_outer)]
        if "parts" in packing:
            pack = self._driver.addresses["pack"]
            phases.insert(0, walk.Phase(pack, packing["parts"], packing["packing"]))
        named = {
            **placement.tables, "ranges": placement.ranges, "taps": tap_table(plan, element),
            "phase_tuples": placement.phase_tuples, "blocks": blocks,
            "segments": packing["segments"], "phases": walk.phases(plan.threads, *phases),
        }  # fmt: skip
        self._tables = packing | named | {"jobs": jobs}
        return {
            **{name: address_of(table) for name, table in named.items()},
            **{name: address for code in self._called for name, address in code.addresses.items()},
            "phase_count": len(phases), "part": self._part_bytes,
            "phase_tuple_count": len(placement.phase_tuples), "element": element,
            "channels": correlation.reduced // correlation.groups,
            "shared": int(plan.shared),
            "buffer_channel": self._channel_bytes, "buffer_row": rows.stride * element,
            "x_row": rows.x_row, "image_row": rows.image_row,
            "span_x": plan.span_rows * plan.padded.row_stride * element,
            "span_y": placement.span_y, "span_image": placement.span_image,
            "y_position": plan.padded.last.stride * itemsize,
            "lanes": plan.tiles[0].lanes, "width": plan.tiles[0].width,
            "slopes": self._no_bias.nbytes,
        }  # fmt: skip
