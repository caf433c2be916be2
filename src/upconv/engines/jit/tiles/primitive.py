"""The tiles primitive: bfloat16 products in tile registers; see driver.py, tables.py and tile.py.

Operands are packed one spatial block at a time, from either layout and from bfloat16 or float32.
Weights must be finite: inputs outside are zeros, and 0 times infinity is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array
from ..channels.blocks import (
    SpatialBlock,
    halo_bytes,
    image_bytes,
    spatial_blocks,
    transposed_bytes,
)
from ..channels.weights import ChannelPacking
from ..correlation import Correlation
from ..cpu import Cpu
from ..operands import Kernel, Operands
from ..packing import shared
from ..rows import Finish
from ..steps import Launch
from ..values import BFLOAT, BYTES, FLOAT, LINE, STORED
from .candidates import total_cycles
from .operations import PAIRS, ROWS
from .schedule import SHAPES, Schedule
from .schedule import schedule as tile_schedule
from .unfolded import Window
from .unfolding import unfolded
from .walks import Codes, Walk

_POINTS = 512  # positions of each thread in a spatial block, if memory allows
_MAX_SPATIAL_BLOCKS = 256
_HALOS = 6  # a spatial block packs its halo too: at most a sixth more
_SPARE = max(columns for _, columns in SHAPES) * ROWS  # biases that a tile may read behind the last


class Tiles(Kernel):
    """A correlation, compiled and laid out."""

    def __init__(self, correlation: Correlation, threads: int, cpu: Cpu) -> None:
        self.correlation = correlation
        self.schedule: Schedule = tile_schedule(correlation, threads, cpu)
        cycles = total_cycles(correlation, self.schedule, cpu)
        self.predicted_cycles = cycles / self.schedule.threads
        self._pack_threads = self.schedule.threads
        plan, stored = self.schedule, STORED[correlation.dtype]
        inner = unfolded(correlation) if plan.unfolds else correlation
        self.order = shared(ChannelPacking, inner.weight, plan.cut, cpu, PAIRS)
        window = Window.of(correlation, stored) if plan.unfolds else None
        finish = Finish.of(
            FLOAT, stored, correlation.epilogue, correlation.layout,
            accumulate=correlation.accumulate,
        )  # fmt: skip
        first = correlation.layout is DataLayout.NCX
        codes = Codes(plan, finish, first, cpu, window)
        blocks = self._spatial_blocks(inner, cpu)
        kinds = dict.fromkeys(block.kind for block in blocks)
        # Rows that cross lines of the cache are slow to read: many products take a packed operand.
        ways = [plan.anywhere, *[True] * (plan.in_place and not plan.anywhere)]
        walks = [
            {kind: Walk(kind, codes, self.order, in_place=way) for kind in kinds} for way in ways
        ]
        inputs, outputs = (
            prod(size[1:]) * correlation.dtype.itemsize * (1 if first else channels)
            for size, channels in (
                (correlation.operand_size, correlation.reduced),
                (correlation.result_size, correlation.made),
            )
        )
        # By whether operands are aligned.
        self._steps = [
            [(by_kind[b.kind], b.image, b.input * inputs, b.output * outputs) for b in blocks]
            for by_kind in walks
        ]
        every = [walk for by_kind in walks for walk in by_kind.values()]
        self.workspace_bytes = max(walk.nbytes for walk in every) + 64
        channels = correlation.made // correlation.groups
        numbers = np.minimum(np.arange(-(-channels // ROWS) * ROWS), channels - 1)
        groups = np.arange(correlation.groups)[:, None] * channels
        self._numbers = np.append((groups + numbers).ravel(), np.zeros(_SPARE, np.int64))
        self._no_bias = np.zeros(len(self._numbers), np.float32)
        resident = sum(walk.resident_bytes for walk in every)
        self.resident_bytes = resident + self.order.resident_bytes + codes.nbytes

    @property
    def description(self) -> str:
        """The schedule in one line."""
        return str(self.schedule)

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterator[tuple[Launch, dict[str, int]]]:
        x, y, more = operands.x, operands.y, operands.residual
        first_x, first_y = address_of(x), address_of(y)
        first_more = 0 if more is None else address_of(more)
        values = {"w": address_of(w), "bias": address_of(biases)}
        values |= {"slopes": self._no_bias.nbytes, "second": operands.second}
        values |= {"in_image": x.strides[0], "out_image": y.strides[0]}
        if self.correlation.layout is DataLayout.NCX:
            values |= {"in_channel": x.strides[1], "out_channel": y.strides[1]}
        aligned = first_x % LINE == x.strides[0] % LINE == 0
        for walk, image, x_offset, y_offset in self._steps[-1 if aligned else 0]:
            x_offset += image * x.strides[0]
            y_offset += image * y.strides[0]
            values |= walk.values(scratch, first_x + x_offset, first_y + y_offset)
            values["residual"] = first_more + y_offset
            yield walk.launch, dict(values)

    def _spatial_blocks(self, inner: Correlation, cpu: Cpu) -> tuple[SpatialBlock, ...]:
        """Cut the data into parts that stay in the second-level cache beside the weights in use; a
        part meets many weights with many positions."""
        correlation, threads = self.correlation, self.schedule.threads
        element = BYTES[BFLOAT]
        own = image_bytes(correlation, element) * correlation.batch
        data = image_bytes(inner, element) * correlation.batch
        points = self.schedule.cut.counts(correlation.result_size).prod(1).max(initial=1)
        points = correlation.batch * max(1, int(points))
        room = max(cpu.l2 // 2, data // _MAX_SPATIAL_BLOCKS)
        if self.order.nbytes > cpu.l2 // 4:
            room = max(room, data * threads * _POINTS // points)
        room = max(room, _HALOS * halo_bytes(correlation, element))
        room = min(room, transposed_bytes(correlation, threads))
        return spatial_blocks(correlation, self.schedule.cut, room * own // data, element)

    def _ordered_slopes(self, slopes: Array) -> Array:
        """Slopes as `finish` reads them: beside channels-last results, or channel by channel."""
        if self.correlation.layout is DataLayout.NXC:
            return self._ordered(slopes)
        return super()._ordered(slopes)

    def _ordered(self, bias: Array) -> Array:
        return bias.take(self._numbers).astype(np.float32, copy=False)
