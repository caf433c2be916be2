"""The tile kernel's candidate, for operands that are bfloat16 or may be rounded to it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....memory import readable
from ....problem import DataLayout
from ....threads import useful_threads
from ...base import Candidate, Eligible
from ..channels.blocks import transposed_bytes
from ..correlation import Correlation
from ..cpu import AMX, Cpu
from ..direct import TILES, direct, refused
from .forms import schedule
from .schedule import Padding, Schedule, least_tiles, phases_of, step_cycles


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the tile kernel's candidate. Without tile registers the kernel runs as vector code,
    which only tests use, so it is refused."""
    if cpu.tiles != AMX:
        return (refused(TILES, "this processor has no tile registers"),)
    plan = schedule(correlation, threads, cpu)
    # All direct kernels divide by the same number, so it does not affect the choice.
    cycles = total_cycles(correlation, plan, cpu)
    cycles /= useful_threads(correlation.multiply_adds, threads)
    memory = transposed_bytes(correlation, threads)
    candidate = direct(correlation, TILES, cycles, memory, threads, cpu)
    if plan.merging:
        candidate = replace(candidate, sums=f"{TILES} of neighbouring taps")
    if not plan.in_place:
        operand = plan.merging.operand(correlation) if plan.merging else correlation
        packed = _packed_positions(operand) * plan.lanes * correlation.groups * 2
        if packed > memory * _MAX_PACKED:
            reason = f"it packs the operand into {readable(packed)}"
            candidate = replace(candidate, eligible=Eligible.ON_REQUEST, reason=reason)
    return (candidate,)


_MAX_PACKED = 8  # multiple of the bytes that transposed data may take


def total_cycles(correlation: Correlation, plan: Schedule, cpu: Cpu) -> float:
    """Return the cycles of all threads together for packing, products, and delivering results."""
    costs, grids = cpu.costs.tiles, plan.cut.grids
    positions = prod(correlation.result_size) * correlation.batch
    if plan.merging:
        correlation = plan.merging.operand(correlation)
    channels_first = correlation.layout is DataLayout.NCX
    paddings = [Padding.of(line) for line in correlation.lines]
    runs = -(-least_tiles(correlation.batch, paddings) // plan.rows)
    runs *= -(-plan.blocks // plan.columns)
    taps = sum(prod(len(phase.taps) for phase in phases_of(grid)) for grid in grids)
    steps = taps * plan.inputs // max(1, len(grids))  # of a phase
    step = step_cycles(correlation, (plan.rows, plan.columns), steps, plan.lanes, cpu)
    tiles = runs * (taps * plan.inputs * step + len(grids) * costs.tile)
    lines = costs.line * positions * plan.blocks
    pack = costs.pack_first if channels_first else costs.pack
    pack = 0.0 if plan.in_place else pack * _packed_positions(correlation) * plan.lanes
    transpose = costs.leave_first * prod(correlation.result_shape) if channels_first else 0.0
    return correlation.groups * (tiles + lines + pack) + transpose


def _packed_positions(correlation: Correlation) -> int:
    """Return the number of positions in the packed operand."""
    paddings = map(Padding.of, correlation.lines)
    return prod(len(axis.planes) * axis.length for axis in paddings) * correlation.batch
