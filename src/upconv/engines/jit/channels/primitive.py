"""The channels primitive: vectors run along channels; see driver.py and tile.py.

It serves channels-last data as it lies, and channels-first data of few positions, which it
transposes. Weights must be finite: inputs outside are rows of zeros, and 0 times infinity is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array
from ..casts import Cast
from ..correlation import Correlation
from ..cpu import Cpu
from ..operands import Kernel, Operands
from ..steps import Launch
from ..values import BFLOAT, FLOAT
from .blocks import SpatialBlock, halo_bytes, image_bytes, spatial_blocks, transposed_bytes
from .form import ChannelsLast, Form
from .schedule import Schedule, predicted_cycles
from .schedule import schedule as channel_schedule
from .tables import passes_of
from .walks import Walk

_POINTS = 512  # of each thread in a spatial block, if memory allows
_MAX_SPATIAL_BLOCKS = 256
_MOST_POINTS = 1 << 11  # of channels-last spatial blocks, whose kinds have tables of their own
_HALOS = 6  # a spatial block transposes its halo too: at most a sixth more


class Channels(Kernel):
    """A correlation, compiled and laid out; `dots` as in `lanes_of`."""

    def __init__(
        self, correlation: Correlation, threads: int, cpu: Cpu, dots: bool | None = None
    ) -> None:
        self.correlation = correlation
        self.schedule: Schedule = channel_schedule(correlation, threads, cpu, dots)
        self.predicted_cycles = predicted_cycles(correlation, self.schedule, cpu)
        threads = self._pack_threads = self.schedule.threads
        form = Form.of(correlation, self.schedule.cut, cpu)
        data = ChannelsLast(correlation, form)
        blocks = self._spatial_blocks(form)
        passes = passes_of(data, single=len(blocks) == 1)
        self.order, tables = passes.packing, passes.placed(data)
        if form.transposed:
            kinds = dict.fromkeys(block.kind for block in blocks)
            by_kind = {k: Walk(passes, tables, data, (SpatialBlock(k, 0),), threads) for k in kinds}
            inputs, outputs = (
                prod(size[1:]) * correlation.dtype.itemsize
                for size in (correlation.operand_size, correlation.result_size)
            )
            self._steps = tuple(
                (by_kind[b.kind], b.image, b.input * inputs, b.output * outputs) for b in blocks
            )
        else:
            self._steps = ((Walk(passes, tables, data, blocks, threads), 0, 0, 0),)
        self._numbers = passes.bias_order()
        self._no_bias = np.zeros(
            len(self._numbers), np.float64 if form.element == 8 else np.float32
        )
        walks = dict.fromkeys(walk for walk, *_ in self._steps)
        self.workspace_bytes = max(walk.nbytes for walk in walks) + 64
        self._cast: tuple[Launch, int] | None = None
        if not form.transposed and form.x_bytes < correlation.dtype.itemsize:
            count = prod(correlation.operand_shape)
            cast = Cast(count, (FLOAT, BFLOAT), threads, cpu)
            self._cast = cast.launch, -(-self.workspace_bytes // 64) * 64
            self.workspace_bytes = self._cast[1] + count * form.x_bytes + 64
            self._kept = cast
        resident = [walk.resident_bytes for walk in walks] + [t.nbytes for t in tables.values()]
        self.resident_bytes = sum(resident) + self.order.resident_bytes + passes.codes.nbytes

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
        in_image, in_channel, out_image, out_channel = *x.strides[:2], *y.strides[:2]
        common = {"w": address_of(w), "bias": address_of(biases)}
        common |= {"slopes": self._no_bias.nbytes, "second": operands.second}
        if self.correlation.layout is DataLayout.NCX:
            common |= {"in_image": in_image, "in_channel": in_channel}
            common |= {"out_image": out_image, "out_channel": out_channel}
        if self._cast is not None:
            launch, offset = self._cast
            yield launch, {"src": first_x, "dst": scratch + offset}
            first_x = scratch + offset
        for walk, image, x_offset, y_offset in self._steps:
            x_offset += image * in_image
            y_offset += image * out_image
            values = walk.values(scratch, first_y + y_offset, first_x + x_offset)
            yield walk.launch, common | values | {"residual": first_more + y_offset}

    def _spatial_blocks(self, form: Form) -> tuple[SpatialBlock, ...]:
        """Cut the data into parts that are computed one after another, or that share tables."""
        correlation, cut, threads = self.correlation, form.cut, self.schedule.threads
        data = image_bytes(correlation, form.element) * correlation.batch
        points = cut.counts(correlation.result_size).prod(1).max(initial=1)
        points = correlation.batch * max(1, int(points))
        room = data * _MOST_POINTS // max(points, _MOST_POINTS)
        if form.transposed:
            # Each spatial block reads all weights: they should meet many points.
            l2 = threads * form.cpu.l2
            room = max(l2, data * threads * _POINTS // points, data // _MAX_SPATIAL_BLOCKS)
            room = max(room, _HALOS * halo_bytes(correlation, form.element))
            room = min(room, transposed_bytes(correlation, threads))
        return spatial_blocks(correlation, cut, room, form.element)

    def _ordered_slopes(self, slopes: Array) -> Array:
        """Slopes as `finish` reads them: beside channels-last results, or channel by channel."""
        if self.correlation.layout is DataLayout.NXC:
            return self._ordered(slopes)
        return super()._ordered(slopes)

    def _ordered(self, bias: Array) -> Array:
        return bias.take(self._numbers).astype(self._no_bias.dtype, copy=False)
