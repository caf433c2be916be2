"""The candidate of the spatially vectorised kernel."""

from __future__ import annotations

from ...base import Candidate
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import direct, refused
from .schedule import predicted_cycles, refusal, schedule

POSITIONS = "positions"


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the one candidate."""
    reason = refusal(correlation)
    if reason is not None:
        return (refused(POSITIONS, reason),)
    plan = schedule(correlation, threads, cpu)
    cycles = predicted_cycles(correlation, plan, cpu)
    buffers = 0 if plan.in_place else correlation.groups if plan.shared else plan.threads
    numbers = buffers * plan.buffer_positions * correlation.reduced // correlation.groups
    workspace = numbers * correlation.dtype.accumulator.itemsize
    return (direct(correlation, POSITIONS, cycles, workspace, threads, cpu),)
