"""The weight gradient's primitive: compiled code and scratch memory; see schedule.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....problem import DataLayout, Problem
from ....threads import useful_threads
from ...addresses import address_of
from ...base import Array, Maybe
from ...copies import laid_out
from ...workspace import Workspace
from ..compile import CODE_BYTES, Code
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import as_accessible, strides
from ..rows import Finish, fill_code, finish_code
from ..transpose import transpose_code, transpose_pairs_code
from ..values import I32, STORED, whole_lines
from ..walk import Phase, phases, walk_code
from .candidates import DOTS, chosen
from .driver import ARGUMENTS, SUMS, TABLES, copy_code, driver_code
from .schedule import Plan
from .tables import Tables
from .tile import tile_code


class WeightGrad:
    """A weight gradient, compiled and scheduled."""

    def __init__(self, problem: Problem, threads: int, cpu: Cpu, variant: str = "") -> None:
        self._threads = useful_threads(problem.multiply_adds, threads)
        dots = chosen(problem, variant, cpu) == DOTS
        self.problem, plan = problem, Plan(problem, cpu, dots, self._threads)
        self.rounds = plan.sides.tile.dots > 0
        self._lanes_of_g, self._in_place = plan.sides.lanes_of_g, plan.in_place
        tables, codes, driver = Tables.of(plan), _codes(plan, cpu), driver_code(cpu)
        walk, arrays = walk_code(cpu), tables.arrays
        job = Phase(driver.addresses["job"], arrays["jobs"], arrays["sets"], by_outer=True)
        finish = Phase(driver.addresses["finish"], arrays["blocks"])
        listed = phases(
            self._threads,
            job,
            *((finish,) if plan.sets > 1 else ()),
        )
        self._run, zeros = walk.addresses["walk"], np.zeros(plan.sides.tile.width)
        self._held = walk, driver, *codes.values(), tables, listed, zeros
        # A thread's memory: keys of packed panels, a block's sums, their transpose, and panels.
        block = whole_lines(plan.part * plan.block_bytes)
        sides_arguments, size = _sides(plan, tables, SUMS + 2 * block)
        self._stages = self._threads * size
        self.workspace_bytes = self._stages + (0 if plan.single else plan.sets * plan.all_bytes)
        self.resident_bytes = CODE_BYTES + tables.nbytes
        self.predicted_cycles = plan.sides.cycles / self._threads
        item, sides = problem.dtype.itemsize, plan.sides
        template = ARGUMENTS.block(
            phases=listed.ctypes.data, phase_count=len(listed), part=size,
            **{name: code.address for name, code in codes.items()},
            **{name: arrays[name].ctypes.data for name in TABLES},
            **sides_arguments, zeros=zeros.ctypes.data, spare=SUMS + block,
            one_block=int(plan.single),
            kernel=problem.axes[-1].kernel, clears=int(problem.layout is DataLayout.NCX),
            set_count=plan.sets, set_bytes=plan.all_bytes, element=plan.element,
            tile_rows=sides.tile.rows, tile_width=sides.tile.width,
            taps_inside=int(sides.taps_inside), transposed=int(sides.transposed),
            by_row=sides.by_row * item, by_lane=sides.by_lane * item, by_tap=sides.by_tap * item,
        )  # fmt: skip
        self._blocks = Blocks(template)
        self.description = str(plan)

    def pack(self, weight: Array) -> Array:
        """Return the weight unchanged: a weight gradient packs nothing beforehand."""
        return weight

    def run(self, out: Array, a: Array, b: Any, *_: Maybe) -> None:
        """Compute into `out`; a weight gradient has no bias and no epilogue."""
        dw = laid_out("the result", out, filled=self.problem.accumulate)
        x, g = self._operand("x", b, 0), self._operand("grad", a, 1)
        rows, lanes = (x, g) if self._lanes_of_g else (g, x)
        with Workspace(self.workspace_bytes) as scratch:
            self._blocks.run(
                self._run, self._threads,
                scratch=scratch, stages=scratch + self._stages, dw=address_of(dw),
                **self._strides("rows", rows), **self._strides("lanes", lanes),
            )  # fmt: skip
        if dw is not out:
            out[...] = dw

    def close(self) -> None:
        """Do nothing: the primitive has nothing to free."""

    def _operand(self, name: str, array: Array, of_g: int) -> Array:
        """Return an operand that kernels can read: the array itself, or a copy."""
        if self._in_place[of_g]:
            return laid_out(name, array)
        return as_accessible(name, array, self.problem.layout)

    def _strides(self, side: str, array: Array) -> dict[str, int]:
        """Return an operand's address, its strides, and the stride of the lines that are copied:
        channels with channels first, else positions."""
        layout = self.problem.layout
        steps = strides(side, array, layout)
        line = "channel" if layout is DataLayout.NCX else "position"
        return steps | {f"{side}_line": steps[f"{side}_{line}"]}


def _codes(plan: Plan, cpu: Cpu) -> dict[str, Code]:
    """Return the code for a class of problems, by argument name."""
    problem, tile = plan.problem, plan.sides.tile
    stored, computed = STORED[problem.dtype], tile.element
    deliver = Finish(computed, stored, accumulate=problem.accumulate)
    codes = {
        "tile": tile_code(tile, cpu),
        "single": tile_code(tile.single, cpu),
        "transpose": transpose_code(computed, computed, cpu),
        "deliver": finish_code(deliver, cpu),
        "add": finish_code(Finish(computed, computed, accumulate=True), cpu),
    }
    # A pair has the numbers of a position and of the next one, which is a stride away in g.
    beside = plan.sided(1, problem.axes[-1].stride) if tile.dots else (0, 0)
    in_place = plan.sided(*plan.in_place)
    for side, distance, is_in_place in zip(("rows", "lanes"), beside, in_place, strict=True):
        if is_in_place:
            continue
        if problem.layout is DataLayout.NXC:
            copied = stored, I32 if tile.dots else computed, distance
            codes[f"{side}_copy"] = copy_code(*copied, cpu)
        elif tile.dots:
            codes[f"{side}_copy"] = transpose_pairs_code(stored, distance, cpu)
        else:
            codes[f"{side}_copy"] = transpose_code(stored, computed, cpu)
    if problem.layout is DataLayout.NCX:
        codes["clear"] = fill_code(stored, computed, cpu)
    return codes


def _sides(plan: Plan, tables: Tables, first: int) -> tuple[dict[str, int], int]:
    """Return both sides' arguments, and the end of their panels, which begin at `first`."""
    arguments: dict[str, int] = {}
    # Bytes between neighbouring positions of x, and between the positions of g that they meet.
    x, g = plan.position_strides[0], plan.problem.axes[-1].stride * plan.position_strides[1]
    for n, step, side, size in zip(
        plan.sided(0, 1), plan.sided(x, g), ("rows", "lanes"), tables.panel_bytes, strict=True
    ):
        arguments |= {
            f"{side}_packed": int(not plan.in_place[n]), f"{side}_panel": first,
            f"{side}_size": size, f"{side}_width": plan.widths[n], f"{side}_step": step,
        }  # fmt: skip
        first += plan.held[n] * size
    return arguments, first
