"""The positions kernel's candidate."""

from __future__ import annotations

from dataclasses import replace

from ...base import Candidate
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import direct, refused
from .limits import refusal
from .schedule import predicted_cycles, schedule

POSITIONS = "positions"


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the only candidate."""
    reason = refusal(correlation)
    if reason is not None:
        return (refused(POSITIONS, reason),)
    plan = schedule(correlation, threads, cpu)
    cycles = predicted_cycles(correlation, plan, cpu)
    alone = plan.threads if len(plan.in_place) < plan.cache_blocks else 0
    buffers = correlation.groups if plan.shared else alone
    numbers = buffers * plan.buffer_positions * correlation.reduced // correlation.groups
    workspace = numbers * correlation.dtype.accumulator.itemsize
    candidate = direct(correlation, POSITIONS, cycles, workspace, threads, cpu)
    _, by_reduced, by_made, *_ = correlation.weight_strides
    if by_made > by_reduced:  # other kernels transpose such a weight
        packing = candidate.packing * cpu.costs.packing.gathered
        candidate = replace(candidate, packing=packing)
    return (candidate,)
