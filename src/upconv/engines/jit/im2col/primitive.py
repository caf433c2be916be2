"""The im2col primitive; see code.py."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

from ....problem import DataLayout
from ...addresses import address_of
from ...base import Array, Maybe
from ...copies import contiguous
from ...nonfinite import NonFinite, is_finite
from ...workspace import Workspace
from .. import walk
from ..compile import CODE_BYTES
from ..correlation import Correlation, Reads, reads_of
from ..cpu import Cpu
from ..kernel_arguments import Blocks, Table, filled
from ..operands import Kernel, Operands, strides
from ..packing import aligned
from ..steps import Launch
from ..values import LINE
from .candidates import Plan, plan_of, predicted_cycles
from .code import ARGUMENTS, PANEL, POSITION, ROWS, gather_code, products_code
from .limits import depth_of, positions_of, taps_of


class Im2col(Kernel):
    """A correlation with result stride 1 that reads its weight in place."""

    order = None

    def __init__(self, correlation: Correlation, threads: int, cpu: Cpu) -> None:
        self.correlation = correlation
        self.schedule = plan = plan_of(correlation, threads, cpu)
        self.predicted_cycles = predicted_cycles(correlation, plan, cpu)
        self._type, tile = correlation.dtype.numpy, plan.tile
        self._no_bias = np.zeros(correlation.made, self._type)
        item, groups = self._type.itemsize, correlation.groups
        channels_last = correlation.layout is DataLayout.NXC
        gather = gather_code(correlation.element, tile.width, channels_last, cpu)
        products, walking = products_code(tile, cpu), walk.walk_code(cpu)
        self._tables = tables = _tables(correlation, plan)
        panel_bytes = depth_of(correlation) * tile.width * item
        group_bytes = panel_bytes * len(tables["panels"])
        listed = walk.phases(
            plan.threads,
            walk.Phase(gather.addresses["gather"], tables["panels"], outer_count=groups),
            walk.Phase(
                products.addresses["products"], tables["panels"], tables["rows"], by_outer=True
            ),
        )
        self._held = gather, products, walking, listed
        self._panels_bytes = groups * group_bytes
        part = walk.part_bytes(LINE + plan.tiles * tile.rows * tile.width * item)
        self.workspace_bytes = self._panels_bytes + plan.threads * part
        blocks = Blocks(ARGUMENTS.block(
            phases=listed.ctypes.data, phase_count=len(listed), part=part,
            positions=tables["positions"].ctypes.data, channels=correlation.reduced // groups,
            taps=prod(taps_of(correlation)), chunk=plan.chunk, group_bytes=group_bytes,
            panel_bytes=panel_bytes, w_row=correlation.weight_strides[2] * item,
        ))  # fmt: skip
        start = walking.addresses["walk"]
        self._launch = Launch.of_walk(blocks, start, plan.threads, listed, "bad")
        self.resident_bytes = CODE_BYTES + sum(table.nbytes for table in tables.values())

    def pack(self, weight: Array) -> Array:
        """Return a copy of the weight in the order that calls read.

        Raises `NonFinite` if it is not finite."""
        if not is_finite(weight):
            raise NonFinite
        packed = aligned(weight.size, self._type)[: weight.size].reshape(weight.shape)
        packed[...] = weight
        return packed

    def run_once(self, out: Array, a: Array, weight: Array, bias: Maybe = None, *_: Maybe) -> None:
        """Compute into `out`, reading the weight in place. If this raises `NonFinite`, `out` is
        invalid, because zeros around the operand were multiplied by infinity or NaN."""
        weight = contiguous(weight)
        operands = Operands.of(self.correlation, out, a, None)
        with Workspace(self.workspace_bytes) as scratch:
            biases = self._by_channel(bias, None)
            for launch, values in self._launches(operands, weight, biases, scratch):
                bad = launch.blocks.run(launch.work, launch.threads, launch.flag, **values)
        if bad and not is_finite(weight):
            raise NonFinite
        operands.deliver()

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterable[tuple[Launch, dict[str, int]]]:
        layout = self.correlation.layout
        values = {
            **strides("x", operands.x, layout), **strides("y", operands.y, layout),
            "w": address_of(w), "bias": address_of(biases), "panels": scratch,
            "scratch": scratch + self._panels_bytes,
        }  # fmt: skip
        del values["x_position"], values["y_position"]  # the tables have them
        return ((self._launch, values),)


def _tables(correlation: Correlation, plan: Plan) -> dict[str, Table]:
    """Return the tables for both jobs, for positions, and for their reads."""
    item, channels = correlation.dtype.itemsize, correlation.made // correlation.groups
    channels_first = correlation.layout is DataLayout.NCX
    x_step, y_step = (
        item * (1 if channels_first else n) for n in (correlation.reduced, correlation.made)
    )
    reads = reads_of([
        Reads(line.out, line.step, line.size, [tap.shift for tap in line.every[0].taps])
        for line in correlation.lines
    ]).T  # fmt: skip
    reads = np.ascontiguousarray(np.where(reads < 0, -1, reads * x_step))
    none = np.full(reads.shape[1], -1)
    inside, count, width = len(reads), positions_of(correlation), plan.tile.width
    first = np.arange(0, count, width)
    sizes = np.minimum(width, count - first)
    positions = filled(POSITION, len(first) * width, reads=none.ctypes.data)
    number, taken = np.arange(count), positions[:count]
    taken["image"], taken["y"] = number // inside, number % inside * y_step
    taken["reads"] = reads.ctypes.data + number % inside * reads.strides[0]
    tiles = -(-channels // plan.tile.rows)
    start, group = np.arange(0, tiles, plan.tiles), np.arange(correlation.groups)[:, None]
    return {
        "reads": reads, "none": none, "positions": positions,
        "panels": filled(
            PANEL, len(first), panel=np.arange(len(first)), first=first,
            count=sizes, dense=channels_first & (first // inside == (first + sizes - 1) // inside),
        ),
        "rows": filled(
            ROWS, (correlation.groups, len(start)), group=group,
            first=group * channels + start * plan.tile.rows,
            last=(group + 1) * channels - plan.tile.rows,
            count=np.minimum(plan.tiles, tiles - start),
        ).ravel(),
    }  # fmt: skip
