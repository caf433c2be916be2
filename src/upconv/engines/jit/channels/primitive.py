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
from ..spatial import Spatial
from ..steps import Launch
from ..values import STORED
from .blocks import (
    SpatialBlock,
    blocks_for_threads,
    image_bytes,
    spatial_blocks,
    transposed_bytes,
)
from .form import ChannelsLast, Form
from .schedule import Schedule, predicted_cycles
from .schedule import schedule as channel_schedule
from .tables import passes_of
from .walks import Walk

_POINTS = 512  # of each thread in a spatial block, if memory allows
_MAX_SPATIAL_BLOCKS = 256
_MOST_POINTS = 1 << 11  # of channels-last spatial blocks, whose kinds have tables of their own


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
        blocks, by_thread = self._spatial_blocks(form)
        passes = passes_of(data, single=len(blocks) == 1)
        self.order, tables = passes.packing, passes.placed(data)
        # Channels-last data takes one walk, whose tables spatial blocks share.
        together = [blocks]
        if form.transposed:
            together = [(SpatialBlock(kind, 0),) for kind in dict.fromkeys(b.kind for b in blocks)]
        else:
            blocks = (SpatialBlock(blocks[0].kind, 0),)
        walk_threads = 1 if by_thread else threads
        walks = {b[0].kind: Walk(passes, tables, data, b, walk_threads) for b in together}
        self._spatial = Spatial(correlation, blocks, walks, threads, cpu, by_thread=by_thread)
        self._numbers = passes.bias_order()
        self._no_bias = np.zeros(
            len(self._numbers), np.float64 if form.element == 8 else np.float32
        )
        self.workspace_bytes = self._spatial.nbytes + 64
        self._cast: tuple[Launch, int] | None = None
        stored = STORED[correlation.dtype]
        if not form.transposed and form.read != stored:
            count = prod(correlation.operand_shape)
            cast = Cast(count, (stored, form.read), threads, cpu)
            self._cast = cast.launch, -(-self.workspace_bytes // 64) * 64
            self.workspace_bytes = self._cast[1] + count * form.x_bytes + 64
            self._kept = cast
        self.resident_bytes = self._spatial.resident_bytes + sum(t.nbytes for t in tables.values())
        self.resident_bytes += self.order.resident_bytes + passes.codes.nbytes

    @property
    def description(self) -> str:
        """The schedule in one line."""
        return str(self.schedule)

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterator[tuple[Launch, dict[str, int]]]:
        values = {"w": address_of(w), "bias": address_of(biases), "slopes": self._no_bias.nbytes}
        first_x = address_of(operands.x)
        if self._cast is not None:
            launch, offset = self._cast
            yield launch, {"src": first_x, "dst": scratch + offset}
            first_x = scratch + offset
        yield from self._spatial.launches(operands, scratch, values, first_x)

    def _spatial_blocks(self, form: Form) -> tuple[tuple[SpatialBlock, ...], bool]:
        """Cut the data into parts that are computed one after another, or each by one thread alone,
        which is said too; or that share tables."""
        correlation, cut, threads = self.correlation, form.cut, self.schedule.threads
        data = image_bytes(correlation, form.element) * correlation.batch
        points = cut.counts(correlation.result_size).prod(1).max(initial=1)
        points = correlation.batch * max(1, int(points))
        if not form.transposed:
            room = data * _MOST_POINTS // max(points, _MOST_POINTS)
            return spatial_blocks(correlation, cut, room, form.element), False
        # Each spatial block reads all weights: they should meet many points.
        target, least = max(form.cpu.l2, data // _MAX_SPATIAL_BLOCKS), data * _POINTS // points
        most = transposed_bytes(correlation, threads)
        return blocks_for_threads(correlation, cut, form.element, threads, target, least, most)

    def _ordered_slopes(self, slopes: Array) -> Array:
        """Slopes as `finish` reads them: beside channels-last results, or channel by channel."""
        if self.correlation.layout is DataLayout.NXC:
            return self._ordered(slopes)
        return super()._ordered(slopes)

    def _ordered(self, bias: Array) -> Array:
        return bias.take(self._numbers).astype(self._no_bias.dtype, copy=False)
