"""The candidate of the weight gradient's kernel."""

from __future__ import annotations

from ....problem import Problem
from ...base import Candidate
from ..cpu import Cpu
from ..pool import useful_threads
from .sides import sides_of


def candidates(problem: Problem, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """The one candidate, which promises no order of sums: blocks of data depend on the size."""
    cycles = sides_of(problem, cpu).cycles / useful_threads(problem.multiply_adds, threads)
    return (Candidate("jit", "", cycles),)
