"""The Winograd primitive: a correlation by fewer products; see winograd_plan.py.

A result that is not finite may stand where a direct sum would be finite: an infinite or undefined
number of the operand reaches all results of its tile, and large ones may overflow. So results are
looked at as they are made, and if any is not finite, the direct primitive computes all again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ...activations import Activation
from ...problem import DataLayout
from ..addresses import address_of
from ..base import Array, Primitive
from ..workspace import Workspace
from .compile import CODE_BYTES
from .correlation import Correlation
from .cpu import Cpu
from .kernel_arguments import Blocks
from .operands import Operands
from .rows import Finish, fill_code, finish_code, plain
from .transpose import turn_code
from .values import BYTES
from .winograd_code import (
    Inverse,
    Products,
    input_code,
    inverse_code,
    products_code,
)
from .winograd_driver import SLOTS, driver_code
from .winograd_plan import Schedule, chunk_of, depth_of, element_of
from .winograd_tables import Tables, Weights


class WinogradWeight:
    """A weight transformed, and as it was for the direct primitive."""

    __slots__ = ("direct", "given", "transformed")

    def __init__(self, transformed: Array, given: Array) -> None:
        self.transformed, self.given = transformed, given
        self.direct: Any = None


class Winograd:
    """A correlation, compiled and laid out; `direct` builds the one that computes it directly."""

    def __init__(
        self, correlation: Correlation, plan: Schedule, direct: Callable[[], Primitive], cpu: Cpu
    ) -> None:
        self.correlation, self.schedule = correlation, plan
        self._direct = direct
        self._made_direct: Primitive | None = None
        self._lock = threading.Lock()
        self._tables = Tables(correlation, plan)
        element = element_of(correlation)
        self._lanes, self._item = cpu.lanes(BYTES[element]), BYTES[element]
        self._weights = Weights(correlation, plan, self._lanes)
        self._sizes = _Sizes(correlation, plan, self._tables, self._lanes, self._item)
        epilogue = correlation.epilogue
        late = epilogue.residual
        first = (epilogue.activation, epilogue.slope)
        if late:
            first = (Activation.NONE, 0.0)
        finish = Finish(element, element, epilogue.activation, epilogue.slope, True, False)
        inverse = Inverse(element, tuple(t.a for t in plan.transforms), *first)
        position = self._sizes.chunk * self._item
        kind = Products(element, self._lanes, plan.rows, plan.vectors, self._sizes.v_row)
        inputs = tuple(t.b for t in plan.transforms)
        self._codes = {
            "fill": fill_code(element, element, cpu),
            "turn": turn_code(element, element, cpu),
            "turn_back": turn_code(element, element, cpu),
            "finish": finish_code(finish if late else plain(element), cpu),
            "input": input_code(element, inputs, position, plan.windows[-1].line.step, cpu),
            "products": products_code(kind, cpu),
            "inverse": inverse_code(inverse, cpu),
        }
        self._driver = driver_code(correlation.layout, cpu)
        self._biases = _bias_order(correlation, plan, self._weights.chunks)
        self._blocks = Blocks(SLOTS.block(**self._arguments(late)))
        self._threads = plan.threads
        self.workspace_bytes = plan.threads * self._sizes.part
        tables = self._tables
        held = tables.block.nbytes + tables.row.nbytes + tables.tile.nbytes + tables.result.nbytes
        self.resident_bytes = held + self._biases.nbytes + 2 * CODE_BYTES
        self.predicted_cycles = plan.cycles
        self.description = str(plan)

    def pack(self, weight: Array) -> WinogradWeight:
        """The transform of a weight, in the order in which it is used."""
        return WinogradWeight(self._weights.pack(weight), weight)

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Compute into `out`."""
        given = Operands.of(self.correlation, out, a, residual)
        x, y, more = given.x, given.y, given.residual
        biases = self._ordered(bias)  # held until the run is over
        layout, made = self.correlation.layout, self.correlation.made // self.correlation.groups
        with Workspace(self.workspace_bytes) as buffer:
            bad = self._blocks.run(
                self._driver.addresses["run"], self._threads, "bad",
                buffer=buffer, x=address_of(x), y=address_of(y), w=address_of(b.transformed),
                residual=address_of(y) if more is None else address_of(more),
                bias=address_of(biases),
                **_strides("x", x, layout, self._weights.reduced),
                **_strides("y", y, layout, made),
            )  # fmt: skip
        if bad:
            self._run_direct(out, a, b, bias, residual)
        else:
            given.deliver()

    def close(self) -> None:
        """Let go of the direct primitive."""
        if self._made_direct is not None:
            self._made_direct.close()

    def _run_direct(
        self,
        out: Array,
        a: Array,
        b: WinogradWeight,
        bias: Array | None,
        residual: Array | None,
    ) -> None:
        with self._lock:
            direct = self._made_direct = self._made_direct or self._direct()
            if b.direct is None:
                b.direct = direct.pack(b.given)
        direct.run(out, a, b.direct, bias, residual)

    def _ordered(self, bias: Array | None) -> Array:
        if bias is None:
            return np.zeros(len(self._biases), self.correlation.dtype.numpy)
        return np.append(bias, bias.dtype.type(0))[self._biases]

    def _arguments(self, late: bool) -> dict[str, int]:
        """Arguments that all runs share."""
        correlation, plan, sizes, tables = (
            self.correlation,
            self.schedule,
            self._sizes,
            self._tables,
        )
        weights, item, made = self._weights, self._item, correlation.made // correlation.groups
        names = {"turn_back": "turn"}
        runs = -(-weights.units // plan.units)
        _, *steps = (1, 1, 1, *(window.line.step for window in plan.windows))[-4:]
        x_steps = _steps(tables.spans, sizes.chunk * item)
        y_steps = _steps((*tables.steps[:-1], tables.line), plan.padded * item)
        whole = plan.channels == plan.padded == correlation.made
        return {
            **{key: code.addresses[names.get(key, key)] for key, code in self._codes.items()},
            "block": tables.block.ctypes.data, "row": tables.row.ctypes.data,
            "phase": tables.phase.ctypes.data, "tile": tables.tile.ctypes.data,
            "result": tables.result.ctypes.data,
            "part": sizes.part, "v_at": sizes.v_at, "z_at": sizes.z_at,
            "stage_at": sizes.stage_at, "turned_at": sizes.turned_at,
            "jobs": len(tables.block) * runs * correlation.groups, "blocks": len(tables.block),
            "runs": runs, "units": plan.units, "all_units": weights.units,
            "chunks": weights.chunks, "block_size": tables.block.shape[1],
            "depth": weights.depth, "phases": len(tables.phase), "channels": weights.reduced,
            "chunk": sizes.chunk, "element": item,
            "points": plan.points, "rows": plan.rows,
            "panels": plan.columns // (plan.vectors * self._lanes),
            "w_unit": weights.unit_bytes, "w_point": weights.point_bytes,
            "v_point": sizes.v_point, "v_row": sizes.v_row,
            "z_point": sizes.z_point, "z_row": sizes.z_row,
            "made": made, "live": plan.channels, "padded": plan.padded, "columns": plan.columns,
            "whole": int(whole and not late), "late": int(late),
            "x_step_0": steps[0] * x_steps[0], "x_step_1": steps[1] * x_steps[1],
            "y_step_0": y_steps[0], "y_step_1": y_steps[1],
            "span": tables.spans[-1], "lanes": self._lanes,
        }  # fmt: skip


def _steps(spans: tuple[int, ...], position: int) -> tuple[int, int]:
    """Bytes from one position to the next along the two axes before the last."""
    row = spans[-1] * position
    return (row * spans[-2] if len(spans) > 2 else 0), row


def _strides(name: str, array: Array, layout: DataLayout, group: int) -> dict[str, int]:
    """Bytes from one image, group, channel and position to the next."""
    first, item = layout is DataLayout.NCX, array.itemsize
    channel, position = (array.strides[1], item) if first else (item, array.shape[-1] * item)
    return {
        f"{name}_image": array.strides[0], f"{name}_group": group * channel,
        f"{name}_channel": channel, f"{name}_position": position,
    }  # fmt: skip


def _bias_order(correlation: Correlation, plan: Schedule, chunks: int) -> Array:
    """For each group, chunk and column the number of its bias; that behind the last for none."""
    made = correlation.made // correlation.groups
    channel = np.arange(chunks)[:, None] * plan.channels + np.arange(plan.padded)
    there = (np.arange(plan.padded) < plan.channels) & (channel < made)
    numbers = np.arange(correlation.groups)[:, None, None] * made + channel
    numbers = np.where(there, numbers, correlation.made)
    return np.repeat(numbers[:, :, None], plan.windows[-1].line.stride, 2).ravel()


class _Sizes:
    """Bytes of the memory of a thread: packed rows, V, Z, results, and room to turn them."""

    def __init__(
        self, correlation: Correlation, plan: Schedule, tables: Tables, lanes: int, item: int
    ) -> None:
        self.chunk = chunk_of(correlation.reduced // correlation.groups, lanes)
        rows = -(-plan.tiles // plan.rows) * plan.rows
        images = plan.box[0]
        packed = images * prod(tables.spans) * self.chunk * item
        # An odd number of lines apart, so that points are not all in one set of the cache.
        self.v_row = _odd((-(-depth_of(correlation) // lanes) + 1) * lanes * item)
        self.v_point = _odd(rows * self.v_row)
        self.z_row = _odd(plan.columns * item)
        self.z_point = _odd(rows * self.z_row)
        stage = images * prod(tables.steps[:-1]) * tables.line * plan.padded * item
        turned = plan.channels * tables.line * item if correlation.epilogue.residual else 0
        self.v_at = _lines(packed)
        self.z_at = self.v_at + plan.points * self.v_point
        self.stage_at = self.z_at + plan.points * self.z_point
        self.turned_at = self.stage_at + _lines(stage)
        # Parts of whole pages would all begin in the same sets.
        self.part = _lines(self.turned_at + turned + 4096) + 64


def _lines(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _odd(nbytes: int) -> int:
    return (-(-nbytes // 64) | 1) * 64
