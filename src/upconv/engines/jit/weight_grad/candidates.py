"""The weight gradient's candidates: products in float32 or float64, dot products of bfloat16 pairs,
and products on tile registers."""

from __future__ import annotations

from dataclasses import replace

from ....problem import DType, Problem
from ....threads import useful_threads
from ...base import Candidate, Eligible, ranked
from ..cpu import Cpu
from ..direct import refused
from .limits import refusal
from .sides import sides_of
from .tile_schedule import tile_plan

FLOATS, DOTS, TILES = "floats", "dots", "tiles"
_MIN_CHANNELS = 8
"""Minimum channels per group, in both operands, for tiles: they are 1.2 to 3 times as fast with 8
to 12 channels, and 0.05 to 1.8 times with fewer (Xeon with AMX, 2026-11-27)."""
_MARGIN = 1.5
"""How many times as fast tiles must be predicted to be: with data in the caches, other products
take only about half of the predicted time."""


def candidates(problem: Problem, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the candidates: ordinary products, dot products if the processor has them, and tiles,
    which are refused without tile registers. The last two are only for bfloat16.

    They promise no order of sums, because spatial blocks depend on sizes.
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
    """Whether products multiply bfloat16 numbers."""
    return problem.precision is DType.BFLOAT16


def _tiles(problem: Problem, threads: int, cpu: Cpu) -> Candidate:
    reason = refusal(problem) if cpu.tiles else "this processor has no tile registers"
    if reason is not None:
        return refused(TILES, reason)
    candidate = Candidate("jit", TILES, tile_plan(problem, cpu).cycles / threads, margin=_MARGIN)
    if min(problem.in_channels, problem.out_channels) // problem.groups < _MIN_CHANNELS:
        reason = f"fewer than {_MIN_CHANNELS} channels leave tiles empty"
        return replace(candidate, eligible=Eligible.ON_REQUEST, reason=reason)
    return candidate


def chosen(problem: Problem, variant: str, cpu: Cpu) -> str:
    """Return the variant to build. The model chooses for "", and if tiles cannot compute the
    problem. Without tile registers, vector code emulates them."""
    if variant == TILES and (refusal(problem) or not is_bfloat16(problem)):
        variant = ""
    return variant or ranked(candidates(problem, 1, cpu))[0].variant
