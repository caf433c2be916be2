"""The Winograd primitive: a correlation with fewer products; see schedule.py.

A result may be infinite or NaN although its direct sum is finite: an infinite or NaN operand
affects all results of its tile, and large numbers may overflow. So the inverse transform checks all
results. If one is not finite, the direct primitive computes all of them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from math import prod
from typing import Any

import numpy as np

from .... import memory
from ....activations import Activation
from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array, Maybe, Primitive
from ...workspace import Workspace
from ..activation import NO_ACTIVATION, ActivationEpilogue
from ..compile import CODE_BYTES, Code
from ..correlation import Correlation
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import Kernel, Operands, strides
from ..packing import shared
from ..rows import Finish, fill_code, finish_code
from ..steps import Launch
from ..transpose import transpose_code
from ..values import STORED
from ..walk import Phase, phases, walk_code
from .blocks import v_row_of, z_row_of
from .driver import ARGUMENTS, driver_code
from .schedule import Form, Schedule
from .tables import Tables
from .tile import Inverse, Products, group_table, input_code, inverse_code, products_code
from .weights import Weights


class WinogradWeight:
    """A transformed weight, and the original one for the direct primitive."""

    __slots__ = ("__weakref__", "direct", "transformed", "weight")

    def __init__(self, transformed: Array, weight: Array) -> None:
        self.transformed, self.weight = transformed, weight
        self.direct: dict[Hashable, Any] = {}  # packed weights, by the order of direct primitives


class WinogradClass:
    """Code and orders of weights and biases, which primitives of all sizes share."""

    def __init__(
        self, form: Form, epilogue: ActivationEpilogue, finish: Finish, transposed: bool
    ) -> None:
        self.weights = shared(Weights, form)
        self.codes = _codes(form, epilogue, finish, transposed)
        self.biases, self._points = _bias_order(form), _points(form)
        self.bias_type = np.dtype(np.float64 if form.item == 8 else np.float32)
        self.resident_bytes = self.biases.nbytes + self._points.nbytes + self.weights.resident_bytes
        one_run = form.channels == form.padded == form.weight.made
        self.arguments = {
            **{name: code.address for name, code in self.codes.items() if name != "job"},
            "input_count": form.reduction // form.reduced, "point_count": form.points,
            "reduced": form.reduced, "made": form.made, "channels": form.channels,
            "chunk": form.chunk, "chunk_count": -(-form.reduced // form.chunk),
            "chunks": form.chunks, "units": form.units, "reduction": form.reduction,
            "panels": form.panels, "columns": form.columns // form.lanes, "lanes": form.lanes,
            "w_unit": form.unit_bytes, "w_point": form.point_bytes, "w_panel": form.panel_bytes,
            "w_piece": form.piece_bytes, "bias_unit": form.columns * form.item,
            "wide": form.chunk * form.item, "position": form.padded * form.item,
            "element": form.item, "v_row": v_row_of(form), "z_row": z_row_of(form),
            "one_run": int(one_run and not (finish.residual or finish.accumulate)),
            "group_bytes": 8 * len(form.sizes), "slopes": len(self.biases) * form.item,
            "points": address_of(self._points), "point_bytes": self._points.strides[0],
        }  # fmt: skip


class Winograd(Kernel):
    """A correlation's primitive; `direct` builds the direct primitive."""

    packs_in_call = False

    def __init__(
        self, correlation: Correlation, plan: Schedule, direct: Callable[[], Primitive], cpu: Cpu
    ) -> None:
        self.correlation, self.schedule, form = correlation, plan, plan.form
        self._build_direct = direct
        self._direct: Primitive | None = None
        self._lock = threading.Lock()
        self.tables = tables = Tables(correlation, plan)
        parts = tables.memory
        self._epilogues = _epilogues(correlation)
        self._class = shared(WinogradClass, form, *self._epilogues, parts.transposed > 0)
        self.order, self._pack_threads = self._class.weights, plan.threads
        self._groups = group_table(form.sizes, form.vectors, 1 << parts.tiles.bit_length())
        job = self._class.codes["job"].address
        self._phases = phases(plan.threads, Phase(job, None, tables["runs"], tables.blocks))
        self._arguments = {
            **self._class.arguments, **tables.arguments, "batch": correlation.batch,
            "phases": address_of(self._phases), "phase_count": 1,
            "groups": address_of(self._groups),
        }  # fmt: skip
        blocks, self._walk = Blocks(ARGUMENTS.block(**self._arguments)), walk_code(cpu)
        walk = self._walk.addresses["walk"]
        self._launch = Launch.of_walk(blocks, walk, plan.threads, self._phases, "bad")
        self.workspace_bytes = plan.threads * parts.part
        self.resident_bytes = self._class.resident_bytes + tables.nbytes + 2 * CODE_BYTES
        self.predicted_cycles = plan.cycles

    def pack(self, weight: Array) -> WinogradWeight:
        """Return the transformed weight, in the order in which it is used."""
        return WinogradWeight(super().pack(weight), weight)

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
        second: Maybe = None,
    ) -> None:
        """Compute into `out`."""
        operands = Operands.of(self.correlation, out, a, residual, second)
        biases = self._by_channel(bias, slopes)  # held until the run is over
        before = self._before(out, operands)
        with Workspace(self.workspace_bytes) as scratch:
            ((launch, values),) = self._launches(operands, b.transformed, biases, scratch)
            bad = launch.blocks.run(launch.work, launch.threads, launch.flag, **values)
        if bad:
            if before is not None:
                out[...] = before
            self._run_direct(out, a, b, bias, residual, slopes, second)
        else:
            operands.deliver()

    def _read(self, packed: WinogradWeight) -> Array:
        return packed.transformed

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterable[tuple[Launch, dict[str, int]]]:
        x, y, residual = operands.x, operands.y, operands.residual
        layout = self.correlation.layout
        values = {
            "scratch": scratch, "w": address_of(w), "bias": address_of(biases),
            "residual": address_of(y) if residual is None else address_of(residual),
            "second": operands.second, **strides("x", x, layout), **strides("y", y, layout),
        }  # fmt: skip
        return ((self._launch, values),)

    def close(self) -> None:
        """Close the direct primitive."""
        if self._direct is not None:
            self._direct.close()

    def _run_direct(self, out: Array, a: Array, b: WinogradWeight, *ends: Maybe) -> None:
        with self._lock:
            direct = self._direct = self._direct or self._build_direct()
            order = getattr(direct, "order", None) or id(direct)
            if order not in b.direct:
                b.direct[order] = direct.pack(b.weight)
        direct.run(out, a, b.direct[order], *ends)

    def _before(self, out: Array, operands: Operands) -> Maybe:
        """Return a copy of the old result, if the kernel adds to it in place."""
        if not self.correlation.accumulate or operands.copies:
            return None
        memory.require(out.nbytes, "a copy of the old result")
        return out.copy()

    def _by_channel(self, bias: Maybe, slopes: Maybe) -> Array:
        """Return biases in the inverse transform's order, then PReLU's slopes in the same order, or
        in the channels' order if `finish` applies the activation."""
        order = self._class.biases
        biases = np.zeros(len(order), self._class.bias_type)
        if bias is not None:
            biases[:] = np.append(bias, bias.dtype.type(0))[order]
        if slopes is None:
            return biases
        if self._epilogues[0].slopes:
            slopes = np.append(slopes, slopes.dtype.type(0))[order]
        return np.concatenate((biases, slopes.astype(biases.dtype, copy=False)))


def _epilogues(correlation: Correlation) -> tuple[ActivationEpilogue, Finish]:
    """Return the activation that the inverse transform applies, and the rest, for `finish`."""
    finish = Finish.of(correlation, correlation.layout)
    if finish.residual or finish.accumulate:
        return NO_ACTIVATION, finish
    second = finish.epilogue._replace(activation=Activation.NONE, slope=0.0, slopes=False)
    first = finish.epilogue._replace(second=Activation.NONE, second_slope=0.0)
    return first, Finish(finish.computed, finish.stored, second)


def _codes(
    form: Form, epilogue: ActivationEpilogue, finish: Finish, transposed: bool
) -> dict[str, Code]:
    """Return the code for the driver, and for the functions that it calls."""
    element, cpu, transforms = form.weight.element, form.cpu, form.transforms
    stored = STORED[form.weight.dtype]
    channels_last = form.layout is DataLayout.NXC
    last, pieces = form.windows[-1], any(t.pieces > 1 for t in transforms)
    step = last.step * last.apart * form.chunk * form.item
    inverse = Inverse(element, tuple(t.a for t in transforms), epilogue)
    products = Products(element, form.lanes, form.sizes, form.vectors, v_row_of(form), pieces)
    move = fill_code if channels_last else transpose_code
    codes = {
        "job": driver_code(form.layout, cpu),
        "pack": move(stored, element, cpu),
        "input": input_code(element, tuple(t.b for t in transforms), step, cpu),
        "products": products_code(products, cpu),
        "inverse": inverse_code(inverse, cpu),
    }
    if not channels_last:
        codes["deliver"] = transpose_code(element, element if transposed else stored, cpu)
    if channels_last or transposed:
        codes["finish"] = finish_code(finish, cpu)
    return codes


def _points(form: Form) -> Array:
    """Return each point's count of pieces, and their numbers."""
    counts = [t.pieces for t in form.transforms]
    numbers = np.arange(prod(counts)).reshape(counts)
    points = np.zeros((form.points, 1 + prod(counts)), np.int64)
    for point, by_axis in zip(points, form.pieces, strict=True):
        pieces = numbers[tuple(map(slice, by_axis))].ravel()
        point[0], point[1 : 1 + len(pieces)] = len(pieces), pieces
    return points


def _bias_order(form: Form) -> Array:
    """Return each column's bias number, by group and chunk, or one beyond the last for none."""
    groups, result_channels = form.weight.groups, form.made
    index = np.arange(form.padded)
    channel = np.arange(form.chunks)[:, None] * form.channels + index
    exists = (index < form.channels) & (channel < result_channels)
    numbers = np.arange(groups)[:, None, None] * result_channels + channel
    numbers = np.where(exists, numbers, form.weight.made)
    return np.repeat(numbers[:, :, None], form.windows[-1].stride, 2).ravel()
