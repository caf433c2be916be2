"""The tiles primitive: bfloat16 products in tile registers; see driver.py, tables.py and tile.py.

Operands are packed one spatial block at a time, from either layout and from bfloat16 or float32, or
read in place. Weights must be finite: outside the input there are zeros, and 0 * infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array
from ..channels.blocks import (
    SpatialBlock,
    blocks_for_threads,
    image_bytes,
    transposed_bytes,
)
from ..channels.weights import ChannelPacking
from ..correlation import Correlation
from ..cpu import Cpu
from ..operands import Kernel, Operands
from ..packing import shared
from ..rows import Finish
from ..spatial_blocks import Spatial
from ..steps import Launch
from ..values import BFLOAT, BYTES, LINE
from .candidates import total_cycles
from .forms import schedule
from .merging import MergedPacking
from .operations import PAIRS, ROWS
from .schedule import SHAPES, Schedule
from .walks import Codes, Walk

_POINTS = 512  # minimum positions in a thread's spatial block, with many weights
_MAX_SPATIAL_BLOCKS = 256
_SPARE = max(columns for _, columns in SHAPES) * ROWS  # biases that a tile may read after the last


class Tiles(Kernel):
    """A correlation on tiles, compiled and scheduled."""

    def __init__(self, correlation: Correlation, threads: int, cpu: Cpu) -> None:
        self.correlation = correlation
        self.schedule: Schedule = schedule(correlation, threads, cpu)
        cycles = total_cycles(correlation, self.schedule, cpu)
        self.predicted_cycles = cycles / self.schedule.threads
        self._pack_threads = self.schedule.threads
        plan = self.schedule
        self.order: ChannelPacking
        if plan.merging:
            correlation = plan.merging.operand(correlation)
            self.order = shared(MergedPacking, plan.merging, correlation.weight, plan.cut, cpu)
        else:
            self.order = shared(ChannelPacking, correlation.weight, plan.cut, cpu, PAIRS)
        finish = Finish.of(correlation, correlation.layout)
        channels_first = correlation.layout is DataLayout.NCX
        codes = Codes(plan, finish, channels_first, cpu)
        blocks, by_thread = self._spatial_blocks(correlation, cpu)
        kinds = dict.fromkeys(block.kind for block in blocks)
        # Walks for unaligned operands, then for aligned ones if only those are read in place: rows
        # that cross cache lines are slow to read, so with many products they are packed.
        options = [plan.anywhere, *[True] * (plan.in_place and not plan.anywhere)]
        walk_threads = 1 if by_thread else plan.threads
        walks = [
            {kind: Walk(kind, codes, self.order, walk_threads, in_place=option) for kind in kinds}
            for option in options
        ]
        self._spatial = [
            Spatial(correlation, blocks, by_kind, plan.threads, cpu, by_thread=by_thread)
            for by_kind in walks
        ]
        self.workspace_bytes = max(spatial.nbytes for spatial in self._spatial) + 64
        channels = correlation.made // correlation.groups
        numbers = np.minimum(np.arange(-(-channels // ROWS) * ROWS), channels - 1)
        groups = np.arange(correlation.groups)[:, None] * channels
        self._bias_order = np.append((groups + numbers).ravel(), np.zeros(_SPARE, np.int64))
        self._no_bias = np.zeros(len(self._bias_order), np.float32)
        self.resident_bytes = sum(spatial.resident_bytes for spatial in self._spatial)
        self.resident_bytes += self.order.resident_bytes + codes.nbytes

        single = not by_thread and len(blocks) == 1 and not correlation.accumulate
        slabs = [walk.slab for by_kind in walks for walk in by_kind.values()]
        if single and not plan.merging and self.order.pieces_code and all(slabs):
            self._slab = max(slabs)

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterator[tuple[Launch, dict[str, int]]]:
        values = {"w": address_of(w), "bias": address_of(biases), "slopes": self._no_bias.nbytes}
        first_x = address_of(operands.x)
        aligned = first_x % LINE == operands.x.strides[0] % LINE == 0
        spatial = self._spatial[-1 if aligned else 0]
        return spatial.launches(operands, scratch, values, first_x)

    def _spatial_blocks(
        self, correlation: Correlation, cpu: Cpu
    ) -> tuple[tuple[SpatialBlock, ...], bool]:
        """Return spatial blocks that stay in the second-level cache with the weights in use, and
        whether each is computed by one thread. With many weights, a block has many positions."""
        cut, element = self.schedule.cut, BYTES[BFLOAT]
        threads, counts = self.schedule.threads, cut.counts(correlation.result_size)
        data = image_bytes(correlation, element) * correlation.batch
        points = correlation.batch * max(1, int(counts.prod(1).max(initial=1)))
        least = data * _POINTS // points if self.order.nbytes > cpu.l2 // 4 else 0
        target = max(cpu.l2 // 2, data // _MAX_SPATIAL_BLOCKS)
        most = transposed_bytes(correlation, threads)
        return blocks_for_threads(correlation, cut, element, threads, target, least, most)
