"""The candidates of the weight gradient's kernel: products in float32 or float64, and dot products
of pairs of bfloat16."""

from __future__ import annotations

from ....problem import DType, Problem
from ...base import Candidate, ranked
from ..cpu import Cpu
from ..pool import useful_threads
from .sides import sides_of

FLOATS, DOTS = "floats", "dots"


def candidates(problem: Problem, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Products as they are, and where the processor has instructions for them dot products.

    They promise no order of sums: blocks of data depend on the size.
    """
    threads = useful_threads(problem.multiply_adds, threads)
    names = (FLOATS, DOTS) if problem.precision is DType.BFLOAT16 and cpu.dots else ("",)
    return tuple(
        Candidate("jit", name, sides_of(problem, cpu, name == DOTS).cycles / threads)
        for name in names
    )


def is_dots(problem: Problem, variant: str, cpu: Cpu) -> bool:
    """Whether a variant multiplies pairs; the model chooses for ""."""
    return (variant or ranked(candidates(problem, 1, cpu))[0].variant) == DOTS
