"""The Winograd primitive: a correlation by fewer products; see schedule.py.

A result that is not finite may stand where a direct sum would be finite: an infinite or undefined
number of the operand reaches all results of its tile, and large ones may overflow. So results are
looked at as they are made, and if any is not finite, the direct primitive computes all again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ....activations import Activation
from ...addresses import address_of
from ...base import Array, Maybe, Primitive
from ...workspace import Workspace
from ..compile import CODE_BYTES
from ..correlation import Correlation, Line, WeightForm
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import Operands, strides
from ..packing import shared
from ..rows import Finish, fill_code, finish_code, plain
from ..transpose import transpose_code
from ..values import BYTES
from .driver import ARGUMENTS, OF_AXIS, driver_code
from .schedule import Order, Schedule, chunk_of, reduction_of, shares_sets
from .tile import (
    MADE,
    Inverse,
    Products,
    group_table,
    input_code,
    inverse_code,
    products_code,
)
from .transforms import Transform
from .weights import Weights
from .window import Window


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
        element = correlation.element
        self._lanes, self._item = cpu.lanes(BYTES[element]), BYTES[element]
        self.order = self._weights = shared(Weights, correlation.weight, plan.order, cpu)
        self._sizes = _Sizes(correlation, plan, self._lanes, self._item)
        epilogue = correlation.epilogue
        late = epilogue.residual
        first = (epilogue.activation, epilogue.slope)
        if late:
            first = (Activation.NONE, 0.0)
        finish = Finish(element, element, epilogue.activation, epilogue.slope, True, False)
        inverse = Inverse(element, tuple(t.a for t in plan.transforms), *first)
        last = plan.windows[-1]
        step = last.step * last.apart * self._sizes.chunk * self._item
        row, pieces = self._sizes.v_row, self._weights.pieces > 1
        kind = Products(element, self._lanes, plan.sizes, plan.vectors, row, pieces)
        inputs = tuple(t.b for t in plan.transforms)
        self._codes = {
            "fill": fill_code(element, element, cpu),
            "transpose": transpose_code(element, element, cpu),
            "transpose_back": transpose_code(element, element, cpu),
            "finish": finish_code(finish if late else plain(element), cpu),
            "input": input_code(element, inputs, step, cpu),
            "products": products_code(kind, cpu),
            "inverse": inverse_code(inverse, cpu),
        }
        self._driver = driver_code(correlation.layout, cpu)
        self._tables = _tables(plan, self._sizes)
        self._biases = _bias_order(correlation.weight, plan.order)
        self._blocks = Blocks(ARGUMENTS.block(**self._arguments(late)))
        self._threads = plan.threads
        self.workspace_bytes = plan.threads * self._sizes.part
        tables = self._biases.nbytes + self._weights.resident_bytes
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
                self._driver.addresses["run"], self._threads, "bad",
                buffer=buffer, w=address_of(b.transformed), bias=address_of(biases),
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

    def _arguments(self, late: bool) -> dict[str, int]:
        """Arguments that all runs share."""
        plan, sizes, weights = self.schedule, self._sizes, self._weights
        correlation, item, names = self.correlation, self._item, {"transpose_back": "transpose"}
        made = correlation.made // correlation.groups
        runs, images = -(-weights.units // plan.units), -(-correlation.batch // plan.box[0])
        blocks = images * prod(axis["blocks"] for axis in sizes.axes)
        whole = plan.channels == plan.padded == correlation.made
        panels = plan.columns // (plan.vectors * self._lanes)
        return {
            **{key: code.addresses[names.get(key, key)] for key, code in self._codes.items()},
            **{key: table.ctypes.data for key, table in self._tables.items()},
            **{f"{name}_{i}": axis[name] for i, axis in enumerate(sizes.axes) for name in OF_AXIS},
            "part": sizes.part, "v_at": sizes.v_at, "z_at": sizes.z_at,
            "stage_at": sizes.stage_at, "transposed_at": sizes.transposed_at,
            "tile_at": sizes.tile_at, "made_at": sizes.made_at, "shift_at": sizes.shift_at,
            "jobs": blocks * runs * correlation.groups, "blocks": blocks,
            "blocks_n": images, "box_n": plan.box[0], "groups_n": correlation.batch,
            "runs": runs, "units": plan.units, "all_units": weights.units,
            "chunks": weights.chunks, "reduction": weights.reduction,
            "phases": len(self._tables["phase"]), "channels": weights.reduced,
            "chunk": sizes.chunk, "element": item,
            "points": plan.points, "pieces": weights.pieces, "panels": panels,
            "group_sizes": len(plan.sizes),
            "w_unit": weights.unit_bytes, "w_point": weights.point_bytes,
            "w_panel": weights.point_bytes // panels,
            "w_piece": weights.point_bytes // panels // weights.pieces,
            "v_point": sizes.v_point, "v_row": sizes.v_row,
            "z_point": sizes.z_point, "z_row": sizes.z_row,
            "made": made, "active": plan.channels, "padded": plan.padded, "columns": plan.columns,
            "whole": int(whole and not late), "transposed": int(sizes.transposed > 0),
            **sizes.steps(), "line": sizes.line, "lanes": self._lanes,
        }  # fmt: skip


def _tables(plan: Schedule, sizes: _Sizes) -> dict[str, Array]:
    """Where each combination of phases of operands begins in a block, in positions; and for each
    point the first of its pieces and how many they are, and the numbers of these."""
    phase = np.zeros(1, np.int64)
    for window, axis in zip(plan.windows, sizes.axes[-len(plan.windows) :], strict=True):
        phase = (phase[:, None] * axis["span"] + np.arange(window.step)).ravel()
    point, piece = _piece_tables(plan.order)
    most = 1 << sizes.tiles.bit_length()  # few tables serve all sizes
    groups = group_table(plan.sizes, plan.vectors, most)
    return {"phase": phase, "point": point, "piece": piece, "groups": groups}


@lru_cache(maxsize=256)
def _piece_tables(order: Order) -> tuple[Array, Array]:
    numbers = np.arange(prod(t.pieces for t in order.transforms))
    numbers = numbers.reshape([t.pieces for t in order.transforms])
    of_point = [numbers[tuple(map(slice, counts))].ravel() for counts in order.pieces]
    counts = np.array([len(each) for each in of_point], np.int64)
    point = np.stack([np.cumsum(counts) - counts, counts], -1)
    return point, np.concatenate(of_point).astype(np.int64)


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


class _Sizes:
    """What the driver knows of each of three axes; and bytes of the memory of a thread: packed
    rows, V, Z, results, room to turn them, and tables of tiles."""

    def __init__(self, correlation: Correlation, plan: Schedule, lanes: int, item: int) -> None:
        self.chunk = chunk_of(correlation.reduced // correlation.groups, lanes)
        given = zip(plan.windows, correlation.lines, plan.transforms, plan.box[1:], strict=True)
        point = dict.fromkeys(OF_AXIS, 1) | {"behind": 0, "tail": 0, "first": 0, "base": 0}
        self.axes = [point] * (3 - correlation.rank) + [_axis(*each) for each in given]
        spans, stages, apart, behind = (
            [axis[name] for axis in self.axes] for name in ("span", "stage", "apart", "behind")
        )
        images, boxes = plan.box[0], [axis["box"] for axis in self.axes]
        tiles = images * prod(
            (n + more) * k for n, more, k in zip(boxes, behind, apart, strict=True)
        )
        self.tiles = tiles
        # Register tiles may reach behind the last tile, and pieces read behind that.
        rows = tiles + plan.rows
        packed = images * prod(spans) * self.chunk * item
        # An odd number of lines apart, so that points are not all in one set of the cache.
        self.v_row = _odd((-(-reduction_of(correlation) // lanes) + 1) * lanes * item)
        self.v_point = _odd(rows * self.v_row)
        self.z_row = _odd(plan.columns * item)
        self.z_point = _odd(rows * self.z_row)
        self.line = stages[2] * self.axes[2]["stride"]
        self._position, self._wide = plan.padded * item, self.chunk * item
        self._columns = plan.columns * item
        stage = images * prod(stages[:2]) * self.line * self._position
        # Rows of results are transposed apart from y to add a residual, too.
        transposed = correlation.epilogue.residual or shares_sets(correlation)
        self.transposed = plan.channels * self.line * item if transposed else 0
        self.v_at = _lines(packed)
        self.z_at = self.v_at + plan.points * self.v_point
        self.stage_at = self.z_at + plan.points * self.z_point
        self.transposed_at = self.stage_at + _lines(stage)
        self.tile_at = self.transposed_at + _lines(self.transposed)
        self.made_at = self.tile_at + 8 * tiles
        self.shift_at = self.made_at + 8 * len(MADE) * plan.tiles
        pieces = prod(more + 1 for more in behind)
        # Parts of whole pages would all begin in the same sets.
        self.part = _lines(self.shift_at + 8 * pieces + 4096) + 64

    def steps(self) -> dict[str, int]:
        """Bytes between places of a window along the outer axes, and between results of a tile."""
        first, second, last = self.axes
        rows = second["span"] * last["span"], last["span"]
        x = [k["step"] * k["apart"] * n for k, n in zip((first, second), rows, strict=True)]
        lines = second["stage"] * self.line, self.line
        y = [k["apart"] * n for k, n in zip((first, second), lines, strict=True)]
        return {
            "x_step_0": x[0] * self._wide, "x_step_1": x[1] * self._wide,
            "y_step_0": y[0] * self._position, "y_step_1": y[1] * self._position,
            "y_step_2": last["apart"] * self._columns,
        }  # fmt: skip


def _axis(window: Window, line: Line, transform: Transform, box: int) -> dict[str, int]:
    """What the driver knows of an axis (`OF_AXIS`)."""
    makes, step = window.apart * transform.m, window.step
    groups = window.groups(transform, line)
    span = window.span(transform, box)
    return {
        "blocks": -(-groups // box), "box": box, "groups": groups, "behind": transform.pieces - 1,
        "apart": window.apart, "makes": makes, "step": step, "tail": span - step * makes * box,
        "first": step * window.low + window.start, "span": span, "size": line.size,
        "stride": line.stride, "base": window.base, "stage": makes * box, "out": line.out,
    }  # fmt: skip


def _lines(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _odd(nbytes: int) -> int:
    return (-(-nbytes // 64) | 1) * 64
