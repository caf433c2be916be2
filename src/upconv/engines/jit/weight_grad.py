"""The weight gradient's primitive; see weight_grad_plan.py.

What lives here: the primitive, and the arguments of its runs. What never does: tables, code.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ...activations import Activation
from ...problem import DataLayout, Problem
from ..addresses import address_of
from ..base import Array
from ..workspace import Workspace
from . import pool
from .compile import CODE_BYTES
from .cpu import Cpu
from .operands import laid_out, lying_well
from .row_code import fill_code, finish_code, turn_code
from .rows import Finish
from .slots import Block
from .values import STORED
from .weight_grad_code import SLOTS, driver_code, tile_code
from .weight_grad_plan import Plan


class WeightGrad:
    """A weight gradient, compiled and laid out."""

    def __init__(self, problem: Problem, threads: int, cpu: Cpu) -> None:
        self.problem, plan = problem, Plan(problem, cpu)
        self._lanes_of_g, self._in_place = plan.sides.lanes_of_g, plan.in_place
        self._threads = max(1, min(threads, problem.multiply_adds // 200_000))
        stored, computed = STORED[problem.dtype], plan.sides.tile.element
        driver = driver_code(problem.layout, cpu)
        codes = {
            "tile": tile_code(plan.sides.tile, cpu),
            "single": tile_code(plan.sides.tile.single, cpu),
            "turn": turn_code(stored, computed, cpu),
            "fill": fill_code(stored, computed, cpu),
            "turn_back": turn_code(computed, computed, cpu),
            "deliver": finish_code(_finish(computed, stored, problem.accumulate), cpu),
            "add": finish_code(_finish(computed, computed, accumulate=True), cpu),
        }
        names = {"single": "tile", "turn_back": "turn", "deliver": "finish", "add": "finish"}
        self._codes = (driver, *codes.values())
        self._records = plan.records(*(driver.addresses[n] for n in ("pack", "block", "finish")))
        self._tables = (plan.places, plan.entries, plan.segments)
        self._zeros = np.zeros(plan.sides.tile.width, np.float64)
        self._run = driver.addresses["run"]
        # Sums of a thread's block, and the same turned.
        own = -(-plan.part * plan.block_bytes // 64) * 64
        self._panels = self._threads * 2 * own
        self._stages = self._panels + plan.slab_bytes * plan.sets * (1 if plan.single else 2)
        self.workspace_bytes = self._stages + (0 if plan.single else plan.sets * plan.set_bytes)
        self.resident_bytes = CODE_BYTES + sum(
            table.nbytes for table in (*self._tables, self._records, self._zeros)
        )
        self.predicted_cycles = plan.sides.cycles / self._threads
        item, tile = problem.dtype.itemsize, plan.sides.tile
        strides = (1, problem.axes[-1].stride)  # positions of x, and of g, to the next
        x, g = (n * pitch for n, pitch in zip(strides, plan.pitches, strict=True))
        row, lane = (x, g) if plan.sides.lanes_of_g else (g, x)
        self._template = SLOTS.block(
            **{name: code.addresses[names.get(name, name)] for name, code in codes.items()},
            records=self._records.ctypes.data, places=plan.places.ctypes.data,
            entries=plan.entries.ctypes.data, segments=plan.segments.ctypes.data,
            zeros=self._zeros.ctypes.data, jobs=len(self._records), element=plan.element,
            part=2 * own, spare=own, sets=plan.sets, set_bytes=plan.set_bytes,
            tile_rows=tile.rows, tile_width=tile.width, row_step=row, lane_step=lane,
            taps_inside=int(plan.sides.taps_inside), turned=int(plan.sides.turned),
            by_row=plan.sides.by_row * item, by_lane=plan.sides.by_lane * item,
            by_tap=plan.sides.by_tap * item,
        )  # fmt: skip
        self._blocks: deque[Block] = deque(maxlen=8)
        self.description = str(plan)

    def pack(self, weight: Array) -> Array:
        """Nothing of a weight gradient is packed beforehand."""
        return weight

    def run(
        self,
        out: Array,
        a: Array,
        b: Array,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Compute into `out`."""
        dw = laid_out("the result", out, filled=self.problem.accumulate)
        x, g = self._operand("x", b, 0), self._operand("grad", a, 1)
        with Workspace(self.workspace_bytes) as buffer:
            panels, args = buffer + self._panels, self._block()
            sides = [
                address_of(array) if in_place else panels
                for array, in_place in zip((x, g), self._in_place, strict=True)
            ]
            rows, lanes = sides if self._lanes_of_g else sides[::-1]
            args.update(
                buffer=buffer, panels=panels, stages=buffer + self._stages, rows=rows, lanes=lanes,
                dw=address_of(dw), **self._strides("x", x), **self._strides("g", g),
            )  # fmt: skip
            pool.run(self._run, args.address, self._threads)
            self._blocks.append(args)
        if dw is not out:
            out[...] = dw

    def close(self) -> None:
        """Nothing is held that goes before the primitive does."""

    def _operand(self, what: str, array: Array, of_g: int) -> Array:
        """An operand that kernels can read: the array itself, or a copy."""
        if self._in_place[of_g]:
            return laid_out(what, array)
        return lying_well(what, array, self.problem.layout)

    def _strides(self, name: str, array: Array) -> dict[str, int]:
        """Where an operand is, and the bytes to the next image, channel and position."""
        first = self.problem.layout is DataLayout.NCX
        item = array.itemsize
        channel, position = (array.strides[1], item) if first else (item, array.shape[-1] * item)
        return {
            name: address_of(array), f"{name}_image": array.strides[0],
            f"{name}_channel": channel, f"{name}_position": position,
        }  # fmt: skip

    def _block(self) -> Block:
        """The block of an earlier run which is over, or a new one."""
        try:
            block = self._blocks.pop()
        except IndexError:
            return self._template.copy()
        block.restart()
        return block


def _finish(computed: str, stored: str, accumulate: bool) -> Finish:
    return Finish(computed, stored, Activation.NONE, 0.0, residual=False, accumulate=accumulate)
