"""The candidate of the spatially vectorised kernel."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...base import Candidate, Eligible
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import direct, refused, weight_numbers
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
    candidate = direct(correlation, POSITIONS, cycles, workspace, threads, cpu)
    if _packs_slowly(correlation):
        reason = "packing takes as long as the products: it gathers, and others transpose"
        candidate = replace(candidate, eligible=Eligible.ON_REQUEST, reason=reason)
    return (candidate,)


def _packs_slowly(correlation: Correlation) -> bool:
    """Whether a weight whose result channels lie far apart has more numbers than the data."""
    _, by_reduced, by_made, *_ = correlation.weight_strides
    data = prod(correlation.operand_shape) + prod(correlation.result_shape)
    return by_made > by_reduced and weight_numbers(correlation) > data
