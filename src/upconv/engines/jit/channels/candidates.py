"""The channels kernel's candidates: ordinary products, and dot products."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....memory import readable
from ....problem import DataLayout
from ...base import Candidate, Eligible
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import direct
from ..values import BYTES, STORED
from .blocks import image_bytes, least_bytes, transposed_bytes
from .form import read_type
from .lanes import can_dot
from .schedule import predicted_cycles, schedule

CHANNELS, DOTS = "channels", "dots"
"""The variants' names; `dots` multiplies pairs of bfloat16 numbers."""


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the candidate with ordinary products and, if possible, the one with dot products."""
    names = (CHANNELS, DOTS) if can_dot(correlation, cpu) else (CHANNELS,)
    return tuple(_candidate(correlation, name, threads, cpu) for name in names)


def _candidate(correlation: Correlation, name: str, threads: int, cpu: Cpu) -> Candidate:
    plan = schedule(correlation, threads, cpu, name == DOTS)
    cycles = predicted_cycles(correlation, plan, cpu)
    if correlation.layout is DataLayout.NXC:
        read, numbers = read_type(correlation, plan.cut, cpu), prod(correlation.operand_shape)
        casts = read != STORED[correlation.dtype]
        return direct(correlation, name, cycles, casts * numbers * BYTES[read], threads, cpu)
    element, most = BYTES[correlation.element], transposed_bytes(correlation, threads)
    least = least_bytes(correlation, element)
    workspace = max(least, min(correlation.batch * image_bytes(correlation, element), most))
    candidate = direct(correlation, name, cycles, workspace, threads, cpu)
    if least <= transposed_bytes(correlation, 1):
        return candidate
    reason = f"the smallest part that it can transpose takes {readable(least)}"
    return replace(candidate, eligible=Eligible.ON_REQUEST, reason=reason)
