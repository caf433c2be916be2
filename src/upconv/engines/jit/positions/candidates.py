"""The positions kernel's candidate."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....problem import DataLayout
from ...base import Candidate
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import direct, refused
from .schedule import padded_size, predicted_cycles, schedule

POSITIONS = "positions"
_MAX_ROWS = 1 << 20
_MAX_SHIFTS = 48  # along the last axis: each adds code to the tile


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the only candidate."""
    reason = refusal(correlation)
    if reason is not None:
        return (refused(POSITIONS, reason),)
    plan = schedule(correlation, threads, cpu)
    cycles = predicted_cycles(correlation, plan, cpu)
    buffers = 0 if plan.in_place else correlation.groups if plan.shared else plan.threads
    numbers = buffers * plan.buffer_positions * correlation.reduced // correlation.groups
    workspace = numbers * correlation.dtype.accumulator.itemsize
    candidate = direct(correlation, POSITIONS, cycles, workspace, threads, cpu)
    _, by_reduced, by_made, *_ = correlation.weight_strides
    if by_made > by_reduced:  # other kernels transpose such a weight
        packing = candidate.packing * cpu.costs.packing.gathered
        candidate = replace(candidate, packing=packing)
    return (candidate,)


def refusal(correlation: Correlation) -> str | None:
    """Return why the positions kernel refuses a correlation, or None."""
    if correlation.layout is not DataLayout.NCX:
        return "it needs channels-first data"
    if any(line.step > 1 for line in correlation.lines):
        return "it reads every position, but this convolution has a stride"
    shifts = len({tap.shift for phase in correlation.lines[-1].phases for tap in phase.taps})
    if shifts > _MAX_SHIFTS:
        return f"it handles at most {_MAX_SHIFTS} shifts along the last axis, not {shifts}"
    rows = correlation.batch * prod(padded_size(line) for line in correlation.lines[:-1])
    if rows > _MAX_ROWS:
        return f"it handles at most {_MAX_ROWS} rows in all images, not {rows}"
    return None
