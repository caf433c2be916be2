"""The Winograd primitive: a correlation by fewer products; see schedule.py.

A result that is not finite may stand where a direct sum would be finite: an infinite or undefined
number of the operand reaches all results of its tile, and large ones may overflow. So results are
looked at as they are made, and if any is not finite, the direct primitive computes all again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from ....activations import Activation
from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array, Maybe, Primitive
from ...workspace import Workspace
from ..compile import CODE_BYTES, Code
from ..correlation import Correlation, WeightForm
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import Operands, strides
from ..packing import shared
from ..rows import Finish, fill_code, finish_code, plain
from ..transpose import transpose_code
from ..walk import Phase, phases, walk_code
from .blocks import Memory
from .driver import ARGUMENTS, driver_code
from .schedule import Order, Schedule
from .tables import Tables
from .tile import Inverse, Products, input_code, inverse_code, products_code
from .weights import Weights

IN_MEMORY = (
    "image", "stage_image", "wide", "position", "v_at", "z_at", "stage_at", "transposed_at",
    "v_point", "v_row", "z_point", "z_row", "transposed",
)  # fmt: skip


class WinogradWeight:
    """A weight transformed, and as it was for the direct primitive."""

    __slots__ = ("__weakref__", "direct", "given", "transformed")

    def __init__(self, transformed: Array, given: Array) -> None:
        self.transformed, self.given = transformed, given
        self.direct: dict[Hashable, Any] = {}  # packed, by the direct primitives' orders


class Winograd:
    """A correlation, compiled and laid out; `direct` builds the one that computes it directly."""

    def __init__(
        self, correlation: Correlation, plan: Schedule, direct: Callable[[], Primitive], cpu: Cpu
    ) -> None:
        self.correlation, self.schedule = correlation, plan
        self._direct = direct
        self._made_direct: Primitive | None = None
        self._lock = threading.Lock()
        self.order = self._weights = shared(Weights, correlation.weight, plan.order, cpu)
        self.tables = Tables(correlation, plan, self._weights)
        self._codes = _codes(correlation, plan, self.tables.memory, cpu)
        self._biases = _bias_order(correlation.weight, plan.order)
        runs = self.tables.arrays["runs"]
        self._phases = phases(Phase(_address(self._codes["job"]), None, runs, self.tables.blocks))
        self._blocks = Blocks(ARGUMENTS.block(**self._arguments()))
        self._walk = walk_code(cpu)
        self._threads = plan.threads
        self.workspace_bytes = plan.threads * self.tables.memory.part
        tables = self._biases.nbytes + self.tables.nbytes + self._weights.resident_bytes
        self.resident_bytes = tables + 2 * CODE_BYTES
        self.predicted_cycles = plan.cycles

    @property
    def description(self) -> str:
        """The schedule in one line."""
        return str(self.schedule)

    def pack(self, weight: Array) -> WinogradWeight:
        """The transform of a weight, in the order in which it is used."""
        return WinogradWeight(self._weights.pack(weight, self._threads), weight)

    def run(self, out: Array, a: Array, b: Any, bias: Maybe = None, residual: Maybe = None) -> None:
        """Compute into `out`."""
        given = Operands.of(self.correlation, out, a, residual)
        x, y, more = given.x, given.y, given.residual
        biases = self._ordered(bias)  # held until the run is over
        layout = self.correlation.layout
        with Workspace(self.workspace_bytes) as buffer:
            bad = self._blocks.run(
                self._walk.addresses["walk"], self._threads, "bad",
                scratch=buffer, w=address_of(b.transformed), bias=address_of(biases),
                residual=address_of(y) if more is None else address_of(more),
                **strides("x", x, layout), **strides("y", y, layout),
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
        self, out: Array, a: Array, b: WinogradWeight, bias: Maybe, residual: Maybe
    ) -> None:
        with self._lock:
            direct = self._made_direct = self._made_direct or self._direct()
            order = getattr(direct, "order", None) or id(direct)
            if order not in b.direct:
                b.direct[order] = direct.pack(b.given)
        direct.run(out, a, b.direct[order], bias, residual)

    def _ordered(self, bias: Maybe) -> Array:
        if bias is None:
            return np.zeros(len(self._biases), self.correlation.dtype.numpy)
        return np.append(bias, bias.dtype.type(0))[self._biases]

    def _arguments(self) -> dict[str, int]:
        """Arguments that all runs share."""
        plan, weights, correlation = self.schedule, self._weights, self.correlation
        memory, arrays = self.tables.memory, self.tables.arrays
        panels = plan.columns // (plan.vectors * weights.lanes)
        panel = weights.point_bytes // panels
        whole = plan.channels == plan.padded == correlation.made
        return {
            "phases": self._phases.ctypes.data, "phase_count": 1, "part": memory.part,
            **{name: array.ctypes.data for name, array in arrays.items() if name != "runs"},
            **{name: getattr(memory, name) for name in IN_MEMORY}, **memory.window_steps(),
            **{name: _address(code) for name, code in self._codes.items() if name != "job"},
            "box": memory.images, "chunk_count": len(arrays["chunks"]),
            "input_count": len(arrays["inputs"]) // len(arrays["chunks"]),
            "point_count": plan.points, "w_panel": panel, "w_piece": panel // weights.pieces,
            "reduction": weights.reduction, "panels": panels,
            "columns": plan.columns // weights.lanes, "element": memory.item,
            "whole": int(whole and not correlation.epilogue.residual),
        }  # fmt: skip


def _address(code: Code) -> int:
    (address,) = code.addresses.values()
    return int(address)


def _codes(correlation: Correlation, plan: Schedule, memory: Memory, cpu: Cpu) -> dict[str, Code]:
    """The code of the driver, and of what it calls."""
    element, epilogue = correlation.element, correlation.epilogue
    late, channels_last = epilogue.residual, correlation.layout is DataLayout.NXC
    activation = (epilogue.activation, epilogue.slope)
    last, pieces = plan.windows[-1], any(t.pieces > 1 for t in plan.transforms)
    step, lanes = last.step * last.apart * memory.wide, cpu.lanes(memory.item)
    first = (Activation.NONE, 0.0) if late else activation
    inverse = Inverse(element, tuple(t.a for t in plan.transforms), *first)
    products = Products(element, lanes, plan.sizes, plan.vectors, memory.v_row, pieces)
    codes = {
        "job": driver_code(correlation.layout, cpu),
        "input": input_code(element, tuple(t.b for t in plan.transforms), step, cpu),
        "products": products_code(products, cpu),
        "inverse": inverse_code(inverse, cpu),
        "pack": fill_code(element, element, cpu)
        if channels_last
        else transpose_code(element, element, cpu),
    }
    if not channels_last:
        codes["deliver"] = transpose_code(element, element, cpu)
    if channels_last or memory.transposed:
        finish = Finish(element, element, *activation, True, False) if late else plain(element)
        codes["finish"] = finish_code(finish, cpu)
    return codes


@lru_cache(maxsize=256)
def _bias_order(weight: WeightForm, order: Order) -> Array:
    """For each group, chunk and column the number of its bias; that behind the last for none."""
    made = weight.made // weight.groups
    channel = np.arange(-(-made // order.channels))[:, None] * order.channels
    channel = channel + np.arange(order.padded)
    there = (np.arange(order.padded) < order.channels) & (channel < made)
    numbers = np.arange(weight.groups)[:, None, None] * made + channel
    numbers = np.where(there, numbers, weight.made)
    return np.repeat(numbers[:, :, None], order.windows[-1].stride, 2).ravel()
