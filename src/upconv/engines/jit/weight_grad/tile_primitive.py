"""The weight gradient's primitive on tile registers: code and memory; see tile_schedule.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import ceil
from typing import Any

from .... import memory
from ....problem import DataLayout, Problem
from ....threads import useful_threads
from ...addresses import address_of
from ...base import Array, Maybe, Primitive
from ...copies import laid_out
from ...workspace import Workspace
from ..compile import CODE_BYTES, Code
from ..correlation import weight_strides
from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..operands import as_accessible, strides
from ..rows import Finish, finish_code
from ..tiles.operations import PAIRS, ROW_BYTES, ROWS, configuration
from ..transpose import transpose_code
from ..values import BFLOAT, FLOAT, I16, STORED
from ..walk import Phase, phases, walk_code
from .driver import SUMS
from .tile_driver import ARGUMENTS, tile_driver_code
from .tile_products import (
    REGISTER_BYTES,
    columns_code,
    pairs_first_code,
    pairs_last_code,
    products_code,
    rows_code,
)
from .tile_schedule import TilePlan, tile_plan
from .tile_tables import tables_of

_AT_ONCE = 16
"""Maximum chunks of 32 positions for which 32 channels of g fit in the first-level cache."""


class TileWeightGrad:
    """A weight gradient, compiled and scheduled. If a sum is not finite, a primitive built by
    `other` computes everything again: a zero between rows may have met infinity or NaN."""

    rounds = True
    """Packing rounds the operands."""

    def __init__(
        self, problem: Problem, threads: int, cpu: Cpu, other: Callable[[], Primitive]
    ) -> None:
        self.problem, plan = problem, tile_plan(problem, cpu)
        self._build_other = other
        self._other: Primitive | None = None
        self._threads = useful_threads(problem.multiply_adds, threads)
        tables, codes = tables_of(plan, problem), _codes(problem, cpu)
        driver, walk = tile_driver_code(cpu), walk_code(cpu)
        finish = Phase(driver.addresses["finish"], tables["blocks"])
        listed = phases(
            self._threads,
            Phase(driver.addresses["job"], tables["jobs"], tables["sets"], by_outer=True),
            *((finish,) if plan.sets > 1 else ()),
        )
        self._run, configured = walk.addresses["walk"], configuration()
        self._held = walk, driver, *codes.values(), tables, listed, configured
        layout, size = _layout(plan, cpu)
        self._stages, set_bytes = self._threads * size, plan.units * plan.unit_bytes
        self.workspace_bytes = self._stages + (0 if plan.single else plan.sets * set_bytes)
        self.resident_bytes = CODE_BYTES + sum(table.nbytes for table in tables.values())
        self.predicted_cycles = plan.cycles / self._threads
        names = "units", "blocks", "pieces", "ranges", "phases_of_g", "taps"
        template = ARGUMENTS.block(
            phases=listed.ctypes.data, phase_count=len(listed), part=size,
            **{name: code.address for name, code in codes.items()},
            **{name: tables[name].ctypes.data for name in names}, **layout,
            **_results(plan, problem), configuration=configured.ctypes.data, element=4,
            set_count=plan.sets, set_bytes=set_bytes, tile_rows=ROWS, tile_width=ROWS,
            block_bytes=plan.block_bytes, single=int(plan.single), keys=plan.groups * plan.parts,
            phases_count=len(plan.flat.phases), chunks=plan.chunks,
            chunks_at_once=ceil(plan.chunks / ceil(plan.chunks / _AT_ONCE)),
        )  # fmt: skip
        self._blocks = Blocks(template)
        self.description = str(plan)

    def pack(self, weight: Array) -> Array:
        """Return the weight unchanged: a weight gradient packs nothing beforehand."""
        return weight

    def run(self, out: Array, a: Array, b: Any, *_: Maybe) -> None:
        """Compute into `out`; a weight gradient has no bias and no epilogue."""
        layout, before = self.problem.layout, None
        dw = laid_out("the result", out, filled=self.problem.accumulate)
        if dw is out and self.problem.accumulate:
            memory.require(out.nbytes, "a copy of the result's old values")
            before = out.copy()
        x, g = as_accessible("x", b, layout), as_accessible("grad", a, layout)
        with Workspace(self.workspace_bytes) as scratch:
            bad = self._blocks.run(
                self._run, self._threads, "bad", scratch=scratch, stages=scratch + self._stages,
                dw=address_of(dw), **self._strides("x", x), **self._strides("g", g),
            )  # fmt: skip
        if bad:
            if before is not None:
                out[...] = before
            self._other = self._other or self._build_other()
            self._other.run(out, a, b)
        elif dw is not out:
            out[...] = dw

    def close(self) -> None:
        """Close the fallback primitive, if it has been built."""
        if self._other is not None:
            self._other.close()

    def _strides(self, side: str, array: Array) -> dict[str, int]:
        """Return an operand's address and strides. `step` is the stride between positions of x, or
        between positions of a phase of g."""
        steps = strides(side, array, self.problem.layout)
        step = steps[f"{side}_position"] * (self.problem.axes[-1].stride if side == "g" else 1)
        return steps | {f"{side}_line": steps[f"{side}_channel"], f"{side}_step": step}


def _codes(problem: Problem, cpu: Cpu) -> dict[str, Code]:
    """Return the code for a class of problems, by argument name."""
    stored = STORED[problem.dtype]
    stride, finish = problem.axes[-1].stride, Finish(FLOAT, stored)
    read = I16 if stored == BFLOAT else stored  # packed as bits
    if problem.layout is DataLayout.NCX:
        x, g = pairs_first_code(read, cpu), rows_code(read, stride, cpu)
    else:
        x, g = pairs_last_code(read, cpu), columns_code(read, cpu)
    codes = {
        "x_copy": x,
        "g_copy": g,
        "transpose": transpose_code(FLOAT, FLOAT, cpu),
        "deliver": finish_code(finish._replace(accumulate=problem.accumulate), cpu),
        "add": finish_code(Finish(FLOAT, FLOAT, accumulate=True), cpu),
    }
    channels = problem.out_channels, problem.in_channels
    for rows, columns in product(*(_together(n // problem.groups) for n in channels)):
        codes[f"products{rows}{columns}"] = products_code(rows, columns, cpu)
    return codes


def _together(channels: int) -> list[int]:
    """Return how many blocks are multiplied at once: two, and one if their number is odd."""
    blocks = ceil(channels / ROWS)
    return [2] * (blocks > 1) + [1] * (blocks % 2)


def _layout(plan: TilePlan, cpu: Cpu) -> tuple[dict[str, int], int]:
    """Return the offsets of the parts of a thread's memory, and its total bytes.

    Rows in a tile of g are an odd number of cache lines apart, so that few rows share a set in the
    first-level cache.
    """
    spare = SUMS + (plan.unit_bytes if plan.single else 0)
    # One line more than the positions fill, because vectors may be stored past the last position.
    g_row = (plan.chunks * PAIRS * 2 + ROW_BYTES) | ROW_BYTES
    g_panel = spare + plan.block_bytes
    x_panel = g_panel + 2 * ROWS * g_row + ROW_BYTES  # space for a pair half before the first
    registers = x_panel + plan.part * plan.x_bytes
    layout = {
        "spare": spare, "g_panel": g_panel, "g_row": g_row, "x_panel": x_panel,
        "x_size": plan.x_bytes, "x_parities": plan.parities, "x_parity": plan.parity_bytes,
        "registers": registers,
    }  # fmt: skip
    return layout, registers + (0 if cpu.tiles else REGISTER_BYTES)


def _results(plan: TilePlan, problem: Problem) -> dict[str, int]:
    """Return the bytes between results in dw, and between sums. Sums are [row][tap][column] if taps
    are adjacent in dw, else [tap][row][column]."""
    _, by_x, by_g, *_, by_tap = weight_strides(problem, forward=True)
    item, inside = problem.dtype.itemsize, by_tap == 1
    rows, taps = (plan.taps, 1) if inside else (1, ROWS)
    return {
        "by_row": by_g * item, "by_lane": by_x * item, "by_tap": by_tap * item,
        "sums_row": rows * ROW_BYTES, "sums_tap": taps * ROW_BYTES,
        "taps_inside": int(inside), "transposed": int(by_x != 1 and plan.x > 1),
    }  # fmt: skip
