"""The channels primitive: vectors run along channels; see driver.py and tile.py.

It reads channels-last data in place, or casts it first (form.py), and transposes other data.
Weights must be finite: taps read zeros outside the input, and 0 * infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

import numpy as np

from ...addresses import address_of
from ...base import Array
from ..correlation import Correlation
from ..cpu import Cpu
from ..operands import Kernel, Operands
from ..rounded_operands import Cast
from ..spatial_blocks import Spatial
from ..steps import Launch
from ..values import LINE, STORED, whole_lines
from .blocks import (
    Kind,
    SpatialBlock,
    blocks_for_threads,
    image_bytes,
    spatial_blocks,
    transposed_bytes,
)
from .form import ChannelsLast, Form
from .schedule import Schedule, predicted_cycles
from .schedule import schedule as channel_schedule
from .tables import Passes, passes_of
from .walks import Walk

_POINTS = 512  # a thread's minimum points in a spatial block, if memory allows
_MAX_SPATIAL_BLOCKS = 256
_MIN_JOBS = 4  # per thread, if not all threads have equally many
_MAX_POINTS = 1 << 11  # in a channels-last spatial block: each kind has separate tables


class Channels(Kernel):
    """A correlation's primitive; `dots` is as in `lanes_of`."""

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
        # One walk computes all spatial blocks of channels-last data.
        blocks_of_walks = [blocks]
        if form.transposed:
            kinds = dict.fromkeys(block.kind for block in blocks)
            blocks_of_walks = [(SpatialBlock(kind, 0),) for kind in kinds]
        else:
            blocks = (SpatialBlock(blocks[0].kind, 0),)
        walk_threads = 1 if by_thread else threads
        walks = {b[0].kind: Walk(passes, tables, data, b, walk_threads) for b in blocks_of_walks}
        self._spatial = Spatial(correlation, blocks, walks, threads, cpu, by_thread=by_thread)
        self._bias_order = passes.bias_order()
        dtype = np.float64 if form.element == 8 else np.float32
        self._no_bias = np.zeros(len(self._bias_order), dtype)
        self.workspace_bytes = self._spatial.nbytes + 64
        self._cast: tuple[Launch, int] | None = None
        stored = STORED[correlation.dtype]
        if not form.transposed and form.read != stored:
            count = prod(correlation.operand_shape)
            cast = Cast(count, (stored, form.read), threads, cpu)
            self._cast = cast.launch, -(-self.workspace_bytes // 64) * 64
            self.workspace_bytes = self._cast[1] + count * form.x_bytes + 64
            self._kept = cast
        else:
            self._slab = self._slab_bytes(passes, walks)
        self.resident_bytes = self._spatial.resident_bytes + sum(t.nbytes for t in tables.values())
        self.resident_bytes += self.order.resident_bytes + passes.codes.nbytes

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

    def _slab_bytes(self, passes: Passes, walks: Mapping[Kind, Walk]) -> int:
        """Return the bytes of the largest block's weights, if each weight belongs to one job."""
        (walk, *others), threads = walks.values(), self.schedule.threads
        steps = [phase.code for phase in walk.phases]
        _, jobs, runs, *_ = walk.launch.phases[steps.index(passes.codes.steps["passes"])].tolist()
        balanced = jobs % threads == 0 or jobs >= _MIN_JOBS * threads
        single = not others and runs == len(self._spatial.blocks) == 1
        if not (single and balanced and self.order.pieces_code) or self.correlation.accumulate:
            return 0
        starts = [*self.order.offsets, self.order.group_bytes]
        return whole_lines(max(stop - start for start, stop in pairwise(starts))) + LINE

    def _spatial_blocks(self, form: Form) -> tuple[tuple[SpatialBlock, ...], bool]:
        """Return the spatial blocks, and whether each is computed by one thread. Channels-last
        blocks serve only to share tables."""
        correlation, cut, threads = self.correlation, form.cut, self.schedule.threads
        data = image_bytes(correlation, form.element) * correlation.batch
        points = cut.counts(correlation.result_size).prod(1).max(initial=1)
        points = correlation.batch * max(1, int(points))
        if not form.transposed:
            room = data * _MAX_POINTS // max(points, _MAX_POINTS)
            return spatial_blocks(correlation, cut, room, form.element), False
        # Each spatial block reads all weights, so it should have many points.
        target, least = max(form.cpu.l2, data // _MAX_SPATIAL_BLOCKS), data * _POINTS // points
        most = transposed_bytes(correlation, threads)
        return blocks_for_threads(correlation, cut, form.element, threads, target, least, most)
