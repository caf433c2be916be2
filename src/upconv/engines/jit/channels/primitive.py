"""The channels primitive: vectors run along channels; see driver.py and tile.py.

It serves channels-last data as it lies, and channels-first data of few positions, which it
transposes. Weights must be finite: inputs outside are rows of zeros, and 0 times infinity is not 0.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array, Maybe
from ...workspace import Workspace
from ..correlation import Correlation
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import Kernel
from ..packing import shared
from ..positions import schedule
from ..values import BYTES
from .blocks import SpatialBlock, halo_bytes, image_bytes, least_bytes, spatial_blocks
from .code import Codes
from .driver import ARGUMENTS, CHUNK, PAD
from .lanes import lanes_of
from .schedule import Schedule, jobs, merged_taps, predicted_cycles
from .schedule import schedule as channel_schedule
from .tables import Plan, Tables, points_in
from .weights import ChannelPacking, without_sizes

_TURNED = 4 << 20  # bytes per thread that turning may take beside 1.3 times the input
_POINTS = 512  # of each thread in a spatial block, if memory allows
_MOST_SLABS = 256
_MOST_POINTS = 1 << 16  # of a spatial block of channels-last data: where each lies is in a table
_HALOS = 6  # a spatial block turns what lies around it too: at most a sixth more
_OPTIMISM = 1.05
"""What the spatially vectorised kernel's prediction falls short by where rows are short, beside
this one's.

Measured on one Zen 5 core (2026-11-21), both kernels interleaved on 22 layers of real decoders: the
predictions' ratio is on the right side of this number for every one of them."""


@lru_cache(maxsize=64)
def prefers_channels(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether this kernel should do a correlation with outputs that the one of positions can do.

    The two add up in different orders, so the number of threads has no say in it: a result is the
    same, bit for bit, for any number.
    """
    if least_bytes(correlation, BYTES[correlation.element]) > _allowed_bytes(correlation, 1):
        return False
    mine = predicted_cycles(correlation, channel_schedule(correlation, 1, cpu))
    plan = schedule.schedule(correlation, 1, cpu)
    return mine < _OPTIMISM * schedule.predicted_cycles(correlation, plan)


def _allowed_bytes(correlation: Correlation, threads: int) -> int:
    x_bytes = prod(correlation.operand_shape) * correlation.dtype.itemsize
    return int(1.3 * x_bytes) + threads * _TURNED


class Channels(Kernel):
    """A correlation, compiled and laid out; `dots` as in `lanes_of`."""

    def __init__(
        self, correlation: Correlation, threads: int, cpu: Cpu, dots: bool | None = None
    ) -> None:
        self.correlation = correlation
        self.schedule: Schedule = channel_schedule(correlation, threads, cpu, dots)
        self.predicted_cycles = predicted_cycles(correlation, self.schedule)
        cut, threads = self.schedule.cut, self.schedule.threads
        lanes = lanes_of(correlation, cpu, dots)
        grids = without_sizes(cut.grids)
        self.order = packing = shared(ChannelPacking, correlation.weight, lanes, grids, cpu)
        self._pack_threads = threads
        self._codes = Codes(correlation, lanes, cpu)
        self._element = BYTES[correlation.element]
        parts = self._spatial_blocks(cpu)
        plans = {
            kind: Plan(
                kind.correlation, jobs(kind.correlation, kind.cut, threads, cpu), lanes,
                packing, self._codes, kind.before,
            )
            for kind in dict.fromkeys(spatial_block.kind for spatial_block in parts)
        }  # fmt: skip
        works = {kind: _Work(plan) for kind, plan in plans.items()}
        self._steps = tuple((spatial_block, works[spatial_block.kind]) for spatial_block in parts)
        self._biases = _bias_order(next(iter(plans.values())))
        self._no_bias = np.zeros(
            len(self._biases), np.float64 if self._element == 8 else np.float32
        )
        self.workspace_bytes = max(work.nbytes for work in works.values()) + 64
        tables = sum(work.resident_bytes for work in works.values()) + packing.resident_bytes
        self.resident_bytes = tables + self._codes.nbytes

    @property
    def description(self) -> str:
        """The schedule in one line."""
        return str(self.schedule)

    def run(self, out: Array, a: Array, b: Any, bias: Maybe = None, residual: Maybe = None) -> None:
        """Compute into `out`."""
        given, biases = self._given(out, a, bias, residual)
        with Workspace(self.workspace_bytes) as buffer:
            for spatial_block, work in self._steps:
                y, x = spatial_block.of(given.y), spatial_block.of_inputs(given.x)
                more = given.residual
                work.run(buffer, y, x, b, biases, None if more is None else spatial_block.of(more))
        given.deliver()

    def _spatial_blocks(self, cpu: Cpu) -> tuple[SpatialBlock, ...]:
        """The parts that are computed one after another."""
        correlation, cut, threads = self.correlation, self.schedule.cut, self.schedule.threads
        whole = image_bytes(correlation, self._element) * correlation.batch
        points = correlation.batch * max(prod(grid.counts) for grid in cut.grids)
        room = whole * _MOST_POINTS // max(points, _MOST_POINTS)
        if correlation.layout is DataLayout.NCX:
            # Each spatial block reads all weights: they should meet many points.
            room = max(threads * cpu.l2, whole * threads * _POINTS // points, whole // _MOST_SLABS)
            room = max(room, _HALOS * halo_bytes(correlation, self._element))
            room = min(room, _allowed_bytes(correlation, threads))
        return spatial_blocks(correlation, cut, room, self._element)

    def _ordered(self, bias: Array) -> Array:
        return bias.take(self._biases).astype(self._no_bias.dtype, copy=False)


def _bias_order(plan: Plan) -> Array:
    """A group's biases around and around, so that any block finds its own in a row."""
    numbers = np.arange(plan.out_channels + plan.widest) % plan.out_channels
    return (np.arange(plan.groups)[:, None] * plan.out_channels + numbers).ravel()


class _Work:
    """Spatial blocks of one kind: tables, arguments and scratch memory."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        correlation, element = plan.correlation, plan.element
        self._tables = Tables(plan).arrays() | {
            "sizes": np.array(correlation.operand_size, np.int64)
        }
        window = max((merged_taps(plan.lanes, block) for block in plan.schedule.blocks), default=1)
        self._zeros = np.zeros(max(window * plan.channels, plan.widest), np.float64)
        stage = max((plan.schedule.step + PAD) * plan.widest, plan.lanes.width * CHUNK)
        # Parts of whole pages would all begin in the same cache sets.
        self._part = _rounded(stage * element, 4096) + 192
        sizes = (
            prod(correlation.operand_shape) * plan.x_bytes,
            prod(correlation.result_shape) * element,
        )
        self._x_size, y_size = (_rounded(size, 64) if plan.transposed else 0 for size in sizes)
        self._transposed, self._threads = plan.transposed, plan.schedule.threads
        self._inner = self._threads * self._part
        self.nbytes = self._inner + self._x_size + y_size
        self.resident_bytes = sum(t.nbytes for t in self._tables.values()) + self._zeros.nbytes
        self._ahead = plan.before * plan.x_steps[1]
        self._driver = plan.codes.driver
        self._blocks = Blocks(ARGUMENTS.block(**self._fixed(), **self._transposing()))

    def run(
        self, buffer: int, y: Array, x: Array, w: Array, biases: Array, residual: Maybe
    ) -> None:
        """Compute into `y`, with `nbytes` of scratch memory."""
        more = 0 if residual is None else address_of(residual)
        self._blocks.run(
            self._driver, self._threads,
            buffer=buffer, w=address_of(w), bias=address_of(biases), residual=more,
            **self._places(y, x, buffer + self._inner),
        )  # fmt: skip

    def _places(self, y: Array, x: Array, inner: int) -> dict[str, int]:
        """Where data is; `inner` is the address of the scratch memory for transposed data."""
        given = address_of(x), address_of(y)
        if not self._transposed:
            return {"x": given[0] + self._ahead, "y": given[1]}
        return {
            "x": inner + self._ahead, "last_x": inner, "y": inner + self._x_size,
            "first_x": given[0], "in_image": x.strides[0], "in_channel": x.strides[1],
            "first_y": given[1], "out_image": y.strides[0], "out_channel": y.strides[1],
        }  # fmt: skip

    def _fixed(self) -> dict[str, int]:
        """Arguments that all runs share."""
        plan, work = self._plan, self._plan.schedule
        return {
            **{name: table.ctypes.data for name, table in self._tables.items()},
            **plan.codes.addresses, "direct": int(plan.transposed or plan.codes.plain),
            "x_group": plan.channels * plan.x_bytes, "y_group": plan.out_channels * plan.y_bytes,
            "x_image": plan.x_steps[0], "y_image": plan.y_steps[0],
            "w_group": plan.packing.group_bytes, "w_bytes": plan.packing.itemsize,
            "w_channels": plan.packing.row_channels, "w_line": 32 if plan.lanes.dots else 64,
            "bias_group": (plan.out_channels + plan.widest) * plan.element,
            "channels": plan.channels, "zeros": self._zeros.ctypes.data,
            "axes": plan.correlation.rank, "element": plan.element, "x_bytes": plan.x_bytes,
            "part": self._part, "row_stride": 8 * points_in(work.step),
            "step": work.step, "runs": work.runs, "block_count": len(work.blocks),
            "block_run": work.block_run, "block_runs": work.block_runs,
            "jobs": plan.groups * work.runs * work.block_runs,
        }  # fmt: skip

    def _transposing(self) -> dict[str, int]:
        """Arguments for channels-first data."""
        plan, correlation = self._plan, self._plan.correlation
        found = {
            "transposes": int(plan.transposed), "plain": int(plan.codes.plain),
            "y_bytes": correlation.dtype.itemsize,
        }  # fmt: skip
        sides = (
            ("in", correlation.reduced, min(64, correlation.reduced), correlation.operand_size),
            ("out", correlation.made, 0, correlation.result_size),
        )
        for name, channels, some, size in sides:
            part, positions = max(plan.lanes.width, some), prod(size)
            parts = correlation.batch * -(-channels // part)
            span = self._span(positions, parts)
            spans = -(-positions // span)
            found |= {
                f"{name}_channels": channels, f"{name}puts": positions, f"{name}_part": part,
                f"{name}_span": span, f"{name}_spans": spans, f"{name}_jobs": parts * spans,
            }  # fmt: skip
        return found

    def _span(self, positions: int, parts: int) -> int:
        """Positions that are transposed at a time, so that there is work for every thread."""
        wanted = 1 if self._threads == 1 else 4 * self._threads
        spans = max(1, min(-(-wanted // max(1, parts)), positions // CHUNK))
        return max(1, _rounded(-(-positions // spans), CHUNK))


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


__all__ = ["Channels", "prefers_channels"]
