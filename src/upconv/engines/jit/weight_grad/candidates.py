"""The candidates of the weight gradient's kernel: products in float32 or float64, dot products of
pairs of bfloat16, and products of tile registers."""

from __future__ import annotations

from dataclasses import replace

from ....problem import DType, Problem
from ...base import Candidate, Eligible, ranked
from ..cpu import Cpu
from ..direct import refused
from ..pool import useful_threads
from .sides import sides_of
from .tile_schedule import refusal, tile_plan

FLOATS, DOTS, TILES = "floats", "dots", "tiles"
_FEWEST = 8
"""Channels of both operands from which tiles are faster: 1.2 to 3 times with 8 to 12, and 0.05 to
1.8 times with fewer (Xeon with AMX, 2026-11-27)."""
_MARGIN = 1.5
"""The factor by which tiles must seem faster: with data in the caches, other products take about
half of the predicted time."""


def candidates(problem: Problem, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return plain products and, where the processor has instructions for them, dot products and
    tiles.

    They have no common order of sums, because blocks of data depend on the size.
    """
    threads, bfloat16 = useful_threads(problem.multiply_adds, threads), is_bfloat16(problem)
    dots = (DOTS,) if cpu.dots and bfloat16 else ()
    names = (FLOATS, *dots) if dots or (cpu.tiles and bfloat16) else ("",)
    listed = [
        Candidate("jit", name, sides_of(problem, cpu, name == DOTS).cycles / threads)
        for name in names
    ]
    return (*listed, *([_tiles(problem, threads, cpu)] if bfloat16 else []))


def is_bfloat16(problem: Problem) -> bool:
    """Whether products are of bfloat16."""
    return problem.precision is DType.BFLOAT16


def _tiles(problem: Problem, threads: int, cpu: Cpu) -> Candidate:
    reason = refusal(problem) if cpu.tiles else "this processor has no tile registers"
    if reason is not None:
        return refused(TILES, reason)
    candidate = Candidate("jit", TILES, tile_plan(problem, cpu).cycles / threads, margin=_MARGIN)
    if min(problem.in_channels, problem.out_channels) // problem.groups < _FEWEST:
        reason = f"fewer than {_FEWEST} channels leave tiles empty"
        return replace(candidate, eligible=Eligible.ON_REQUEST, reason=reason)
    return candidate


def chosen(problem: Problem, variant: str, cpu: Cpu) -> str:
    """The variant to build; the model chooses for "". Vector code computes tiles on a processor
    without them."""
    if variant == TILES and (refusal(problem) or not is_bfloat16(problem)):
        variant = ""
    return variant or ranked(candidates(problem, 1, cpu))[0].variant
