"""The candidate of the tile kernel, where operands are bfloat16 or may be rounded to it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....memory import readable
from ....problem import DataLayout
from ...base import Candidate, Eligible
from ..channels.blocks import transposed_bytes
from ..correlation import Correlation
from ..cpu import AMX, Cpu
from ..direct import TILES, direct, refused
from ..pool import useful_threads
from .forms import schedule
from .schedule import Padding, Schedule, least_tiles, phases_of, step_cycles


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """The kernel, for operands of bfloat16; on other processors than those with tiles vector code
    does the same for tests, and the model never takes it."""
    if cpu.tiles != AMX:
        return (refused(TILES, "this processor has no tile registers"),)
    plan = schedule(correlation, threads, cpu)
    # By the threads of all direct kernels, so that their number chooses none of them.
    cycles = total_cycles(correlation, plan, cpu)
    cycles /= useful_threads(correlation.multiply_adds, threads)
    most = transposed_bytes(correlation, threads)
    candidate = direct(correlation, TILES, cycles, most, threads, cpu)
    if plan.merging:
        candidate = replace(candidate, sums=f"{TILES} of neighbouring taps")
    if not plan.in_place:
        operand = plan.merging.operand(correlation) if plan.merging else correlation
        packed = _packed_positions(operand) * plan.lanes * correlation.groups * 2
        if packed > most * _MOST_PACKED:
            reason = f"it packs the operand into {readable(packed)}"
            candidate = replace(candidate, eligible=Eligible.ON_REQUEST, reason=reason)
    return (candidate,)


_MOST_PACKED = 8  # times the memory that spatial blocks may take


def total_cycles(correlation: Correlation, plan: Schedule, cpu: Cpu) -> float:
    """Cycles of all threads together: packing the operand, products, and results on their way."""
    costs, cut = cpu.costs.tiles, plan.cut
    positions = prod(correlation.result_size) * correlation.batch
    if plan.merging:
        correlation = plan.merging.operand(correlation)
    first = correlation.layout is DataLayout.NCX
    paddings = [Padding.of(line) for line in correlation.lines]
    groups = -(-least_tiles(correlation.batch, paddings) // plan.rows)
    blocks = -(-plan.blocks // plan.columns)
    taps = sum(prod(len(phase.taps) for phase in phases_of(grid)) for grid in cut.grids)
    steps = taps * plan.inputs // max(1, len(cut.grids))  # of a phase
    step = step_cycles(correlation, (plan.rows, plan.columns), steps, plan.lanes, cpu)
    tiles = groups * blocks * (taps * plan.inputs * step + len(cut.grids) * costs.tile)
    lines = costs.line * positions * plan.blocks
    packed = _packed_positions(correlation)
    number = 0.0 if plan.in_place else costs.pack_first if first else costs.pack
    pack = number * packed * plan.lanes
    leave = costs.leave_first * prod(correlation.result_shape) if first else 0.0
    return correlation.groups * (tiles + lines + pack) + leave


def _packed_positions(correlation: Correlation) -> int:
    """Positions of the packed operand, in one block of input channels."""
    paddings = map(Padding.of, correlation.lines)
    return prod(len(axis.planes) * axis.length for axis in paddings) * correlation.batch
